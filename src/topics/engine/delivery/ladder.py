"""Ladder: what the process does about pressure, stage by stage (delivery.md section 8).

Stages 1 and 2 follow each sample and are plain functions of it; stage 3 has memory, and that is all this class keeps.
Stage 4 is decided by `Admission`, which knows whether the queue is full."""

from __future__ import annotations

from topics.engine.delivery.tuning import Tuning


def hold_ms(pressure: float, tuning: Tuning) -> float:
    """Stage 1: how long a push may be held after the first undelivered record."""
    if pressure <= tuning.coalesce_above:
        return 0.0
    return tuning.coalesce_max_ms * (pressure - tuning.coalesce_above) / (1 - tuning.coalesce_above)


def commit_window_ms(pressure: float, tuning: Tuning) -> float | None:
    """Stage 2: upper bound of the group-commit window; None while the calm one holds."""
    if pressure <= tuning.widen_above:
        return None
    low, high = tuning.commit_window_min_ms, tuning.commit_window_max_ms
    return low + (high - low) * pressure


class Deferral:
    """Stage 3: on after several samples above one threshold in a row, off at the first below a lower one."""

    __slots__ = ("_above", "_tuning", "on")

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._above = 0
        self.on = False

    def sample(self, pressure: float) -> bool:
        tuning = self._tuning
        self._above = self._above + 1 if pressure > tuning.defer_above else 0
        if self._above >= tuning.sustain_samples:
            self.on = True
        elif pressure < tuning.defer_release_below:
            self.on = False
        return self.on


def stage(pressure: float, tuning: Tuning, *, deferring: bool) -> int:
    """The highest stage that holds, for metrics; refusing is not told apart from deferring here."""
    if deferring:
        return 3
    return (pressure > tuning.coalesce_above) + (pressure > tuning.widen_above)
