"""Appended: what a write is answered with, once it is published."""

from __future__ import annotations

import msgspec


class Appended(msgspec.Struct, frozen=True, gc=False):
    """Times in milliseconds, 0 where nothing was waited for."""

    first_seq: int
    count: int
    head: int
    deduped: bool = False
    append_ms: float = 0.0
    sync_ms: float = 0.0
    created: bool = False

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1
