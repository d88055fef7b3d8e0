"""Request bodies of the schedules (`docs/spec/http-api.md#sec-19-14`)."""

from typing import Annotated

import msgspec

from topics import limits
from topics.model.config import U64, check_u64
from topics.model.names import TopicName
from topics.model.record import NULL, RecordIn, build_batch
from topics.model.schedules.schedule import MissedTicks, ScheduleRule
from topics.wire.incoming.json import BodyDecoder

JobPriority = Annotated[int, msgspec.Meta(ge=-limits.JOB_PRIORITY_MAX, le=limits.JOB_PRIORITY_MAX)]


class PutScheduleRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topic: TopicName
    cron: str | None = None
    every_ms: U64 | None = None
    start_at: U64 | None = None
    timezone: str = "UTC"
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    meta: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    tag: str | None = None
    node: str | None = None
    priority: JobPriority | None = None
    missed: MissedTicks = "one"
    paused: bool = False

    def __post_init__(self) -> None:
        check_u64(self.every_ms or 0, self.start_at or 0)

    def rule(self) -> ScheduleRule:
        """Raises InvalidRequest if its record would be refused."""
        data = NULL if isinstance(self.data, msgspec.UnsetType) else self.data
        build_batch([RecordIn(data, tag=self.tag, node=self.node, meta=self.meta)])
        has_meta = not isinstance(self.meta, msgspec.UnsetType) and self.meta != NULL
        return ScheduleRule(
            cron=self.cron,
            every_ms=self.every_ms,
            start_at=self.start_at,
            timezone=self.timezone,
            data=bytes(data),
            meta=bytes(self.meta) if has_meta else None,  # type: ignore[arg-type]
            tag=self.tag,
            node=self.node,
            priority=self.priority or 0,
            missed=self.missed,
            paused=self.paused,
        )


decode_schedule = BodyDecoder[PutScheduleRequest](PutScheduleRequest)
