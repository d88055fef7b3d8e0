"""Flags that an earlier process set: are they durable?

A delete is replayed from the log until a snapshot has passed it, and that waits until its flags are synced. A process
that was killed in between leaves flags in the page cache. The next one finds them set, so it does not set them again,
and would take them for proof. Syncing the file is not enough: where a sync failed before, the kernel takes the bytes
for written, and no later sync writes them. So the segments that recovery looks at get their flags once more, and are
synced, before it lets anything pass.

The boot id would not spare us that: a start that was killed before it wrote its own boot line may have set flags, too.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from topics.formats.buffers import I64, U8, gather_u8
from topics.formats.idx import ENTRY_BYTES, FLAGS_AT, IDX_DELETED, Idx
from topics.formats.segment_frame import DELETED_BYTE
from topics.storage.segments.flips import FLAG, write_byte
from topics.storage.segments.pair import Pair

if TYPE_CHECKING:
    from topics.storage.segments.place import TopicDir


def found_flags(place: TopicDir, first_seq: int, pair: Pair, *, again: bool) -> Pair:
    """Believe the frames, and make sure of them. A delete that was acked without a sync (a job's ack, a `memory` topic)
    flags frames before its log frame is durable: a power cut can keep the flag and lose the rest, and then only the
    frame tells. `again`: it was looked at before and closed for lack of room; until recovery may write, its index still
    lacks what the frames say."""
    if place.env.may_write or pair.data is None:
        return pair
    flags = frame_flags(pair.entries, pair.data)
    if not again:
        keep_flags(place, first_seq, pair.entries, flags)
    if np.array_equal(flags, pair.flags):
        return pair
    entries = pair.entries.copy()
    entries["flags"] = flags
    return Pair(entries, pair.data, pair.bad)


def frame_flags(entries: Idx, data: memoryview) -> U8:
    """Entry flags; a flagged frame is deleted even if its entry does not say so yet."""
    flags: U8 = entries["flags"].copy()
    framed = np.flatnonzero((entries["len"] > 0) & ((flags & IDX_DELETED) == 0))
    framed = framed[_places(entries, framed) < len(data)]  # a damaged file may be short
    flags[framed[gather_u8(data, _places(entries, framed)) == DELETED_BYTE]] |= IDX_DELETED
    return flags


def keep_flags(place: TopicDir, first_seq: int, entries: Idx, flags: U8) -> None:
    """Once recovery may write: set these flags again, and in the index what only the frames say; nobody would do it
    later, because the slots count as dead already."""
    if place.env.may_write:
        return
    flagged = np.flatnonzero(((flags & IDX_DELETED) != 0) & (entries["len"] > 0))
    if not len(flagged):
        return
    mirrored = flagged[flags[flagged] != entries["flags"][flagged]]
    bits = dict(zip(mirrored.tolist(), flags[mirrored].tolist(), strict=True))
    place.env.write_or_defer(partial(_write_anew, place, first_seq, _places(entries, flagged).tolist(), bits))


def _places(entries: Idx, slots: I64) -> I64:
    places: I64 = entries["offset"][slots].astype(np.int64) + entries["len"][slots] - 1
    return places


def _write_anew(place: TopicDir, first_seq: int, places: list[int], bits: dict[int, int]) -> None:
    """`.data` first: a flag in the index must never be older than the one it mirrors."""
    with place.env.files.borrow(place.file(first_seq, "data"), "rw") as data:
        for at in places:
            write_byte(data, at, FLAG)
        data.datasync()
    with place.env.files.borrow(place.file(first_seq, "idx"), "rw") as idx:
        for slot, value in bits.items():
            write_byte(idx, slot * ENTRY_BYTES + FLAGS_AT, bytes((value,)))
        idx.datasync()
