"""Context: what the engine's services share: state, commit, clock, names on hold, and the ways out.

Always holds: everything here belongs to the owner's thread. `jobs` is filled in by the runtime; the engine asks for
work by value and never learns who does it."""

from __future__ import annotations

from collections.abc import Callable

from topics.clock import EngineClock
from topics.config import Settings
from topics.core.effects import Effect
from topics.core.state import State
from topics.core.topic import TopicState
from topics.engine.ceiling import Ceilings
from topics.engine.commit import Commit
from topics.engine.jobs import Jobs
from topics.engine.parking import Parking
from topics.engine.ticket import Ticket, callback_failed, guarded
from topics.engine.witness import Witness
from topics.errors import TopicNotFound
from topics.formats.names import shard_of
from topics.model.config import TopicConfig

Listener = Callable[[TopicState], None]


class Context:
    def __init__(
        self,
        *,
        state: State,
        commit: Commit,
        clock: EngineClock,
        settings: Settings,
        shards: int,
        jobs: Jobs,
        chance: Callable[[], int],
    ) -> None:
        self.state = state
        self.commit = commit
        self.clock = clock
        self.chance = chance
        """Random bits, for epochs."""
        self.settings = settings
        self.shards = shards
        self.jobs = jobs
        self.parking = Parking()
        self._groups: dict[int, int] = {}  # a hash per write is too dear
        self.witness = Witness(state)
        self.ceilings = Ceilings(block=settings.seq_reserve)
        self.fed = state.fed
        """Ids of topics that a router feeds: they keep a ceiling in every class."""
        self.creating = 0
        """Topics being created; they count against the cap."""
        self.changing: dict[int, Ticket[None]] = {}
        """By topic id, while a config is in the log and not applied yet; resolved when that is over."""
        self.on_published: list[Listener] = []
        """Told after records of a topic became visible: delivery, long polls, routers, queues."""
        self.on_removed: list[Callable[[TopicState, Effect], None]] = []
        """Told after records of a topic died, whatever the cause."""
        self.on_config: list[Callable[[TopicState, TopicConfig], None]] = []
        """Told after a config took effect, with the one it replaced."""
        self.on_deleted: list[Listener] = []
        """Told after a topic instance is gone."""
        self.on_barrier: list[Callable[[int], None]] = []
        """Told with a group's index when everything in front of a checkpoint's position is applied, and no more."""
        self.wake_at: Callable[[int], None] = lambda _: None
        """Ask for a tick at this time of the engine's clock; without a runtime that can, the next tick has to do."""

    def group_of(self, topic_id: int) -> int:
        group = self._groups.get(topic_id)
        if group is None:
            group = self._groups[topic_id] = shard_of(topic_id, self.shards)
        return group

    def check_exists(self, topic: TopicState) -> None:
        """After a wait: the instance a command began with may be gone."""
        if self.state.by_id.get(topic.id) is not topic:
            raise TopicNotFound(topic.name)

    def published(self, topic: TopicState) -> None:
        for listener in self.on_published:
            try:
                listener(topic)
            except Exception as error:
                callback_failed(error)

    def removed(self, topic: TopicState, effect: Effect, *, flag_after: Ticket[None] | None = None) -> None:
        """Records died: the flags on disk are set by whoever owns the files, everyone else is told."""
        if flag_after is None:
            guarded(self.jobs.flag_deleted, topic, effect)
        else:
            flag_after.then(lambda done: self.jobs.flag_deleted(topic, effect) if done.error is None else None)
        for listener in self.on_removed:
            guarded(listener, topic, effect)

    def deleted(self, topic: TopicState) -> None:
        self.ceilings.forget(topic.id)
        self._groups.pop(topic.id, None)
        self.jobs.topic_removed(topic)
        for listener in self.on_deleted:
            guarded(listener, topic)
