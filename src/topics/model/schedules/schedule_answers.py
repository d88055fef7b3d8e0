"""What a caller is shown of a schedule, and the answers of the other verbs."""

from typing import Any

import msgspec

from topics.model.names import ScheduleName, TopicName
from topics.model.payload import decode_payload
from topics.model.schedules.schedule import MissedTicks


class ScheduleState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`next_tick` is None while it is paused, or if there is none any more. `problem`: why its last tick could not be
    appended. `created` is said by a put only."""

    schedule: ScheduleName
    topic: TopicName
    cron: str | None = None
    every_ms: int | None = None
    start_at: int | None = None
    timezone: str = ""
    data: msgspec.Raw
    meta: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    tag: str | None = None
    node: str | None = None
    priority: int = 0
    missed: MissedTicks
    paused: bool
    last_tick: int | None
    next_tick: int | None
    ticks: int
    problem: str | None = None
    created: bool | None = None

    @property
    def value(self) -> Any:
        """The data of its records, decoded."""
        return decode_payload(self.data)


class SchedulePage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    schedules: list[ScheduleState]
    next_cursor: str | None = None


class ScheduleRun(msgspec.Struct, frozen=True):
    """A tick by hand: the seq of its record."""

    schedule: ScheduleName
    seq: int


class ScheduleDropped(msgspec.Struct, frozen=True):
    schedule: ScheduleName
    deleted: bool
