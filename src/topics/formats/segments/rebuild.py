"""Rebuilding a lost or disagreeing `.idx` from its `.data` (`docs/spec/storage.md#sec-6-3` and
`docs/spec/storage.md#sec-6-5`).

Frames behind a bad one are found by a search of every byte position, as its length field proves nothing, with a bounded
number of checksum bytes. Nothing vanishes: seqs whose frames are unreadable are named in `bad`, and an index with bad
ranges must not be installed, only used in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from topics.formats.buffers import I64, U64, Bools, Buffer, byte_view, gather_rows, xxh3
from topics.formats.segments.frame import (
    FRAME_LEN_MAX,
    HEAD_BYTES,
    HEAD_DTYPE,
    LEN_BYTES,
    OVERHEAD_BYTES,
    TAIL_BYTES,
    unpack_len,
)
from topics.formats.segments.idx import IDX_DELETED, IDX_DTYPE, Idx
from topics.formats.segments.scan import SegmentColumns, head_holds, scan_segment

# Bytes hashed for candidates of the byte search that turn out false, as a multiple of the file.
_HASH_PASSES_MAX: Final = 16
_HASH_BYTES_MIN: Final = 1 << 20
# Windows of the byte search and runs of the scan grow while they meet no damage, so that dense damage stays cheap.
_WINDOW_MIN: Final = 1 << 12
_WINDOW_MAX: Final = 1 << 16
_RUN_MIN: Final = 1 << 6
_RUN_MAX: Final = 1 << 14


class BadRange(NamedTuple):
    """Bytes `[offset, end)` that hold no valid frame, and the seqs `first_seq..last_seq` that may have been in them."""

    offset: int
    end: int
    first_seq: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class RebuiltIdx:
    """A new index; complete and installable when `bad` is empty."""

    idx: Idx
    bad: tuple[BadRange, ...]


@dataclass(frozen=True, slots=True)
class _Found:
    """Valid frames in ascending seq order and the byte ranges between them that hold none."""

    slot: I64
    frames: dict[str, Any]
    gaps: list[tuple[int, int]]


def rebuild_idx(data: Buffer, *, first_seq: int, count: int | None = None, data_len: int | None = None) -> RebuiltIdx:
    """Entries for the slots from `first_seq` on.

    `count` is the number of slots known from a snapshot or mark; without it the last frame ends the segment. `data_len`
    is the recorded length: a shorter file means that the seqs behind its last frame are damaged, not empty.
    """
    found = _find_frames(data, first_seq, count)
    size = len(byte_view(data))
    if data_len is not None and size < data_len and (not found.gaps or found.gaps[-1][1] < size):
        found.gaps.append((size, size))
    slots = count if count is not None else int(found.slot[-1]) + 1 if len(found.slot) else 0
    idx = _entries(found, slots)
    return RebuiltIdx(idx, tuple(_name_gap(idx, found, gap, first_seq) for gap in found.gaps))


def _find_frames(data: Buffer, first_seq: int, count: int | None) -> _Found:
    view = byte_view(data)
    search = _Search(view)
    runs: list[dict[str, Any]] = []
    gaps: list[tuple[int, int]] = []
    low, high, at = first_seq, 2**63 if count is None else first_seq + count, 0
    frames_max = _RUN_MIN
    while at < len(view):
        run = scan_segment(data, at, frames_max=frames_max)
        keep = _ascending(run.seq, low, high)
        runs.append(_kept(run, keep))
        low = int(run.seq[keep].max(initial=low - 1)) + 1
        ends = run.offset[~keep] + run.length[~keep]
        gaps.extend(zip(run.offset[~keep].tolist(), ends.tolist(), strict=True))
        at, frames_max = run.end, min(2 * frames_max, _RUN_MAX)
        if run.reason:
            following = search.next_frame(at + 1)
            gaps.append((at, following))
            at, frames_max = following, _RUN_MIN
    frames = {name: np.concatenate([run[name] for run in runs]) for name in runs[0]} if runs else _kept_none()
    slot: I64 = frames.pop("seq").astype(np.int64) - first_seq
    return _Found(slot, frames, gaps)


def _ascending(seq: U64, low: int, high: int) -> Bools:
    """Which frames have a seq of `[low, high)` above every one kept before them; others cannot be in this segment."""
    inside: Bools = (seq >= low) & (seq < high)
    values = np.where(inside, seq, 0).astype(np.uint64)
    before = np.concatenate((np.zeros(1, np.uint64), np.maximum.accumulate(values)[:-1]))[: len(values)]
    keep: Bools = inside & (values > before)
    return keep


def _kept(run: SegmentColumns, keep: Bools) -> dict[str, Any]:
    flags = run.flags | (run.deleted * np.uint8(IDX_DELETED))
    columns: dict[str, Any] = {"seq": run.seq, "offset": run.offset, "len": run.length, "ts": run.ts, "flags": flags}
    return {name: column[keep] for name, column in columns.items()}


def _kept_none() -> dict[str, Any]:
    return {name: np.empty(0, np.int64) for name in ("seq", "offset", "len", "ts", "flags")}


def _entries(found: _Found, slots: int) -> Idx:
    """Entries of the found frames; every other slot is an empty one with the time of the frame before it."""
    idx: Idx = np.zeros(slots, IDX_DTYPE)
    idx["flags"] = IDX_DELETED
    if not len(found.slot):
        return idx
    for name, column in found.frames.items():
        idx[name][found.slot] = column
    source = np.full(slots, -1, np.int64)
    source[found.slot] = np.arange(len(found.slot))
    idx["ts"] = found.frames["ts"][np.maximum(np.maximum.accumulate(source), 0)]
    return idx


def _name_gap(idx: Idx, found: _Found, gap: tuple[int, int], first_seq: int) -> BadRange:
    """The seqs a bad byte range may have held; its first slot points at the bytes, so that reading it fails loudly."""
    offset, end = gap
    after = int(np.searchsorted(found.frames["offset"], offset))
    low = int(found.slot[after - 1]) + 1 if after else 0
    high = int(found.slot[after]) if after < len(found.slot) else len(idx)
    if low < high and end > offset:
        idx["offset"][low], idx["len"][low], idx["flags"][low] = offset, end - offset, 0
    return BadRange(offset, end, first_seq + low, first_seq + high - 1)


class _Search:
    """Where the next valid frame starts, with one hash budget for the whole file."""

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.budget = max(_HASH_BYTES_MIN, _HASH_PASSES_MAX * len(view))

    def next_frame(self, at: int) -> int:
        """Start of the first valid frame at or behind `at`; the end of the file when there is none."""
        last, window = len(self.view) - OVERHEAD_BYTES + 1, _WINDOW_MIN
        while at < last and self.budget > 0:
            stop = min(at + window, last)
            for candidate in _plausible(self.view, at, stop).tolist():
                if self.budget > 0 and self._sum_matches(candidate):
                    return int(candidate)
            at, window = stop, min(2 * window, _WINDOW_MAX)
        return len(self.view)

    def _sum_matches(self, at: int) -> bool:
        end = at + LEN_BYTES + int(unpack_len(self.view, at)[0]) - TAIL_BYTES
        self.budget -= end - at
        return xxh3(self.view[at + LEN_BYTES : end]) == int.from_bytes(self.view[end : end + 8], "little")


def _plausible(view: memoryview, start: int, stop: int) -> I64:
    """Positions in `[start, stop)` whose header could be a frame's, checksum apart."""
    raw = np.frombuffer(view[start : stop + HEAD_BYTES], np.uint8)
    count = stop - start
    mask: Bools = (raw[3 : 3 + count] <= FRAME_LEN_MAX >> 24) & (raw[4 : 4 + count] <= 3)
    at: I64 = np.flatnonzero(mask) + start
    head: Any = gather_rows(view, at, HEAD_DTYPE)
    length = head["frame_len"].astype(np.int64) + LEN_BYTES
    fits: Bools = (length >= OVERHEAD_BYTES) & (at + length <= len(view)) & head_holds(head, length)
    found: I64 = at[fits]
    return found
