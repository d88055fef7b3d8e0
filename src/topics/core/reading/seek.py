"""Seek: the seq from which a read by time begins (`docs/spec/readers.md#sec-2`).

Times never fall as seqs grow, so the begin is found by bisection: over blocks first, then within one. Of the segments
on the way only a few are looked at; one that is not loaded is given back, for the engine to load it and ask again.
"""

from __future__ import annotations

from bisect import bisect_left

from topics.core.retention.floors import SEQ_BASE
from topics.core.retention.removal import blocks_from
from topics.core.slots.sealed_slots import Sealed
from topics.core.slots.slot_range import Slots
from topics.core.slots.tail import TailRun
from topics.core.topic import TopicLog


class _NotLoaded(Exception):
    def __init__(self, block: Sealed) -> None:
        self.block = block


def seq_before_time(topic: TopicLog, ts: int) -> int | Sealed:
    """The last seq before the first record of this time or later; the head if there is none. Or the segment whose
    columns have to be loaded first. Lost ranges on the border lie behind it: nobody knows their times."""
    blocks = list(blocks_from(topic, topic.earliest_seq))
    try:
        at = bisect_left(blocks, ts, key=_last_ts)
        if at == len(blocks):
            return topic.head
        before = topic.earliest_seq - 1 if at == 0 else blocks[at - 1].next_seq - 1
        earlier = _checked(blocks[at]).expired(ts)
    except _NotLoaded as missing:
        return missing.block
    return max(before, blocks[at].first_seq + earlier - 1) if earlier else before


def start_by_time(topic: TopicLog, ts: int, *, now: int) -> int | Sealed:
    """Where a read by time begins: as above, but before everything if retention may have taken records of this time or
    later; then the read tells so by a tombstone."""
    if ts > topic.last_ts:
        return topic.head
    before = seq_before_time(topic, ts)
    if before != topic.earliest_seq - 1 or topic.evict_floor == SEQ_BASE:
        return before
    config = topic.config
    only_by_age = config.ttl_ms and not config.cap_records and not config.cap_bytes
    return before if only_by_age and ts >= now - config.ttl_ms else 0


def _last_ts(block: Slots) -> int:
    if isinstance(block, Sealed):
        _checked(block)
        return block.last_ts
    assert isinstance(block, TailRun)
    return block.ts[-1]


def _checked(block: Slots) -> Slots:
    """The block, if its times can be had without reading a file."""
    if isinstance(block, Sealed) and not block.view.loaded:
        raise _NotLoaded(block)
    return block
