"""Forwarding: which router steps when (`docs/spec/semantics.md#sec-15-4` and `docs/spec/semantics.md#sec-15-7`).

A publication marks its source dirty; the routers of dirty sources step at the end of the turn, so writers never wait
for them. A router that is still behind marks its source again; one whose destination is full, or that failed, backs off
for 50 ms, then twice as long up to a second, unless its destination gets space. The sweep by the clock is only the
safety net.

`bring_up_to_date` is what makes a read of a destination see every acked source write: upstream first."""

from __future__ import annotations

import logging
from functools import partial
from itertools import cycle, islice
from typing import NamedTuple

from topics import limits
from topics.core.router import RouterProgress
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.floor_log import FloorLog
from topics.engine.routers.copies import LossHops, SharedRead
from topics.engine.routers.step import Step, StepOutcome
from topics.engine.ticket import Ticket, chain, either_way, gathered, resolved
from topics.engine.writing.quota import Quota
from topics.engine.writing.writes import Writes

log = logging.getLogger("topics.routers")

SWEEP_ROUTERS = 1_000  # per tick
RESIDENT_BYTES_MAX = 64 << 20  # so many bytes of copies in memory ask for a checkpoint


class Backoff(NamedTuple):
    until_ms: int
    wait_ms: int


class Forwarding:
    def __init__(self, context: Context, floor_log: FloorLog, writes: Writes, quota: Quota | None) -> None:
        self._ctx = context
        self._floor_log = floor_log
        self._writes = writes
        self._quota = quota
        self._losses = LossHops(context.state)
        self._steps: dict[str, Step] = {}
        self._backoffs: dict[str, Backoff] = {}
        self.dirty: dict[int, None] = {}
        """Ids of sources whose routers have something to do in this turn."""
        self._checkpoint_asked = False
        context.on_published.append((context.state.routers.by_source, lambda source: self._mark_dirty(source.id)))
        context.on_published.append((context.fed, self._watch_memory))
        context.on_removed.append(lambda topic, _: self._space_appeared(topic))
        context.on_config.append(lambda topic, _: self._space_appeared(topic))

    # --- waking ---------------------------------------------------------------------------------------------------

    def _mark_dirty(self, source_id: int) -> None:
        if source_id not in self.dirty:
            self.dirty[source_id] = None
            self._ctx.commit.wake()

    def _space_appeared(self, dest: TopicLog) -> None:
        """A full destination may have space again: the routers that wait for it try at once."""
        if dest.id in self._ctx.fed:
            for router in self._ctx.state.routers.into(dest.id):
                if self._backoffs.pop(router.name, None) is not None:
                    self._mark_dirty(router.source_id)

    def _watch_memory(self, dest: TopicLog) -> None:
        if dest.resident.bytes < RESIDENT_BYTES_MAX // 16 or self._checkpoint_asked:
            return
        by_id = self._ctx.state.by_id
        resident = sum(by_id[topic_id].resident.bytes for topic_id in self._ctx.fed if topic_id in by_id)
        if resident >= RESIDENT_BYTES_MAX:
            self._checkpoint_asked = True
            self._ctx.files.checkpoint_soon()

    def checkpointed(self) -> None:
        self._checkpoint_asked = False

    # --- stepping -------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Every router of a dirty source makes one step."""
        dirty, self.dirty = self.dirty, {}
        for source_id in dirty:
            source = self._ctx.state.by_id.get(source_id)
            go = partial(self._step_all, source_id)
            if source is None or not self._ctx.pressure.defer_routing(source, go):
                go()

    def _step_all(self, source_id: int) -> None:
        now = self._ctx.clock.running_ms()
        routers = self._ctx.state.routers.from_source(source_id)
        shared = SharedRead() if len(routers) > 1 else None
        for router in routers:
            if not self._backs_off_at(router, now):
                self.step(router, shared)

    def tick(self) -> None:
        """The safety net, and the end of waits."""
        routers = self._ctx.state.routers
        if not len(routers):
            return
        now = self._ctx.clock.running_ms()
        swept = list(routers) if len(routers) <= SWEEP_ROUTERS else self._some(list(routers))
        for router in swept:
            source = self._ctx.state.by_id.get(router.source_id)
            if source is not None and router.cursor < source.head and not self._backs_off_at(router, now):
                self._mark_dirty(source.id)

    def _some(self, routers: list[RouterProgress]) -> list[RouterProgress]:
        start = self._ctx.clock.running_ms() // limits.ROUTER_TICK_MS * SWEEP_ROUTERS % len(routers)
        return list(islice(cycle(routers), start, start + SWEEP_ROUTERS))

    def _backs_off_at(self, router: RouterProgress, now: int) -> bool:
        wait = self._backoffs.get(router.name)
        return wait is not None and now < wait.until_ms

    def _is_blocked(self, router: RouterProgress) -> bool:
        """Whether it backs off, and nothing that expired meanwhile made space in its destination."""
        now = self._ctx.clock.running_ms()
        if not self._backs_off_at(router, now):
            return False
        dest = self._ctx.state.by_id.get(router.dest_id)
        if dest is not None and not self._floor_log.is_logged(dest):
            return False
        return self._backs_off_at(router, now)  # `is_logged` may have made space in an ephemeral destination

    def step(self, router: RouterProgress, shared: SharedRead | None = None) -> Ticket[StepOutcome]:
        """Begin a step, or join the one under way. `shared` is what the source's other routers read in this turn."""
        running = self._steps.get(router.name)
        if running is not None:
            return running.ticket
        over = partial(self._over, router)
        step = Step(self._ctx, self._floor_log, self._writes, self._quota, self._losses, router, over, shared)
        self._steps[router.name] = step
        step.run()
        return step.ticket

    def _over(self, router: RouterProgress, outcome: StepOutcome, error: BaseException | None) -> None:
        self._steps.pop(router.name, None)
        if outcome in (StepOutcome.BLOCKED, StepOutcome.FAILED):
            self._back_off(router)
            if error is not None:
                log.debug("router %s will try again: %s", router.name, error)
            return
        self._backoffs.pop(router.name, None)
        source = self._ctx.state.by_id.get(router.source_id)
        if source is not None and router.cursor < source.head:
            self._mark_dirty(router.source_id)

    def _back_off(self, router: RouterProgress) -> None:
        before = self._backoffs.get(router.name)
        wait_ms = limits.ROUTER_RETRY_MS(0 if before is None else before.wait_ms * 2)
        clock = self._ctx.clock
        self._backoffs[router.name] = Backoff(clock.running_ms() + wait_ms, wait_ms)
        self._ctx.wake_at(clock.now_ms() + wait_ms)

    def forget(self, name: str) -> None:
        self._backoffs.pop(name, None)

    # --- read your writes -----------------------------------------------------------------------------------------

    def bring_up_to_date(self, topic: TopicLog) -> Ticket[None] | None:
        """Step the routers that feed a topic until they reach their source's head of now; None if they have."""
        if topic.id not in self._ctx.fed:
            return None
        return self._catch_up(topic, {topic.id})

    def _catch_up(self, topic: TopicLog, seen: set[int]) -> Ticket[None] | None:
        state = self._ctx.state
        pending: list[Ticket[None]] = []
        for router in state.routers.into(topic.id):
            source = state.by_id.get(router.source_id)
            if source is None:
                continue
            upstream = None
            if source.id in self._ctx.fed and source.id not in seen:
                seen.add(source.id)
                upstream = self._catch_up(source, seen)
            if upstream is not None:
                pending.append(chain(either_way(upstream), partial(self._catch_up_after, router)))
            elif (ticket := self._catch_up_router(router)) is not None:
                pending.append(ticket)
        return gathered(pending) if pending else None

    def _catch_up_after(self, router: RouterProgress, _: None) -> Ticket[None]:
        return self._catch_up_router(router) or resolved(None)

    def _catch_up_router(self, router: RouterProgress) -> Ticket[None] | None:
        """Step one router up to its source's head of now, or as far as it can go without waiting long."""
        source = self._ctx.state.by_id.get(router.source_id)
        if source is None or router.cursor >= source.head or self._is_blocked(router):
            return None
        catch_up = _CatchUp(self, router, source.head)
        catch_up.run()
        return None if catch_up.ticket.done else catch_up.ticket


class _CatchUp:
    """A router that steps until it has reached a head, or cannot go on. Never fails."""

    def __init__(self, forwarding: Forwarding, router: RouterProgress, target: int) -> None:
        self._forwarding = forwarding
        self._router = router
        self._target = target
        self.ticket: Ticket[None] = Ticket()

    def run(self) -> None:
        while self._router.cursor < self._target:
            step = self._forwarding.step(self._router)
            if not step.done:
                step.then(self._stepped, self.ticket.abandon)
                return
            if step.result() is not StepOutcome.MOVED:
                break
        self.ticket.resolve(None)

    def _stepped(self, done: Ticket[StepOutcome]) -> None:
        if done.result() is StepOutcome.MOVED:
            self.run()
        else:
            self.ticket.resolve(None)
