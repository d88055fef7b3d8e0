"""Build: makes one application of the endpoints and wires it to the kernel. All of the api is put together here.

Two steps, because a server may listen before recovery is over: `ServerApp` answers the probes at once, `attach` gives
it the kernel when there is one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from topics.api.app import App, Handler, within_budget
from topics.api.endpoints.bulk import BulkEndpoints
from topics.api.endpoints.cursors import CursorEndpoints
from topics.api.endpoints.latest_table import TableEndpoints
from topics.api.endpoints.probes import Console, Probes
from topics.api.endpoints.queues import JobEndpoints, QueueEndpoints
from topics.api.endpoints.records import RecordEndpoints
from topics.api.endpoints.routers import RouterEndpoints
from topics.api.endpoints.schedules import ScheduleEndpoints
from topics.api.endpoints.tokens import TokenEndpoint
from topics.api.endpoints.topics import TopicEndpoints
from topics.api.fast_append import FastAppends
from topics.api.live.live import PLAIN_PARTS, Live, LiveParts
from topics.api.metrics.metrics_endpoint import MetricsEndpoint
from topics.clock import Clock, Host
from topics.config import Settings
from topics.core.state import State
from topics.engine.engine import Engine
from topics.engine.reading.long_polls import LongPolls
from topics.runtime.drivers.aio import BusyShare
from topics.runtime.kernel import Kernel
from topics.wire.access.auth import PageRules
from topics.wire.access.keys import Key, KeyRing

log = logging.getLogger("topics.api")

WARNINGS_MAX = 20  # of one kind, so that a start does not fill the log


class ServerApp:
    def __init__(self, settings: Settings, *, keys: KeyRing | None, clock: Clock, host: Host) -> None:
        self._settings = settings
        self._host = host
        self._clock = clock
        self._started_s = clock.monotonic()
        self._keys = keys
        self.live: Live | None = None
        self.kernel: Kernel | None = None
        self.app = App(
            keys=keys,
            pages=PageRules.from_settings(settings, is_guarded=keys is not None),
            probe_auth=settings.probe_auth,
            inflight_max=settings.max_inflight_per_key,
            monotonic=clock.monotonic,
        )
        self._probes = Probes(self.app, uptime_ms=self.uptime_ms)
        self._metrics = MetricsEndpoint(
            self.app.requests,
            shown_max=settings.metrics_topics,
            uptime_ms=self.uptime_ms,
            progress=lambda: self.app.progress,
        )
        console = Console()
        self.app.handlers |= {
            "health": self._probes.health,
            "ready": self._probes.ready,
            "openapi": within_budget(self._probes.openapi),
            "access": self._probes.access,
            "create_token": TokenEndpoint(self.app.tokens, wall_ms=clock.wall_ms).create_token,
            "metrics": within_budget(self._metrics.metrics),
            "root": console.root,
            "console": within_budget(console.console),
            "console_file": within_budget(console.console_file),
        }

    def uptime_ms(self) -> int:
        return int((self._clock.monotonic() - self._started_s) * 1000)

    def _connect(self, kernel: Kernel, live: Live, long_polls: LongPolls) -> None:
        """What the turns, the ticks and the end of the kernel ask of the api."""
        engine = kernel.engine
        fast_appends = FastAppends(
            engine,
            keys=self._keys,
            monotonic=self._clock.monotonic,
            inflight=self.app.inflight,
            requests=self.app.requests,
        )
        self.app.fast_path = fast_appends
        self.app.on_shutdown += (live.streams.shut_down, long_polls.finish_all, engine.queues.waiting.finish_all)
        kernel.scheduler.every_tick.append(long_polls.tick)
        kernel.scheduler.every_tick.append(self._expire_keys)
        kernel.before_turn.append(fast_appends.end_turn)

    def keys_ended(self, keys: Iterable[Key]) -> None:
        """Cut off what these keys have open. The ring has let go of them already, so nothing new is opened."""
        ended = {key.digest for key in keys}
        if ended and self.live is not None:
            self.live.sessions.disown(ended)
            self.live.streams.cut_off_clients(ended)

    def _expire_keys(self) -> None:
        over = [] if self._keys is None else self._keys.expire(self._clock.wall_ms())
        for key in over:
            log.warning("key %s has expired", key.name)
        self.keys_ended(over)

    def report_progress(self, share: float) -> None:
        """From recovery; it never falls."""
        if self.app.progress is not None:
            self.app.progress = max(self.app.progress, min(share, 1.0))

    def attach(self, kernel: Kernel) -> None:
        """Recovery is over: serve."""
        engine, off_loop = kernel.engine, kernel.driver.run_read
        parts, tokens = live_parts(self._settings), self.app.tokens
        live = Live(kernel, self._settings, keys=self._keys, tokens=tokens, busy=BusyShare(), parts=parts)
        long_polls = LongPolls(engine, live.delivery)
        topics, records = TopicEndpoints(engine), RecordEndpoints(engine, long_polls, off_loop=off_loop)
        bulk = BulkEndpoints(kernel, self._host, monotonic=self._clock.monotonic)
        routers, queues = RouterEndpoints(engine), QueueEndpoints(engine, off_loop=off_loop)
        jobs = JobEndpoints(engine)
        self.app.handlers |= {
            **cursor_handlers(engine, kernel.driver.soon),
            "put_topic": topics.put_topic,
            "get_topic": topics.get_topic,
            "list_topics": within_budget(topics.list_topics),
            "delete_topic": topics.delete_topic,
            "write": records.write,
            "diff": records.diff,
            "get_records": records.get_records,
            "get_record": records.get_record,
            "newest_record": records.newest_record,
            "delete_records": records.delete_records,
            "latest": TableEndpoints(engine, off_loop=off_loop).latest,
            "segments": within_budget(bulk.segments),
            "frames": bulk.frames,
            "put_router": routers.put_router,
            "get_router": routers.get_router,
            "list_routers": within_budget(routers.list_routers),
            "delete_router": routers.delete_router,
            "claim": queues.claim,
            "ack": queues.ack,
            "nack": queues.nack,
            "extend": queues.extend,
            "list_jobs": within_budget(jobs.list_jobs),
            "list_workers": within_budget(jobs.list_workers),
            "cancel_jobs": jobs.cancel_jobs,
            "retry_jobs": jobs.retry_jobs,
            "move_jobs": jobs.move_jobs,
            "redrive": jobs.redrive,
            "pause_queue": jobs.pause_queue,
            "resume_queue": jobs.resume_queue,
            **ScheduleEndpoints(engine).handlers,
            **live.handlers,
        }
        self._connect(kernel, live, long_polls)
        self.kernel, self.live = kernel, live
        if self._settings.otel:
            from topics.api.request_spans import trace_requests

            trace_requests(self.app)
        self._probes.kernel = kernel
        self._metrics.attach(kernel, live)
        self.app.progress = None
        for sentence in dead_letters_out_of_reach(engine.state, self._keys or ()):
            log.warning("%s", sentence)


def live_parts(settings: Settings) -> LiveParts:
    if not settings.otel:
        return PLAIN_PARTS
    from topics.api.live_spans import traced_parts  # needs OpenTelemetry, which a server need not have

    return traced_parts()


def cursor_handlers(engine: Engine, soon: Callable[[Callable[[], None]], None]) -> dict[str, Handler]:
    cursors = CursorEndpoints(engine, soon=soon)
    return {
        "commit_cursor": cursors.commit_cursor,
        "put_cursor": cursors.put_cursor,
        "get_cursor": cursors.get_cursor,
        "delete_cursor": cursors.delete_cursor,
        "topic_cursors": within_budget(cursors.topic_cursors),
        "list_cursors": within_budget(cursors.list_cursors),
        "commit_cursors": cursors.commit_cursors,
    }


def dead_letters_out_of_reach(state: State, keys: Iterable[Key]) -> list[str]:
    """A sentence for each queue of a bound key whose dead letters go where the key may not write
    (`docs/spec/http-api.md#sec-8-7`).

    An operator may want that. But older versions did not check names in bodies, so the key itself could make such a
    queue, and nothing stored says who did: an operator has to look."""
    bound = [key for key in keys if key.prefixes]
    sentences = [
        f"dead letters of queue {topic.name!r} go to {dead!r}, which a key bound to "
        f"{'|'.join(key.prefixes)!r} may not write to: see that this is meant"
        for topic in state.topics.values()
        for key in bound
        if topic.config.is_queue
        and (dead := topic.config.dead_letter) is not None
        and key.permits_name(topic.name)
        and not key.permits_name(dead)
    ]
    more = len(sentences) - WARNINGS_MAX
    return sentences if more <= 0 else [*sentences[:WARNINGS_MAX], f"and so do {more} more"]
