"""Checkpoint transitions: how slots move from the log to the active segment and on into sealed segments.

Storage has done the work and its mark is logged before any of these is called; nothing readers see changes here, only
where bytes are. What died while the files were written has to be flagged in them: each transition says what that is.

    pending -> (storage) -> placed / sealed -> flagged -> replaced / dropped
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topics.core.retention.removal import ACTIVE_LOC
from topics.core.slots.sealed_slots import Sealed, SegmentView
from topics.core.slots.slot_range import I64, U32, Bools
from topics.core.slots.tail import TailRun
from topics.core.topic import TopicLog
from topics.model.ops import HOPS_SHIFT, RESIDENT
from topics.model.run import WAL_BODY_AT

U64 = npt.NDArray[np.uint64]


@dataclass(slots=True)
class PendingBatch:
    """Consecutive records that lie in no segment yet, all in one place: WAL file number `source`, or a buffer. `dead`
    ones need no bytes; an offset below 0 says that there are none any more, as where an ephemeral topic became another
    one. Columns are copies: the topic may change while they are written out."""

    first_seq: int
    source: int | bytes | bytearray
    offs: I64
    lens: U32
    ts: U64
    sizes: U32
    dead: Bools


def pending(topic: TopicLog, *, below: int | None = None) -> list[PendingBatch]:
    """Everything that lies only in the log or in memory, in seq order, up to `below`."""
    bound = topic.head + 1 if below is None else below
    batches: list[PendingBatch] = []
    for run in topic.tail.runs:
        hi = min(run.count, bound - run.first_seq)
        lo = _first_unplaced(run, hi)
        while lo < hi:
            stop = _same_file_until(run, lo, hi)
            if run.locs[lo] >> 32 == RESIDENT:
                lo = _add_resident(topic, run, lo, stop, batches)
            else:
                batches.append(_batch(topic, run, lo, stop))
                lo = stop
    return batches


def _first_unplaced(run: TailRun, hi: int) -> int:
    """Slots of the active segment come first in a run."""
    lo = 0
    while lo < hi and run.locs[lo] >= ACTIVE_LOC:
        placed = np.frombuffer(run.locs[lo : min(lo + 65_536, hi)], np.uint64) >= ACTIVE_LOC
        if not placed.all():
            return lo + int(placed.argmin())
        lo += len(placed)
    return lo


def _same_file_until(run: TailRun, lo: int, hi: int) -> int:
    files = np.frombuffer(run.locs[lo:hi], np.uint64) >> np.uint64(32)
    other = files != files[0]
    return lo + int(other.argmax()) if other.any() else hi


def _batch(topic: TopicLog, run: TailRun, lo: int, hi: int) -> PendingBatch:
    locs = np.frombuffer(run.locs[lo:hi], np.uint64)
    dead = run.dead(lo, hi)
    below = _dead_below(topic) - run.first_seq - lo
    if below > 0:
        dead[:below] = True
    return PendingBatch(
        first_seq=run.first_seq + lo,
        source=int(locs[0] >> np.uint64(32)),
        offs=(locs & np.uint64(0xFFFF_FFFF)).astype(np.int64),
        lens=np.frombuffer(run.lens[lo:hi], np.uint32),
        ts=np.frombuffer(run.ts[lo:hi], np.uint64),
        sizes=run.sizes_of(lo, hi),
        dead=dead,
    )


def _dead_below(topic: TopicLog) -> int:
    """Below here everything is dead by position, and the log says so. What a count cap took since is written out as if
    it lived: replay finds such floors by counting, and would count too few among slots that are empty already."""
    floors = topic.floors
    return min(floors.earliest_seq, max(topic.logged_lost + 1, floors.delete_below))


def _add_resident(topic: TopicLog, run: TailRun, lo: int, hi: int, batches: list[PendingBatch]) -> int:
    """Records that lie in memory: one batch per chunk, or of the dead whose chunk has gone. Returns how far it came."""
    chunk = topic.resident.find(run.first_seq + lo)
    if chunk is None:
        return _add_forgotten(topic, run, lo, hi, batches)
    hi = min(hi, chunk.next_seq - run.first_seq)
    batch = _batch(topic, run, lo, hi)
    at = batch.first_seq - chunk.first_seq
    batch.source = chunk.buf
    batch.offs = np.array(chunk.body_offs[at : at + hi - lo], np.int64) - WAL_BODY_AT
    batches.append(batch)
    return hi


def _add_forgotten(topic: TopicLog, run: TailRun, lo: int, hi: int, batches: list[PendingBatch]) -> int:
    live = np.flatnonzero(~_batch(topic, run, lo, hi).dead)
    hi = lo + int(live[0]) if len(live) else hi
    assert lo < hi, "a live resident record is in no chunk"
    batch = _batch(topic, run, lo, hi)
    batch.source = b""
    batch.offs = np.full(hi - lo, -WAL_BODY_AT, np.int64)
    batches.append(batch)
    return hi


def placed(topic: TopicLog, first_seq: int, offs: npt.NDArray[np.uint32], lens: npt.NDArray[np.uint32]) -> I64:
    """Records now lie in the active segment at these offsets; length 0 is an empty slot. Returns the seqs that died
    since they were written there: their frames need the delete flag. Seqs that left the tail meanwhile are passed."""
    late: list[I64] = []
    for run in topic.tail.runs_from(first_seq):
        lo = max(first_seq, run.first_seq)
        hi = min(first_seq + len(offs), run.next_seq)
        if lo >= hi:
            break
        part = slice(lo - first_seq, hi - first_seq)
        slots = slice(lo - run.first_seq, hi - run.first_seq)
        run.locs[slots] = array("Q", (offs[part].astype(np.uint64) + np.uint64(ACTIVE_LOC)).tobytes())
        run.lens[slots] = array("I", lens[part].astype(np.uint32).tobytes())
        if run.deleted:
            died = run.dead(slots.start, slots.stop) & (lens[part] > 0)
            late.append(np.flatnonzero(died) + lo)
    topic.ckpt_seq = max(topic.ckpt_seq, first_seq + len(offs) - 1)
    _drop_resident(topic)
    return np.concatenate(late) if late else np.empty(0, np.int64)


def sealed(topic: TopicLog, view: SegmentView, *, keep_hops: bool = False) -> I64:
    """A sealed segment has these slots now; they leave the tail. Returns its slots that died since they were written
    and need their flag on disk."""
    first_seq, next_seq = view.first_seq, view.first_seq + view.count
    segment = Sealed(view, live=0, live_bytes=0, deleted=0)
    dead = np.zeros(view.count, np.bool_)
    hops = np.zeros(view.count, np.uint8)
    for run in topic.tail.runs_from(first_seq):
        lo, hi = max(first_seq, run.first_seq), min(next_seq, run.next_seq)
        if lo >= hi:
            break
        slots = lo - run.first_seq, hi - run.first_seq
        if run.deleted:
            dead[lo - first_seq : hi - first_seq] = run.dead(*slots)
        hops[lo - first_seq : hi - first_seq] = np.frombuffer(run.flags[slice(*slots)], np.uint8) >> HOPS_SHIFT
        live, size = run.live_totals(max(slots[0], topic.floors.earliest_seq - run.first_seq), slots[1])
        segment.live += live
        segment.live_bytes += size
    _carry_dead(segment, dead)
    if keep_hops and hops.any():
        segment.hops = hops.tobytes()
    topic.tail.cut_out(first_seq, next_seq)
    topic.sealed.add(segment)
    topic.ckpt_seq = max(topic.ckpt_seq, next_seq - 1)
    _drop_resident(topic)
    if topic.tail.runs:
        topic.tags.drop_below(min(run.first_seq for run in topic.tail.runs))
    else:
        topic.tags.drop_below(topic.head + 1)
    return segment.unflagged()


def _carry_dead(segment: Sealed, dead: Bools) -> None:
    if dead.any():
        segment.overlay_complete = False
        segment.mark_deleted(np.flatnonzero(dead))
        segment.flagged()


def _drop_resident(topic: TopicLog) -> None:
    """Copies in memory are no longer needed for what lies in segments; an ephemeral topic has no segments."""
    if not topic.config.is_ephemeral:
        topic.resident.drop_below(topic.ckpt_seq + 1)


def flagged(topic: TopicLog, first_seq: int) -> None:
    """The flags of a sealed segment's deletes are durable."""
    segment = topic.sealed.by_first_seq(first_seq)
    if segment is not None:
        segment.flagged()


def replaced(topic: TopicLog, view: SegmentView) -> None:
    """A rewrite or a move put other files in the place of a segment."""
    segment = topic.sealed.by_first_seq(view.first_seq)
    assert segment is not None, "a segment was replaced that is not there"
    segment.replace(view)


def dropped(topic: TopicLog, first_seq: int) -> None:
    """The files of a wholly dead segment are gone, or are about to go."""
    segment = topic.sealed.by_first_seq(first_seq)
    if segment is not None:
        assert segment.live == 0, "a segment with live records was dropped"
        topic.sealed.remove(first_seq)
        topic.awaiting.pop(first_seq, None)


def droppable(topic: TopicLog) -> list[int]:
    """Sealed segments that hold nothing live, by first seq."""
    return [segment.first_seq for segment in topic.sealed if segment.live == 0]
