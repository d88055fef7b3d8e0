"""Load: a topic's slots as recovery finds them in segments, before the log is replayed over them.

Order: `restore` (core.capture) or a TopicCreate makes the topic, then its segments are loaded, oldest first, then
frames are replayed, then `decide_restart` ends the replay. Nothing here moves a floor.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topics.core.slots.sealed_slots import Sealed, SegmentView
from topics.core.slots.slot_range import I64
from topics.core.topic import TopicLog
from topics.model.ops import DELETED, IN_ACTIVE

_IN_ACTIVE = np.uint64(IN_ACTIVE << 32)

DeadRanges = list[tuple[int, int]]
"""Deleted seqs, first and last included, as a snapshot has them."""


@dataclass(slots=True)
class ActiveColumns:
    """The slots of an active segment, from its files. `flags` are index flags; `tags` None where there is none."""

    first_seq: int
    offs: npt.NDArray[np.uint32]
    lens: npt.NDArray[np.uint32]
    ts: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint32]
    flags: npt.NDArray[np.uint8]
    tags: list[bytes | None] | None = None


def load_sealed(topic: TopicLog, view: SegmentView, *, dead: DeadRanges, totals: tuple[int, int] | None = None) -> None:
    """A sealed segment. `totals` are the live records and bytes that a snapshot noted; give them only if no flag can be
    on disk whose delete is not replayed (the same boot since), else everything is counted."""
    slots = _slots_in(dead, view.first_seq, view.count)
    if totals is None:
        segment = Sealed.counted(view, earliest_seq=topic.floors.earliest_seq, dead=slots)
    else:
        segment = Sealed.trusted(view, live=totals[0], live_bytes=totals[1], dead=slots)
    topic.sealed.add(segment)
    topic.count_in(segment.live, segment.live_bytes)
    reached(topic, view.first_seq + view.count - 1)


def load_active(topic: TopicLog, active: ActiveColumns, *, dead: DeadRanges) -> None:
    """The active segment: its slots are the first of the tail."""
    count = len(active.offs)
    if count == 0:
        return
    flags = active.flags
    if dead:
        flags = flags.copy()
        flags[_slots_in(dead, active.first_seq, count)] |= DELETED
    run = topic.tail.run_for_append(active.first_seq)
    run.extend(
        locs=array("Q", (active.offs + _IN_ACTIVE).tobytes()),
        lens=array("I", active.lens.tobytes()),
        ts=array("Q", active.ts.tobytes()),
        sizes=array("I", active.sizes.tobytes()),
        flags=array("B", flags.tobytes()),
    )
    lo = active.first_seq - run.first_seq
    below = max(topic.floors.earliest_seq - active.first_seq, 0)
    topic.count_in(*run.live_totals(min(lo + below, run.count), run.count))
    if active.tags is not None:
        topic.tags.add(active.first_seq, active.tags)
    written_until(topic, int(active.ts[-1]))
    reached(topic, active.first_seq + count - 1)


def written_until(topic: TopicLog, ts: int) -> None:
    """When the newest record in segments was written: its frame may be known already, and a copy has none."""
    topic.last_ts = topic.last_write_ts = max(topic.last_ts, ts)


def reached(topic: TopicLog, last_seq: int) -> None:
    """Replay starts behind the highest slot, also where the last segments were dropped because all in them was dead:
    the log need not have their frames any more, and copies never had any."""
    topic.ckpt_seq = max(topic.ckpt_seq, last_seq)
    topic.head = max(topic.head, last_seq)
    topic.reserved_head = max(topic.reserved_head, topic.head)


def _slots_in(dead: DeadRanges, first_seq: int, count: int) -> I64:
    pieces = [
        np.arange(max(lo, first_seq), min(hi + 1, first_seq + count), dtype=np.int64) - first_seq
        for lo, hi in dead
        if lo < first_seq + count and hi >= first_seq
    ]
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64)
