"""Server: listeners, the hub behind them, and the way out.

`start` begins to accept, `stop` drains: no new connections, the application ends its streams, idle connections close
at once, running requests get a while, and then everything is cut. `Sniffer` is a new connection whose first bytes tell
what it speaks. Called by `ServerProcess` and by tests.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterable

from topics.clock import Clock
from topics.errors import NotReady
from topics.limits import DRAIN_MS, IDLE_CONNECTION_MS
from topics.net.messages import Application, error_response
from topics.net.transport_limits import HEAD_TIMEOUT_S
from topics.server.connections.callbacks import guarded, log
from topics.server.connections.h1_connection import H1Connection
from topics.server.connections.h2_connection import H2Connection
from topics.server.connections.hub import NEVER_S, Hub, Peer, TransportSettings
from topics.server.tls import TlsPacer

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Sniffer(Peer):
    """A connection that begins with the HTTP/2 preface speaks HTTP/2, any other speaks HTTP/1, over TLS as in the
    clear. The bytes that were looked at are passed on."""

    __slots__ = ("_seen", "_since_s")

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self._seen = b""
        self._since_s = hub.wheel.now_s

    @property
    def is_idle(self) -> bool:
        return not self._seen

    def turn_away(self) -> None:
        """Most clients speak HTTP/1.1; one that does not sees a connection that ends."""
        refusal = error_response(NotReady(1.0, message="too many connections are open"))
        self.transport.write(self.hub.renderer.response(refusal, b"Connection: close\r\n"))
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        seen = self._seen + data
        if seen.startswith(PREFACE):
            self._become(H2Connection(self.hub), seen)
        elif PREFACE.startswith(seen):
            self._seen = seen
            self._since_s = self.hub.wheel.now_s
            self.hub.wheel.arm(self, self._since_s + HEAD_TIMEOUT_S)
        else:
            self._become(H1Connection(self.hub), seen)

    def eof_received(self) -> bool:
        if not self._seen:
            return False
        connection = H1Connection(self.hub)
        self._become(connection, self._seen)
        return connection.eof_received()

    def _become(self, connection: H1Connection | H2Connection, seen: bytes) -> None:
        self.replace_by(connection)
        connection.data_received(seen)

    def on_timer(self, now_s: float) -> float:
        due_s = self._since_s + (HEAD_TIMEOUT_S if self._seen else IDLE_CONNECTION_MS / 1000)
        if due_s > now_s:
            return due_s
        self.transport.close()
        return NEVER_S


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
        self.hub: Hub | None = None

    async def start(self, sockets: Iterable[socket.socket], *, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections on these listening sockets."""
        loop = asyncio.get_running_loop()
        hub = self.hub = Hub(self._app, self._settings, clock=self._clock, loop=loop)
        hub.start()

        def new_connection() -> asyncio.Protocol:
            return Sniffer(hub) if tls is None else TlsPacer(Sniffer(hub), loop)

        handshake_s = TLS_HANDSHAKE_S if tls is not None else None
        for listener in sockets:
            self._listeners.append(
                await loop.create_server(new_connection, sock=listener, ssl=tls, ssl_handshake_timeout=handshake_s)
            )

    async def stop(self) -> None:
        hub = self.hub
        assert hub is not None, "the server was not started"
        if hub.draining:
            return
        hub.draining = True
        for listener in self._listeners:
            listener.close()
        guarded(self._app.shutdown)
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
