"""SegmentArrays: the opened files of one sealed segment as arrays, and which of its bytes are in memory.

Immutable. A rewrite or a move makes new arrays; whoever holds the old ones goes on reading the old bytes, because the
arrays keep their mappings alive. Columns are views of the `.idx` bytes, so a flag that is set on disk shows here.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from topics.formats.buffers import U8, U32, U64, Bools
from topics.formats.segments.idx import Idx
from topics.limits import KIB

RESIDENT_BYTES_MAX: Final = 256 * KIB
"""More than this is never read on the owner's thread: checking it would take a millisecond."""


def _find_mincore() -> Callable[[int, int, ctypes.Array[ctypes.c_char]], int] | None:
    """The system call that tells which pages of a mapping are in memory. Called without giving the GIL away: it takes
    a microsecond, and getting the GIL back may take milliseconds."""
    try:
        mincore = ctypes.PyDLL(None).mincore
    except (OSError, AttributeError):  # not there: nothing counts as resident, and every read goes to a pool
        return None
    mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    mincore.restype = ctypes.c_int
    return mincore


_mincore: Final = _find_mincore()


def is_resident(start: int, stop: int) -> bool:
    """Are all pages of these addresses of a mapped file in memory?"""
    start -= start % mmap.PAGESIZE
    if _mincore is None:
        return False
    pages = ctypes.create_string_buffer(-(-(stop - start) // mmap.PAGESIZE))
    return _mincore(start, stop - start, pages) == 0 and all(page & 1 for page in pages.raw)


class SegmentArrays:
    """`data` is None while the bytes are in the cold tier. `bad` marks slots that are damaged, None for none."""

    __slots__ = ("_data_address", "bad", "data", "entries", "flags", "lens", "offs", "ts")

    def __init__(self, entries: Idx, data: memoryview | None, bad: Bools | None = None) -> None:
        self.entries = entries
        self.data = data
        self.bad = bad
        self.ts: U64 = entries["ts"]
        self.flags: U8 = entries["flags"]
        self.lens: U32 = entries["len"]
        self.offs: U32 = entries["offset"]
        self._data_address = 0  # 0: not a mapped file, so always in memory
        if data is not None and isinstance(data.obj, mmap.mmap):
            self._data_address = int(np.frombuffer(data, np.uint8).__array_interface__["data"][0])

    def is_resident(self, first: int, last: int) -> bool:
        """Can the frames of the slots `first` to `last` be read at once, without waiting for the disk? Says no for
        many, and for a segment with damage. A page may still be evicted before it is read; that costs one wait."""
        if self.data is None or self.bad is not None:
            return False
        lo, hi = int(self.offs[first]), int(self.offs[last]) + int(self.lens[last])
        if not lo < hi <= min(len(self.data), lo + RESIDENT_BYTES_MAX):
            return False
        return not self._data_address or is_resident(self._data_address + lo, self._data_address + hi)

    def flag_places(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where the delete flag bytes of these slots lie in `.data`; slots without a frame are left out."""
        lens = self.lens[slots].astype(np.int64)
        places: npt.NDArray[np.int64] = self.offs[slots].astype(np.int64) + lens - 1
        return places[lens > 0]
