"""Turns: bulk reads take turns, page by page, and rest between pages while the server has live traffic.

Always holds: at most one page of all bulk reads is being read and framed at a time, so however many executors ask, a
writer or a watcher meets one page at most. A page that waits for a store (a cold one may hang) loses its turn after a
moment and keeps nobody up. Called by the frame endpoint on the owner's thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

Step = Callable[[Callable[[], None]], None]
"""One page; it calls what it is given when the page is there."""

TURN_MS_MAX = 50.0
REST_RATIO = 1.5
"""Rest for each millisecond of a page, so that live traffic has the larger part of the interpreter."""
REST_MS_MAX = 50.0
PRESSURE_HIGH = 0.5


class Turns:
    def __init__(
        self,
        *,
        later: Callable[[float, Callable[[], None]], None],
        monotonic: Callable[[], float],
        traffic: Callable[[], int],
        pressure: Callable[[], float],
    ) -> None:
        self._later = later
        self._monotonic = monotonic
        self._traffic = traffic
        self._pressure = pressure
        self._waiting: deque[Step] = deque()
        self._number = 0
        self._is_taken = False
        self._began_s = 0.0
        self._traffic_seen = 0

    def take(self, step: Step) -> None:
        """Run `step` when it is its turn."""
        self._waiting.append(step)
        if not self._is_taken:
            self._next()

    def _next(self) -> None:
        self._is_taken = bool(self._waiting)
        if not self._is_taken:
            return
        self._number += 1
        self._began_s = self._monotonic()
        over = partial(self._over, self._number)
        self._later(TURN_MS_MAX, over)
        self._waiting.popleft()(over)

    def _over(self, number: int) -> None:
        """The page is there, or has had its time: whichever comes first ends the turn."""
        if number != self._number or not self._is_taken:
            return
        self._number += 1
        rest_ms = self._rest_ms()
        if rest_ms:
            self._later(rest_ms, self._next)
        else:
            self._next()

    def _rest_ms(self) -> float:
        """Nothing while there is nobody else; as long as the page took, and more, while writes come in."""
        seen, self._traffic_seen = self._traffic_seen, self._traffic()
        if seen == self._traffic_seen and self._pressure() < PRESSURE_HIGH:
            return 0.0
        return min((self._monotonic() - self._began_s) * 1e3 * REST_RATIO, REST_MS_MAX)
