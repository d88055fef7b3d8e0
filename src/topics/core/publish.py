"""Publish: a committed batch becomes visible; in recovery, its frames are applied again (storage.md section 9.4).

A batch may be known already, in part or as a whole, because a segment holds it; it may come ahead of its predecessors.
What always holds: after `apply_append` every record of the batch at or below the head has exactly one slot, and a topic
that evicts by count is within its cap. Called through `core.apply` only.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

import numpy as np

from topics.core.effects import Effect, Fate
from topics.core.front import Removal, blocks_from
from topics.core.idempotency import WriteMemo
from topics.core.load import written_until
from topics.core.recent import RecentCache
from topics.core.retention import trim_to_cap
from topics.core.tail import locations
from topics.core.topic import TopicState
from topics.model.ops import RESIDENT, Append


def apply_append(topic: TopicState, op: Append, recent: RecentCache | None = None) -> Effect:
    """Publish a batch. Of records known already nothing changes; of a batch ahead of the head nothing happens yet."""
    if topic.config.durability == "ephemeral" and op.file != RESIDENT:
        return Effect(Fate.IGNORED, topic.id)  # a frame from the time before the topic became ephemeral
    if op.first_seq > topic.head + 1:
        return Effect(Fate.AHEAD, topic.id)
    if topic.config.ttl_ms and topic.config.cap_records and op.ts[0] != op.ts[-1]:
        return _apply_by_time(topic, op, recent)
    if op.first_seq <= topic.head:
        return _apply_overlap(topic, op, recent)
    _add_slots(topic, op, recent)
    head = topic.head = op.first_seq + op.count - 1
    ts = topic.last_write_ts = op.ts[-1]
    if ts > topic.last_ts:
        topic.last_ts = ts
    _settle_reservation(topic, op)
    removal = _trim_behind(topic, op) if topic.config.cap_records or topic.replaying else None
    return Effect(Fate.APPLIED, topic.id, first_seq=op.first_seq, last_seq=head, removal=removal)


def _trim_behind(topic: TopicState, op: Append) -> Removal | None:
    """The count cap follows from the log: also from records that are in segments already when their frames come by."""
    if topic.replaying:
        topic.replay_head = max(topic.replay_head, op.last_seq)
    cap = topic.config.cap_records
    return trim_to_cap(topic, now=op.ts[-1]) if cap and topic.count > cap else None


def _apply_by_time(topic: TopicState, op: Append, recent: RecentCache | None) -> Effect:
    """Recovery joins writes. Where both cap and TTL rule, each moment is trimmed by itself, as it was then."""
    at = 0
    whole = Effect(Fate.DUPLICATE, topic.id, removal=Removal())
    while at < op.count:
        stop = bisect_right(op.ts, op.ts[at], at)
        whole.join(apply_append(topic, sliced(op, at, stop), recent))
        at = stop
    return whole


def _apply_overlap(topic: TopicState, op: Append, recent: RecentCache | None) -> Effect:
    """Some records are at or below the head: those without a slot are filled in, the ones above are published."""
    unknown = _unknown_runs(topic, op)
    for at, stop in unknown:
        _add_slots(topic, sliced(op, at, stop), None)
    effect = Effect(Fate.FILLED if unknown else Fate.DUPLICATE, topic.id)
    known = min(topic.head + 1 - op.first_seq, op.count)
    written_until(topic, op.ts[known - 1])
    effect.removal = _trim_behind(topic, sliced(op, 0, known))
    if known < op.count:
        effect.join(apply_append(topic, sliced(op, known, op.count), recent))
    return effect


def _add_slots(topic: TopicState, op: Append, recent: RecentCache | None) -> None:
    """Slots, tags and bytes of records that have none yet, and their share of the totals."""
    run = topic.tail.run_for_append(op.first_seq)
    if op.count == 1:  # the commonest write of all
        run.push(op.file << 32 | op.base + op.offs[0], op.lens[0], op.ts[0], op.sizes[0], op.flags[0])
    else:
        run.extend(locs=locations(op.file, op.base, op.offs), lens=op.lens, ts=op.ts, sizes=op.sizes, flags=op.flags)
    below = topic.floors.earliest_seq - op.first_seq
    if below <= 0:
        topic.count_in(op.count, total_bytes(op.sizes))
    elif below < op.count:  # recovery: the floors had passed some of these records before
        topic.count_in(op.count - below, total_bytes(op.sizes[below:]))
    if op.tags is not None:
        topic.tags.add(op.first_seq, op.tags)
    if op.frames is not None:
        if op.file == RESIDENT:
            topic.resident.add(op.first_seq, op.frames, op.offs, op.flags)
        elif recent is not None:
            recent.add(topic.id, op.first_seq, op.frames, op.offs, op.flags)


def _settle_reservation(topic: TopicState, op: Append) -> None:
    if topic.staged_count:  # never in recovery
        topic.staged_count -= op.count
        topic.staged_bytes -= total_bytes(op.sizes)
    if topic.reserved_head < topic.head:
        topic.reserved_head = topic.head
    if topic.reserved_ts < topic.last_ts:
        topic.reserved_ts = topic.last_ts
    if op.key is not None and topic.config.idempotency_window_ms:
        topic.idem.staged.discard(op.key)
        topic.idem.remember(op.key, WriteMemo(op.ts[0], op.first_seq, op.count, topic.head))


def _unknown_runs(topic: TopicState, op: Append) -> list[tuple[int, int]]:
    """Which records of the batch, at or below the head, have no slot: they are neither below the front, nor stored, nor
    lost."""
    runs: list[tuple[int, int]] = []
    seq, end = max(op.first_seq, topic.floors.earliest_seq), min(op.last_seq, topic.head) + 1
    while seq < end:
        lost = topic.lost.find(seq)
        block = next(blocks_from(topic, seq), None)
        if lost is not None:
            seq = lost.hi + 1
        elif block is not None and block.first_seq <= seq:
            seq = block.next_seq
        else:
            stop = min([end, *([] if block is None else [block.first_seq]), topic.lost.next_lo(seq) or end])
            runs.append((seq - op.first_seq, stop - op.first_seq))
            seq = stop
    return runs


def sliced(op: Append, at: int, stop: int) -> Append:
    """Records `at..stop-1` of a batch. Frames come along only where they lie in no file; elsewhere they are a cache."""
    frames, offs = None, op.offs[at:stop]
    if op.file == RESIDENT and op.frames is not None and stop > at:
        start = offs[0]
        frames = op.frames[start : offs[-1] + op.lens[stop - 1]]
        offs = array(offs.typecode, [off - start for off in offs])
    return Append(
        topic_id=op.topic_id,
        first_seq=op.first_seq + at,
        count=stop - at,
        ts=op.ts[at:stop],
        sizes=op.sizes[at:stop],
        flags=op.flags[at:stop],
        tags=None if op.tags is None else op.tags[at:stop],
        offs=offs,
        lens=op.lens[at:stop],
        frames=frames,
        file=op.file,
        base=op.base,
        hops=op.hops,
    )


def total_bytes(sizes: array[int]) -> int:
    """Sum of a size column."""
    if len(sizes) == 1:
        return sizes[0]
    return sum(sizes) if len(sizes) < 64 else int(np.frombuffer(sizes, np.uint32).sum(dtype=np.uint64))
