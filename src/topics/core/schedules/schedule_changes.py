"""Schedule changes: which ticks are due, and a change of a schedule, applied.

Each change says how the schedule is after it, so replaying one twice, or over a newer snapshot, comes to the same end.
A tick travels in front of the records it appends, in their submission: the cursor moves if and only if they are kept.
"""

from __future__ import annotations

import msgspec

from topics.core.effects import Effect, OpResult
from topics.core.schedules.tick_times import TickTimes
from topics.core.state import State
from topics.core.topic import TopicLog
from topics.model.ops import SCHEDULE_DROP, SCHEDULE_PUT, ScheduleChange
from topics.model.schedules.schedule import MISSED_TICKS_MAX, StoredSchedule

LATE_MS = 10_000
"""A tick that could not be appended for so long counts as missed. A busy server is not that late."""


def due_ticks(schedule: StoredSchedule, times: TickTimes, now: int) -> list[int]:
    """Ticks that are to be appended now, ascending: those on time, and of those missed what the rule says."""
    rule = schedule.rule
    if rule.paused:
        return []
    found = times.within(schedule.cursor, now, most=MISSED_TICKS_MAX if rule.missed == "all" else 1)
    return [tick for tick in found if tick >= now - LATE_MS] if rule.missed == "skip" else found


def apply_schedule(state: State, topic: TopicLog, op: ScheduleChange) -> Effect:
    known = topic.schedules.get(op.name)
    if op.event == SCHEDULE_PUT:
        assert op.schedule is not None, "a put has the whole schedule"
        topic.schedules[op.name] = op.schedule
        state.schedules[op.name] = topic
    elif known is None:
        return Effect(OpResult.IGNORED, topic.id)
    elif op.event == SCHEDULE_DROP:
        del topic.schedules[op.name]
        if state.schedules.get(op.name) is topic:
            del state.schedules[op.name]
    else:
        topic.schedules[op.name] = msgspec.structs.replace(known, cursor=op.at, last_tick=op.at, ticks=op.ticks)
    return Effect(OpResult.APPLIED, topic.id)
