"""WalStats: what one group has done, for metrics (storage.md section 16).

Plain counters without a lock: each is changed by one thread at a time (the writer's or the syncer's) and read by any.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

SYNC_BUCKETS_US: Final = (50, 100, 250, 500, 1000, 5000, 10000, 50000, 100000)
"""Upper bounds of the sync latency histogram; one more bucket takes what is slower."""


class WalStats:
    __slots__ = (
        "batches",
        "bytes_written",
        "client_frames",
        "failures",
        "frames",
        "last_write_s",
        "open_bytes",
        "prealloc_failures",
        "rotations",
        "rotations_asked",
        "slow_writes",
        "sync_buckets",
        "sync_seconds",
        "syncs",
    )

    def __init__(self) -> None:
        self.frames = 0
        self.client_frames = 0
        self.batches = 0
        self.bytes_written = 0
        self.open_bytes = 0  # of `bytes_written`: the frames that files begin with
        self.rotations = 0
        self.rotations_asked = 0  # of `rotations`: for a checkpoint, before the file was full
        self.prealloc_failures = 0
        self.failures: dict[str, int] = {"write": 0, "sync": 0, "rotate": 0}
        self.last_write_s = 0.0
        self.slow_writes = 0  # counted by the runtime: writes after which it fell back to the group's thread
        self.syncs = 0
        self.sync_seconds = 0.0
        self.sync_buckets = [0] * (len(SYNC_BUCKETS_US) + 1)

    def count_sync(self, elapsed_s: float) -> None:
        self.syncs += 1
        self.sync_seconds += elapsed_s
        self.sync_buckets[bisect_left(SYNC_BUCKETS_US, elapsed_s * 1e6)] += 1
