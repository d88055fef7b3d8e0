"""Context: what the engine's services share: state, commit, clock, name locks, ceilings, and the ways out.

    NameLocks     names held by a lifecycle command, and the commands that wait for them
    FileRequests  the file work that the engine asks for; implemented by `runtime.file_work`
    Pressure      how short of time the process is; implemented by `delivery.delivery`
    Context       all of these, and the listeners that are told what happened to a topic

Always holds: everything here belongs to the owner's thread. The engine and the storage layer do not know each other:
`FileRequests` is the only thing between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Protocol, TypeVar

from topics.clock import EngineClock
from topics.config import Settings
from topics.core.effects import Effect
from topics.core.slots.extent import Extent
from topics.core.state import State
from topics.core.topic import TopicLog
from topics.engine.routers.evidence import RouterEvidence
from topics.engine.ticket import Ticket, guarded
from topics.engine.writing.ceilings import Ceilings
from topics.engine.writing.commit import Commit
from topics.engine.writing.encode import submission
from topics.errors import TopicNotFound
from topics.formats.file_names import shard_of
from topics.model.config import TopicConfig
from topics.model.ops import Op
from topics.model.run import RecordRun
from topics.model.submission import Submission

T = TypeVar("T")

NO_TOPIC = -1


class FetchedRecords:
    """What a fetch brought: the records up to `seq_next`, and how many cold segments had to be asked.

    `run` is None when the records had moved to another file meanwhile: locate them again."""

    __slots__ = ("cold_segments", "run", "seq_next")

    def __init__(self, run: RecordRun | None, *, seq_next: int = 0, cold_segments: int = 0) -> None:
        self.run = run
        self.seq_next = seq_next
        self.cold_segments = cold_segments


class FileRequests(Protocol):
    """File work that the engine asks for by value; it never learns which thread does it."""

    def fetch(self, topic: TopicLog, extent: Extent) -> Ticket[FetchedRecords]:
        """Read stored records that are not in memory."""

    def later(self) -> Ticket[None]:
        """Resolves in a later turn: a long search lets others in."""

    def flag_deleted(self, topic: TopicLog, effect: Effect) -> None:
        """Set the delete flags of records that lie in segments; issued before the delete call returns."""

    def topic_removed(self, topic: TopicLog) -> None:
        """The topic's directory is no longer needed."""

    def checkpoint_soon(self) -> None:
        """Something waits for a checkpoint."""

    def checkpoint(self) -> Ticket[None]:
        """Checkpoint now: when the ticket resolves, everything published before is in segments, marked and synced."""


class RecordWalk(Protocol):
    """A search of `core.reading` that needs stored records: fetch its `need`, then feed it."""

    def feed(self, run: RecordRun, *, seq_next: int | None = None) -> None: ...

    def replan(self) -> None: ...


class Pressure(Protocol):
    """How short of time the process is, and what waits because of it."""

    @property
    def pressure(self) -> float:
        """From 0 to 1, as of the last sample."""

    def defer_routing(self, source: TopicLog, routing: Callable[[], None]) -> bool:
        """Run a source's router work later, because pressure defers it (`docs/spec/delivery.md#sec-8`). False: it is
        not taken over, run it now."""


class NoPressure:
    """For an engine without a delivery loop."""

    pressure = 0.0

    def defer_routing(self, source: TopicLog, routing: Callable[[], None]) -> bool:
        return False


class NameLocks:
    """Names held exclusively by a lifecycle command, and the commands that wait for them.

    Creating, reconfiguring or deleting a topic or router holds the names it touches from its decision until it is
    applied or failed. Whatever arrives for such a name meanwhile waits in order of arrival, so core never meets a topic
    that is half there. Always holds: a name that is not held has no waiters."""

    def __init__(self) -> None:
        self.held: dict[str, deque[Callable[[], None]]] = {}
        """By name: the commands that wait for it."""

    def first_held(self, names: Iterable[str]) -> str | None:
        return next((name for name in names if name in self.held), None)

    def hold(self, names: Iterable[str]) -> None:
        for name in names:
            assert name not in self.held, "a name was held twice"
            self.held[name] = deque()

    def wait(self, name: str, resume: Callable[[], None]) -> None:
        """Call `resume` when the name is free. It must check again: another waiter may have taken the name first."""
        self.held[name].append(resume)

    def release(self, names: Iterable[str]) -> None:
        """Free all names first, then resume their waiters in order of arrival."""
        queues = [(name, self.held.pop(name)) for name in names]
        for name, queue in queues:
            while queue:
                if name in self.held:  # taken again by one of them: the rest keeps its order in front of newcomers
                    self.held[name].extendleft(reversed(queue))
                    break
                guarded(queue.popleft())


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
        files: FileRequests,
        chance: Callable[[], int],
        wake_at: Callable[[int], None],
    ) -> None:
        self.state = state
        self.commit = commit
        self.clock = clock
        self.chance = chance
        """Random bits, for epochs."""
        self.settings = settings
        self.shards = shards
        self.files = files
        self.wake_at = wake_at
        """Ask for a tick at this time of the engine's clock."""
        self.pressure: Pressure = NoPressure()
        """Of the delivery loop, once `Engine.attach_delivery` has it."""
        self.name_locks = NameLocks()
        self._groups: dict[int, int] = {}  # a hash per write is too dear
        self.evidence = RouterEvidence(state)
        self.ceilings = Ceilings(state, commit, block=settings.seq_reserve)
        self.fed = state.fed
        """Ids of topics that a router feeds: they keep a ceiling in every class."""
        self.creating = 0
        """Topics being created; they count against the cap."""
        self.changing: dict[int, Ticket[None]] = {}
        """By topic id, while a config is in the log and not applied yet; resolved when that is over."""
        self.on_published: list[tuple[Container[int], Listener]] = []
        """Told after records of a topic became visible, each for the topics whose ids it holds: delivery and long
        polls, routers, queues."""
        self.changed_ids: set[int] = set(state.by_id)
        """Topics that the next checkpoint looks at: records came or went, or it is the first since the start, when
        everything may lie in the log only."""
        self.on_removed: list[Callable[[TopicLog, Effect], None]] = []
        """Told after records of a topic died, whatever the cause."""
        self.on_config: list[Callable[[TopicLog, TopicConfig], None]] = []
        """Told after a config took effect, with the one it replaced."""
        self.on_deleted: list[Listener] = []
        """Told after a topic instance is gone."""
        self.on_barrier: list[Callable[[int], None]] = []
        """Told with a group's index when everything before a checkpoint's log position is applied, and nothing after
        it."""

    def group_of(self, topic_id: int) -> int:
        group = self._groups.get(topic_id)
        if group is None:
            group = self._groups[topic_id] = shard_of(topic_id, self.shards)
        return group

    def log(
        self,
        topic_id: int,
        ops: Sequence[Op],
        *,
        finish: Callable[[Submission], T],
        durable: bool = True,
        client_frames: int = 0,
        barrier: bool = True,
        internal: bool = False,
        reclaims: bool = False,
        apart: bool = False,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> Ticket[T]:
        """Submit control frames to the topic's log group; topic 0 is the routers'. The flags are those of
        `Commit.submit`. Without ops it is an empty submission, which waits for those before it. `apart`: the ops
        commute with all others, so it waits for none that is not synced, and ends no submission that grows."""
        sub = submission(
            ops,
            None,
            topic_id=NO_TOPIC if apart else topic_id,
            ts=self.clock.now_ms(),
            durable=durable,
            client_frames=client_frames,
        )
        return self.commit.submit(
            self.group_of(topic_id),
            sub,
            finish=finish,
            on_failure=on_failure,
            barrier=barrier,
            internal=internal,
            reclaims=reclaims,
        )

    def exists(self, topic: TopicLog) -> bool:
        return self.state.by_id.get(topic.id) is topic

    def check_exists(self, topic: TopicLog) -> None:
        """After a wait: the instance a command began with may be gone."""
        if not self.exists(topic):
            raise TopicNotFound(topic.name)

    def feed(self, topic: TopicLog, walk: RecordWalk, fetched: FetchedRecords) -> None:
        """Give a walk what was fetched for it; if the records have moved meanwhile, it locates them again."""
        if fetched.run is None:
            self.check_exists(topic)  # nobody updates the locations of a dropped topic
            walk.replan()
        else:
            walk.feed(fetched.run, seq_next=fetched.seq_next)

    def published(self, topic: TopicLog) -> None:
        topic_id = topic.id
        self.changed_ids.add(topic_id)
        for ids, listener in self.on_published:
            if topic_id in ids:
                guarded(listener, topic)

    def removed(self, topic: TopicLog, effect: Effect, *, flag_after: Ticket[None] | None = None) -> None:
        """Records died: the flags on disk are set by whoever owns the files, everyone else is told."""
        if flag_after is None:
            guarded(self.files.flag_deleted, topic, effect)
        else:
            flag_after.then(lambda done: self.files.flag_deleted(topic, effect) if done.error is None else None)
        self.changed_ids.add(topic.id)
        for listener in self.on_removed:
            guarded(listener, topic, effect)

    def deleted(self, topic: TopicLog) -> None:
        self.ceilings.forget(topic.id)
        self._groups.pop(topic.id, None)
        self.files.topic_removed(topic)
        for listener in self.on_deleted:
            guarded(listener, topic)
