"""Engine: the verbs of a topic by name, for every door; each answers with a ticket or raises a refusal.

It only finds topics and hands on to the service that owns the verb. Names on hold make a command wait its turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from topics.clock import EngineClock
from topics.config import Settings
from topics.core.reading.walk import ReadRequest
from topics.core.state import State
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.deletes import Deleted, Deletes
from topics.engine.delivery.admission import Admission, AdmittedTicket
from topics.engine.file_requests import FileRequests
from topics.engine.floor_log import FloorLog
from topics.engine.lifecycle import CreatingWrites, Dropped, Lifecycle, Put
from topics.engine.queues.queues import Queues
from topics.engine.reading.queries import Queries
from topics.engine.reading.reads import ReadDone, Reads
from topics.engine.routers.forwarding import Forwarding
from topics.engine.routers.routers import Routers
from topics.engine.ticket import Ticket
from topics.engine.writing.coalesced import AppendWaiter
from topics.engine.writing.commit import Commit
from topics.engine.writing.quota import Quota
from topics.engine.writing.writes import Writes
from topics.errors import InvalidRequest, TopicNotFound, WalFull
from topics.model import results
from topics.model.config import DEFAULT_CONFIG, TopicConfig
from topics.model.names import TagMatch
from topics.model.record import WriteBatch
from topics.model.results import Appended

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
        jobs: FileRequests,
        chance: Callable[[], int],
    ) -> None:
        self.context = Context(
            state=state, commit=commit, clock=clock, settings=settings, shards=shards, jobs=jobs, chance=chance
        )
        self.state = state
        self.admission = Admission(commit, now_ms=lambda: clock.monotonic() * 1000)
        self._ephemeral_waits: dict[int, Ticket[Any]] = {}  # by topic id: the last command that waits for a place
        self.floor_log = FloorLog(self.context)
        self.writes = Writes(self.context, self.floor_log)
        self._quota = Quota(self.context, self.floor_log) if settings.max_total_bytes else None
        self.lifecycle = Lifecycle(self.context, self.floor_log)
        self.creating = CreatingWrites(self.context, self.lifecycle, self.writes)
        self.deletes = Deletes(self.context, self.floor_log)
        self.reads = Reads(self.context, self.floor_log)
        self.queries = Queries(self.context, self.floor_log)
        self.queues = Queues(
            self.context,
            self.floor_log,
            self.lifecycle,
            self.deletes,
            append=lambda name, batch: self.write(name, batch, create=True, may_refuse=False),
        )
        self.queries.queue_counters = self.queues.counters
        self.forwarding = Forwarding(self.context, self.floor_log, self.writes, self._quota)
        self.routers = Routers(self.context, self.lifecycle, self.forwarding)
        for observer in (self.reads, self.queries, self.queues, self.deletes, self.lifecycle):
            observer.bring_up_to_date = self.forwarding.bring_up_to_date

    def turn(self) -> None:
        """The end of a turn, before its submissions are written: whoever was stirred in it acts."""
        self.forwarding.turn()
        self.queues.turn()

    def tick(self) -> None:
        """Look at the clock; called about every 50 ms, and when `context.wake_at` asked for it."""
        self.forwarding.tick()
        self.queues.tick()
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
        """What is written nowhere rarely needs a place, but now and then a ceiling above it does; then those behind it
        wait too."""
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
            ticket.then(lambda done: self._ephemeral_goes_on(topic.id, done))
        return ticket

    def _ephemeral_goes_on(self, topic_id: int, done: Ticket[Any]) -> None:
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
        if self.admission.is_open:
            return self._write_within(name, batch, create, config)
        return self.admit(name, lambda: self._write_within(name, batch, create, config), may_refuse=may_refuse)

    def join(self, name: str, records: WriteBatch, writer: AppendWaiter, *, runs: list[int]) -> bool:
        """Writes, `runs` of records, that may go with others of their turn; if some may not, nothing has happened."""
        topic = self.state.topics.get(name)
        if topic is None or not self.admission.is_open:
            return False
        if self.context.parking and self.context.parking.is_held(name):
            return False
        return self.writes.join(topic, records, writer, runs=runs)

    def _write_within(
        self, name: str, batch: WriteBatch, create: bool | None, config: TopicConfig | None
    ) -> Ticket[Appended]:
        if self._quota is None:
            return self._write(name, batch, create, config)
        return self._quota.within(name, lambda: self._write(name, batch, create, config))

    def _write(self, name: str, batch: WriteBatch, create: bool | None, config: TopicConfig | None) -> Ticket[Appended]:
        if self.context.parking and self.context.parking.is_held(name):
            return self.lifecycle.when_free(name, lambda: self._write(name, batch, create, config))
        topic = self.state.topics.get(name)
        if topic is not None:
            return self.writes.append(topic, batch)
        may_create = create if create is not None else (config is None or config.auto_create)
        if not may_create:
            raise TopicNotFound(name)
        return self.creating.append(name, batch, config or DEFAULT_CONFIG)

    # --- lifecycle ------------------------------------------------------------------------------------------------

    def put_topic(self, name: str, config: TopicConfig) -> Ticket[Put]:
        return self.admit(name, lambda: self.lifecycle.put(name, config))

    def drop_topic(self, name: str, *, if_empty: bool = False) -> Ticket[Dropped]:
        return self.admit(name, lambda: self.lifecycle.drop(name, if_empty=if_empty))

    # --- observation and deletion ---------------------------------------------------------------------------------

    def read(self, name: str, request: ReadRequest) -> Ticket[ReadDone]:
        """A topic on hold is still what it was; one that is being deleted is gone when that is applied."""
        return self.reads.read(self.state.topic(name), request)

    def topic_state(self, name: str, *, touch: bool = True) -> Ticket[results.TopicState]:
        return self.queries.state(self.state.topic(name), touch=touch)

    def page_of_topics(
        self,
        *,
        prefix: str = "",
        after: str | None = None,
        page_size: int = 100,
        touch: bool = False,
        visible: Callable[[str], bool] = lambda _: True,
    ) -> Ticket[tuple[list[results.TopicSummary], str | None]]:
        return self.queries.page(prefix=prefix, after=after, page_size=page_size, touch=touch, visible=visible)

    def delete_records(
        self, name: str, *, before_seq: int | None = None, match: TagMatch | None = None
    ) -> Ticket[Deleted]:
        if before_seq is None and match is None:
            raise InvalidRequest("a delete needs before_seq, match or both")
        return self.admit(name, lambda: self._delete_records(name, before_seq, match))

    def _delete_records(self, name: str, before_seq: int | None, match: TagMatch | None) -> Ticket[Deleted]:
        return self.lifecycle.when_free(
            name, lambda: self.deletes.delete(self.state.topic(name), before_seq=before_seq, match=match)
        )
