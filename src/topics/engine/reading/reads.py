"""Reads: stored records for readers, from memory or through fetches.

    Reads          one read: routers step first, floors are logged, then the walk of `core.reading.walk`
    PayloadSearch  the records of given seqs, for claims and dead letters

Always holds: floors are logged before the walk begins, and again when the index of a cold segment has come; an answer
that shows a floor waits until that floor is logged; any other that stays in memory is given at once; one that needs
files never holds up the owner's thread. A read whose fetch fails answers with what came before the failure, and fails
only if there is nothing to answer with. A record that is damaged on disk costs a `Payload` only itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from topics.core.reading.by_seq import Found, PickWalk
from topics.core.reading.walk import ReadOutcome, ReadRequest, ReadWalk, plan_read, read_fresh
from topics.core.slots.extent import RecordPlace
from topics.core.topic import TopicLog
from topics.engine.context import Context, FetchedRecords
from topics.engine.floor_log import FloorLog
from topics.engine.routers.forwarding import Forwarding
from topics.engine.ticket import Ticket, chain, resolved
from topics.errors import CorruptSegment, TopicsError


class ReadDone(NamedTuple):
    outcome: ReadOutcome
    cold_segments: int = 0


class Reads:
    def __init__(self, context: Context, floor_log: FloorLog, forwarding: Forwarding) -> None:
        self._ctx = context
        self._floor_log = floor_log
        self._forwarding = forwarding

    def read(self, topic: TopicLog, request: ReadRequest) -> Ticket[ReadDone]:
        feeding = self._forwarding.bring_up_to_date(topic) if topic.id in self._ctx.fed else None
        if feeding is not None:
            return chain(feeding, lambda _: self._read_with_floors_logged(topic, request))
        return self._read_with_floors_logged(topic, request)

    def _read_with_floors_logged(self, topic: TopicLog, request: ReadRequest) -> Ticket[ReadDone]:
        if self._floor_log.is_logged(topic):
            return self._read(topic, request)
        return chain(self._floor_log.ensure_logged(topic), lambda _: self._read_still(topic, request))

    def _read_still(self, topic: TopicLog, request: ReadRequest) -> Ticket[ReadDone]:
        self._ctx.check_exists(topic)
        return self._read(topic, request)

    def _read(self, topic: TopicLog, request: ReadRequest) -> Ticket[ReadDone]:
        recent, now = self._ctx.state.recent, self._ctx.clock.now_ms()
        outcome = read_fresh(topic, request, recent)
        if outcome is not None:
            if request.touch:
                topic.touch(now, read=True)
            return self._shown(topic, request, ReadDone(outcome))
        walk = plan_read(topic, request, recent, now=now)
        if walk.need() is None:
            return self._shown(topic, request, ReadDone(walk.result()))
        walked = _Walk(self._ctx, self._floor_log, topic, walk).begin()
        return chain(walked, lambda done: self._shown(topic, request, done))

    def _shown(self, topic: TopicLog, request: ReadRequest, done: ReadDone) -> Ticket[ReadDone]:
        """Hold back an answer that shows a floor until no crash can undo it. If that cannot be had, a tombstone is not
        shown; an answer without one shows the last floor that is durable."""
        outcome = done.outcome
        if not (request.shows_floor or outcome.tombstone is not None) or self._floor_log.is_durable(topic):
            return resolved(done)
        if outcome.tombstone is not None:
            return chain(self._floor_log.make_durable(topic), lambda _: resolved(done))
        shown = self._floor_log.shown(topic, outcome.earliest_seq)
        return chain(shown, lambda earliest: resolved(done._replace(outcome=outcome._replace(earliest_seq=earliest))))


class _Walk:
    """One read that needs fetches: fetch what the walk needs and feed it, until it needs nothing."""

    __slots__ = ("_cold", "_ctx", "_floor_log", "_ticket", "_topic", "_walk")

    def __init__(self, context: Context, floor_log: FloorLog, topic: TopicLog, walk: ReadWalk) -> None:
        self._ctx = context
        self._floor_log = floor_log
        self._topic = topic
        self._walk = walk
        self._cold: set[int] = set()  # cold segments (first seq) that were fetched from the store
        self._ticket: Ticket[ReadDone] = Ticket()

    def begin(self) -> Ticket[ReadDone]:
        self._go_on()
        return self._ticket

    def _go_on(self) -> None:
        extent = self._walk.need()
        if extent is None:
            self._ticket.resolve(ReadDone(self._walk.result(), len(self._cold)))
        else:
            self._ctx.files.fetch(self._topic, extent).then(self._fetched, self._ticket.abandon)

    def _fetched(self, done: Ticket[FetchedRecords]) -> None:
        if done.error is not None:
            self._fail(done.error)
            return
        fetched, extent = done.result(), self._walk.need()
        if fetched.cold_segments and extent is not None and extent.view is not None:
            self._cold.add(extent.view.first_seq)
        if extent is not None and extent.place is RecordPlace.INDEX and not self._floor_log.is_logged(self._topic):
            due = self._floor_log.ensure_logged(self._topic)  # the index has just told which records have expired
            due.then(partial(self._floors_logged, fetched), self._ticket.abandon)
        else:
            self._feed(fetched)

    def _floors_logged(self, fetched: FetchedRecords, done: Ticket[None]) -> None:
        if done.error is not None:
            self._fail(done.error)
        else:
            self._feed(fetched)

    def _feed(self, fetched: FetchedRecords) -> None:
        try:
            self._ctx.feed(self._topic, self._walk, fetched)
            self._go_on()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, TopicsError) and self._walk.stop():
            self._ticket.resolve(ReadDone(self._walk.result(), len(self._cold)))
        else:
            self._ticket.fail(error)


class Payload(NamedTuple):
    """Records by seq. Those in `damaged` can never be read; after an `error`, those in neither may be read later."""

    found: Found
    damaged: list[int]
    error: BaseException | None


class PayloadSearch:
    """Never fails: an error is part of the answer, beside what was found before it."""

    __slots__ = ("_ctx", "_ticket", "_topic", "_walk")

    def __init__(self, context: Context, topic: TopicLog, seqs: Sequence[int]) -> None:
        self._ctx = context
        self._topic = topic
        self._walk = PickWalk(topic, seqs, context.state.recent)
        self._ticket: Ticket[Payload] = Ticket()

    def begin(self) -> Ticket[Payload]:
        self._go_on()
        return self._ticket

    def _go_on(self) -> None:
        extent = self._walk.need()
        if extent is None:
            self._end(None)
        else:
            self._ctx.files.fetch(self._topic, extent).then(self._fetched, self._ticket.abandon)

    def _fetched(self, done: Ticket[FetchedRecords]) -> None:
        try:
            if isinstance(done.error, CorruptSegment):
                self._walk.skip()
            else:
                self._ctx.feed(self._topic, self._walk, done.result())
        except Exception as error:
            self._end(error)
        else:
            self._go_on()

    def _end(self, error: BaseException | None) -> None:
        self._ticket.resolve(Payload(self._walk.found, self._walk.missed, error))
