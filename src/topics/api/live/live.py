"""Live: everything behind streams and sockets, put together over one kernel.

Delivery serves subscriptions, subscriptions read through `NextBatch` and push into streams and sockets, `Streams`
monitors those; one tick of the kernel drives all clocks. Made by `build` when recovery is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from topics.api.app import Handler
from topics.api.live.batches import NextBatch
from topics.api.live.history_throttle import HistoryThrottle
from topics.api.live.outbound import SlowConsumerLimits
from topics.api.live.sessions import Sessions
from topics.api.live.sockets import Socket, WsEndpoint
from topics.api.live.streams import Streams
from topics.api.live.watch import WatchEndpoints, WatchServices
from topics.api.live.work_endpoint import WorkConnection, WorkEndpoint
from topics.config import Settings
from topics.engine.delivery.delivery import DeliveryLoop
from topics.engine.delivery.pressure import Tuning, commit_window_ms
from topics.runtime.kernel import Kernel
from topics.wire.access.keys import KeyRing, share_of
from topics.wire.access.stream_tokens import StreamTokens


class LiveParts(NamedTuple):
    """What may stand in for the plain parts; `topics.api.live_spans` has those that trace."""

    delivery: type[DeliveryLoop] = DeliveryLoop
    socket: type[Socket] = Socket
    work: type[WorkConnection] = WorkConnection


PLAIN_PARTS = LiveParts()


class Live:
    def __init__(
        self,
        kernel: Kernel,
        settings: Settings,
        *,
        keys: KeyRing | None,
        tokens: StreamTokens | None = None,
        busy: Callable[[], float],
        tuning: Tuning | None = None,
        slow_limits: SlowConsumerLimits | None = None,
        parts: LiveParts = PLAIN_PARTS,
    ) -> None:
        engine, driver = kernel.engine, kernel.driver
        self._kernel = kernel
        self._calm_window_s = settings.commit_window_us / 1e6
        self.delivery = parts.delivery(
            engine.context, engine.reads, soon=driver.soon, later=driver.later, busy=busy, tuning=tuning
        )
        engine.attach_delivery(self.delivery)
        self.delivery.on_sample.append(self._set_commit_window)
        self.streams = Streams(
            cap=settings.max_sse_connections,
            cap_per_key=settings.max_sse_connections_per_key,
            cap_per_address=share_of(settings.max_sse_connections, settings.client_share),
            now_ms=self.delivery.now_ms,
        )
        is_alone = keys is not None and keys.is_fixed and len(keys) == 1  # then there is nobody to keep room for
        self.sessions = Sessions(
            cap=settings.max_watch_sessions,
            cap_each=0 if is_alone else share_of(settings.max_watch_sessions, settings.client_share),
            now_ms=engine.context.clock.now_ms,
        )
        throttle = HistoryThrottle(
            soon=driver.soon,
            later=driver.later,
            now_ms=self.delivery.now_ms,
            traffic=lambda: sum(group.stats.batches for group in kernel.store.groups),
        )
        batches = NextBatch(
            engine.reads, head_limit=self.delivery.synced.limit, off_loop=driver.run_read, throttle=throttle
        )
        self.services = WatchServices(
            engine, self.delivery, batches, self.streams, self.sessions, slow_limits or SlowConsumerLimits()
        )
        watch = WatchEndpoints(self.services, keys=keys, tokens=tokens, heartbeat_low_ms=settings.test_min_heartbeat_ms)
        self.handlers: dict[str, Handler] = {
            "create_watch": watch.create_watch,
            "watch_stream": watch.watch_stream,
            "websocket": WsEndpoint(self.services, parts.socket).websocket,
            "work": WorkEndpoint(engine, self.streams, self.services.slow_limits, parts.work).work,
        }
        kernel.scheduler.every_tick += (self.delivery.tick, self.streams.tick, throttle.tick)

    def _set_commit_window(self, pressure: float) -> None:
        """Stage 2 of the ladder: while pressure is high, more writers share a sync."""
        window_ms = commit_window_ms(pressure, self.delivery.tuning)
        self._kernel.writers.set_window(self._calm_window_s if window_ms is None else window_ms / 1000)
