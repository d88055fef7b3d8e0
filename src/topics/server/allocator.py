"""Allocator: what the C library does with memory that is free again, and when it is told to give it back.

glibc raises its threshold for blocks that it asks of the kernel one by one, to 32 MiB, each time such a block is freed.
From then on frames and pages lie in the heap, and whatever lies behind a small live block stays resident for ever: a
server that once held 800 MiB for slow clients kept most of it. A fixed threshold gives large blocks back at once, and
`give_back` the free pages of the heap. Where the C library is another one nothing happens."""

from __future__ import annotations

import ctypes
from functools import cache

from topics.limits import KIB, MIB

LARGE_BYTES = 512 * KIB
"""Blocks from here on come from the kernel and go back to it: a fault per page, about 0.1 ms for each."""
ARENAS_MAX = 4
"""Heaps of threads, each of which keeps what it once had."""
BURST_BYTES_MIN = 64 * MIB
AGAIN_S = 20.0

_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


@cache
def _libc() -> ctypes.CDLL | None:
    try:
        libc = ctypes.CDLL(None)
        return libc if hasattr(libc, "malloc_trim") and hasattr(libc, "mallopt") else None
    except OSError:
        return None


def tune_allocator() -> None:
    """To be called before there is much memory, and before there are threads."""
    libc = _libc()
    if libc is not None:
        libc.mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        libc.mallopt(_M_ARENA_MAX, ARENAS_MAX)


def give_back() -> None:
    """Free pages of all heaps go back to the kernel. Takes a millisecond or more: not for the loop's thread."""
    libc = _libc()
    if libc is not None:
        libc.malloc_trim(0)


class Burst:
    """Says when a burst is over: the load has fallen to a quarter of its peak. Once more a while later, for what is
    freed by and by."""

    def __init__(self) -> None:
        self._peak_bytes = 0
        self._again_s: float | None = None

    def is_over(self, load_bytes: int, now_s: float) -> bool:
        """To be asked every second or so."""
        self._peak_bytes = max(self._peak_bytes, load_bytes)
        if self._peak_bytes >= BURST_BYTES_MIN and load_bytes * 4 <= self._peak_bytes:
            self._peak_bytes = load_bytes
            self._again_s = now_s + AGAIN_S
            return True
        if self._again_s is not None and now_s >= self._again_s:
            self._again_s = None
            return True
        return False
