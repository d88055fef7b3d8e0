"""MetricsEndpoint: answers a scrape (`docs/spec/http-api.md#sec-20-3`).

    log what retention takes of some topics -> look at them -> let others have a turn -> the next ... -> answer

Always holds: one step looks at about `STEP_TOPICS` topics, so a scrape of many thousand delays nobody; a disk that
hangs delays the answer by a second at most. While recovery runs there is no kernel yet, and what it would count is
zero.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from topics.api.app import RequestCall
from topics.api.live.live import Live
from topics.api.metrics.exposition import CONTENT_TYPE, Family, counter, exposition, gauge
from topics.api.metrics.request_stats import RequestStats
from topics.api.metrics.server_families import (
    is_read_only,
    live_families,
    process_families,
    schedule_families,
    tier_families,
    wal_families,
    wal_totals,
)
from topics.api.metrics.topic_survey import TopicSurvey, cost_of
from topics.core.topic import TopicLog
from topics.engine.ticket import Ticket, chain
from topics.model.config import DURABILITIES
from topics.net.messages import Response
from topics.runtime.kernel import Kernel
from topics.runtime.process_stats import DiskSpace
from topics.wire.access.auth import permits_router
from topics.wire.incoming.request_head import wants_json

STEP_TOPICS = 256
"""About 2 ms of looking and rendering."""


class MetricsEndpoint:
    def __init__(
        self,
        requests: RequestStats,
        *,
        shown_max: int,
        uptime_ms: Callable[[], int],
        progress: Callable[[], float | None],
    ) -> None:
        self._requests = requests
        self._shown_max = shown_max
        self._uptime_ms = uptime_ms
        self._progress = progress
        self._kernel: Kernel | None = None  # until recovery is over
        self._live: Live | None = None
        self._disk: DiskSpace | None = None

    def attach(self, kernel: Kernel, live: Live | None) -> None:
        self._kernel, self._live = kernel, live
        self._disk = DiskSpace(kernel.settings.data_dir, kernel.driver)
        self._disk.refresh()

    def metrics(self, call: RequestCall) -> None:
        """Counts are those of this moment (`docs/spec/semantics.md#sec-3-5`): what TTL and byte caps take goes first.
        Floors are shown as far as they are logged."""
        key = call.key
        survey = TopicSurvey(
            shown_max=self._shown_max,
            permits=(lambda _: True) if key is None else key.permits_name,
            permits_router=partial(permits_router, key),
        )
        if self._kernel is None:
            self._answer(call, survey)
            return
        assert self._disk is not None
        self._disk.refresh()
        left = list(self._kernel.engine.state.topics.values())
        left.reverse()
        self._look_on(call, survey, left)

    def _look_on(self, call: RequestCall, survey: TopicSurvey, left: list[TopicLog]) -> None:
        kernel = self._kernel
        assert kernel is not None
        step: list[TopicLog] = []
        cost = 0
        while left and cost < STEP_TOPICS:
            step.append(left.pop())
            cost += cost_of(step[-1])
        floor_log = kernel.engine.floor_log
        mortal = [topic for topic in step if topic.config.ttl_ms or topic.config.cap_bytes]
        shown = [topic for topic in step if survey.shows(topic)]
        logged = chain(floor_log.log_soon(mortal), lambda _: floor_log.log_all(shown))
        call.when(logged, lambda _: self._look_at(call, survey, step, left))

    def _look_at(self, call: RequestCall, survey: TopicSurvey, step: list[TopicLog], left: list[TopicLog]) -> None:
        kernel = self._kernel
        assert kernel is not None
        by_id = kernel.engine.state.by_id
        for topic in step:
            if by_id.get(topic.id) is topic:  # else it was dropped meanwhile
                survey.look_at(topic, kernel.engine)
        if left:
            next_turn: Ticket[None] = Ticket()
            kernel.driver.soon(lambda: next_turn.resolve(None))
            call.when(next_turn, lambda _: self._look_on(call, survey, left))
        else:
            self._answer(call, survey)

    def _answer(self, call: RequestCall, survey: TopicSurvey) -> None:
        if wants_json(call.request.header(b"accept")):
            call.reply(200, msgspec.json.encode(self._json(survey)))
        else:
            call.respond(Response(200, exposition(self._families(survey)), CONTENT_TYPE))

    # --- text -----------------------------------------------------------------------------------------------------

    def _families(self, survey: TopicSurvey) -> list[Family]:
        progress = self._progress()
        families = [
            *survey.first_families(),
            gauge("topics_sse_connections", "open streams and sockets", self._streams()),
            gauge("topics_watch_sessions", "watch sessions", self._watch_sessions()),
            gauge("topics_ready", "1 while everything is served", int(self._ready())),
            gauge("topics_recovery_progress", "share of the log replayed", 1 if progress is None else progress),
            counter("topics_uptime_ms", "deprecated, use process_start_time_seconds", self._uptime_ms()),
            *wal_families(self._kernel),
            *survey.further_families(),
            *self._requests.families(),
        ]
        if self._live is not None:
            families += live_families(self._live)
        if self._kernel is not None:
            families += schedule_families(self._kernel) + tier_families(self._kernel)
        return families + process_families(self._disk)

    def _streams(self) -> int:
        return 0 if self._live is None else len(self._live.streams)

    def _watch_sessions(self) -> int:
        return 0 if self._live is None else len(self._live.sessions)

    def _ready(self) -> bool:
        """As the readiness probe says."""
        return self._progress() is None and not is_read_only(self._kernel)

    # --- JSON -----------------------------------------------------------------------------------------------------

    def _json(self, survey: TopicSurvey) -> dict[str, object]:
        wal, progress = wal_totals(self._kernel), self._progress()
        commit = None if self._kernel is None else self._kernel.commit
        return {
            "topics": survey.topics,
            **{f"topics_{name}": survey.by_class[name] for name in DURABILITIES},
            "routers": survey.routers,
            "records_live": survey.records,
            "bytes_live": survey.bytes,
            "queue_topics": survey.queues,
            "queue_leases_in_flight": survey.leases,
            "sse_connections": self._streams(),
            "watch_sessions": self._watch_sessions(),
            "ready": self._ready(),
            "replay_progress": 1.0 if progress is None else progress,
            "uptime_ms": self._uptime_ms(),
            "wal": {
                "fsyncs": wal.syncs,
                "frames": wal.client_frames,
                "batches": wal.batches,
                "bytes_written": wal.bytes_written,
                "rotations": wal.rotations,
                "queue_depth": 0 if commit is None else commit.depth(),
                "queue_depth_peak": 0 if commit is None else commit.depth_peak,
                "submit_full_total": 0 if commit is None else commit.full_total,
                "read_only": int(is_read_only(self._kernel)),
                "fsync_count": wal.syncs,
                "fsync_micros_total": round(wal.sync_seconds * 1e6),
            },
        }
