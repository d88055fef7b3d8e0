"""Wheel: one coarse clock for the deadlines of all connections.

A connection stands in at most one slot, and in an early one rather than a late one: when its slot comes up it is asked
(`Timed.on_timer`) and says when to ask again. So traffic never touches the wheel, only the start of a shorter wait
does. Deadlines are kept to within a tick.
"""

from __future__ import annotations

from typing import Protocol

TICK_S = 1.0
SLOTS = 64  # ticks ahead; a later deadline is asked for on the way


class Timed(Protocol):
    wheel_tick: int  # the wheel's own; -1: in no slot

    def on_timer(self, now_s: float) -> float:
        """Do what is due; returns the time of the next thing that could be."""


class Wheel:
    def __init__(self, now_s: float) -> None:
        self.now_s = now_s  # as of the last tick: cheap to read, a tick late at most
        self._tick = int(now_s / TICK_S)
        self._slots: list[set[Timed]] = [set() for _ in range(SLOTS)]
        self._due: set[Timed] = set()  # their slot has come up

    def arm(self, timed: Timed, at_s: float) -> None:
        """Ask `timed` at `at_s`, or sooner if it is to be asked sooner already."""
        tick = min(max(int(at_s / TICK_S) + 1, self._tick + 1), self._tick + SLOTS - 1)
        if timed.wheel_tick >= 0:
            if timed.wheel_tick <= tick:
                return
            self._slots[timed.wheel_tick % SLOTS].discard(timed)
        timed.wheel_tick = tick
        self._slots[tick % SLOTS].add(timed)

    def disarm(self, timed: Timed) -> None:
        self._due.discard(timed)
        if timed.wheel_tick >= 0:
            self._slots[timed.wheel_tick % SLOTS].discard(timed)
            timed.wheel_tick = -1

    def advance(self, now_s: float) -> None:
        """Time is now `now_s`; whoever has come due is asked by `ask`."""
        self.now_s = now_s
        last = int(now_s / TICK_S)
        for tick in range(max(self._tick + 1, last - SLOTS + 1), last + 1):
            due, self._slots[tick % SLOTS] = self._slots[tick % SLOTS], set()
            for timed in due:
                timed.wheel_tick = -1
            self._due |= due
        self._tick = max(self._tick, last)

    def ask(self, count: int) -> bool:
        """Ask up to `count` of those who are due; True if there are more. A crowd must not hold the loop."""
        due, now_s = self._due, self.now_s
        while due and count:
            count -= 1
            timed = due.pop()
            next_s = timed.on_timer(now_s)
            if timed.wheel_tick < 0 and next_s > now_s:
                self.arm(timed, next_s)
        return bool(due)
