"""Slots: what a tail run and a sealed segment have in common, a stretch of consecutive seqs some of which were deleted.

Arguments are slot numbers, half-open; slot `i` is seq `first_seq + i`. "Live" here means not deleted: whoever asks
starts at the topic's `earliest_seq`, so that dead by position never comes in. Searches look at a few slots first and
then at ever larger pieces: the answer is nearly always close by.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]

FEW = 64  # slots: below this a comprehension costs less than what numpy takes to begin
_FIRST_LOOK = 64  # slots


class Slots(ABC):
    __slots__ = ()

    first_seq: int
    deleted: int

    @property
    @abstractmethod
    def count(self) -> int: ...

    @property
    @abstractmethod
    def next_seq(self) -> int: ...

    @abstractmethod
    def dead(self, lo: int, hi: int) -> Bools:
        """Which of the slots were deleted."""

    @abstractmethod
    def sizes_of(self, lo: int, hi: int) -> U32:
        """Accounted bytes of the slots."""

    @abstractmethod
    def expired(self, cutoff_ts: int) -> int:
        """How many leading slots have a timestamp below the cutoff."""

    @abstractmethod
    def mark_deleted(self, slots: I64) -> None:
        """These, live until now, are dead on request."""

    @abstractmethod
    def took(self, count: int, size: int) -> None:
        """So many live records and bytes are dead now."""

    # --- totals --------------------------------------------------------------------------------------------------

    def live_totals(self, lo: int, hi: int) -> tuple[int, int]:
        """Number and bytes of the live slots."""
        if hi <= lo:
            return 0, 0
        sizes = self.sizes_of(lo, hi)
        if self.deleted == 0:
            return hi - lo, int(sizes.sum(dtype=np.uint64))
        alive = ~self.dead(lo, hi)
        return int(np.count_nonzero(alive)), int(sizes[alive].sum(dtype=np.uint64))

    def live_slots(self, lo: int, hi: int) -> I64:
        if self.deleted == 0:
            return np.arange(lo, hi, dtype=np.int64)
        return np.flatnonzero(~self.dead(lo, hi)) + lo

    # --- searches ------------------------------------------------------------------------------------------------

    def first_live(self, lo: int, hi: int) -> int:
        """The first live slot, or `hi`."""
        if self.deleted == 0:
            return lo
        step = _FIRST_LOOK
        while lo < hi:
            dead = self.dead(lo, min(lo + step, hi))
            at = int(dead.argmin())
            if not dead[at]:
                return lo + at
            lo += step
            step *= 8
        return hi

    def last_live(self, lo: int, hi: int) -> int:
        """The last live slot, or `lo - 1`."""
        if self.deleted == 0:
            return hi - 1
        step = _FIRST_LOOK
        while lo < hi:
            start = max(hi - step, lo)
            dead = self.dead(start, hi)[::-1]
            at = int(dead.argmin())
            if not dead[at]:
                return hi - 1 - at
            hi = start
            step *= 8
        return lo - 1

    def nth_live(self, lo: int, nth: int) -> tuple[int, int]:
        """The slot of live record number `nth`, counted from 1 at `lo`; -1 if there are fewer, with their number."""
        if self.deleted == 0:
            there = self.count - lo
            return (lo + nth - 1, nth) if nth <= there else (-1, there)
        seen, step = 0, max(_FIRST_LOOK, 2 * nth)
        while lo < self.count:
            alive = self.live_slots(lo, min(lo + step, self.count))
            if nth - seen <= len(alive):
                return int(alive[nth - seen - 1]), nth
            seen += len(alive)
            lo += step
            step *= 8
        return -1, seen

    def slot_freeing(self, lo: int, need_bytes: int) -> tuple[int, int]:
        """The slot up to which live records must go so that `need_bytes` are freed; -1 if all together free less. With
        it, what they free."""
        freed, step = 0, _FIRST_LOOK
        while lo < self.count:
            hi = min(lo + step, self.count)
            alive = self.live_slots(lo, hi)
            sums = np.cumsum(self.sizes_of(lo, hi)[alive - lo], dtype=np.int64)
            at = int(np.searchsorted(sums, need_bytes - freed))
            if at < len(sums):
                return int(alive[at]), freed + int(sums[at])
            freed += int(sums[-1]) if len(sums) else 0
            lo = hi
            step *= 8
        return -1, freed


def shifted(numbers: range | I64, by: int) -> range | I64:
    """Slots as seqs, or seqs as slots."""
    return range(numbers.start + by, numbers.stop + by) if isinstance(numbers, range) else numbers + by
