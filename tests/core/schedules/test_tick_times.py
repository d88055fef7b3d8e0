"""When schedules tick: cron texts by the clock of a zone, intervals, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from topics.core.schedules.schedule_changes import LATE_MS, due_ticks
from topics.core.schedules.tick_times import TickTimes
from topics.engine.schedules import check_rule
from topics.errors import InvalidRequest
from topics.limits import JOB_DELAY_MS_MAX
from topics.model.schedules.schedule import ScheduleRule, StoredSchedule

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1000


def shown(ticks: list[int]) -> list[str]:
    return [datetime.fromtimestamp(tick / 1000, UTC).strftime("%d %H:%M") for tick in ticks]


def ticks(text: str, start: str, end: str, zone: str = "Europe/Berlin") -> list[str]:
    return shown(TickTimes(ScheduleRule(cron=text, timezone=zone)).within(at(start), at(end), most=1000))


def test_a_time_in_the_hour_that_is_left_out_comes_at_the_end_of_the_gap() -> None:
    """On 29 March 2026 Berlin goes from 02:00 to 03:00, which is 01:00 by UTC."""
    assert ticks("30 2 * * *", "2026-03-28T00:00Z", "2026-03-31T00:00Z") == ["28 01:30", "29 01:00", "30 00:30"]


def test_a_time_in_the_hour_that_comes_twice_comes_once() -> None:
    """On 25 October 2026 Berlin goes from 03:00 back to 02:00."""
    assert ticks("30 2 * * *", "2026-10-24T12:00Z", "2026-10-26T12:00Z") == ["25 00:30", "26 01:30"]


def test_a_star_goes_by_the_hours_that_pass() -> None:
    assert len(ticks("0 * * * *", "2026-10-24T21:59Z", "2026-10-25T22:59Z")) == 25
    assert len(ticks("0 * * * *", "2026-03-28T22:59Z", "2026-03-29T21:59Z")) == 23


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"])
@pytest.mark.parametrize("cron", ["30 2 * * *", "*/20 * * * *", "0 0,2,3 * * 0", "15 1-3 * * *"])
def test_the_next_tick_does_not_depend_on_where_one_began(zone: str, cron: str) -> None:
    """Else a restart would find other ticks than the server before it."""
    times = TickTimes(ScheduleRule(cron=cron, timezone=zone))
    for start in ("2026-03-07T00:00Z", "2026-03-28T00:00Z", "2026-10-24T00:00Z", "2026-10-31T00:00Z"):
        begin, end = at(start), at(start) + 3 * DAY
        every = times.within(begin, end, most=1000)
        assert every == sorted(set(every))
        for moment in range(begin, end, 13 * MINUTE):
            assert times.after(moment) == next((tick for tick in every if tick > moment), times.after(end))


def test_intervals_count_from_their_start() -> None:
    times = TickTimes(ScheduleRule(every_ms=1000, start_at=500))
    assert times.after(0) == 500
    assert times.after(500) == 1500
    assert times.within(0, 3600, most=1000) == [500, 1500, 2500, 3500]
    assert times.within(0, 10**15 + 500, most=2) == [10**15 - 500, 10**15 + 500]


def test_the_newest_missed_ticks_are_found_without_walking_through_all_of_them() -> None:
    times = TickTimes(ScheduleRule(cron="* * * * *", timezone="Europe/Berlin"))
    now = at("2026-11-01T00:00Z")
    assert times.within(at("1999-01-01T00:00Z"), now, most=1) == [now]
    assert times.within(at("1999-01-01T00:00Z"), now, most=1000) == [now - MINUTE * n for n in range(999, -1, -1)]
    yearly = TickTimes(ScheduleRule(cron="@yearly"))
    assert len(yearly.within(at("1999-06-01T00:00Z"), now, most=1000)) == 27


@pytest.mark.parametrize(
    ("missed", "expected"), [("skip", []), ("one", [50 * HOUR]), ("all", [HOUR * n for n in range(1, 51)])]
)
def test_missed_ticks_follow_the_rule(missed: str, expected: list[int]) -> None:
    rule = ScheduleRule(every_ms=HOUR, start_at=0, missed=missed)  # type: ignore[arg-type]
    schedule = StoredSchedule(name="s", rule=rule, created_ts=0, cursor=0)
    assert due_ticks(schedule, TickTimes(rule), 50 * HOUR + LATE_MS + 1) == expected


def test_a_tick_on_time_is_appended_whatever_was_missed_before_it() -> None:
    rule = ScheduleRule(every_ms=HOUR, start_at=0, missed="skip")
    schedule = StoredSchedule(name="s", rule=rule, created_ts=0, cursor=0)
    assert due_ticks(schedule, TickTimes(rule), 50 * HOUR + 1) == [50 * HOUR]


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        (ScheduleRule(cron="0 0 30 2 *"), "cron"),
        (ScheduleRule(cron="0 0 31 4,6,9,11 *"), "cron"),
        (ScheduleRule(cron="* * */20 * 1L"), "cron"),
        (ScheduleRule(cron="61 * * * *"), "cron"),
        (ScheduleRule(cron="* * * *"), "cron"),
        (ScheduleRule(cron="* * * * * *"), "cron"),
        (ScheduleRule(cron="@sometimes"), "cron"),
        (ScheduleRule(cron="* * * * 5L/2"), "cron"),
        (ScheduleRule(cron="* " * 200), "cron"),
        (ScheduleRule(cron=""), "cron"),
        (ScheduleRule(cron="* * * * *", timezone="Mars/Olympus"), "timezone"),
        (ScheduleRule(cron="* * * * *", timezone="../etc/passwd"), "timezone"),
        (ScheduleRule(cron="* * * * *", timezone="Europe"), "timezone"),
        (ScheduleRule(cron="* * * * *", timezone=""), "timezone"),
        (ScheduleRule(every_ms=1000, timezone="Europe/Berlin"), "timezone"),
        (ScheduleRule(every_ms=999), "every_ms"),
        (ScheduleRule(every_ms=JOB_DELAY_MS_MAX + 1), "every_ms"),
        (ScheduleRule(every_ms=1000, start_at=at("2200-01-01T00:00Z")), "start_at"),
        (ScheduleRule(every_ms=1000, cron="* * * * *"), "cron or every_ms"),
        (ScheduleRule(), "cron or every_ms"),
    ],
)
def test_what_has_no_times_is_refused_by_name(rule: ScheduleRule, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        check_rule(rule, at("2026-11-01T00:00Z"))
