"""Flags that an earlier process set: are they durable?

A delete is replayed from the log until a snapshot has passed it, and that waits until its flags are synced. A process
that was killed in between leaves flags in the page cache. The next one finds them set, so it does not set them again,
and would take them for proof. Therefore the segments that recovery looks at are synced before it lets anything pass.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from topics.formats.buffers import U8, U32, gather_u8
from topics.formats.idx import ENTRY_BYTES, FLAGS_AT, IDX_DELETED
from topics.formats.segment_frame import DELETED_BYTE
from topics.storage.fs import write_all
from topics.storage.segments.pair import Pair

if TYPE_CHECKING:
    from topics.storage.segments.place import TopicDir


def sync_old_flags(place: TopicDir, first_seq: int, flags: U8, lens: U32) -> None:
    """Sync both files once recovery may write, if there are flags that may not be durable."""
    env = place.env
    if env.may_write or env.rebooted:
        return
    if bool((((flags & IDX_DELETED) != 0) & (lens > 0)).any()):
        env.write_or_defer(partial(sync_files, place, first_seq))


def found_flags(place: TopicDir, first_seq: int, pair: Pair) -> Pair:
    """Believe the frames. A delete that was acked without a sync (a job's ack, a `memory` topic) flags frames before
    its log frame is durable: a power cut can keep the flag and lose the rest, and then only the frame tells."""
    if place.env.may_write or pair.data is None:
        return pair
    framed = np.flatnonzero((pair.lens > 0) & ((pair.flags & IDX_DELETED) == 0))
    dead = framed[gather_u8(pair.data, pair.flag_places(framed)) == DELETED_BYTE]
    if not len(dead):
        return pair
    entries = pair.entries.copy()
    entries["flags"][dead] |= IDX_DELETED
    mirror_flags(place, first_seq, entries["flags"], pair.flags)
    return Pair(entries, pair.data, pair.bad)


def mirror_flags(place: TopicDir, first_seq: int, flags: U8, in_index: U8) -> None:
    """Set in the index what only the frames say; nobody would do it later, because the slots count as dead already."""
    slots = np.flatnonzero(flags != in_index)
    if len(slots):
        place.env.write_or_defer(partial(_write_flags, place, first_seq, slots.tolist(), flags[slots].tolist()))


def _write_flags(place: TopicDir, first_seq: int, slots: list[int], flags: list[int]) -> None:
    sync_files(place, first_seq)
    with place.env.files.borrow(place.file(first_seq, "idx"), "rw") as file:
        for slot, value in zip(slots, flags, strict=True):
            write_all(file, slot * ENTRY_BYTES + FLAGS_AT, bytes((value,)))
        file.datasync()


def sync_files(place: TopicDir, first_seq: int) -> None:
    """`.data` first: a flag in the index must never be older than the one it mirrors."""
    for part in ("data", "idx"):
        with place.env.files.borrow(place.file(first_seq, part), "rw") as file:
            file.datasync()
