"""Reads: the read pipeline of core, fed by fetches where records are not in memory.

Always holds: floors are settled before the walk begins, and again when the index of a cold segment has come; an answer
that shows a floor waits until that is logged; any other that stays in memory is given at once, on the spot; one that
needs files never holds up the owner. A read whose fetch
fails answers with what came before the failure, and fails only if there is nothing to answer with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from topics.core.reading.near_head import read_fresh
from topics.core.reading.walk import ReadOutcome, ReadRequest, ReadWalk, plan_read
from topics.core.slots.extent import RecordPlace
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.file_requests import FetchedRecords
from topics.engine.floor_log import FloorLog
from topics.engine.ticket import Ticket, chain, resolved
from topics.errors import TopicsError


class ReadDone(NamedTuple):
    outcome: ReadOutcome
    cold_segments: int = 0


class Reads:
    def __init__(self, context: Context, floor_log: FloorLog) -> None:
        self._ctx = context
        self._floor_log = floor_log
        self.bring_up_to_date: Callable[[TopicLog], Ticket[None] | None] = lambda _: None
        """Step the routers that feed a topic; None if there is nothing to do. Set by the router service."""

    def read(self, topic: TopicLog, request: ReadRequest) -> Ticket[ReadDone]:
        feeding = self.bring_up_to_date(topic) if topic.id in self._ctx.fed else None
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
        fresh = read_fresh(topic, request, recent)
        if fresh is not None:
            if request.touch:
                topic.touch(now, read=True)
            return self._shown(topic, request, ReadDone(fresh))
        walk = plan_read(topic, request, recent, now=now)
        if walk.need() is None:
            return self._shown(topic, request, ReadDone(walk.result()))
        walked = _Walk(self._ctx, self._floor_log, topic, walk).begin()
        return chain(walked, lambda done: self._shown(topic, request, done))

    def _shown(self, topic: TopicLog, request: ReadRequest, done: ReadDone) -> Ticket[ReadDone]:
        """Hold back an answer that shows a floor until no crash can undo it. If that cannot be had, a tombstone is not
        shown; an answer without one shows the floor that is sure."""
        outcome = done.outcome
        if not (request.shows_floor or outcome.tombstone is not None) or self._floor_log.is_sure(topic):
            return resolved(done)
        if outcome.tombstone is not None:
            return chain(self._floor_log.make_sure(topic), lambda _: resolved(done))
        sure = self._floor_log.shown(topic, outcome.earliest_seq)
        return chain(sure, lambda earliest: resolved(done._replace(outcome=outcome._replace(earliest_seq=earliest))))


class _Walk:
    """One read that needs fetches: need, fetch, feed, until there is nothing to need."""

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
            self._ctx.jobs.fetch(self._topic, extent).then(self._fetched, self._ticket.abandon)

    def _fetched(self, done: Ticket[FetchedRecords]) -> None:
        if done.error is not None:
            self._fail(done.error)
            return
        fetched, extent = done.result(), self._walk.need()
        if fetched.cold_segments and extent is not None and extent.view is not None:
            self._cold.add(extent.view.first_seq)
        if extent is not None and extent.place is RecordPlace.INDEX and not self._floor_log.is_logged(self._topic):
            due = self._floor_log.ensure_logged(self._topic)  # only now can it tell what that is
            due.then(partial(self._cold_delete_finished, fetched), self._ticket.abandon)
        else:
            self._feed(fetched)

    def _cold_delete_finished(self, fetched: FetchedRecords, done: Ticket[None]) -> None:
        if done.error is not None:
            self._fail(done.error)
        else:
            self._feed(fetched)

    def _feed(self, fetched: FetchedRecords) -> None:
        try:
            if fetched.run is None:
                self._ctx.check_exists(self._topic)  # nobody keeps the places of a dropped one up to date
                self._walk.replan()
            else:
                self._walk.feed(fetched.run, seq_next=fetched.seq_next)
            self._go_on()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, TopicsError) and self._walk.stop():
            self._ticket.resolve(ReadDone(self._walk.result(), len(self._cold)))
        else:
            self._ticket.fail(error)
