"""Bands: which entries of a shard are served next, by weighted round robin with deficits (delivery.md section 5).

Always holds: within a band the oldest `enqueued_at` goes first; a round serves a band at most its weight; an empty band
keeps no credit. A band without credit (`B0` while deferring) is passed over. Used by `ReadySet` alone."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")
Waiting = tuple[float, int, T]
"""`enqueued_at`, order of arrival, entry."""

B0, B1, B2, B3, B4 = range(5)


def band_of(priority: float, floors: tuple[int, ...]) -> int:
    """The band of an effective priority, which counts as the nearest integer; `floors` are those of B4 down to B1."""
    rounded = int(priority + 0.5) if priority >= 0 else -int(0.5 - priority)
    band = len(floors)
    for floor in floors:
        if rounded >= floor:
            return band
        band -= 1
    return B0


class Bands(Generic[T]):
    """`weights` are those of B4 down to B0."""

    def __init__(self, weights: tuple[int, ...]) -> None:
        self._weights = weights[::-1]
        self._heaps: list[list[Waiting[T]]] = [[] for _ in weights]
        self._deficits = [0] * len(weights)
        self._at = B0  # the round starts at the band after it
        self._order = 0
        self.b0_paused = False

    def pause_b0(self, paused: bool) -> None:
        self.b0_paused = paused
        if paused:
            self._deficits[B0] = 0

    def add(self, band: int, enqueued_at: float, entry: T) -> None:
        self._order += 1
        heappush(self._heaps[band], (enqueued_at, self._order, entry))

    def next(self) -> T | None:
        """The next entry to serve, taken out; None if only paused ones are left."""
        if not any(self._heaps):
            self._deficits = [0] * len(self._heaps)
            return None
        for _ in range(2 * len(self._heaps)):
            heap, at = self._heaps[self._at], self._at
            if heap and self._deficits[at] >= 1:
                self._deficits[at] -= 1
                return heappop(heap)[2]
            self._deficits[at] = 0 if not heap else self._deficits[at]
            self._enter(at - 1 if at else len(self._heaps) - 1)
        return None

    def _enter(self, band: int) -> None:
        self._at = band
        if not self._heaps[band]:
            self._deficits[band] = 0
        elif band != B0 or not self.b0_paused:
            self._deficits[band] += self._weights[band]

    def waiting(self, band: int) -> list[Waiting[T]]:
        """Everybody in a band, in no order."""
        return self._heaps[band]

    def replace(self, band: int, waiting: list[Waiting[T]]) -> None:
        heapify(waiting)
        self._heaps[band] = waiting

    def move(self, waiting: Waiting[T], band: int) -> None:
        """Put an entry into another band with the rank it has; the caller took it out of its own."""
        heappush(self._heaps[band], waiting)

    def __len__(self) -> int:
        return sum(map(len, self._heaps))

    def runnable(self) -> int:
        """Entries that wait for a worker and nothing else."""
        return len(self) - (len(self._heaps[B0]) if self.b0_paused else 0)
