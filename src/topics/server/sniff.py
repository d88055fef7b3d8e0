"""Sniffer: a new connection whose first bytes tell what it speaks.

A connection that begins with the HTTP/2 preface speaks HTTP/2, any other speaks HTTP/1, over TLS as in the clear. The
bytes looked at are passed on, none is lost.
"""

from __future__ import annotations

from topics.errors import NotReady
from topics.limits import IDLE_CONNECTION_MS
from topics.net.answers import error_response
from topics.net.limits import HEAD_TIMEOUT_S
from topics.server.h1_connection import H1Connection
from topics.server.h2_connection import H2Connection
from topics.server.hub import Hub
from topics.server.peer import NEVER_S, Peer

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Sniffer(Peer):
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
