"""InFlight: how many requests of each key are running, and the cap on that."""

from __future__ import annotations

from topics.errors import Throttled
from topics.wire.keys import Key


class InFlight:
    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._running: dict[bytes, int] = {}

    def enter(self, key: Key) -> None:
        running = self._running.get(key.digest, 0)
        if self._cap and running >= self._cap:
            raise Throttled.cap("max_inflight_per_key", max=self._cap)
        self._running[key.digest] = running + 1

    def leave(self, key: Key) -> None:
        left = self._running[key.digest] - 1
        if left:
            self._running[key.digest] = left
        else:
            del self._running[key.digest]
