"""Pressure: one number for how short of time the process is, and what it does about it.

    Tuning           every constant of the scheduler, back-pressure and admission (`docs/spec/delivery.md#sec-2`)
    BackPressure     pressure = max(backlog, scheduling latency, 0.8 * use of the pool) (`docs/spec/delivery.md#sec-7`)
    hold_ms          stage 1: hold pushes to coalesce them (`docs/spec/delivery.md#sec-8`)
    CoalesceBackoff  stage 1 of one topic: skip holds that gather nothing
    commit_window_ms stage 2: widen the group-commit window
    Deferral         stage 3: defer the lowest band

Always holds: `pressure` lies in [0, 1]. Between two samples everyone reads the last. Stages 1 and 2 are functions of a
sample; stage 3 has memory. Stage 4 is decided by `Admission`, which knows whether the queue is full.
"""

from __future__ import annotations

import msgspec

from topics import limits


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """Bands are listed from B4 down to B0, as in the contract's tables."""

    # ageing, bands
    age_per_ms: float = limits.AGE_PER_MS
    age_cap_ms: float = limits.AGE_CAP_MS
    band_floors: tuple[int, ...] = limits.BAND_FLOORS
    band_weights: tuple[int, ...] = limits.BAND_WEIGHTS

    # back-pressure
    sample_ms: float = limits.GOVERNOR_MS
    latency_ceiling_ms: float = limits.LATENCY_CEILING_MS
    latency_sample_max_ms: float = limits.LATENCY_SAMPLE_MAX_MS
    ewma_alpha: float = limits.EWMA_ALPHA
    depth_full: int = 16
    """So many waiting entries are full pressure; one is none."""
    pool_weight: float = 0.8

    # stages
    coalesce_above: float = limits.PRESSURE_COALESCE
    widen_above: float = limits.PRESSURE_WIDEN
    defer_above: float = limits.PRESSURE_DEFER
    defer_release_below: float = limits.PRESSURE_DEFER_RELEASE
    refuse_from: float = limits.PRESSURE_REFUSE
    sustain_samples: int = limits.SUSTAIN_SAMPLES
    coalesce_max_ms: float = limits.COALESCE_MAX_MS
    commit_window_min_ms: float = limits.COMMIT_WINDOW_MIN_MS
    commit_window_max_ms: float = limits.COMMIT_WINDOW_MAX_MS

    # write admission
    admit_wait_ms: float = limits.ADMIT_WAIT_MS
    admit_waiting_max: int = 4096
    """Requests that wait for one log shard; the next one is refused at once, since nothing queues without a bound."""

    # a turn of services on the event loop
    turn_ms: float = 2.0
    """Longest run of services before the event loop polls its sockets; a service itself is not cut."""


class BackPressure:
    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._ewma_ms = 0.0
        self._served = 0
        self.pressure = 0.0

    def served(self, wait_ms: float) -> None:
        """An entry was taken into service after waiting this long for its turn."""
        tuning = self._tuning
        self._served += 1
        self._ewma_ms += tuning.ewma_alpha * (min(wait_ms, tuning.latency_sample_max_ms) - self._ewma_ms)

    @property
    def ewma_ms(self) -> float:
        return self._ewma_ms

    def sample(self, *, depth: int, busy: float) -> float:
        """`depth` is the number of waiting entries, `busy` the busy share of the pool since the last call."""
        if not self._served and not depth:
            self._ewma_ms /= 2
        self._served = 0
        self.pressure = pressure_of(depth=depth, ewma_ms=self._ewma_ms, busy=busy, tuning=self._tuning)
        return self.pressure


def pressure_of(*, depth: int, ewma_ms: float, busy: float, tuning: Tuning) -> float:
    backlog = _clamp01((depth - 1) / (tuning.depth_full - 1))
    latency = _clamp01(ewma_ms / tuning.latency_ceiling_ms)
    return max(backlog, latency, tuning.pool_weight * _clamp01(busy))


def _clamp01(value: float) -> float:
    return min(max(value, 0.0), 1.0)


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


PUSHES_AT_ONCE_MAX = 64
"""Pushes without a hold before the next try: when a topic grows busy, at most so many frames are too small."""


class CoalesceBackoff:
    """Stage 1 of one topic: is holding its next push worth the wait?

    A hold makes one larger frame out of what is published meanwhile. If nothing is, because the writer waits for the
    delivery first, holding only makes everyone slower; and the contract says "up to". Always holds: a hold that
    gathered nothing is followed by pushes without a hold, twice as many each time; one that gathered something, by the
    next hold."""

    __slots__ = ("_at_once", "_gathered", "_left", "_tried")

    def __init__(self) -> None:
        self._tried = False  # the last push was held
        self._gathered = False  # and something came meanwhile
        self._at_once = 0  # pushes without a hold, after one that gathered nothing
        self._left = 0  # of these pushes

    def may_hold(self) -> bool:
        """A push could begin to wait now."""
        if self._tried:
            self._tried = False
            self._at_once = 0 if self._gathered else min(self._at_once * 2 or 1, PUSHES_AT_ONCE_MAX)
            self._left = self._at_once
        if self._left:
            self._left -= 1
            return False
        self._tried = True
        self._gathered = False
        return True

    def gather(self) -> None:
        """Something was published while a push waits."""
        self._gathered = True


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
