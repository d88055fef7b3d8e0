"""LatencyHistogram: how long things took, counted by bucket; cheap enough for every request."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

LATENCY_BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of the buckets, in seconds; the last bucket is for everything above."""


class LatencyHistogram:
    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        self.counts[bisect_left(LATENCY_BOUNDS_S, seconds)] += times
        self.sum_s += seconds * times
