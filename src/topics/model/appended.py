"""Appended: what the engine answers a write with, once it is published; the doors make their replies of it."""

from __future__ import annotations

import msgspec


class Appended(msgspec.Struct, frozen=True, gc=False):
    """Times in milliseconds; `sync_ms` is above 0 for the class `fsync`, and 0 for every other. `epoch` is that of the
    last seq."""

    first_seq: int
    count: int
    head: int
    epoch: int
    deduped: bool = False
    append_ms: float = 0.0
    sync_ms: float = 0.0
    created: bool = False

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1
