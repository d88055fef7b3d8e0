"""ReadySet: the topics that have something to push, and whose turn it is (`docs/spec/delivery.md#sec-4` and
`docs/spec/delivery.md#sec-6`).

    idle -> queued -> in service -> idle
                      in service, marked again -> queued, waiting since that mark

Always holds: an entry waits at most once; marks while it waits change nothing; only a service ends a wait. A held entry
is queued but in no band until its hold is over: waiting on purpose is not waiting for its turn, so neither a hold nor a
deferral counts as depth or as latency. Stepped by `DeliveryLoop`, or by a test.

    base_priority, effective_priority   of a topic, without ageing (`docs/spec/delivery.md#sec-3`)
    PriorityBands                       which entry is served next (`docs/spec/delivery.md#sec-5`)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from topics import limits
from topics.core.topic import TopicLog
from topics.engine.delivery.pressure import Tuning


def base_priority(topic: TopicLog, now: int) -> float:
    """A function of the config, the last consumption and `now`; a manual priority replaces the recency bonus."""
    config = topic.config
    if config.priority is not None:
        return limits.EFFECTIVE_PRIORITY(config.priority)
    if not config.auto_priority or topic.last_consumed is None:
        return 0
    idle_ms = now - topic.last_consumed
    if idle_ms >= limits.PRIORITY_AUTO_FLOOR_MS:
        return 0
    return float(limits.PRIORITY_AUTO_MAX) * math.pow(2.0, -idle_ms / limits.PRIORITY_HALF_LIFE_MS)


def effective_priority(topic: TopicLog, now: int) -> int:
    """Rounded to the nearest integer, halves upwards."""
    return int(base_priority(topic, now) + 0.5) if topic.config.priority is None else int(base_priority(topic, now))


T = TypeVar("T")
Waiting = tuple[float, int, T]
"""`enqueued_at`, order of arrival, entry."""

B0, B1, B2, B3, B4 = range(5)


def band_of(priority: float, floors: tuple[int, ...]) -> int:
    """The band of an effective priority, which counts as the nearest integer; `floors` are those of B4 down to B1."""
    rounded = int(priority + 0.5) if priority >= 0 else -int(0.5 - priority)
    band = len(floors)
    for floor in floors:
        if rounded >= floor:
            return band
        band -= 1
    return B0


class PriorityBands(Generic[T]):
    """Weighted round robin with deficits; `weights` are those of B4 down to B0.

    Always holds: within a band the oldest `enqueued_at` goes first; a round serves a band at most its weight; an empty
    band keeps no credit. A band without credit (`B0` while deferring) is skipped."""

    def __init__(self, weights: tuple[int, ...]) -> None:
        self._weights = weights[::-1]
        self._heaps: list[list[Waiting[T]]] = [[] for _ in weights]
        self._deficits = [0] * len(weights)
        self._at = B0  # the round starts at the band after it
        self._order = 0
        self.b0_paused = False

    def pause_b0(self, paused: bool) -> None:
        self.b0_paused = paused
        if paused:
            self._deficits[B0] = 0

    def add(self, band: int, enqueued_at: float, entry: T) -> None:
        self._order += 1
        heappush(self._heaps[band], (enqueued_at, self._order, entry))

    def next(self) -> T | None:
        """The next entry to serve, taken out; None if only paused ones are left."""
        if not any(self._heaps):
            self._deficits = [0] * len(self._heaps)
            return None
        for _ in range(2 * len(self._heaps)):
            heap, at = self._heaps[self._at], self._at
            if heap and self._deficits[at] >= 1:
                self._deficits[at] -= 1
                return heappop(heap)[2]
            self._deficits[at] = 0 if not heap else self._deficits[at]
            self._enter(at - 1 if at else len(self._heaps) - 1)
        return None

    def _enter(self, band: int) -> None:
        self._at = band
        if not self._heaps[band]:
            self._deficits[band] = 0
        elif band != B0 or not self.b0_paused:
            self._deficits[band] += self._weights[band]

    def waiting(self, band: int) -> list[Waiting[T]]:
        """Everybody in a band, in no order."""
        return self._heaps[band]

    def replace(self, band: int, waiting: list[Waiting[T]]) -> None:
        heapify(waiting)
        self._heaps[band] = waiting

    def move(self, waiting: Waiting[T], band: int) -> None:
        """Put an entry into another band with the rank it has; the caller took it out of its own."""
        heappush(self._heaps[band], waiting)

    def __len__(self) -> int:
        return sum(map(len, self._heaps))

    def runnable(self) -> int:
        """Entries that wait for their turn and nothing else."""
        return len(self) - (len(self._heaps[B0]) if self.b0_paused else 0)


IDLE, QUEUED, IN_SERVICE, AGAIN = range(4)
NOT_HELD = 0.0


class Entry:
    """Something to be served: a topic's watchers, or its routers while they are deferred."""

    __slots__ = ("again_at", "band", "enqueued_at", "held_until", "order", "ready_at", "state")

    def __init__(self) -> None:
        self.state = IDLE
        self.band = B0
        self.enqueued_at = 0.0
        self.ready_at = 0.0  # since when it waits for its turn and for nothing else
        self.again_at = 0.0  # the first mark during a service
        self.held_until = NOT_HELD
        self.order = 0


class ReadySet:
    """`base` gives an entry's present priority without ageing. `deferred` is told of each entry that waits in the
    lowest band while that gets no credit."""

    def __init__(
        self,
        tuning: Tuning,
        *,
        now_ms: Callable[[], float],
        base: Callable[[Entry], float],
        deferred: Callable[[Entry], None],
    ) -> None:
        self._tuning = tuning
        self._now_ms = now_ms
        self._base = base
        self._deferred = deferred
        self._bands: PriorityBands[Entry] = PriorityBands(tuning.band_weights)
        self._held: list[tuple[float, int, Entry]] = []
        self._held_live = 0
        self._order = 0

    # --- marks ----------------------------------------------------------------------------------------------------

    def mark(self, entry: Entry, *, hold_ms: float = 0.0) -> bool:
        """There is something to push. True if the loop may have to be scheduled for it."""
        state = entry.state
        if state == QUEUED:
            return entry.held_until != NOT_HELD and not hold_ms and self._end_hold(entry)
        if state == IDLE:
            self._enqueue(entry, self._now_ms(), hold_ms)
            return True
        if state == IN_SERVICE:
            entry.state = AGAIN
            entry.again_at = self._now_ms()
        return False

    def _enqueue(self, entry: Entry, enqueued_at: float, hold_ms: float) -> None:
        entry.state = QUEUED
        entry.enqueued_at = entry.ready_at = enqueued_at
        if hold_ms > 0:
            self._hold(entry, enqueued_at + hold_ms)
        else:
            entry.held_until = NOT_HELD
            self._to_band(entry, enqueued_at)

    def _to_band(self, entry: Entry, now: float) -> None:
        entry.band = self._fitting_band(entry, now)
        self._bands.add(entry.band, entry.enqueued_at, entry)
        if entry.band == B0 and self._bands.b0_paused:
            self._deferred(entry)

    def _fitting_band(self, entry: Entry, now: float) -> int:
        tuning, waited = self._tuning, now - entry.enqueued_at
        if waited >= tuning.age_cap_ms:
            return B4
        return band_of(self._base(entry) + tuning.age_per_ms * waited, tuning.band_floors)

    # --- holds ----------------------------------------------------------------------------------------------------

    def _hold(self, entry: Entry, until: float) -> None:
        self._order += 1
        entry.order = self._order
        entry.held_until = until
        self._held_live += 1
        heappush(self._held, (until, entry.order, entry))

    def _end_hold(self, entry: Entry) -> bool:
        """Its entry in the heap of holds stays there, and is skipped when its time comes."""
        self._held_live -= 1
        entry.held_until = NOT_HELD
        entry.ready_at = self._now_ms()
        self._to_band(entry, entry.ready_at)
        return True

    def release_holds(self) -> bool:
        """Let go of everyone whose hold is over. Was there anyone?"""
        now, released = self._now_ms(), False
        while self._held and self._held[0][0] <= now:
            _, order, entry = heappop(self._held)
            if entry.order == order and entry.held_until != NOT_HELD:
                released = self._end_hold(entry)
        return released

    def next_release_ms(self) -> float | None:
        """When the next hold is over; None if nothing is held."""
        while self._held:
            until, order, entry = self._held[0]
            if entry.order == order and entry.held_until != NOT_HELD:
                return until
            heappop(self._held)
        return None

    # --- service --------------------------------------------------------------------------------------------------

    def begin(self) -> Entry | None:
        """Take the next entry into service; None if there is nothing to serve."""
        entry = self._bands.next()
        if entry is not None:
            entry.state = IN_SERVICE
        return entry

    def finish(self, entry: Entry, *, more: bool = False) -> bool:
        """The service is over; `more`: something is left to do. True if the entry waits again."""
        if entry.state != AGAIN and not more:
            entry.state = IDLE
            return False
        self._enqueue(entry, entry.again_at if entry.state == AGAIN else self._now_ms(), 0.0)
        return True

    # --- time -----------------------------------------------------------------------------------------------------

    def age(self) -> bool:
        """Put everyone who waits into the band that fits by now. Did anyone move? Waiting only ever moves up."""
        now, moved = self._now_ms(), False
        for band in range(B0, B4):
            waiting = self._bands.waiting(band)
            rising = [(at, self._fitting_band(at[2], now)) for at in waiting]
            rising = [(at, fitting) for at, fitting in rising if fitting > band]
            if not rising:
                continue
            moved = True
            gone = {at[2] for at, _ in rising}
            self._bands.replace(band, [at for at in waiting if at[2] not in gone])
            for at, fitting in rising:
                self._rise(at, fitting, now)
        return moved

    def _rise(self, waiting: tuple[float, int, Entry], band: int, now: float) -> None:
        entry = waiting[2]
        if entry.band == B0 and self._bands.b0_paused:
            entry.ready_at = now
        entry.band = band
        self._bands.move(waiting, band)

    def pause_b0(self, paused: bool) -> None:
        """Stage 3: the lowest band gets no credit."""
        if self._bands.b0_paused and not paused:
            now = self._now_ms()
            for _, _, entry in self._bands.waiting(B0):
                entry.ready_at = now
        self._bands.pause_b0(paused)
        if paused:
            for _, _, entry in list(self._bands.waiting(B0)):
                self._deferred(entry)

    # --- signals --------------------------------------------------------------------------------------------------

    def depth(self) -> int:
        """Entries that wait for their turn; held and deferred ones do not."""
        return self._bands.runnable()

    def __len__(self) -> int:
        return len(self._bands) + self._held_live
