"""Governor: one number for how short of time the process is (delivery.md section 7).

    pressure = max(q, l, 0.8 * b)     backlog, scheduling latency, use of the pool

Always holds: `pressure` lies in [0, 1]. A sample is one call of `sample`; between samples everyone reads the last."""

from __future__ import annotations

from topics.engine.delivery.tuning import Tuning


class Governor:
    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._ewma_ms = 0.0
        self._served = 0
        self.pressure = 0.0

    def served(self, wait_ms: float) -> None:
        """An entry was taken into service after waiting this long for a worker."""
        tuning = self._tuning
        self._served += 1
        self._ewma_ms += tuning.ewma_alpha * (min(wait_ms, tuning.latency_sample_max_ms) - self._ewma_ms)

    @property
    def ewma_ms(self) -> float:
        return self._ewma_ms

    def sample(self, *, depth: int, busy: float) -> float:
        """`depth` is the entries waiting in all ready sets, `busy` the busy share of the pool since the last call."""
        if not self._served and not depth:
            self._ewma_ms /= 2
        self._served = 0
        self.pressure = pressure_of(depth=depth, ewma_ms=self._ewma_ms, busy=busy, tuning=self._tuning)
        return self.pressure


def pressure_of(*, depth: int, ewma_ms: float, busy: float, tuning: Tuning) -> float:
    backlog = _clamp01((depth / tuning.workers - 1) / (tuning.depth_full - 1))
    latency = _clamp01(ewma_ms / tuning.latency_ceiling_ms)
    return max(backlog, latency, tuning.pool_weight * _clamp01(busy))


def _clamp01(value: float) -> float:
    return min(max(value, 0.0), 1.0)
