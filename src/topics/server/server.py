"""Server: listeners, the hub behind them, and the way out.

`start` begins to accept, `stop` drains: no new connections, the application ends its streams, idle connections close
at once, running requests get a while, and then everything is cut. Called by `topics.cli` (serve) and by tests.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import Iterable

from topics.clock import Clock
from topics.limits import DRAIN_MS
from topics.net.messages import Application
from topics.server.callbacks import guarded
from topics.server.hub import Hub, TransportSettings, log
from topics.server.sniff import Sniffer
from topics.server.tls_pacer import TlsPacer

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
TLS_HANDSHAKE_S = 15.0


class Server:
    def __init__(
        self, app: Application, settings: TransportSettings, *, clock: Clock, drain_ms: int = DRAIN_MS
    ) -> None:
        self._app = app
        self._settings = settings
        self._clock = clock
        self._drain_ms = drain_ms
        self._listeners: list[asyncio.Server] = []
        self._asked_to_stop: asyncio.Event | None = None
        self.hub: Hub | None = None

    async def start(self, sockets: Iterable[socket.socket], *, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections on these listening sockets."""
        loop = asyncio.get_running_loop()
        self._asked_to_stop = asyncio.Event()
        hub = self.hub = Hub(self._app, self._settings, clock=self._clock, loop=loop)
        hub.start()

        def new_connection() -> asyncio.Protocol:
            return Sniffer(hub) if tls is None else TlsPacer(Sniffer(hub), loop)

        handshake_s = TLS_HANDSHAKE_S if tls is not None else None
        for listener in sockets:
            self._listeners.append(
                await loop.create_server(new_connection, sock=listener, ssl=tls, ssl_handshake_timeout=handshake_s)
            )

    def stop_on_signals(self) -> None:
        """SIGTERM and SIGINT end `serve`; a second one changes nothing."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self.ask_to_stop)

    def ask_to_stop(self) -> None:
        assert self._asked_to_stop is not None, "the server was not started"
        self._asked_to_stop.set()

    async def serve(self) -> None:
        """Until asked to stop, then drain."""
        assert self._asked_to_stop is not None, "the server was not started"
        await self._asked_to_stop.wait()
        await self.stop()

    async def stop(self) -> None:
        hub = self.hub
        assert hub is not None, "the server was not started"
        if hub.draining:
            return
        hub.draining = True
        for listener in self._listeners:
            listener.close()
        guarded(self._app.shutdown)
        hub.release()
        for peer in list(hub.peers):
            peer.drain()
        await self._wait_until_empty(hub, self._drain_ms / 1000)
        hub.stop()

    async def _wait_until_empty(self, hub: Hub, timeout_s: float) -> None:
        empty = asyncio.Event()
        hub.when_empty(empty.set)
        try:
            await asyncio.wait_for(empty.wait(), timeout_s)
        except TimeoutError:
            log.warning("%d connections did not end in time and are cut", len(hub.peers))
            for peer in list(hub.peers):
                peer.transport.abort()
            await asyncio.sleep(0)
