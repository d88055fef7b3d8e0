"""Engine: the engine's services put together, and the verbs of a topic by name, for every door.

`Engine.__init__` is the one place where the services meet: each gets what it needs as an argument, so the order of the
lines is the order of dependence. Each verb answers with a ticket or raises a refusal. It only finds the topic and hands
on to the service that owns the verb; a command for a name that is held waits its turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from topics.clock import EngineClock
from topics.config import Settings
from topics.core.reading.walk import ReadRequest
from topics.core.state import State
from topics.core.topic import TopicLog
from topics.engine.compaction import Compaction
from topics.engine.context import Context, FileRequests, Pressure
from topics.engine.deletes import Deletes
from topics.engine.delivery.admission import Admission, AdmittedTicket
from topics.engine.floor_log import FloorLog
from topics.engine.lifecycle import CreatingWrites, Dropped, Lifecycle
from topics.engine.queues.entering_writes import EnteringWrites
from topics.engine.queues.queues import Queues
from topics.engine.reading.cursor_commands import CursorCommands
from topics.engine.reading.latest import LatestReads
from topics.engine.reading.queries import Queries
from topics.engine.reading.reads import ReadDone, Reads
from topics.engine.reading.single_reads import SingleReads
from topics.engine.reading.starts import Starts
from topics.engine.routers.checkpoints import RouterCheckpoints
from topics.engine.routers.forwarding import Forwarding
from topics.engine.routers.routers import Routers
from topics.engine.schedules import Schedules
from topics.engine.ticket import Ticket
from topics.engine.writing.coalesced_write import AppendWaiter
from topics.engine.writing.commit import Commit
from topics.engine.writing.quota import Quota
from topics.engine.writing.writes import Writes
from topics.errors import InvalidRequest, TopicNotFound, WalFull
from topics.model.config import DEFAULT_CONFIG, TopicConfig
from topics.model.names import TagMatch
from topics.model.record import WriteBatch
from topics.model.results import Appended, DeleteResult, PutTopicResult, TopicState, TopicSummary

T = TypeVar("T")


class Engine:
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
        self.context = context = Context(
            state=state,
            commit=commit,
            clock=clock,
            settings=settings,
            shards=shards,
            files=files,
            chance=chance,
            wake_at=wake_at,
        )
        self.admission = Admission(context)
        self._ephemeral_waits: dict[int, Ticket[Any]] = {}  # by topic id: the last command that waits for a place
        self.floor_log = floor_log = FloorLog(context)
        self.writes = Writes(context, floor_log)
        self._quota = Quota(context, floor_log) if settings.max_total_bytes else None
        self.forwarding = forwarding = Forwarding(context, floor_log, self.writes, self._quota)
        self.router_checkpoints = RouterCheckpoints(context, forwarding)
        self.lifecycle = Lifecycle(context, floor_log, forwarding, self.router_checkpoints)
        self.creating = CreatingWrites(context, self.lifecycle, self.writes)
        self.routers = Routers(context, self.lifecycle, forwarding, self.router_checkpoints)
        self.deletes = Deletes(context, floor_log, forwarding)
        self.reads = Reads(context, floor_log, forwarding)
        EnteringWrites(context, self.writes)
        self.queues = Queues(
            context, floor_log, forwarding, self.lifecycle, self.deletes, self.writes, self._write_letter
        )
        self.queries = Queries(context, floor_log, forwarding, self.queues)
        self.starts = Starts(context, floor_log)
        self.single_reads = SingleReads(context, floor_log, forwarding, self.reads)
        self.cursors = CursorCommands(context, floor_log, self.starts)
        self.latest = LatestReads(context, floor_log, forwarding)
        self.compaction = Compaction(context, floor_log, self.deletes)
        self.schedules = Schedules(context, self.lifecycle, self.writes)

    def attach_delivery(self, delivery: Pressure) -> None:
        """From now on writes and routers follow the pressure that the delivery loop measures. The loop comes after the
        engine because it reads through it."""
        self.context.pressure = delivery

    def turn(self) -> None:
        """The end of a turn, before its submissions are written: routers and work streams of dirty topics act."""
        if self.forwarding.dirty:
            self.forwarding.turn()
        if self.queues.waker.dirty:
            self.queues.waker.turn()

    def tick(self) -> None:
        """Do what time asks for; called about every 50 ms, and when `context.wake_at` asked for it."""
        self.forwarding.tick()
        self.queues.tick()
        self.schedules.tick()
        self.floor_log.tick()
        self.admission.tick()

    # --- admission ------------------------------------------------------------------------------------------------

    def admit(self, name: str, command: Callable[[], Ticket[T]], *, may_refuse: bool = True) -> Ticket[T]:
        """Run a command that takes a place in the log's queue, now or when there is one
        (`docs/spec/delivery.md#sec-9`)."""
        topic = self.state.topics.get(name)
        if topic is not None and topic.config.is_ephemeral:
            return self._admit_ephemeral(topic, command, may_refuse=may_refuse)
        group = self.context.group_of(self.state.next_topic_id if topic is None else topic.id)
        return self.admission.admit(group, command, may_refuse=may_refuse)

    def _admit_ephemeral(self, topic: TopicLog, command: Callable[[], Ticket[T]], *, may_refuse: bool) -> Ticket[T]:
        """A write that needs no log frame needs no place in the queue, unless a ceiling has to be raised for it. Then
        it waits for a place, and the topic's later commands wait after it."""
        is_first = topic.id not in self._ephemeral_waits
        if is_first:
            try:
                return command()
            except WalFull:
                pass
        group = self.context.group_of(topic.id)
        ticket = self.admission.admit(group, command, may_refuse=may_refuse and is_first)
        if isinstance(ticket, AdmittedTicket):
            self._ephemeral_waits[topic.id] = ticket
            ticket.then(lambda done: self._ephemeral_wait_over(topic.id, done))
        return ticket

    def _ephemeral_wait_over(self, topic_id: int, done: Ticket[Any]) -> None:
        if self._ephemeral_waits.get(topic_id) is done:
            del self._ephemeral_waits[topic_id]

    # --- writes ---------------------------------------------------------------------------------------------------

    def write(
        self,
        name: str,
        batch: WriteBatch,
        *,
        create: bool | None = None,
        config: TopicConfig | None = None,
        may_refuse: bool = True,
    ) -> Ticket[Appended]:
        """Append; an absent topic is created if the write may do so. `may_refuse` is off for `disable_backpressure`."""
        if not self.admission.waiting and not self.context.commit.some_full:  # the common case
            return self._write_within(name, batch, create, config)
        return self.admit(name, lambda: self._write_within(name, batch, create, config), may_refuse=may_refuse)

    def join(self, name: str, records: WriteBatch, waiter: AppendWaiter, *, runs: list[int]) -> bool:
        """Append writes, `runs` of records, in one submission with others of their turn. False if some of them may not
        be coalesced; then nothing has happened."""
        topic = self._open_topic(name)
        return topic is not None and self.writes.join(topic, records, waiter, runs)

    def write_now(self, name: str, batch: WriteBatch) -> Ticket[Appended] | None:
        """Append a write with a key. None, and nothing has happened, if it would have to wait before it is decided."""
        topic = self._open_topic(name)
        if topic is None or self._quota is not None or batch.key in topic.idem.staged:
            return None
        return self.writes.append(topic, batch)

    def _open_topic(self, name: str) -> TopicLog | None:
        """A topic that takes a write at once."""
        if self.admission.waiting or self.context.commit.some_full or name in self.context.name_locks.held:
            return None
        return self.state.topics.get(name)

    def _write_letter(self, name: str, batch: WriteBatch, config: TopicConfig) -> Ticket[Appended]:
        return self.write(name, batch, create=True, config=config, may_refuse=False)

    def _write_within(
        self, name: str, batch: WriteBatch, create: bool | None, config: TopicConfig | None
    ) -> Ticket[Appended]:
        if self._quota is None:
            return self._write(name, batch, create, config)
        return self._quota.within(name, lambda: self._write(name, batch, create, config))

    def _write(self, name: str, batch: WriteBatch, create: bool | None, config: TopicConfig | None) -> Ticket[Appended]:
        if name in self.context.name_locks.held:
            return self.lifecycle.when_free(name, lambda: self._write(name, batch, create, config))
        topic = self.state.topics.get(name)
        if topic is not None:
            return self.writes.append(topic, batch)
        may_create = create if create is not None else (config is None or config.auto_create)
        if not may_create:
            raise TopicNotFound(name)
        return self.creating.append(name, batch, config or DEFAULT_CONFIG)

    # --- lifecycle ------------------------------------------------------------------------------------------------

    def put_topic(self, name: str, config: TopicConfig) -> Ticket[PutTopicResult]:
        return self.admit(name, lambda: self.lifecycle.put(name, config))

    def drop_topic(self, name: str, *, if_empty: bool = False) -> Ticket[Dropped]:
        return self.admit(name, lambda: self.lifecycle.drop(name, if_empty=if_empty))

    # --- observation and deletion ---------------------------------------------------------------------------------

    def read(self, name: str, request: ReadRequest) -> Ticket[ReadDone]:
        """A topic whose name is held can be read; one that is being deleted is gone when that is applied."""
        topic = self.state.topics.get(name)
        if topic is None:
            raise TopicNotFound(name)
        return self.reads.read(topic, request)

    def topic_state(self, name: str, *, touch: bool = True) -> Ticket[TopicState]:
        return self.queries.state(self.state.topic(name), touch=touch)

    def page_of_topics(
        self,
        *,
        prefix: str = "",
        after: str | None = None,
        page_size: int = 100,
        touch: bool = False,
        visible: Callable[[str], bool] = lambda _: True,
    ) -> Ticket[tuple[list[TopicSummary], str | None]]:
        return self.queries.page(prefix=prefix, after=after, page_size=page_size, touch=touch, visible=visible)

    def delete_records(
        self, name: str, *, before_seq: int | None = None, match: TagMatch | None = None
    ) -> Ticket[DeleteResult]:
        if before_seq is None and match is None:
            raise InvalidRequest("a delete needs before_seq, match or both")
        return self.admit(name, lambda: self._delete_records(name, before_seq, match))

    def _delete_records(self, name: str, before_seq: int | None, match: TagMatch | None) -> Ticket[DeleteResult]:
        return self.lifecycle.when_free(
            name, lambda: self.deletes.delete(self.state.topic(name), before_seq=before_seq, match=match)
        )
