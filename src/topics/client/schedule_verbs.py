"""Schedule verbs: what a schedule can be asked, written once, as coroutines over a door."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from topics.client import routes
from topics.client.routes import ScheduleQuery
from topics.client.verbs import Door
from topics.model.schedules.schedule import MissedTicks
from topics.model.schedules.schedule_answers import ScheduleState
from topics.model.values import json_text
from topics.wire.incoming.requests import checked
from topics.wire.incoming.schedule_requests import PutScheduleRequest


class ScheduleVerbs:
    """A schedule by name: appends a record to a topic at its ticks."""

    def __init__(self, door: Door, name: str) -> None:
        self._door = door
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    async def put(
        self,
        topic: str,
        data: Any = None,
        *,
        cron: str | None = None,
        every_ms: int | None = None,
        timezone: str = "UTC",
        start_at: int | None = None,
        tag: str | None = None,
        node: str | None = None,
        meta: Any = None,
        priority: int | None = None,
        missed: MissedTicks = "one",
        paused: bool = False,
    ) -> ScheduleState:
        """Append `data` to `topic` by a crontab's five fields in a time zone, or each `every_ms`. `missed` says what
        becomes of ticks that passed while the server was down. All but the topic of a schedule may be replaced."""
        request = checked(
            PutScheduleRequest,
            topic=topic,
            data=json_text(data),
            cron=cron,
            every_ms=every_ms,
            timezone=timezone,
            start_at=start_at,
            tag=tag,
            node=node,
            **({} if meta is None else {"meta": json_text(meta)}),
            priority=priority,
            missed=missed,
            paused=paused,
        )
        return await self._door.run(routes.PUT_SCHEDULE, self.name, request)

    async def get(self) -> ScheduleState:
        """What it does, its last tick and its next."""
        return await self._door.run(routes.GET_SCHEDULE, self.name, None)

    async def delete(self) -> bool:
        """It ticks no more; what it has appended stays. False if there was no such schedule."""
        return (await self._door.run(routes.DELETE_SCHEDULE, self.name, None)).deleted

    async def run(self) -> int:
        """Append its record now, beside its ticks; gives the seq."""
        return (await self._door.run(routes.RUN_SCHEDULE, self.name, None)).seq

    async def pause(self) -> ScheduleState:
        """No ticks until `resume`."""
        return await self._door.run(routes.PAUSE_SCHEDULE, self.name, None)

    async def resume(self) -> ScheduleState:
        """Ticks again; those that passed meanwhile count as missed."""
        return await self._door.run(routes.RESUME_SCHEDULE, self.name, None)


async def schedule_pages(door: Door, prefix: str, topic: str | None) -> AsyncGenerator[list[ScheduleState], None]:
    """All schedules whose names begin so, and of this topic if given."""
    cursor: str | None = ""
    while cursor is not None:
        page = await door.run(routes.SCHEDULES, "", ScheduleQuery(prefix=prefix, topic=topic, cursor=cursor))
        yield page.schedules
        cursor = page.next_cursor
