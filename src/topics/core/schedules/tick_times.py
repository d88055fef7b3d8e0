"""TickTimes: when a schedule ticks, as milliseconds since the Unix epoch.

A cron text is read by cronsim, which follows Debian's cron also where the clock is turned: a time in the hour that is
left out comes at the end of the gap, one in the hour that comes twice comes once; where minute or hour is a star, the
ticks go by the hours that really pass. What comes after a time does not depend on how one got there, so a restart finds
the same ticks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from itertools import takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from topics.errors import InvalidRequest
from topics.limits import CRON_BYTES_MAX
from topics.model.schedules.schedule import ScheduleRule

_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS = 5
_LOOK_BACK_MS = 3_600_000
_FASTER = 8


class TickTimes:
    """Raises InvalidRequest for a rule that has no times."""

    def __init__(self, rule: ScheduleRule) -> None:
        self._start_at = rule.start_at or 0
        self._every_ms = rule.every_ms
        self._zone = _zone(rule.timezone)
        self._cron = "" if rule.cron is None else _cron(rule.cron)

    def check(self, now: int) -> None:
        """A cron text may be well-formed and name a day that no month has."""
        try:
            found = self.after(now)
        except (CronSimError, ValueError, TypeError, AssertionError) as error:
            raise InvalidRequest(
                f"cron: {self._cron!r} never fires or has a field that cannot be read ({error});"
                " give minute hour day month weekday, or @daily and the like"
            ) from None
        if found is None:
            raise InvalidRequest("cron: this never comes; no such time in the next 50 years")

    def after(self, ms: int) -> int | None:
        """The first tick behind this time; None if there is none any more."""
        return next(self._from(ms), None)

    def within(self, after: int, until: int, *, most: int) -> list[int]:
        """The newest ticks behind `after` and not behind `until`, ascending."""
        if self._every_ms is not None:
            after = max(after, until - most * self._every_ms)
        look_back = _LOOK_BACK_MS
        while True:
            start = max(after, until - look_back)
            found = list(takewhile(lambda tick: tick <= until, self._from(start)))
            if len(found) >= most or start == after:
                return found[-most:]
            look_back *= _FASTER  # a long time to catch up on: begin no earlier than has to be

    def _from(self, ms: int) -> Iterator[int]:
        ms = max(ms, self._start_at - 1)
        return self._intervals(ms, self._every_ms) if self._every_ms is not None else self._cron_times(ms)

    def _intervals(self, ms: int, every_ms: int) -> Iterator[int]:
        tick = self._start_at + ((ms - self._start_at) // every_ms + 1) * every_ms
        while True:
            yield tick
            tick += every_ms

    def _cron_times(self, ms: int) -> Iterator[int]:
        try:
            for found in CronSim(self._cron, datetime.fromtimestamp(ms // 1000, self._zone)):
                tick = int(found.timestamp()) * 1000
                if tick > ms:  # in an hour that comes twice cronsim may begin with the first
                    yield tick
        except (OverflowError, OSError):
            return  # the year 10000


def _cron(text: str) -> str:
    if len(text.encode()) > CRON_BYTES_MAX:
        raise InvalidRequest(f"cron: at most {CRON_BYTES_MAX} bytes")
    text = _MACROS.get(text.strip().lower(), text)
    if len(text.split()) != _FIELDS:
        raise InvalidRequest("cron: must have five fields (minute hour day month weekday), or be @daily and the like")
    return text


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise InvalidRequest(f"timezone: there is no zone {name[:64]!a}; give a name such as Europe/Berlin") from None
