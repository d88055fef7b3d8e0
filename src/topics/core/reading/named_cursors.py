"""Named cursors: durable positions of a topic, each under a name (`docs/spec/readers.md#sec-1`).

A commit only moves forward and counts only under the cursor's fence, so that the order in which commits of two owners
reach the log decides between them, live and in replay. What a cursor holds back, `core.retention.rules` asks it.
`lag_of` reads no records: inside a sealed segment it estimates, from the times at both ends of its index.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from topics.core.effects import Effect, OpResult
from topics.core.retention.removal import blocks_from
from topics.core.retention.rules import trim_to_cap
from topics.core.slots.sealed_slots import Sealed
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
        if known is not None and (op.fence or 0) != known.fence:
            return Effect(OpResult.IGNORED, topic.id)
        topic.cursors[op.name] = _committed(known or NamedCursor(name=op.name), op)
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
    """The lag of a reader that has seen everything up to `seq`. A sealed segment that the position lies in counts by
    the share of it that is behind the position."""
    seq = max(seq, topic.earliest_seq - 1)
    if seq >= topic.head:
        return Lag(0, 0, 0)
    records = size = 0
    oldest: int | None = None
    for block in blocks_from(topic, seq + 1):
        behind = block.next_seq - max(block.first_seq, seq + 1)
        if isinstance(block, Sealed):
            share = behind / block.count
            live, live_bytes = round(block.live * share), round(block.live_bytes * share)
            ts = _time_within(block, 1 - share)
        else:
            assert isinstance(block, TailRun)
            lo = block.count - behind
            live, live_bytes = block.live_totals(lo, block.count)
            ts = block.ts[lo]
        records += live
        size += live_bytes
        if oldest is None and live:
            oldest = ts
    return Lag(min(records, topic.head - seq), size, 0 if oldest is None else max(now - oldest, 0))


def _time_within(block: Sealed, share: float) -> int | None:
    """About when the record was written that lies behind this share of a segment; None while its index is away."""
    try:
        return block.first_ts + round((block.last_ts - block.first_ts) * share)
    except ColdUnavailable:
        return None
