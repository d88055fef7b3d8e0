"""Front: the one place where records stop being live and `earliest_seq` moves.

Every removal, requested or not, goes through here, so `count`, `bytes` and the per-segment totals cannot drift apart.
`Removal` collects what the engine has to do about it: flags to set on disk, segments that hold nothing live any more,
seqs a queue must let go. What always holds afterwards: `earliest_seq` is the smallest live seq, or `head + 1`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from heapq import merge
from itertools import chain, takewhile

import numpy as np

from topics.core.slots.sealed_slots import Sealed
from topics.core.slots.slot_range import I64, Slots
from topics.core.slots.tail import TailRun
from topics.core.topic import TopicLog
from topics.errors import ColdUnavailable
from topics.model.ops import IN_ACTIVE

ACTIVE_LOC = IN_ACTIVE << 32


class Removal:
    """What one op took out of a topic.

    `seqs` are those removed one by one; all others removed lie below the topic's new `earliest_seq`. `flips` names, per
    sealed segment, the slots to be flagged on disk; `active_flips` the seqs to be flagged in the active segment.
    `dead_segments` (first seqs) hold nothing live any more: they are dropped instead of flagged."""

    __slots__ = ("active_flips", "bytes", "count", "dead_segments", "flips", "seqs")

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self.seqs: list[I64] = []
        self.flips: list[tuple[int, I64]] = []
        self.active_flips: list[I64] = []
        self.dead_segments: list[int] = []

    def add(self, other: Removal | None) -> None:
        """Join what a later step took."""
        if other is not None:
            self.count += other.count
            self.bytes += other.bytes
            self.seqs += other.seqs
            self.flips += other.flips
            self.active_flips += other.active_flips
            self.dead_segments += other.dead_segments

    def __repr__(self) -> str:
        return f"Removal(count={self.count}, bytes={self.bytes}, dead_segments={self.dead_segments})"


def blocks_from(topic: TopicLog, seq: int) -> Iterator[Slots]:
    """Segments and tail runs with a slot at or above `seq`, ascending."""
    runs, sealed = topic.tail.runs, topic.sealed
    if not len(sealed) or (runs and runs[0].first_seq <= seq and sealed[len(sealed) - 1].next_seq <= seq):
        return topic.tail.runs_from(seq)
    if runs and runs[0].first_seq < sealed[len(sealed) - 1].first_seq:  # recovery filled a hole between segments
        return merge(sealed.from_seq(seq), topic.tail.runs_from(seq), key=_first_seq)
    return chain(sealed.from_seq(seq), topic.tail.runs_from(seq))


@contextmanager
def awaited(topic: TopicLog, block: Slots | None) -> Iterator[None]:
    """If the block's index has to be loaded first, put it on the topic's waiting list; the error goes on."""
    try:
        yield
    except ColdUnavailable:
        assert block is not None
        topic.awaiting.setdefault(block.first_seq, [])
        raise


def index_needed(topic: TopicLog, block: Slots) -> Sealed | None:
    """The segment whose index has to come before records of this block may be handed out; None: none has to. Something
    waits for the block's own index, or only its times tell what has expired, or only the index of a later segment tells
    what the count cap has taken."""
    if topic.awaiting:
        waiting = min((first for first in topic.awaiting if first >= block.first_seq), default=0)
        found = topic.sealed.by_first_seq(waiting)
        if found is not None and (waiting == block.first_seq or _is_over_cap(topic)):
            return found
    return block if topic.config.ttl_ms and isinstance(block, Sealed) and not block.times_known else None


def _is_over_cap(topic: TopicLog) -> bool:
    """Trimming was put off: an index is missing."""
    config = topic.config
    return 0 < config.cap_records < topic.count and config.discard == "old"


def first_live(topic: TopicLog, seq: int) -> int:
    """The smallest live seq at or above `seq` (which is not below the floors), or `head + 1`."""
    for block in blocks_from(topic, seq):
        if isinstance(block, Sealed) and block.live == 0:
            continue
        try:
            with awaited(topic, block):
                slot = block.first_live(max(seq - block.first_seq, 0), block.count)
        except ColdUnavailable:  # not below this one; the rest is known when its index has come
            return max(seq, block.first_seq)
        if slot < block.count:
            return block.first_seq + slot
    return topic.head + 1


def last_lives_below(topic: TopicLog, bound: int) -> Iterator[int]:
    """The largest live seq below `bound` of each block, descending; those are left out whose index is not loaded."""
    earliest = topic.floors.earliest_seq
    blocks = takewhile(lambda block: block.first_seq < bound, blocks_from(topic, earliest))
    for block in reversed(list(blocks)):
        if isinstance(block, Sealed) and block.live == 0:
            continue
        lo = max(earliest - block.first_seq, 0)
        try:
            with awaited(topic, block):
                slot = block.last_live(lo, min(bound - block.first_seq, block.count))
        except ColdUnavailable:
            continue
        if slot >= lo:
            yield block.first_seq + slot


def advance_front(topic: TopicLog) -> None:
    """Move `earliest_seq` to the first live record. Not during replay: what has no slot then may still be filled in."""
    floors = topic.floors
    start = max(floors.earliest_seq, floors.lost + 1)
    if start <= topic.head and not topic.replaying:
        start = first_live(topic, start)
    if start != floors.earliest_seq or topic.count == 0:
        topic.first_ts = None
    floors.earliest_seq = start


def kill_below(topic: TopicLog, bound: int, removal: Removal, *, requested: bool) -> None:
    """Everything below `bound` dies by position: no slot is touched, only totals. Moves `earliest_seq` past it."""
    earliest = topic.floors.earliest_seq
    if bound <= earliest:
        return
    for block in blocks_from(topic, earliest):
        if block.first_seq >= bound:
            break
        lo, hi = max(earliest - block.first_seq, 0), min(bound - block.first_seq, block.count)
        if isinstance(block, Sealed):
            _kill_sealed_front(topic, block, (lo, hi), removal, requested=requested)
        else:
            assert isinstance(block, TailRun)
            _count_out(topic, removal, block.live_totals(lo, hi))
            if requested:
                _flip_active(block, block.live_slots(lo, hi), removal)
    topic.floors.earliest_seq = bound
    advance_front(topic)


def _kill_sealed_front(
    topic: TopicLog, block: Sealed, slots: tuple[int, int], removal: Removal, *, requested: bool
) -> None:
    lo, hi = slots
    if hi == block.count:
        topic.awaiting.pop(block.first_seq, None)  # it goes whole: its files may be gone already, and nobody needs them
    if block.live == 0:
        return
    totals, live = (block.live, block.live_bytes), None
    if hi < block.count:
        if not verify(topic, block):
            return  # counted when the index has come; the front moves past these slots all the same
        try:
            with awaited(topic, block):  # another thread may have closed it again, for lack of room
                totals, live = block.live_totals(lo, hi), block.live_slots(lo, hi) if requested else None
        except ColdUnavailable:
            return
    _count_out(topic, removal, totals)
    block.took(*totals)
    if block.live == 0:
        removal.dead_segments.append(block.first_seq)
    elif live is not None and len(live):
        removal.flips.append((block.first_seq, live))


def verify(topic: TopicLog, block: Sealed) -> bool:
    """Make sure that a segment's totals agree with its flags before slots are taken out of it. False: its index or its
    sizes are in the cold store and not loaded, and the segment is put on the topic's waiting list."""
    try:
        with awaited(topic, block):
            if block.deleted < 0:
                topic.count_in(*block.recount(topic.floors.earliest_seq))
            elif not block.overlay_complete:
                block.dead(0, 0)  # can the flags be had?
            block.sizes_of(0, 0)  # and the sizes, if their sidecar was lost?
    except ColdUnavailable:
        return False
    return True


def kill_slots(topic: TopicLog, block: Slots, slots: I64, removal: Removal) -> None:
    """Live slots of one block die on request. The caller moves the front once, after all blocks."""
    if not len(slots):
        return
    lo = int(slots[0])
    size = int(block.sizes_of(lo, int(slots[-1]) + 1)[slots - lo].sum(dtype=np.uint64))
    block.mark_deleted(slots)
    block.took(len(slots), size)
    _count_out(topic, removal, (len(slots), size))
    removal.seqs.append(slots + block.first_seq)
    if isinstance(block, TailRun):
        _flip_active(block, slots, removal)
    elif isinstance(block, Sealed):
        if block.live == 0:
            removal.dead_segments.append(block.first_seq)
        else:
            removal.flips.append((block.first_seq, slots))


def alive_of(block: Slots, slots: I64) -> I64:
    """Those of the slots that were not deleted before."""
    if block.deleted == 0 or not len(slots):
        return slots
    lo = int(slots[0])
    return slots[~block.dead(lo, int(slots[-1]) + 1)[slots - lo]]


def _count_out(topic: TopicLog, removal: Removal, totals: tuple[int, int]) -> None:
    topic.count_in(-totals[0], -totals[1])
    removal.count += totals[0]
    removal.bytes += totals[1]


def _flip_active(run: TailRun, slots: I64, removal: Removal) -> None:
    """Frames that lie in the active segment already, the first ones of a run, have to be flagged there."""
    if not len(slots) or run.locs[int(slots[0])] < ACTIVE_LOC:
        return
    lo, hi = int(slots[0]), int(slots[-1]) + 1
    written = np.frombuffer(run.locs[lo:hi], np.uint64) >= ACTIVE_LOC
    written &= np.frombuffer(run.lens[lo:hi], np.uint32) > 0
    flips = slots[written[slots - lo]]
    if len(flips):
        removal.active_flips.append(flips + run.first_seq)


def _first_seq(block: Slots) -> int:
    return block.first_seq
