"""StoredSchedule: what appends records to a topic by the clock, as state, log and snapshot have it.

    ScheduleRule     what a schedule does, and when
    StoredSchedule         a rule under a name, and how far it has come

Frozen: a change makes another one, by `core.schedules`."""

from typing import Annotated, Literal

import msgspec

from topics import limits
from topics.errors import InvalidRequest
from topics.model.names import is_router_name

MissedTicks = Literal["skip", "one", "all"]

SCHEDULES_MAX = 10_000
"""Of all topics: each has a place in memory, and due ones are appended one by one."""
MISSED_TICKS_MAX = 1000
"""That one schedule catches up on: more would be a flood, of which the newest are worth most."""


class ScheduleRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Either `cron`, by the clock of `timezone`, or `every_ms`, counted from `start_at`. `data` and `meta` are JSON
    texts of the record that a tick appends."""

    cron: str | None = None
    every_ms: int | None = None
    start_at: int | None = None
    timezone: str = "UTC"
    data: bytes = b"null"
    meta: bytes | None = None
    tag: str | None = None
    node: str | None = None
    priority: int = 0
    missed: MissedTicks = "one"
    paused: bool = False

    @property
    def times(self) -> tuple[str | None, int | None, int | None, str]:
        """What decides when it ticks."""
        return self.cron, self.every_ms, self.start_at, self.timezone


class StoredSchedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ticks are sought behind `cursor`. `ticks` counts records appended since creation, without those by hand."""

    name: str
    rule: ScheduleRule
    created_ts: Annotated[int, msgspec.Meta(ge=0)]
    cursor: Annotated[int, msgspec.Meta(ge=0)]
    last_tick: int | None = None
    ticks: int = 0


def check_schedule_name(name: str) -> None:
    """A schedule is named by the rule of routers."""
    if not is_router_name(name):
        shown = ascii(name if len(name) <= 64 else name[:64] + "...")
        raise InvalidRequest(f"{shown} is not a schedule name; letters, digits and ._:>- are allowed")


def check_interval(every_ms: int) -> None:
    if not limits.SCHEDULE_EVERY_MS_MIN <= every_ms <= limits.JOB_DELAY_MS_MAX:
        low, high = limits.SCHEDULE_EVERY_MS_MIN, limits.JOB_DELAY_MS_MAX
        raise InvalidRequest(f"every_ms: must be an integer from {low} to {high}")
