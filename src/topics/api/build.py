"""Build: puts the endpoints together into one application.

Two steps, because a server may listen before recovery is over: `ServerApp` answers probes at once, `attach` gives it
the kernel when there is one."""

from __future__ import annotations

import logging
from collections.abc import Callable

from topics.api.app import App, Handler
from topics.api.call import RequestCall, with_room
from topics.api.endpoints.bulk import BulkEndpoints
from topics.api.endpoints.probes import Console, Probes
from topics.api.endpoints.queues import QueueEndpoints
from topics.api.endpoints.records import RecordEndpoints
from topics.api.endpoints.routers import RouterEndpoints
from topics.api.endpoints.topics import TopicEndpoints
from topics.api.links import links_out_of_reach
from topics.api.live.live import Live
from topics.api.live.work_endpoint import WorkEndpoint
from topics.api.metrics import Metrics, tier_families
from topics.clock import Clock, Host
from topics.config import Settings
from topics.engine.reading.long_polls import LongPolls
from topics.runtime.drivers.aio import BusyShare
from topics.runtime.kernel import Kernel
from topics.wire.access.keys import KeyRing
from topics.wire.access.page_rules import PageRules

log = logging.getLogger("topics.api")

ENGINE_ENDPOINTS = (
    "put_topic",
    "get_topic",
    "list_topics",
    "delete_topic",
    "write",
    "diff",
    "delete_records",
    "segments",
    "frames",
    "put_router",
    "get_router",
    "list_routers",
    "delete_router",
    "claim",
    "ack",
    "nack",
    "extend",
    "work",
    "create_watch",
    "watch_stream",
    "websocket",
)


class ServerApp:
    def __init__(self, settings: Settings, *, keys: KeyRing | None, clock: Clock, host: Host) -> None:
        self._settings = settings
        self._host = host
        self._clock = clock
        self._started_s = clock.monotonic()
        self._keys = keys
        self._endpoints: dict[str, Handler] = {}
        self.live: Live | None = None
        self.kernel: Kernel | None = None
        self.probes = Probes(uptime_ms=self.uptime_ms, topic_count=self._topic_count)
        self.metrics = Metrics(uptime_ms=self.uptime_ms, progress=lambda: self.app.progress)
        console = Console()
        self.app = App(
            {
                **{name: self._late(name) for name in ENGINE_ENDPOINTS},
                "health": self.probes.health,
                "ready": self.probes.ready,
                "openapi": with_room(self.probes.openapi),
                "metrics": with_room(self.metrics.metrics),
                "console": with_room(console.console),
                "console_file": with_room(console.console_file),
            },
            keys=keys,
            pages=PageRules.from_settings(settings, is_guarded=keys is not None),
            probe_auth=settings.probe_auth,
            inflight_max=settings.max_inflight_per_key,
            monotonic=clock.monotonic,
        )
        self.probes.app = self.app

    def uptime_ms(self) -> int:
        return int((self._clock.monotonic() - self._started_s) * 1000)

    def report_progress(self, share: float) -> None:
        """From recovery; it never falls."""
        if self.app.progress is not None:
            self.app.progress = max(self.app.progress, min(share, 1.0))

    def attach(self, kernel: Kernel) -> None:
        """Recovery is over: serve."""
        self.kernel = self.metrics.kernel = self.probes.kernel = kernel
        engine = kernel.engine
        live = self._attach_live(kernel)
        long_polls = LongPolls(engine, live.delivery)
        kernel.scheduler.every_tick.append(long_polls.tick)
        self.app.on_shutdown.append(long_polls.finish_all)
        off_loop = kernel.driver.run_read
        topics, records = TopicEndpoints(engine), RecordEndpoints(engine, long_polls, off_loop=off_loop)
        bulk = BulkEndpoints(kernel, self._host, monotonic=self._clock.monotonic)
        routers, queues = RouterEndpoints(engine), QueueEndpoints(engine, off_loop=off_loop)
        self._endpoints = {
            "put_topic": topics.put_topic,
            "get_topic": topics.get_topic,
            "list_topics": with_room(topics.list_topics),
            "delete_topic": topics.delete_topic,
            "write": records.write,
            "diff": records.diff,
            "delete_records": records.delete_records,
            "segments": with_room(bulk.segments),
            "frames": bulk.frames,
            "put_router": routers.put_router,
            "get_router": routers.get_router,
            "list_routers": with_room(routers.list_routers),
            "delete_router": routers.delete_router,
            "claim": queues.claim,
            "ack": queues.ack,
            "nack": queues.nack,
            "extend": queues.extend,
            "work": WorkEndpoint(engine, live.streams, live.services.patience).work,
            **live.handlers,
        }
        self.metrics.gauges.queue_counters = engine.queues.counters
        self.metrics.gauges.leases = self._leases
        self.app.serve_directly(self._endpoints)
        kernel.before_turn.append(self.app.write_express(engine).end_turn)
        self.app.progress = None
        for sentence in links_out_of_reach(engine.state, self._keys or ()):
            log.warning("%s", sentence)

    def _attach_live(self, kernel: Kernel) -> Live:
        live = self.live = Live(kernel, self._settings, keys=self._keys, busy=BusyShare())
        self.app.on_shutdown.append(live.streams.shut_down)
        gauges = self.metrics.gauges
        gauges.streams, gauges.watch_sessions = live.streams.__len__, live.sessions.__len__
        gauges.more += (live.families, lambda: tier_families(kernel))
        return live

    def _late(self, name: str) -> Callable[[RequestCall], None]:
        """Stands in for an endpoint until `attach`; the application refuses before it comes here."""
        return lambda call: self._endpoints[name](call)

    def _leases(self) -> int:
        """Unexpired leases of all queues."""
        assert self.kernel is not None
        engine = self.kernel.engine
        queues = [topic for topic in engine.state.by_id.values() if topic.config.is_queue]
        return sum(counters.in_flight for topic in queues if (counters := engine.queues.counters(topic)) is not None)

    def _topic_count(self) -> int:
        assert self.kernel is not None
        return len(self.kernel.engine.state.topics)
