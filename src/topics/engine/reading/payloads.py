"""Payloads: the records of given seqs, from memory or through fetches; for claims and dead letters.

Always holds: a record that is damaged on disk costs only itself; any other failure ends the search, and what was found
before it stands. Never fails: the error is part of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from topics.core.reading.by_seq import Found, PickWalk
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.file_requests import FetchedRecords
from topics.engine.ticket import Ticket, resolved
from topics.errors import CorruptSegment


class Payload(NamedTuple):
    """`damaged` can never be read; with an `error`, what is in neither may be had later."""

    found: Found
    damaged: list[int]
    error: BaseException | None


class Payloads:
    def __init__(self, context: Context) -> None:
        self._ctx = context

    def of(self, topic: TopicLog, seqs: Sequence[int]) -> Ticket[Payload]:
        walk = PickWalk(topic, seqs, self._ctx.state.recent)
        if walk.need() is None:
            return resolved(Payload(walk.found, walk.missed, None))
        return _Search(self._ctx, topic, walk).begin()


class _Search:
    __slots__ = ("_ctx", "_ticket", "_topic", "_walk")

    def __init__(self, context: Context, topic: TopicLog, walk: PickWalk) -> None:
        self._ctx = context
        self._topic = topic
        self._walk = walk
        self._ticket: Ticket[Payload] = Ticket()

    def begin(self) -> Ticket[Payload]:
        self._go_on()
        return self._ticket

    def _go_on(self) -> None:
        extent = self._walk.need()
        if extent is None:
            self._end(None)
        else:
            self._ctx.jobs.fetch(self._topic, extent).then(self._fetched, self._ticket.abandon)

    def _end(self, error: BaseException | None) -> None:
        self._ticket.resolve(Payload(self._walk.found, self._walk.missed, error))

    def _fetched(self, done: Ticket[FetchedRecords]) -> None:
        if done.error is not None and not isinstance(done.error, CorruptSegment):
            self._end(done.error)
            return
        try:
            self._take(done)
        except Exception as error:
            self._end(error)
        else:
            self._go_on()

    def _take(self, done: Ticket[FetchedRecords]) -> None:
        if done.error is not None:
            self._walk.skip()
            return
        fetched = done.result()
        if fetched.run is None:
            self._ctx.check_exists(self._topic)
            self._walk.replan()
        else:
            self._walk.feed(fetched.run, seq_next=fetched.seq_next)
