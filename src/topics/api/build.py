"""Build: makes one application of the endpoints and wires it to the kernel. All of the api is put together here.

Two steps, because a server may listen before recovery is over: `ServerApp` answers the probes at once, `attach` gives
it the kernel when there is one."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from topics.api.app import App, within_budget
from topics.api.endpoints.bulk import BulkEndpoints
from topics.api.endpoints.cursors import CursorEndpoints
from topics.api.endpoints.probes import Console, Probes
from topics.api.endpoints.queues import JobEndpoints, QueueEndpoints
from topics.api.endpoints.records import RecordEndpoints
from topics.api.endpoints.routers import RouterEndpoints
from topics.api.endpoints.topics import TopicEndpoints
from topics.api.fast_append import FastAppends
from topics.api.live.live import Live
from topics.api.live.work_endpoint import WorkEndpoint
from topics.api.metrics import Metrics
from topics.clock import Clock, Host
from topics.config import Settings
from topics.core.state import State
from topics.engine.reading.long_polls import LongPolls
from topics.runtime.drivers.aio import BusyShare
from topics.runtime.kernel import Kernel
from topics.wire.access.auth import PageRules
from topics.wire.access.keys import Key, KeyRing
from topics.wire.outgoing.render_cache import RenderCache

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
        self._metrics = Metrics(uptime_ms=self.uptime_ms, progress=lambda: self.app.progress)
        console = Console()
        self.app.handlers |= {
            "health": self._probes.health,
            "ready": self._probes.ready,
            "openapi": within_budget(self._probes.openapi),
            "access": self._probes.access,
            "metrics": within_budget(self._metrics.metrics),
            "root": console.root,
            "console": within_budget(console.console),
            "console_file": within_budget(console.console_file),
        }

    def uptime_ms(self) -> int:
        return int((self._clock.monotonic() - self._started_s) * 1000)

    def report_progress(self, share: float) -> None:
        """From recovery; it never falls."""
        if self.app.progress is not None:
            self.app.progress = max(self.app.progress, min(share, 1.0))

    def attach(self, kernel: Kernel) -> None:
        """Recovery is over: serve."""
        engine, off_loop = kernel.engine, kernel.driver.run_read
        cache = RenderCache()  # one for diffs and streams
        live = Live(kernel, self._settings, cache, keys=self._keys, busy=BusyShare())
        long_polls = LongPolls(engine, live.delivery)
        topics, records = TopicEndpoints(engine), RecordEndpoints(engine, long_polls, cache, off_loop=off_loop)
        bulk = BulkEndpoints(kernel, self._host, monotonic=self._clock.monotonic)
        routers, queues = RouterEndpoints(engine), QueueEndpoints(engine, off_loop=off_loop)
        jobs = JobEndpoints(engine)
        cursors = CursorEndpoints(engine)
        self.app.handlers |= {
            "commit_cursor": cursors.commit_cursor,
            "put_cursor": cursors.put_cursor,
            "get_cursor": cursors.get_cursor,
            "delete_cursor": cursors.delete_cursor,
            "topic_cursors": within_budget(cursors.topic_cursors),
            "list_cursors": within_budget(cursors.list_cursors),
            "commit_cursors": cursors.commit_cursors,
            "put_topic": topics.put_topic,
            "get_topic": topics.get_topic,
            "list_topics": within_budget(topics.list_topics),
            "delete_topic": topics.delete_topic,
            "write": records.write,
            "diff": records.diff,
            "delete_records": records.delete_records,
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
            "work": WorkEndpoint(engine, live.streams, live.services.slow_limits).work,
            **live.handlers,
        }
        fast_appends = FastAppends(engine, monotonic=self._clock.monotonic, inflight=self.app.inflight)
        self.app.fast_path = fast_appends
        self.app.on_shutdown += (live.streams.shut_down, long_polls.finish_all, engine.queues.waiting.finish_all)
        kernel.scheduler.every_tick.append(long_polls.tick)
        kernel.before_turn.append(fast_appends.end_turn)
        self.kernel, self.live = kernel, live
        self._probes.kernel = kernel
        self._metrics.kernel, self._metrics.live = kernel, live
        self.app.progress = None
        for sentence in dead_letters_out_of_reach(engine.state, self._keys or ()):
            log.warning("%s", sentence)


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
