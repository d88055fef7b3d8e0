"""Looking for valid frames behind a bad one, byte by byte (`docs/spec/storage.md#sec-9-3`).

Recovery asks two things about the bytes behind the end of a log: is there any valid frame (then it is a hole, not a
torn tail), and which are they (their seqs raise ceilings). Every byte position is tested for a plausible header with
numpy, then plausible frames for their checksum.

Time is bounded on hostile bytes too: overlapping plausible headers could make checksums cost the square of the input,
so hashing has a budget of a fixed number of passes over it. When that is spent the search says so (`exhausted`), and
the caller must treat the bytes as if a valid frame were there: setting bytes aside loses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from topics.formats.buffers import I64, Bools, Buffer, byte_view, gather_u8, gather_u32, xxh3
from topics.formats.wal.frame import (
    FLAGS_KNOWN,
    FRAME_LEN_MAX,
    FRAME_LEN_MIN,
    HAS_NODE,
    HAS_TAG,
    HEAD_BYTES,
    LEN_BYTES,
    OVERHEAD_BYTES,
    SUM_BYTES,
    FrameType,
)
from topics.formats.wal.scan import WalColumns, scan_wal

HASH_PASSES_MAX: Final = 16
"""Budget: bytes hashed for candidates, as a multiple of the bytes searched."""
_HASH_BYTES_MIN: Final = 1 << 20

# Windows grow from the first to the last size: a near hit stays cheap, a far one needs few numpy calls.
_WINDOW_MIN: Final = 1 << 12
_WINDOW_MAX: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Behind:
    """All valid frames behind a bad place, in stretches; `exhausted` when the search had to give up."""

    stretches: list[WalColumns]
    exhausted: bool


class _Search:
    """One search over one buffer with one budget."""

    def __init__(self, buffer: Buffer, start: int, end: int | None) -> None:
        self.buffer = buffer
        self.view = byte_view(buffer)
        self.limit = len(self.view) if end is None else min(end, len(self.view))
        self.budget = max(_HASH_BYTES_MIN, HASH_PASSES_MAX * (self.limit - start))

    def next_valid(self, at: int) -> int | None:
        """Offset of the first valid frame at or behind `at`."""
        window = _WINDOW_MIN
        while at + OVERHEAD_BYTES <= self.limit and self.budget > 0:
            stop = min(at + window, self.limit - OVERHEAD_BYTES + 1)
            found = self._first_valid(_plausible(self.view, at, stop, self.limit))
            if found is not None:
                return found
            at, window = stop, min(2 * window, _WINDOW_MAX)
        return None

    def _first_valid(self, candidates: I64) -> int | None:
        for at in candidates.tolist():
            if self.budget <= 0:
                return None
            end = at + LEN_BYTES + int.from_bytes(self.view[at : at + LEN_BYTES], "little")
            self.budget -= end - at
            if self._sum_matches(at, end - SUM_BYTES) and len(scan_wal(self.buffer, at, end)):
                return int(at)
        return None

    def _sum_matches(self, at: int, end: int) -> bool:
        return xxh3(self.view[at + LEN_BYTES : end]) == int.from_bytes(self.view[end : end + SUM_BYTES], "little")


def find_next_valid(buffer: Buffer, start: int, end: int | None = None) -> int | None:
    """Offset of the first valid frame at or behind `start`, or None.

    When the budget is spent, the answer is the place where the search gave up, so that "found something" stays the safe
    reading. `scan_behind` tells the two apart.
    """
    search = _Search(buffer, start, end)
    found = search.next_valid(start)
    return start if found is None and search.budget <= 0 else found


def scan_behind(buffer: Buffer, start: int, end: int | None = None) -> Behind:
    """Every valid frame at or behind `start`, skipping what is bad between them."""
    search = _Search(buffer, start, end)
    stretches: list[WalColumns] = []
    at = search.next_valid(start)
    while at is not None:
        stretch = scan_wal(buffer, at, end)
        stretches.append(stretch)
        at = search.next_valid(stretch.end)
    return Behind(stretches, search.budget <= 0)


def _plausible(view: memoryview, start: int, stop: int, limit: int) -> I64:
    """Positions in `[start, stop)` whose header passes every check that needs no checksum."""
    raw = np.frombuffer(view[start : min(stop + HEAD_BYTES, limit)], np.uint8)
    count = stop - start
    kind, flags = raw[4 : 4 + count], raw[5 : 5 + count]
    mask: Bools = (kind >= FrameType.APPEND) & (kind <= max(FrameType)) & (flags <= FLAGS_KNOWN)
    # The high byte of a legal length is at most 4: with type and flags this leaves few positions to look at closely.
    mask &= raw[3 : 3 + count] <= FRAME_LEN_MAX >> 24
    at: I64 = np.flatnonzero(mask) + start
    return at[_lengths_plausible(view, at, limit)]


def _lengths_plausible(view: memoryview, at: I64, limit: int) -> Bools:
    frame_len = gather_u32(view, at).astype(np.int64)
    lens = gather_u32(view, at + 30)
    node_len, tag_len = (lens & 0xFFFF).astype(np.int64), (lens >> 16).astype(np.int64)
    inner = node_len + tag_len + gather_u32(view, at + 34)
    flags: Any = gather_u8(view, at + 5)
    fits: Bools = (frame_len <= FRAME_LEN_MAX) & (at + LEN_BYTES + frame_len <= limit)
    present = ((node_len == 0) | ((flags & HAS_NODE) != 0)) & ((tag_len == 0) | ((flags & HAS_TAG) != 0))
    whole: Bools = inner + FRAME_LEN_MIN == frame_len
    plausible: Bools = fits & present & whole
    return plausible
