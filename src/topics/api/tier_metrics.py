"""Metrics of the tiers: what was moved, what failed, and whether the cold store answers."""

from __future__ import annotations

from topics.api.exposition import Family, single
from topics.runtime.kernel import Kernel


def tier_families(kernel: Kernel) -> list[Family]:
    """Nothing without a cold store."""
    tiers, counters = kernel.tiers, kernel.store.env.counters
    cold = tiers.cold
    if cold is None:
        return []
    return [
        single("topics_cold_store_up", "gauge", "1 if the cold store is ours and answered last", int(cold.answers)),
        single("topics_relocation_bytes_total", "counter", "bytes moved to cold", counters.relocated_bytes),
        single("topics_relocation_failures_total", "counter", "moves that failed", counters.relocation_failures),
        single("topics_relocation_last_success_ms", "gauge", "time of the last move, 0: none", tiers.last_success_ms),
        single("topics_relocation_waiting", "gauge", "segments waiting for the cold pool", tiers.waiting),
    ]
