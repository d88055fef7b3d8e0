"""Tuning: every constant of the scheduler, governor, ladder and admission, as one value (delivery.md section 2)."""

from __future__ import annotations

import msgspec

from topics import limits


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """Bands are listed from B4 down to B0, as in the contract's tables."""

    workers: int = 1
    """The loop is the one thread that may touch the engine, so it is the one worker."""

    # ageing, bands
    age_per_ms: float = limits.AGE_PER_MS
    age_cap_ms: float = limits.AGE_CAP_MS
    age_tick_ms: float = limits.AGE_TICK_MS
    band_floors: tuple[int, ...] = limits.BAND_FLOORS
    band_weights: tuple[int, ...] = limits.BAND_WEIGHTS

    # governor
    governor_ms: float = limits.GOVERNOR_MS
    latency_ceiling_ms: float = limits.LATENCY_CEILING_MS
    latency_sample_max_ms: float = limits.LATENCY_SAMPLE_MAX_MS
    ewma_alpha: float = limits.EWMA_ALPHA
    depth_full: int = 16
    """Entries per worker that are full pressure; one is none."""
    pool_weight: float = 0.8

    # ladder
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

    # the worker's turn on the loop
    turn_ms: float = 2.0
    """Longest run of services before the loop looks at its sockets; a service itself is not cut."""
