"""BusyShare: how busy the owner's thread is, as the governor's third signal (delivery.md section 7).

That thread serves commits and live delivery, so its processor time is the use of the pool. Called on it alone."""

from __future__ import annotations

import time
from collections.abc import Callable


class BusyShare:
    def __init__(
        self, *, used_s: Callable[[], float] = time.thread_time, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._used_s = used_s
        self._now_s = now_s
        self._used = used_s()
        self._at = now_s()

    def __call__(self) -> float:
        """The busy share of the time since the last call, 0 to 1."""
        used, at = self._used_s(), self._now_s()
        spent, passed = used - self._used, at - self._at
        self._used, self._at = used, at
        return min(max(spent / passed, 0.0), 1.0) if passed > 0 else 0.0
