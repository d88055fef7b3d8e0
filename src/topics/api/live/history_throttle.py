"""HistoryThrottle: how long a subscription in old history pauses between two batches, so that reading history slows
nobody.

Reading and rendering old records takes the GIL, on whatever thread it is done. While others write, all subscriptions in
history together get a small share of it, in small batches, because a write waits for the batch that is under way; while
nobody writes, they go as fast as they can. Always holds: time spent waiting for a store hardly counts as work; no delay
is longer than DELAY_MS_MAX; and a subscription is delayed only as long as it still comes closer to the head, several
times as fast as the head moves away. Asked by `Subscription`."""

from __future__ import annotations

from collections.abc import Callable

from topics.core.reading.request import ReadAhead

DELAY_RATIO = 16.0
"""Delay for each millisecond of work: a seventeenth of the time is left for history."""
WORK_MS_MAX = 2.0
"""A batch takes no longer than this by itself; the rest of it was waiting."""
DELAY_MS_MAX = 1000.0
DELAY_MS_MIN = 1.0
"""The loop's clock knows no shorter time."""
LIVE_MS = 500.0
"""So long after a write there is live traffic."""
CLOSING_IN = 4
"""A subscription reads at least so many records for each that is written, if it can."""
SMALL_BATCH_RECORDS = 128
"""A batch from history while somebody writes: about half a millisecond of the loop."""
SMALL_BATCH_BYTES = 64 * 1024


class HistoryThrottle:
    """`traffic` counts writes, whoever makes them; `soon` runs a step once others had their turn, `later` after so many
    milliseconds."""

    def __init__(
        self,
        *,
        soon: Callable[[Callable[[], None]], None],
        later: Callable[[float, Callable[[], None]], None],
        now_ms: Callable[[], float],
        traffic: Callable[[], int],
    ) -> None:
        self._soon = soon
        self._later = later
        self.now_ms = now_ms
        self._traffic = traffic
        self._traffic_seen = traffic()
        self._live_until_ms = 0.0
        self._paid_until_ms = 0.0  # delays of all subscriptions follow each other

    def tick(self) -> None:
        """Look whether somebody writes; to be called every 50 ms."""
        seen, self._traffic_seen = self._traffic_seen, self._traffic()
        if seen != self._traffic_seen:
            self._live_until_ms = self.now_ms() + LIVE_MS

    def after(self, delay_ms: float, step: Callable[[], None]) -> None:
        """Run the step after a delay, which may be none."""
        if delay_ms:
            self._later(delay_ms, step)
        else:
            self._soon(step)

    @property
    def is_live(self) -> bool:
        """Does somebody write?"""
        return self.now_ms() < self._live_until_ms

    def delay_ms(self, began_ms: float, *, most_ms: float = DELAY_MS_MAX) -> float:
        """For a batch that was begun then and is done now; 0 if nobody writes."""
        if not self.is_live:
            return 0.0
        now = self.now_ms()
        due = max(self._paid_until_ms, now) + min(now - began_ms, WORK_MS_MAX) * DELAY_RATIO
        self._paid_until_ms = min(due, now + min(most_ms, DELAY_MS_MAX))
        rest = self._paid_until_ms - now
        return 0.0 if rest < DELAY_MS_MIN else rest


class CatchUp:
    """One subscription on its way to the head, and what was read ahead for it; `begin` is called whenever it begins to
    wait for a batch."""

    __slots__ = ("_began_ms", "_head", "_seen_ms", "_throttle", "ahead")

    def __init__(self, throttle: HistoryThrottle, head: int) -> None:
        self.ahead = ReadAhead()
        self._throttle = throttle
        self._head = head  # as of `_seen_ms`
        self._began_ms = self._seen_ms = throttle.now_ms()

    def begin(self) -> None:
        self._began_ms = self._throttle.now_ms()

    def delay_ms(self, *, head: int, read: int) -> float:
        """After a batch that moved it by `read` seqs."""
        now = self._throttle.now_ms()
        written, elapsed_ms = head - self._head, now - self._seen_ms
        self._head, self._seen_ms = head, now
        most_ms = DELAY_MS_MAX if written <= 0 else read * elapsed_ms / (CLOSING_IN * written)
        return self._throttle.delay_ms(self._began_ms, most_ms=most_ms)
