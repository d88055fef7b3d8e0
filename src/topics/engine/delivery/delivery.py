"""DeliveryLoop: marks topics, serves them in turn, and acts on pressure (`docs/spec/delivery.md#sec-4` and
`docs/spec/delivery.md#sec-8`).

    published -> mark -> soon(run) -> begin, serve, finish ... until nothing is left or the turn is over

Always holds: a marked topic is served, or waits for a reason that `pressure.py` gives; `run` is scheduled exactly while
there is something to serve. `soon` runs a step after the present one, `later` after so many milliseconds, both on the
owner's thread. Made by the server's application and by the embedded library; tests call `step` and `tick` by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import ceil

from topics.core.retention.removal import blocks_from
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.delivery.pressure import BackPressure, Deferral, Tuning, hold_ms, stage
from topics.engine.delivery.ready import IDLE, NOT_HELD, QUEUED, Entry, ReadySet, base_priority
from topics.engine.delivery.sync_limits import SyncLimits
from topics.engine.delivery.watched import DeferredRouters, Watched, Watcher
from topics.engine.reading.reads import Reads
from topics.engine.ticket import guarded
from topics.model.latency import LatencyHistogram


def bytes_since(topic: TopicLog, seq: int) -> int:
    """Accounted bytes of the slots above `seq`; these are recent, so they lie in the tail. Asked while a push is held:
    a full batch ends the hold."""
    total = 0
    for block in blocks_from(topic, seq + 1):
        lo = max(seq + 1 - block.first_seq, 0)
        total += int(block.sizes_of(lo, block.next_seq - block.first_seq).sum())
    return total


TOP_PRIORITY = 1000.0


class DeliveryLoop:
    def __init__(
        self,
        context: Context,
        reads: Reads,
        *,
        soon: Callable[[Callable[[], None]], None],
        later: Callable[[float, Callable[[], None]], None],
        busy: Callable[[], float] | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        self._ctx = context
        self._reads = reads
        self._soon = soon
        self._later = later
        self._busy = busy
        self.tuning = tuning or Tuning()
        self._ready = ReadySet(self.tuning, now_ms=self.now_ms, base=self._base, deferred=self._deferred)
        self._watched: dict[int, Watched] = {}
        self.back_pressure = BackPressure(self.tuning)
        self._deferral = Deferral(self.tuning)
        self.synced = SyncLimits(context, self._became_visible)
        self.on_sample: list[Callable[[float], None]] = []
        """Told the pressure after each sample: the commit window follows it."""
        self.services_total = 0
        self.latency = LatencyHistogram()
        """From publication to the hand-over to those who watch."""
        self._hold_ms = 0.0
        self._scheduled = False
        self._timer_at: float | None = None
        self._sample_at = self.now_ms() + self.tuning.sample_ms
        context.on_published.append((self._watched, self.published))
        context.on_deleted.append(self._deleted)

    def now_ms(self) -> float:
        return self._ctx.clock.monotonic() * 1000

    # --- what others read -----------------------------------------------------------------------------------------

    @property
    def pressure(self) -> float:
        return self.back_pressure.pressure

    @property
    def deferring(self) -> bool:
        return self._deferral.on

    @property
    def stage(self) -> int:
        return stage(self.pressure, self.tuning, deferring=self.deferring)

    def depth(self) -> int:
        """Entries that wait for their turn, without held and deferred ones."""
        return self._ready.depth()

    # --- who watches ----------------------------------------------------------------------------------------------

    def watch(
        self, topic: TopicLog, watcher: Watcher, *, fill_records: int, fill_bytes: int, strong: bool = False
    ) -> Watched:
        """Register; from here on no publication is missed. A batch of the watcher is full at `fill_*`."""
        watched = self._of(topic)
        watched.add(watcher, fill_records=fill_records, fill_bytes=fill_bytes)
        if watched.is_deferred:
            watcher.deferred(self._wait_ms_max(watched), self.now_ms())
        if strong:
            watched.strong += 1
            self.synced.follow(topic)
        return watched

    def unwatch(self, watched: Watched, watcher: Watcher, *, strong: bool = False) -> None:
        watched.watchers.pop(watcher, None)
        watched.behind.pop(watcher, None)
        if strong:
            watched.strong -= 1
            self.synced.unfollow(watched.topic)
        self._forget_idle(watched)

    def _of(self, topic: TopicLog) -> Watched:
        watched = self._watched.get(topic.id)
        if watched is None:
            watched = self._watched[topic.id] = Watched(topic)
        return watched

    def _forget_idle(self, watched: Watched) -> None:
        if watched.is_idle:
            watched.bodies = None
            if self._watched.get(watched.topic.id) is watched:
                del self._watched[watched.topic.id]

    # --- marks ----------------------------------------------------------------------------------------------------

    def published(self, topic: TopicLog) -> None:
        """Records of a watched topic became visible: all the write path does for delivery."""
        watched = self._watched[topic.id]
        if watched.strong:
            self.synced.published(topic)
        self._mark_published(watched)

    def wake(self, watched: Watched, watcher: Watcher) -> None:
        """A watcher is behind and can take a batch: it has just come, or its client has read something."""
        if watcher in watched.watchers:
            watched.behind[watcher] = None
            self._mark(watched)

    def defer_routing(self, source: TopicLog, routing: Callable[[], None]) -> bool:
        """Stage 3: a topic's router work waits as an entry of its own, one band below. False: there is no need to."""
        if not self.deferring:
            return False
        watched = self._of(source)
        if watched.router is None:
            watched.router = DeferredRouters(watched)
        watched.router.routing = routing
        self._mark(watched.router)
        return True

    def _became_visible(self, topic: TopicLog) -> None:
        """More of the topic is synced."""
        watched = self._watched.get(topic.id)
        if watched is not None:
            self._mark_published(watched)

    def _deleted(self, topic: TopicLog) -> None:
        watched = self._watched.pop(topic.id, None)
        if watched is not None:
            watched.deleted = True
            self._mark(watched)

    def _mark_published(self, watched: Watched) -> None:
        watched.has_published = True
        hold_ms = self._hold_ms
        if hold_ms and not self._is_held(watched):
            hold_ms = 0.0
        watched.seen_seq = watched.topic.head
        self._mark(watched, hold_ms=hold_ms)

    def _is_held(self, watched: Watched) -> bool:
        """Whether a push that could be held begins to wait, or waits on."""
        waits = watched.state == QUEUED and watched.held_until != NOT_HELD
        if not waits:
            if watched.state != IDLE or not watched.coalesce_backoff.may_hold():
                return False
            watched.held_records = watched.held_bytes = 0
        is_full = self._is_full(watched)
        if waits or is_full:
            watched.coalesce_backoff.gather()
        return not is_full

    @staticmethod
    def _is_full(watched: Watched) -> bool:
        """Enough has come for a whole batch: a held push ends early."""
        watched.held_records += watched.topic.head - watched.seen_seq
        watched.held_bytes += bytes_since(watched.topic, watched.seen_seq)
        return watched.held_records >= watched.fill_records or watched.held_bytes >= watched.fill_bytes

    def _mark(self, entry: Entry, *, hold_ms: float = 0.0) -> None:
        if self._ready.mark(entry, hold_ms=hold_ms):
            if hold_ms:
                self._arm()
            else:
                self._schedule()

    # --- services -------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._soon(self.run)

    def run(self) -> None:
        """Serve until nothing is left to do, or the event loop has to poll its sockets."""
        self._scheduled = False
        until = self.now_ms() + self.tuning.turn_ms
        while self.step():
            if self.now_ms() >= until:
                self._schedule()
                return

    def step(self) -> bool:
        """Serve the next entry. False: there was nothing to do."""
        entry = self._ready.begin()
        if entry is None:
            return False
        now = self.now_ms()
        self.back_pressure.served(now - entry.ready_at)
        self._ready.finish(entry, more=self._serve(entry, now))
        return True

    def _serve(self, entry: Entry, now: float) -> bool:
        self.services_total += 1
        if isinstance(entry, DeferredRouters):
            return self._route(entry)
        assert isinstance(entry, Watched)
        was_published, since_ms = entry.has_published, entry.enqueued_at
        more = entry.serve(self._reads, now)
        if was_published:
            self.latency.observe((self.now_ms() - since_ms) / 1000)
        return more

    def _route(self, entry: DeferredRouters) -> bool:
        routing, entry.routing = entry.routing, None
        self._forget_idle(entry.watched)
        if routing is not None and not entry.watched.deleted:
            guarded(routing)
        return False

    # --- time -----------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """To be called every 50 ms: ages entries each time, samples the pressure every 100 ms."""
        self.age()
        now = self.now_ms()
        if now >= self._sample_at:
            self._sample_at = max(self._sample_at + self.tuning.sample_ms, now)
            self.sample()
        self._release()

    def age(self) -> None:
        if self._ready.age():
            self._schedule()

    def sample(self) -> None:
        """Measure the pressure, and act on it stage by stage."""
        busy = 0.0 if self._busy is None else self._busy()
        pressure = self.back_pressure.sample(depth=self.depth(), busy=busy)
        self._hold_ms = hold_ms(pressure, self.tuning)
        was_on = self._deferral.on
        if self._deferral.sample(pressure) != was_on:
            self._ready.pause_b0(self._deferral.on)
            self._schedule()
        for tell in self.on_sample:
            tell(pressure)

    def _deferred(self, entry: Entry) -> None:
        """Those who watch are told, once; `Watched.serve` tells them of the end. Router work has no watchers."""
        if isinstance(entry, Watched):
            entry.defer(self._wait_ms_max(entry), self.now_ms())

    def _wait_ms_max(self, entry: Watched) -> int:
        """How much longer it can be deferred: until its age lifts it out of the lowest band."""
        tuning, waited_ms = self.tuning, self.now_ms() - entry.enqueued_at
        until_ms = min(-self._base(entry) / tuning.age_per_ms, tuning.age_cap_ms)
        return max(ceil(until_ms - waited_ms), 0)

    def _arm(self) -> None:
        """Set the timer for the end of the first hold."""
        due = self._ready.next_release_ms()
        if due is not None and (self._timer_at is None or due < self._timer_at):
            self._timer_at = due
            self._later(max(due - self.now_ms(), 0.0), self._release)

    def _release(self) -> None:
        self._timer_at = None
        if self._ready.release_holds():
            self._schedule()
        self._arm()

    # --- priorities -----------------------------------------------------------------------------------------------

    def _base(self, entry: Entry) -> float:
        now = self._ctx.clock.now_ms()
        if isinstance(entry, DeferredRouters):
            return self._one_band_below(base_priority(entry.watched.topic, now))
        assert isinstance(entry, Watched)
        return TOP_PRIORITY if entry.deleted else base_priority(entry.topic, now)

    def _one_band_below(self, priority: float) -> float:
        """Deferred router work starts at the bottom of the band below its topic's; B1 and B0 have none below."""
        floors = self.tuning.band_floors
        for floor, below in pairwise(floors):
            if priority >= floor:
                return float(below)
        return priority
