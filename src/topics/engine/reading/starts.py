"""Starts: where a read begins that names a time or a cursor instead of a position (`docs/spec/readers.md#sec-2`).

Floors are logged before times are looked at, and segments that are not loaded are loaded on a pool: the owner's thread
reads no file for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from topics.core.lineage import epoch_of
from topics.core.reading.seek import seq_before_time, start_by_time
from topics.core.slots.extent import index_of
from topics.core.slots.sealed_slots import Sealed
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.floor_log import FloorLog
from topics.engine.ticket import Ticket, chain, resolved
from topics.errors import CursorNotFound
from topics.model.position import START, Position


class ReadStart(NamedTuple):
    """One of the three; a position of 0 where none was given."""

    position: Position = START
    from_ts: int | None = None
    cursor: str | None = None


class Starts:
    def __init__(self, context: Context, floor_log: FloorLog) -> None:
        self._ctx = context
        self._floor_log = floor_log

    def find(self, topic: TopicLog, start: ReadStart) -> Ticket[Position]:
        """The position behind which the read begins."""
        if start.cursor is not None:
            known = topic.cursors.get(start.cursor)
            if known is None:
                raise CursorNotFound(topic.name, start.cursor)
            return resolved(Position(known.seq, epoch_of(topic, known.seq)))
        if start.from_ts is None:
            return resolved(start.position)
        ts = start.from_ts
        found = self._seek(topic, lambda: start_by_time(topic, ts, now=self._ctx.clock.now_ms()))
        return chain(found, lambda seq: resolved(Position(seq, epoch_of(topic, seq))))

    def seq_before(self, topic: TopicLog, ts: int) -> Ticket[int]:
        """The last seq before the first record of this time or later."""
        return self._seek(topic, lambda: seq_before_time(topic, ts))

    def _seek(self, topic: TopicLog, look: Callable[[], int | Sealed]) -> Ticket[int]:
        return chain(self._floor_log.ensure_logged(topic), lambda _: self._look(topic, look))

    def _look(self, topic: TopicLog, look: Callable[[], int | Sealed]) -> Ticket[int]:
        self._ctx.check_exists(topic)
        found = look()
        if not isinstance(found, Sealed):
            return resolved(found)
        loaded = self._ctx.files.fetch(topic, index_of(found, found.first_seq))
        return chain(loaded, lambda _: self._look(topic, look))
