"""NameLocks: names held exclusively by a lifecycle command, and the commands that wait for them.

Creating, reconfiguring or deleting a topic or router holds the names it touches from its decision until it is applied
or failed. Whatever arrives for such a name meanwhile waits in order of arrival, so core never meets a topic that is
half there. Always holds: a name that is not held has no waiters.

Ceilings: the durable seq reservations of classes that ack before syncing (`docs/spec/storage.md#sec-5-2`).

No seq above a topic's synced ceiling is acked or visible, so after any crash the next seq lies above everything anyone
has seen. Always holds: `topic.ceiling` (applied, hence synced) <= what is staged here. A busy topic takes larger
blocks, so that steady writing costs a few background syncs per second at most.

Context: what the engine's services share: state, commit, clock, names on hold, and the ways out.

Always holds: everything here belongs to the owner's thread. `jobs` is filled in by the runtime; the engine asks for
work by value and never learns who does it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from topics.clock import EngineClock
from topics.config import Settings
from topics.core.effects import Effect
from topics.core.state import State
from topics.core.topic import TopicLog
from topics.engine.file_requests import FileRequests
from topics.engine.routers.evidence import RouterEvidence
from topics.engine.ticket import Ticket, callback_failed, guarded
from topics.engine.writing.commit import Commit
from topics.errors import TopicNotFound
from topics.formats.file_names import shard_of
from topics.model.config import TopicConfig
from topics.model.ops import HeadMark


class NameLocks:
    def __init__(self) -> None:
        self._held: dict[str, deque[Callable[[], None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def is_held(self, name: str) -> bool:
        return name in self._held

    def first_held(self, names: Iterable[str]) -> str | None:
        return next((name for name in names if name in self._held), None)

    def hold(self, names: Iterable[str]) -> None:
        for name in names:
            assert name not in self._held, "a name was held twice"
            self._held[name] = deque()

    def wait(self, name: str, resume: Callable[[], None]) -> None:
        """Call `resume` when the name is free; it looks again, for someone may have taken the name before it."""
        self._held[name].append(resume)

    def release(self, names: Iterable[str]) -> None:
        """Let go of all names first, then let their waiters have another look, in order of arrival."""
        queues = [(name, self._held.pop(name)) for name in names]
        for name, queue in queues:
            while queue:
                if name in self._held:  # taken again by one of them: the rest keeps its order in front of newcomers
                    self._held[name].extendleft(reversed(queue))
                    break
                guarded(queue.popleft())


BLOCK_MAX = 65_536
BUSY_MS = 1_000
"""A topic that needs a new block within this time of the last one doubles its block; a slower one goes back."""


class Ceilings:
    def __init__(self, *, block: int) -> None:
        self._block = block
        self._staged: dict[int, int] = {}
        self._raised_ms: dict[int, int] = {}

    def staged(self, topic: TopicLog) -> int:
        """The highest seq that a ceiling covers once everything submitted is synced."""
        return max(topic.ceiling, self._staged.get(topic.id, 0))

    def raise_over(self, topic: TopicLog, last_seq: int, now: int) -> HeadMark | None:
        """The mark to be synced before `last_seq` may be seen; None if one on its way covers it already."""
        if last_seq <= self.staged(topic):
            return None
        return self._mark(topic, last_seq, now)

    def refill(self, topic: TopicLog, now: int) -> HeadMark | None:
        """The mark to sync in the background when less than half a block is left; None if there is enough."""
        if self.staged(topic) - topic.reserved_head >= topic.block // 2:
            return None
        return self._mark(topic, topic.reserved_head, now)

    def release(self, topic: TopicLog) -> None:
        """Whatever was staged for this topic is applied or has failed as far as `topic.ceiling` says."""
        if self._staged.get(topic.id, 0) <= topic.ceiling:
            self._staged.pop(topic.id, None)

    def forget(self, topic_id: int) -> None:
        self._staged.pop(topic_id, None)
        self._raised_ms.pop(topic_id, None)

    def _mark(self, topic: TopicLog, last_seq: int, now: int) -> HeadMark:
        busy = now - self._raised_ms.get(topic.id, -BUSY_MS) < BUSY_MS
        topic.block = min(topic.block * 2, BLOCK_MAX) if busy else self._block
        self._raised_ms[topic.id] = now
        ceiling = last_seq + topic.block
        self._staged[topic.id] = ceiling
        return HeadMark(topic_id=topic.id, ceiling=ceiling)


Listener = Callable[[TopicLog], None]


class Context:
    def __init__(
        self,
        *,
        state: State,
        commit: Commit,
        clock: EngineClock,
        settings: Settings,
        shards: int,
        jobs: FileRequests,
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
        self.parking = NameLocks()
        self._groups: dict[int, int] = {}  # a hash per write is too dear
        self.witness = RouterEvidence(state)
        self.ceilings = Ceilings(block=settings.seq_reserve)
        self.fed = state.fed
        """Ids of topics that a router feeds: they keep a ceiling in every class."""
        self.creating = 0
        """Topics being created; they count against the cap."""
        self.changing: dict[int, Ticket[None]] = {}
        """By topic id, while a config is in the log and not applied yet; resolved when that is over."""
        self.on_published: list[Listener] = []
        """Told after records of a topic became visible: delivery, long polls, routers, queues."""
        self.on_removed: list[Callable[[TopicLog, Effect], None]] = []
        """Told after records of a topic died, whatever the cause."""
        self.on_config: list[Callable[[TopicLog, TopicConfig], None]] = []
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

    def check_exists(self, topic: TopicLog) -> None:
        """After a wait: the instance a command began with may be gone."""
        if self.state.by_id.get(topic.id) is not topic:
            raise TopicNotFound(topic.name)

    def published(self, topic: TopicLog) -> None:
        for listener in self.on_published:
            try:
                listener(topic)
            except Exception as error:
                callback_failed(error)

    def removed(self, topic: TopicLog, effect: Effect, *, flag_after: Ticket[None] | None = None) -> None:
        """Records died: the flags on disk are set by whoever owns the files, everyone else is told."""
        if flag_after is None:
            guarded(self.jobs.flag_deleted, topic, effect)
        else:
            flag_after.then(lambda done: self.jobs.flag_deleted(topic, effect) if done.error is None else None)
        for listener in self.on_removed:
            guarded(listener, topic, effect)

    def deleted(self, topic: TopicLog) -> None:
        self.ceilings.forget(topic.id)
        self._groups.pop(topic.id, None)
        self.jobs.topic_removed(topic)
        for listener in self.on_deleted:
            guarded(listener, topic)
