"""TLS on the listener: certificate and key from PEM files, HTTP/2 and HTTP/1.1 by ALPN."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from topics.errors import ConfigError
from topics.limits import KIB
from topics.net.transport_limits import WRITE_HIGH_BYTES, WRITE_LOW_BYTES, WRITE_STALL_S

if TYPE_CHECKING:
    from topics.server.connections.hub import Peer


def tls_context(*, cert_file: str | None, key_file: str | None) -> ssl.SSLContext | None:
    """The context for both files, None for neither; anything else ends the process before it listens."""
    if cert_file is None and key_file is None:
        return None
    if cert_file is None or key_file is None:
        raise ConfigError("TOPICS_TLS_CERT and TOPICS_TLS_KEY go together: set both or neither")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        context.load_cert_chain(cert_file, key_file, password=_no_password)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot use the TLS files {cert_file!r} and {key_file!r}: {error}") from error
    return context


def _no_password() -> str:
    """Nobody is there to type one; OpenSSL would ask the terminal."""
    raise OSError("the key is encrypted")


PIECE_BYTES = 128 * KIB


class TlsPacer(asyncio.Transport, asyncio.Protocol):
    """Stands between a TLS transport and its peer, and hands output over piece by piece.

    A TLS transport passes all that it has to the socket's transport below it, where nobody sees it: a peer that takes
    nothing would look like one that has taken everything. So what is not taken is kept here, and below is never more
    than about two pieces. To the event loop this is the protocol of the connection, to the peer its transport.

    Always holds: while the transport below has anything that it could not pass on, it has said so (`pause_writing`) and
    will call `resume_writing`. So a peer that was told to pause is told to go on, however the last piece lies."""

    def __init__(self, peer: Peer, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._peer = peer
        self._loop = loop
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._taken_bytes = 0  # of the first in the queue
        self._is_full = False  # the transport below has something that it could not pass on
        self._is_told = False  # the peer knows that too much waits
        self._is_closing = False
        self._high_bytes, self._low_bytes = WRITE_HIGH_BYTES, WRITE_LOW_BYTES

    # --- to the event loop: a protocol --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast(asyncio.Transport, transport)
        self._below.set_write_buffer_limits(high=1, low=0)  # "full" from the first byte: each rest has its wake-up
        self._peer.connection_made(self)

    def data_received(self, data: bytes) -> None:
        self._peer.data_received(data)

    def eof_received(self) -> bool | None:
        return self._peer.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop()
        self._peer.connection_lost(exc)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._pass_on()
        if self._is_told and self.get_write_buffer_size() <= self._low_bytes:
            self._is_told = False
            self._peer.resume_writing()

    # --- to the peer: a transport -------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not data or self._is_closing:
            return
        self._queue.append(bytes(data))
        self._queued_bytes += len(data)
        self._pass_on()
        if not self._is_told and self.get_write_buffer_size() > self._high_bytes:
            self._is_told = True
            self._peer.pause_writing()

    def _pass_on(self) -> None:
        while self._queue and not self._is_full:
            start, self._taken_bytes = self._taken_bytes, self._taken_bytes + PIECE_BYTES
            piece = self._queue[0][start : self._taken_bytes]
            if self._taken_bytes >= len(self._queue[0]):
                self._queue.popleft()
                self._taken_bytes = 0
            self._queued_bytes -= len(piece)
            self._below.write(piece)
        if self._is_closing and not self._queue:
            self._below.close()

    def get_write_buffer_size(self) -> int:
        return self._queued_bytes + self._below.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        assert low is not None
        self._high_bytes, self._low_bytes = high, low

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        """What waits is still sent, as long as the peer takes it."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._queue:
            self._below.pause_reading()
            self._look_for_progress(-1)
        else:
            self._below.close()

    def _look_for_progress(self, seen_bytes: int) -> None:
        waiting_bytes = self.get_write_buffer_size()
        if not self._queue or self._below.is_closing():
            return
        if waiting_bytes == seen_bytes:
            self.abort()
        else:
            self._loop.call_later(WRITE_STALL_S, self._look_for_progress, waiting_bytes)

    def abort(self) -> None:
        self._is_closing = True
        self._drop()
        self._below.abort()

    def _drop(self) -> None:
        self._queue.clear()
        self._queued_bytes = self._taken_bytes = 0

    def is_closing(self) -> bool:
        return self._is_closing or self._below.is_closing()

    def pause_reading(self) -> None:
        self._below.pause_reading()

    def resume_reading(self) -> None:
        if not self._is_closing:
            self._below.resume_reading()

    def is_reading(self) -> bool:
        return self._below.is_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._below.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._peer

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._peer = cast("Peer", protocol)
