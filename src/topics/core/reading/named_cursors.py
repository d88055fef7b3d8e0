"""Named cursors: durable positions of a topic, each under a name (`docs/spec/readers.md#sec-1`).

A commit only moves forward and counts only under the cursor's fence, so that the order in which commits of two owners
reach the log decides between them, live and in replay. What a cursor holds back, `core.retention.rules` asks it.
`lag_of` reads no records: inside a sealed segment it estimates, from the times at both ends of its index.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import msgspec

from topics.core.effects import Effect, OpResult
from topics.core.retention.removal import blocks_from
from topics.core.retention.rules import trim_to_cap
from topics.core.slots.sealed_slots import Sealed
from topics.core.slots.slot_range import Slots
from topics.core.slots.tail import TailRun
from topics.core.topic import TopicLog
from topics.errors import ColdUnavailable
from topics.model.cursor import NamedCursor
from topics.model.ops import CURSOR_COMMIT, CURSOR_DROP, CursorChange


class Lag(NamedTuple):
    """How far a position is behind the head: live records, their bytes, and the age of the oldest of them."""

    records: int
    bytes: int
    ms: int


def apply_cursor(topic: TopicLog, op: CursorChange) -> Effect:
    """Change one cursor; what it no longer holds back is evicted as an append would evict it."""
    known = topic.cursors.get(op.name)
    if op.event == CURSOR_DROP:
        if known is None:
            return Effect(OpResult.IGNORED, topic.id)
        del topic.cursors[op.name]
    elif op.event == CURSOR_COMMIT:
        cursor = known or NamedCursor(name=op.name)
        if (op.fence or 0) != cursor.fence:
            return Effect(OpResult.IGNORED, topic.id)
        topic.cursors[op.name] = _committed(cursor, op)
    else:
        topic.cursors[op.name] = _put(known or NamedCursor(name=op.name), op)
    held = known is not None and known.hold is not None
    return Effect(OpResult.APPLIED, topic.id, removal=trim_to_cap(topic, now=op.ts) if held else None)


def _committed(cursor: NamedCursor, op: CursorChange) -> NamedCursor:
    meta = cursor.meta if op.meta is None else op.meta
    return msgspec.structs.replace(cursor, seq=max(cursor.seq, op.seq or 0), updated_ts=op.ts, meta=meta)


def _put(cursor: NamedCursor, op: CursorChange) -> NamedCursor:
    hold = cursor.hold if op.hold is None else (op.hold if any(op.hold) else None)
    return msgspec.structs.replace(
        cursor,
        seq=cursor.seq if op.seq is None else op.seq,
        updated_ts=op.ts,
        fence=cursor.fence if op.fence is None else op.fence,
        owner=cursor.owner if op.owner is None else op.owner,
        meta=cursor.meta if op.meta is None else op.meta,
        hold=hold,
    )


def lag_of(topic: TopicLog, seq: int, *, now: int) -> Lag:
    """The lag of a reader that has seen everything up to `seq`."""
    return TopicLags(topic, now=now, from_seq=seq).of(seq)


class TopicLags:
    """Lags of many readers of one topic at one moment: its blocks are added up once, from the newest down, and each
    reader looks only into the block that its position lies in. A sealed segment counts there by the share of it that is
    behind the position. `from_seq` is the lowest position that is asked for."""

    def __init__(self, topic: TopicLog, *, now: int, from_seq: int = 0) -> None:
        self._topic = topic
        self._now = now
        self._blocks = list(blocks_from(topic, max(from_seq + 1, topic.earliest_seq)))
        self._behind: list[_Totals] = [(0, 0, None)] * (len(self._blocks) + 1)
        """Of each block: live records, their bytes and the time of the first of them, in it and all behind it. Only
        those behind a reader's own block are asked for, so the first one is left out."""
        for at in range(len(self._blocks) - 1, 0, -1):
            self._behind[at] = _added(_within(self._blocks[at], 0), self._behind[at + 1])

    def of(self, seq: int) -> Lag:
        seq = max(seq, self._topic.earliest_seq - 1)
        at = bisect_right(self._blocks, seq + 1, key=_next_seq)
        if seq >= self._topic.head or at == len(self._blocks):
            return Lag(0, 0, 0)
        block = self._blocks[at]
        records, size, oldest = _added(_within(block, max(seq + 1 - block.first_seq, 0)), self._behind[at + 1])
        ms = 0 if oldest is None else max(self._now - oldest, 0)
        return Lag(min(records, self._topic.head - seq), size, ms)


_Totals = tuple[int, int, int | None]


def _added(first: _Totals, rest: _Totals) -> _Totals:
    oldest = first[2] if first[0] and first[2] is not None else rest[2]
    return first[0] + rest[0], first[1] + rest[1], oldest


def _within(block: Slots, lo: int) -> _Totals:
    """Live records of a block from a slot on, their bytes, and the time of the first slot."""
    if isinstance(block, Sealed):
        share = (block.count - lo) / block.count
        return round(block.live * share), round(block.live_bytes * share), _time_within(block, 1 - share)
    assert isinstance(block, TailRun)
    return *block.live_totals(lo, block.count), block.ts[lo]


def _next_seq(block: Slots) -> int:
    return block.next_seq


def _time_within(block: Sealed, share: float) -> int | None:
    """About when the record was written that lies behind this share of a segment; None while its index is away."""
    try:
        return block.first_ts + round((block.last_ts - block.first_ts) * share)
    except ColdUnavailable:
        return None
