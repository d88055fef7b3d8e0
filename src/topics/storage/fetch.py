"""Fetch: stored records by place, checked, as `RecordRun`s (`docs/spec/storage.md#sec-6-3` and
`docs/spec/storage.md#sec-12`).

A read names its source and the records wanted of it; the answer is one run per read. Every frame is checked here, each
time: length, checksum, seq, flag byte. What fails is never served. Frames flagged deleted on disk are left out, so a
run may hold fewer records than asked for.

    sealed, hot    a slice of the mapping, no copy
    sealed, cold   ranges through the cold cache; waits for the store, so only on the cold pool
    active, WAL    one `pread` of what spans the records

A run ends in front of the first damaged record, and `seq_next` says how far the answer goes; if the first record wanted
is the damaged one, `CorruptSegment` is raised. Read errors are `StorageIo` and change nothing. Runs on pool threads.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from topics.errors import CorruptSegment, StorageIo
from topics.formats.buffers import I64, Bools, byte_view, first_true, gather_rows, gather_u64, hash_slices
from topics.formats.segments.columns import BadSlot, FrameColumns, decode_columns, decode_frames
from topics.formats.wal import frame as wal_frame
from topics.model.run import EMPTY_RUN, PRESENCE_MASK, WAL_BODY_AT, RecordRun
from topics.storage.disk_spans import read_spans
from topics.storage.segments.active_segment import ActiveSegment
from topics.storage.segments.sealed_segment import SealedSegment
from topics.storage.segments.segment_arrays import SegmentArrays, run_of_columns, run_of_slots
from topics.storage.tiers.cold_cache import ColdCache
from topics.storage.wal.wal_files import ReadWal

TRIES: Final = 3
"""How often a read starts again because the segment's files were replaced, or repaired, under it."""


class RecordsMoved(StorageIo):
    """The records lie elsewhere by now: plan the read again."""


class SealedRead(NamedTuple):
    """Slots of a sealed segment, ascending."""

    segment: SealedSegment
    slots: npt.NDArray[np.int64] | range


class ActiveRead(NamedTuple):
    """Records of the active segment at places the tail remembers; seqs ascend."""

    segment: ActiveSegment
    seqs: npt.NDArray[np.int64] | range
    offs: npt.ArrayLike
    lens: npt.ArrayLike


class WalRead(NamedTuple):
    """Append frames of one WAL file; seqs ascend."""

    file: int
    seqs: npt.NDArray[np.int64] | range
    offs: npt.ArrayLike
    lens: npt.ArrayLike


Read = SealedRead | ActiveRead | WalRead


@dataclass(slots=True)
class StoredRun:
    """`seq_next`: every record asked for below it is in the run, or flagged deleted on disk."""

    run: RecordRun
    seq_next: int


@dataclass(slots=True)
class FetchResult:
    """One answer per read, in order; reads behind a damaged record are not carried out."""

    parts: list[StoredRun]
    cold_segments: int = 0

    @property
    def runs(self) -> list[RecordRun]:
        return [part.run for part in self.parts]


class Fetcher:
    """Carries out reads. `repair` may replace damaged frames of a segment and says whether it did."""

    def __init__(
        self,
        *,
        read_wal: ReadWal,
        cold: ColdCache | None = None,
        repair: Callable[[SealedSegment, Sequence[int]], bool] | None = None,
    ) -> None:
        self._read_wal = read_wal
        self._cold = cold
        self._repair = repair

    def fetch(self, reads: Sequence[Read]) -> FetchResult:
        result = FetchResult([])
        for read in reads:
            try:
                part = self._one(read, result, first=not result.parts)
            except OSError as error:
                raise StorageIo(f"a stored record cannot be read: {error}") from error
            result.parts.append(part)
            if part.seq_next <= _last_seq(read):
                break
        return result

    def _one(self, read: Read, result: FetchResult, *, first: bool) -> StoredRun:
        if isinstance(read, SealedRead):
            return self._sealed(read, result, first=first)
        if isinstance(read, ActiveRead):
            return _active(read, first=first)
        return _wal(read, self._read_wal)

    # --- sealed ---------------------------------------------------------------------------------------------------

    def _sealed(self, read: SealedRead, result: FetchResult, *, first: bool, tries: int = TRIES) -> StoredRun:
        segment, slots = read.segment, np.asarray(read.slots, np.int64)
        if not len(slots):
            return StoredRun(EMPTY_RUN, 0)
        version = segment.version
        pair = segment.pair()
        if pair.bad is None and pair.data is not None:
            run = run_of_slots(pair, slots, segment.first_seq)
            if run is not None:
                return StoredRun(run, segment.first_seq + int(slots[-1]) + 1)
        try:
            data, base = self._bytes(segment, pair, slots, result)
            found = decode_columns(
                data, pair.entries, first_seq=segment.first_seq, slots=slots, want=("node",), base=base
            )
        except CorruptSegment:
            if tries and segment.version != version:
                return self._sealed(read, result, first=first, tries=tries - 1)
            raise
        if found.bad and tries and (segment.version != version or self._mend(segment, found.bad)):
            return self._sealed(read, result, first=first, tries=tries - 1)
        bad = _bad_slots(pair, slots, found.bad)
        if len(bad):
            segment.mark_bad(bad)
        return _up_to_damage(segment, slots, found, data, bad, first=first)

    def _bytes(
        self, segment: SealedSegment, pair: SegmentArrays, slots: I64, result: FetchResult
    ) -> tuple[memoryview, int]:
        """The bytes that hold these slots, and the `.data` offset of the first of them."""
        if pair.data is not None:
            return pair.data, 0
        entries = pair.entries[slots]
        framed = entries["len"] > 0
        offs, lens = entries["offset"][framed].astype(np.int64), entries["len"][framed].astype(np.int64)
        if not len(offs):
            return memoryview(b""), 0
        if self._cold is None:  # moved while the read was on its way: this thread must not wait for the store
            raise RecordsMoved(f"{segment.label} of topic {segment.place.name!r} is in the cold store")
        low = int(offs[0])
        buffer, from_store = self._cold.read(segment, low, int(offs[-1] + lens[-1]) - low)
        result.cold_segments += from_store
        return memoryview(buffer), low

    def _mend(self, segment: SealedSegment, bad: Sequence[BadSlot]) -> bool:
        """Whether the segment may read better now: its index was wrong, or another copy had the frames."""
        if segment.tier == "hot" and any(slot.reason == "idx" for slot in bad):
            segment.reindex()
            return True
        return self._repair is not None and self._repair(segment, [slot.slot for slot in bad])


def _last_seq(read: Read) -> int:
    if isinstance(read, SealedRead):
        return read.segment.first_seq + int(read.slots[-1]) if len(read.slots) else -1
    return int(read.seqs[-1]) if len(read.seqs) else -1


def _bad_slots(pair: SegmentArrays, slots: I64, found: Sequence[BadSlot]) -> I64:
    bad = np.array([slot.slot for slot in found], np.int64)
    if pair.bad is not None:
        bad = np.union1d(bad, slots[pair.bad[slots]])
    return bad


def _up_to_damage(
    segment: SealedSegment, slots: I64, found: FrameColumns, data: memoryview, bad: I64, *, first: bool
) -> StoredRun:
    if not len(bad):
        return StoredRun(run_of_columns(found, data), segment.first_seq + int(slots[-1]) + 1)
    stop = int(bad[0])
    good = int(np.searchsorted(found.slot, stop))
    if first and not good:
        raise segment.corrupt(stop)
    return StoredRun(run_of_columns(found, data, good), segment.first_seq + stop)


# --- active -----------------------------------------------------------------------------------------------------------


def _active(read: ActiveRead, *, first: bool) -> StoredRun:
    segment, seqs = read.segment, np.asarray(read.seqs, np.int64)
    if not len(seqs):
        return StoredRun(EMPTY_RUN, 0)
    lens = np.asarray(read.lens, np.int64)
    buffer, at = read_spans(segment.read, np.asarray(read.offs, np.int64), lens)
    found = decode_frames(buffer, at, lens, want=("node",))
    wrong = found.slot[found.seq != seqs[found.slot]].tolist() + [slot.slot for slot in found.bad]
    if not wrong:
        return StoredRun(run_of_columns(found, buffer), int(seqs[-1]) + 1)
    if segment.flips.retired:  # sealed meanwhile, and perhaps rewritten: these places mean nothing any more
        raise RecordsMoved(f"{segment.label} of topic {segment.place.name!r} was sealed")
    stop = min(wrong)
    good = int(np.searchsorted(found.slot, stop))
    if first and not good:
        raise segment.corrupt(int(seqs[stop]))
    return StoredRun(run_of_columns(found, buffer, good), int(seqs[stop]))


# --- WAL --------------------------------------------------------------------------------------------------------------


def _wal(read: WalRead, read_wal: ReadWal) -> StoredRun:
    seqs = np.asarray(read.seqs, np.int64)
    offs, lens = np.asarray(read.offs, np.int64), np.asarray(read.lens, np.int64)
    if not len(seqs):
        return StoredRun(EMPTY_RUN, 0)
    buffer, at = read_spans(lambda offset, length: read_wal(read.file, offset, length), offs, lens)
    view = byte_view(buffer)
    head: Any = gather_rows(view, at, wal_frame.HEAD_DTYPE)
    ends = at + lens - wal_frame.SUM_BYTES
    good: Bools = head["frame_len"].astype(np.int64) + wal_frame.LEN_BYTES == lens
    good &= head["seq"] == seqs.astype(np.uint64)
    good &= hash_slices(buffer, at + wal_frame.LEN_BYTES, ends) == gather_u64(view, ends)
    if not good.all():
        raise StorageIo(f"WAL bytes of record {int(seqs[first_true(~good)])} are damaged")
    run = RecordRun(buffer, array("q", (at + WAL_BODY_AT).tobytes()), (head["flags"] & PRESENCE_MASK).tobytes())
    return StoredRun(run, int(seqs[-1]) + 1)
