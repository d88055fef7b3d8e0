"""The open end of a topic's segments: what a crash may leave behind the last synced mark
(`docs/spec/storage.md#sec-6-3`).

Pure: bytes in, a verdict out. Below the mark every byte was synced once, so what fails there is damage. Above it, slots
count as long as entry and frame are both whole; from the first that is not, everything is a torn tail, cut off and
refilled from the log. Zero-filled tails fail like any other garbage: an all-zero entry is no empty slot.

`cut_and_sync` and what follows it put on disk what was decided here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from topics.formats.buffers import Bools, first_true, gather_u8
from topics.formats.segments.columns import decode_columns
from topics.formats.segments.frame import DELETED_BYTE, OVERHEAD_BYTES
from topics.formats.segments.idx import ENTRY_BYTES, FLAGS_KNOWN, IDX_DELETED, Idx, idx_agrees, read_idx
from topics.formats.segments.rebuild import rebuild_idx
from topics.storage.fs import install
from topics.storage.segments.loading.heal import gap_mask

if TYPE_CHECKING:
    from topics.storage.segments.sealed_segment import SealedSegment
    from topics.storage.segments.topic_dir import TopicDir


@dataclass(slots=True)
class OpenEnd:
    """`entries` of the slots that stand; `bad` marks damaged ones below the mark. `torn`: the files hold more."""

    entries: Idx
    data_len: int
    bad: Bools | None
    torn: bool
    reindexed: bool

    @property
    def count(self) -> int:
        return len(self.entries)


def judge_open_end(idx: memoryview, data: memoryview, *, first_seq: int, marked_count: int, marked_len: int) -> OpenEnd:
    """`marked_*` are the lengths of the last synced mark, 0 for a segment that no mark knows."""
    below, reindexed, bad = _below_mark(idx, data, first_seq, marked_count, marked_len)
    if bad is not None:
        return OpenEnd(below, len(data), bad, torn=False, reindexed=reindexed)
    above = read_idx(idx[marked_count * ENTRY_BYTES :]) if len(idx) > marked_count * ENTRY_BYTES else below[:0]
    kept = _standing(below, above, data, first_seq, marked_len)
    entries = np.concatenate((below, above[:kept]))
    data_len = marked_len + int(above["len"][:kept].astype(np.int64).sum())
    torn = len(data) != data_len or len(idx) != len(entries) * ENTRY_BYTES
    return OpenEnd(entries, data_len, None, torn, reindexed)


def _below_mark(
    idx: memoryview, data: memoryview, first_seq: int, marked_count: int, marked_len: int
) -> tuple[Idx, bool, Bools | None]:
    """Entries of the marked slots, whether they had to be rebuilt, and which of them are damaged."""
    entries = read_idx(idx[: marked_count * ENTRY_BYTES])
    known = data[:marked_len]
    if len(entries) == marked_count and idx_agrees(entries, marked_len) is None:
        found = decode_columns(known, entries, first_seq=first_seq, want=("node",), include_dead=True).bad
        if not found and not _unflagged(entries, known):
            return entries, False, None
        slots = [slot.slot for slot in found if slot.reason != "idx"]
        if slots:
            bad: Bools = np.zeros(marked_count, np.bool_)
            bad[slots] = True
            return entries, False, bad
    rebuilt = rebuild_idx(known, first_seq=first_seq, count=marked_count, data_len=marked_len)
    return rebuilt.idx, True, gap_mask(rebuilt, first_seq) if rebuilt.bad else None


def _standing(below: Idx, above: Idx, data: memoryview, first_seq: int, at: int) -> int:
    """How many of the entries above the mark are good, together with their frames, without a break."""
    good = first_true(~_well_formed(below, above, at))
    above = above[:good]
    ends = above["offset"].astype(np.int64) + above["len"]
    good = first_true((above["len"] > 0) & (ends > len(data)))
    above = above[:good]
    slots = np.flatnonzero(above["len"] > 0)
    found = decode_columns(
        data, above, first_seq=first_seq + len(below), slots=slots, want=("node",), include_dead=True
    )
    return min([good, *(slot.slot for slot in found.bad), *_unflagged(above, data)])


def _well_formed(below: Idx, above: Idx, at: int) -> Bools:
    lens = above["len"].astype(np.int64)
    flags, framed = above["flags"], lens > 0
    expected = np.where(framed, at + np.cumsum(lens) - lens, 0)
    earlier = np.concatenate((below["ts"][-1:] if len(below) else np.zeros(1, np.uint64), above["ts"][:-1]))
    fine: Bools = (above["offset"] == expected) & (flags <= FLAGS_KNOWN) & (above["ts"] >= earlier[: len(above)])
    fine &= np.where(framed, lens >= OVERHEAD_BYTES, flags == IDX_DELETED)
    fine &= above["pad"] == np.zeros(1, above["pad"].dtype)
    return fine


def _unflagged(above: Idx, data: memoryview) -> list[int]:
    """Slots marked deleted whose flag byte does not say so."""
    slots = np.flatnonzero(((above["flags"] & IDX_DELETED) != 0) & (above["len"] > 0))
    places = above["offset"][slots].astype(np.int64) + above["len"][slots] - 1
    unflagged: list[int] = slots[gather_u8(data, places) != DELETED_BYTE].tolist()
    return unflagged


def cut_and_sync(place: TopicDir, first_seq: int, end: OpenEnd, segment: SealedSegment | None) -> None:
    """Cut both files to what stands and make it durable: a process that was killed may have left it unsynced.

    The index is cut first, so that no entry ever names bytes that are not there.
    """
    idx_path = place.file(first_seq, "idx")
    if end.reindexed:
        install(place.fs, idx_path, end.entries.tobytes())
        place.env.files.forget(idx_path)
    _cut(place, idx_path, len(end.entries) * ENTRY_BYTES)
    _cut(place, place.file(first_seq, "data"), end.data_len)
    place.fs.sync_dir(place.path)
    place.fs.sync_dir(place.env.topics_dir)
    if segment is not None:
        segment.stand_in(None)


def _cut(place: TopicDir, path: str, length: int) -> None:
    file = place.fs.open(path, "ensure")  # a segment of empty slots may have lost its empty file
    try:
        if file.size() > length:
            file.truncate(length)
        file.fsync()
    finally:
        file.close()
