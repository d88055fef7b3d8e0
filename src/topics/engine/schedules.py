"""Schedules: put, show, drop and run schedules, and append their ticks when they are due
(`docs/spec/semantics.md#sec-16-18`).

A tick's records and the change of its schedule's cursor are one submission, synced. Always holds: of one schedule one
tick is under way at a time, and none while the schedule is being changed; so a tick is decided on the cursor that the
last one left, and is appended once, whenever the server dies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush

import msgspec

from topics.core.apply import apply
from topics.core.meta import with_keys
from topics.core.schedules.schedule_changes import due_ticks
from topics.core.schedules.tick_times import TickTimes
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.lifecycle import Lifecycle
from topics.engine.ticket import Ticket, chain, either_way, failed, resolved
from topics.engine.writing.riding import ALONE, Riding
from topics.engine.writing.writes import Writes
from topics.errors import InvalidRequest, NotAQueue, ScheduleNotFound, Throttled, TopicExistsIncompatible, TopicsError
from topics.limits import JOB_DELAY_MS_MAX
from topics.model.config import DEFAULT_CONFIG
from topics.model.ops import SCHEDULE_DROP, SCHEDULE_PUT, SCHEDULE_TICK, Op, ScheduleChange
from topics.model.record import JobField, WriteBatch, stored_batch
from topics.model.results import Appended
from topics.model.schedules.schedule import (
    SCHEDULES_MAX,
    ScheduleRule,
    StoredSchedule,
    check_interval,
    check_schedule_name,
)
from topics.model.schedules.schedule_answers import ScheduleDropped, ScheduleRun, ScheduleState

log = logging.getLogger("topics.schedules")

SCHEDULES = "\0schedules"  # held by whoever changes one; no topic has such a name
RETRY_MS = 1000
"""After a tick that was refused, and while its topic is being changed."""


class Schedules:
    def __init__(self, context: Context, lifecycle: Lifecycle, writes: Writes) -> None:
        self._ctx = context
        self._lifecycle = lifecycle
        self._writes = writes
        self._is_armed = False  # what recovery has found is looked at by the first tick
        self._due: list[tuple[int, str]] = []  # heap
        self._due_at: dict[str, int] = {}  # of the entries in it, those that count
        self._times: dict[str, tuple[ScheduleRule, TickTimes]] = {}
        self._ticking: dict[str, Ticket[Appended]] = {}
        self.ticks_total = 0
        """Appended since the start."""
        self.problems: dict[str, str] = {}
        """By name: why the last tick could not be appended."""

    # --- changing -------------------------------------------------------------------------------------------------

    def put(self, name: str, topic: str, rule: ScheduleRule) -> Ticket[ScheduleState]:
        """Create a schedule, and its topic, or replace what it does. Its cursor stays if its times do."""
        check_schedule_name(name)
        check_rule(rule, self._ctx.clock.now_ms())
        return self._lifecycle.exclusively([SCHEDULES, topic], lambda: self._put(name, topic, rule))

    def _put(self, name: str, topic_name: str, rule: ScheduleRule) -> Ticket[ScheduleState]:
        if name in self._ticking:
            return chain(either_way(self._ticking[name]), lambda _: self._put(name, topic_name, rule))
        ctx, now = self._ctx, self._ctx.clock.now_ms()
        owner = ctx.state.schedules.get(name)
        if owner is not None and owner.name != topic_name:
            raise TopicExistsIncompatible.schedule_topic(name)
        if owner is None and len(ctx.state.schedules) >= SCHEDULES_MAX:
            raise Throttled.cap("max_schedules", max=SCHEDULES_MAX)
        topic = ctx.state.topics.get(topic_name)
        if rule.priority and (topic is None or topic.queue is None):
            raise NotAQueue(topic_name)
        known = None if owner is None else owner.schedules[name]
        rule = _with_start(rule, known, now)
        if owner is not None and known is not None and known.rule == rule:
            return resolved(self._shown(owner, known, created=False))
        schedule = _changed(name, known, rule, now)
        if topic is not None:
            return self._log(topic.id, schedule, created=known is None)
        create = self._lifecycle.create_op(topic_name, DEFAULT_CONFIG)
        return self._log(create.topic_id, schedule, created=True, controls=[create])

    def _log(
        self, topic_id: int, schedule: StoredSchedule, *, created: bool | None = None, controls: Sequence[Op] = ()
    ) -> Ticket[ScheduleState]:
        op = ScheduleChange(topic_id=topic_id, name=schedule.name, event=SCHEDULE_PUT, schedule=schedule)

        def done(_: object) -> ScheduleState:
            self._changed(schedule.name)
            return self._shown(self._ctx.state.by_id[topic_id], schedule, created=created)

        return self._lifecycle.log([*controls, op], topic_id, done, new=len(controls))

    def set_paused(self, name: str, paused: bool) -> Ticket[ScheduleState]:
        """Stop or start the ticks; nothing else is touched."""

        def change() -> Ticket[ScheduleState]:
            if name in self._ticking:
                return chain(either_way(self._ticking[name]), lambda _: change())
            topic, schedule = self.find(name)
            rule = msgspec.structs.replace(schedule.rule, paused=paused)
            return self._log(topic.id, msgspec.structs.replace(schedule, rule=rule))

        return self._lifecycle.exclusively([SCHEDULES], change)

    def drop(self, name: str) -> Ticket[ScheduleDropped]:
        """Forget a schedule; what it has appended stays. An absent one is no error."""

        def change() -> Ticket[ScheduleDropped]:
            if name in self._ticking:
                return chain(either_way(self._ticking[name]), lambda _: change())
            topic = self._ctx.state.schedules.get(name)
            if topic is None:
                return resolved(ScheduleDropped(name, False))
            op = ScheduleChange(topic_id=topic.id, name=name, event=SCHEDULE_DROP)
            gone = self._lifecycle.log([op], topic.id, lambda _: self._changed(name))
            return chain(gone, lambda _: resolved(ScheduleDropped(name, True)))

        return self._lifecycle.exclusively([SCHEDULES], change)

    def _changed(self, name: str) -> None:
        """It has been put or dropped."""
        self.problems.pop(name, None)
        self._times.pop(name, None)
        self._arm(name)

    # --- showing --------------------------------------------------------------------------------------------------

    def find(self, name: str) -> tuple[TopicLog, StoredSchedule]:
        topic = self._ctx.state.schedules.get(name)
        if topic is None:
            raise ScheduleNotFound(name)
        return topic, topic.schedules[name]

    def get(self, name: str) -> ScheduleState:
        return self._shown(*self.find(name))

    def page(
        self,
        *,
        prefix: str = "",
        topic: str | None = None,
        after: str | None = None,
        page_size: int = 100,
        visible: Callable[[str, str], bool] = lambda _name, _topic: True,
    ) -> tuple[list[ScheduleState], bool]:
        """Schedules by name after `after`, at most a page of those whose name and topic are visible; are there more?"""
        page: list[ScheduleState] = []
        schedules = self._ctx.state.schedules
        for name in schedules.irange(max(after or "", prefix)):
            if not name.startswith(prefix):
                break
            owner = schedules[name]
            if name == after or (topic is not None and owner.name != topic) or not visible(name, owner.name):
                continue
            if len(page) == page_size:
                return page, True
            page.append(self._shown(owner, owner.schedules[name]))
        return page, False

    def next_tick(self) -> int | None:
        """When the next one of all schedules is due."""
        return min(self._due_at.values(), default=None)

    def _shown(self, topic: TopicLog, schedule: StoredSchedule, *, created: bool | None = None) -> ScheduleState:
        rule = schedule.rule
        return ScheduleState(
            schedule=schedule.name,
            topic=topic.name,
            cron=rule.cron,
            every_ms=rule.every_ms,
            start_at=rule.start_at,
            timezone=rule.timezone if rule.cron is not None else "",
            data=msgspec.Raw(rule.data),
            meta=msgspec.UNSET if rule.meta is None else msgspec.Raw(rule.meta),
            tag=rule.tag,
            node=rule.node,
            priority=rule.priority,
            missed=rule.missed,
            paused=rule.paused,
            last_tick=schedule.last_tick,
            next_tick=None if rule.paused else self._next(schedule, schedule.cursor),
            ticks=schedule.ticks,
            problem=self.problems.get(schedule.name),
            created=created,
        )

    # --- ticking --------------------------------------------------------------------------------------------------

    def run(self, name: str) -> Ticket[ScheduleRun]:
        """Append its record now; the cursor stays."""
        topic, schedule = self.find(name)
        batch = tick_batch(schedule, [self._ctx.clock.now_ms()])
        appended = self._lifecycle.when_free(topic.name, lambda: self._append(topic, batch, lambda: ALONE))
        return chain(appended, lambda done: resolved(ScheduleRun(name, done.first_seq)))

    def tick(self) -> None:
        """Append what is due."""
        if not self._is_armed:
            self._is_armed = True
            for name in self._ctx.state.schedules:
                self._arm(name)
        if not self._due:
            return
        now = self._ctx.clock.now_ms()
        while self._due and self._due[0][0] <= now:
            at, name = heappop(self._due)
            if self._due_at.get(name) != at or name in self._ticking:
                continue
            del self._due_at[name]
            topic = self._ctx.state.schedules.get(name)
            if topic is None:
                self._forget(name)
            elif self._ctx.name_locks.first_held([SCHEDULES, topic.name]) is not None:
                self._arm_at(name, now + RETRY_MS)
            else:
                self._tick(name, topic, topic.schedules[name], now)

    def _tick(self, name: str, topic: TopicLog, schedule: StoredSchedule, now: int) -> None:
        try:
            ticks = due_ticks(schedule, self._times_of(schedule), now)
            if not ticks:  # paused, or missed and to be skipped
                self._arm_at(name, self._next(schedule, max(schedule.cursor, now)))
                return
            op = ScheduleChange(
                topic_id=topic.id,
                name=name,
                event=SCHEDULE_TICK,
                at=ticks[-1],
                ticks=schedule.ticks + len(ticks),
            )
            riding = Riding([op], partial(self._apply, op, len(ticks)), durable=True)
            ticket = self._append(topic, tick_batch(schedule, ticks), lambda: riding)
        except TopicsError as error:
            ticket = failed(error)
        self._ticking[name] = ticket
        ticket.then(partial(self._ticked, name))

    def _apply(self, op: ScheduleChange, count: int) -> None:
        apply(self._ctx.state, op)
        self.ticks_total += count

    def _append(self, topic: TopicLog, batch: WriteBatch, plan: Callable[[], Riding]) -> Ticket[Appended]:
        self._writes.check_quota(batch.total_bytes)
        return self._writes.append_with(topic, batch, plan)

    def _ticked(self, name: str, done: Ticket[Appended]) -> None:
        del self._ticking[name]
        if done.error is None:
            self.problems.pop(name, None)
            self._arm(name)
            return
        if name not in self.problems:
            log.warning("a tick of schedule %r was not appended: %s", name, done.error)
        self.problems[name] = str(done.error)
        self._arm_at(name, self._ctx.clock.now_ms() + RETRY_MS)

    # --- times ----------------------------------------------------------------------------------------------------

    def _arm(self, name: str) -> None:
        topic = self._ctx.state.schedules.get(name)
        schedule = None if topic is None else topic.schedules[name]
        if schedule is None or schedule.rule.paused:
            self._forget(name)
        else:
            self._arm_at(name, self._next(schedule, schedule.cursor))

    def _arm_at(self, name: str, at: int | None) -> None:
        if at is None:
            self._forget(name)
            return
        self._due_at[name] = at
        heappush(self._due, (at, name))
        self._ctx.wake_at(at)

    def _forget(self, name: str) -> None:
        self._due_at.pop(name, None)
        if name not in self._ctx.state.schedules:
            self.problems.pop(name, None)
            self._times.pop(name, None)

    def _next(self, schedule: StoredSchedule, after: int) -> int | None:
        try:
            return self._times_of(schedule).after(after)
        except InvalidRequest as error:  # a zone that the database does not have any more
            self.problems[schedule.name] = error.message
            return None

    def _times_of(self, schedule: StoredSchedule) -> TickTimes:
        known = self._times.get(schedule.name)
        if known is None or known[0] is not schedule.rule:
            known = self._times[schedule.name] = schedule.rule, TickTimes(schedule.rule)
        return known[1]


def check_rule(rule: ScheduleRule, now: int) -> None:
    """Raises InvalidRequest that names the field and what is allowed."""
    if (rule.cron is None) == (rule.every_ms is None):
        raise InvalidRequest("give either cron or every_ms")
    if rule.every_ms is not None:
        check_interval(rule.every_ms)
    if rule.start_at is not None and not 0 <= rule.start_at <= now + JOB_DELAY_MS_MAX:
        raise InvalidRequest(f"start_at: must be at most {now + JOB_DELAY_MS_MAX}, 100 years ahead")
    if rule.every_ms is not None and rule.timezone != "UTC":
        raise InvalidRequest("timezone: goes with cron only")
    TickTimes(rule).check(max(now, rule.start_at or 0))


def tick_batch(schedule: StoredSchedule, ticks: Sequence[int]) -> WriteBatch:
    """A record for each tick."""
    rule = schedule.rule
    tag, node = (None if text is None else text.encode() for text in (rule.tag, rule.node))
    origin = {"$schedule": msgspec.json.encode(schedule.name)}
    return stored_batch(
        [(rule.data, with_keys(rule.meta, {**origin, "$scheduled_at": b'"%d"' % tick})) for tick in ticks],
        tags=[tag] * len(ticks),
        nodes=[node] * len(ticks),
        jobs=[JobField(priority=rule.priority)] * len(ticks) if rule.priority else None,
    )


def _changed(name: str, known: StoredSchedule | None, rule: ScheduleRule, now: int) -> StoredSchedule:
    if known is None:
        return StoredSchedule(name=name, rule=rule, created_ts=now, cursor=now)
    cursor = known.cursor if known.rule.times == rule.times else now
    return msgspec.structs.replace(known, rule=rule, cursor=cursor)


def _with_start(rule: ScheduleRule, known: StoredSchedule | None, now: int) -> ScheduleRule:
    """An interval counts from when it was put first, unless the caller says otherwise."""
    if rule.every_ms is None or rule.start_at is not None:
        return rule
    same = known is not None and known.rule.every_ms == rule.every_ms
    return msgspec.structs.replace(rule, start_at=known.rule.start_at if same and known is not None else now)
