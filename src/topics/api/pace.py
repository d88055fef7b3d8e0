"""Pace: how long a feed in old history rests between two batches, so that reading history slows nobody down.

Reading and rendering old records takes the interpreter, on whatever thread it is done. While others write, all feeds in
history together are given a small share of it; while nobody does, they go as fast as they can. Always holds: what was
spent waiting for a store hardly counts, and no rest is longer than REST_MS_MAX. Asked by `Feed`."""

from __future__ import annotations

from collections.abc import Callable

REST_RATIO = 8.0
"""Rest for each millisecond of work: a ninth of the time is left for history."""
WORK_MS_MAX = 2.0
"""A batch takes no longer than this by itself; the rest of it was waiting."""
REST_MS_MAX = 1000.0
REST_MS_MIN = 1.0
"""The loop's clock knows no shorter time."""
LIVE_MS = 500.0
"""So long after a write there is live traffic."""


class Pace:
    """`traffic` counts writes, whoever makes them; `later` runs a step after so many milliseconds."""

    def __init__(
        self,
        *,
        later: Callable[[float, Callable[[], None]], None],
        now_ms: Callable[[], float],
        traffic: Callable[[], int],
    ) -> None:
        self.later = later
        self.now_ms = now_ms
        self._traffic = traffic
        self._traffic_seen = traffic()
        self._live_until_ms = 0.0
        self._paid_until_ms = 0.0  # rests of all feeds follow each other

    def tick(self) -> None:
        """Look whether somebody writes; to be called every 50 ms."""
        seen, self._traffic_seen = self._traffic_seen, self._traffic()
        if seen != self._traffic_seen:
            self._live_until_ms = self.now_ms() + LIVE_MS

    def rest_ms(self, began_ms: float) -> float:
        """For a batch that was begun then and is done now; 0 if there is no need to rest."""
        now = self.now_ms()
        if now >= self._live_until_ms:
            return 0.0
        due = max(self._paid_until_ms, now) + min(now - began_ms, WORK_MS_MAX) * REST_RATIO
        self._paid_until_ms = min(due, now + REST_MS_MAX)
        rest = self._paid_until_ms - now
        return 0.0 if rest < REST_MS_MIN else rest
