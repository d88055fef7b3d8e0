"""H1Exchange and H1Stream: one request of an HTTP/1 connection and its answer.

Answers leave in the order of the requests: an exchange that is not at the front of its connection keeps its bytes
(`held`) until it is, and a stream keeps what its peer is slow to take. The connection owns the order, the exchange the
state of its own answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from topics.errors import InvalidRequest
from topics.limits import KIB
from topics.net.h1_renderer import LAST_CHUNK, chunk, connection_field
from topics.net.messages import AllowanceOwner, Headers, Line, Request, RequestHead, Response, StreamSink, WsSink
from topics.net.transport_limits import WRITE_LOW_BYTES
from topics.server.callbacks import CloseCallbacks, guarded
from topics.server.content import encode_response
from topics.server.failure import failure_response
from topics.server.stream_budget import StreamBudget

LARGE_BYTES = 256 * KIB  # a body or a chunk of this size is handed over in parts rather than copied into one

if TYPE_CHECKING:
    from topics.server.h1.connection import H1Connection


class H1Exchange:
    """The responder of one request. `head` is None if it could not be read, `request` also if it was taken whole."""

    __slots__ = (
        "_answered",
        "_callbacks",
        "_conn",
        "closes",
        "finished",
        "head",
        "held",
        "held_bytes",
        "keeps_order",
        "request",
        "stream_sink",
    )

    def __init__(self, conn: H1Connection, head: RequestHead | None, request: Request | None, closes: bool) -> None:
        self._conn = conn
        self._answered = False
        self._callbacks: CloseCallbacks | None = None
        self.head = head
        self.request = request
        self.closes = closes  # the connection ends with this answer
        self.finished = False  # its last byte was handed to the connection
        self.held: deque[bytes] | None = None  # what waits for its turn, or for room in the transport
        self.held_bytes = 0
        self.keeps_order = False  # nothing behind it may overtake it
        self.stream_sink: H1Stream | None = None

    # --- Responder ---------------------------------------------------------------------------------------------------

    def reply(self, response: Response) -> None:
        if self._answered:
            return
        self._answered = True
        hub, head = self._conn.hub, self.head
        gzip_min_bytes = hub.settings.gzip_min_bytes
        if gzip_min_bytes and len(response.body) >= gzip_min_bytes and head is not None:
            encode_response(hub, head, response, self._send)
        elif head is None or self.closes or hub.draining or response.headers or not head.is_plain:
            self._send(response)
        else:  # nearly every answer
            self._conn.finish_plain(self, hub.renderer.response(response))

    def reply_ok(self, body: bytes) -> None:
        hub, head = self._conn.hub, self.head
        special = self._answered or self.closes or hub.draining or hub.settings.gzip_min_bytes
        if special or head is None or not head.is_plain:
            self.reply(Response(200, body))
            return
        self._answered = True
        if len(body) < LARGE_BYTES:
            self._conn.finish_plain(self, hub.renderer.ok(body))
        else:  # not copied: that would stop everybody for a while
            self._conn.send(self, hub.renderer.ok_head(len(body)))
            self._conn.finish(self, body)

    def reply_ok_all(self, responders: Sequence[H1Exchange], bodies: Sequence[bytes]) -> None:
        hub = self._conn.hub
        if hub.draining or hub.settings.gzip_min_bytes:
            for exchange, body in zip(responders, bodies, strict=True):
                exchange.reply_ok(body)
            return
        for exchange, body, data in zip(responders, bodies, hub.renderer.ok_all(bodies), strict=True):
            if exchange._answered or exchange.closes:
                exchange.reply_ok(body)
            else:
                exchange._answered = True
                exchange._conn.finish_plain(exchange, data)

    def decline(self, body: bytes) -> None:
        self._conn.go_usual_way(self, body)

    def _send(self, response: Response) -> None:
        try:
            data = self._render(response)
        except ValueError as error:
            data = self._render(failure_response(error))
        self._conn.finish(self, data)

    def _render(self, response: Response) -> bytes:
        hub, head = self._conn.hub, self.head
        if head is None:
            return hub.renderer.response(response, b"Connection: close\r\n")
        return hub.renderer.response(response, self._connection(), with_body=head.method != "HEAD")

    def stream(self, status: int, headers: Headers) -> StreamSink:
        assert not self._answered, "a request is answered once"
        assert self.head is not None, "only a request that was read is answered by a stream"
        sized = any(name.lower() == b"content-length" for name, _ in headers)
        chunked = not sized and self.head.version == "1.1"
        if not sized and not chunked:
            self.closes = True
        head = self._conn.hub.renderer.stream_head(status, headers, self._connection(), chunked=chunked)
        sink = H1Stream(self, self._conn, chunked=chunked)
        self._answered = True
        if self.head.method == "HEAD":
            sink.over()
            self._conn.finish(self, head)
        else:
            self.stream_sink = sink
            self._conn.begin_stream(self, head)
        return sink

    def upgrade_websocket(self) -> WsSink:
        assert not self._answered, "a request is answered once"
        if not self._conn.may_upgrade(self):
            raise InvalidRequest("a WebSocket handshake may not be pipelined behind another request")
        self._answered = True
        return self._conn.upgrade(self)

    def on_close(self, callback: Callable[[], None]) -> None:
        if self._callbacks is None:
            self._callbacks = CloseCallbacks()
            if self._conn.gone:
                self._callbacks.fire()
        self._callbacks.add(callback)

    def keep_order(self) -> None:
        self.keeps_order = True

    def has_room(self, size_bytes: int) -> bool:
        return self._conn.share().has_room(size_bytes)

    def when_budget(self, read: Callable[[], None], dropped: Callable[[], None], *, size_bytes: int = 0) -> None:
        if self._conn.gone:
            guarded(dropped)
        else:
            self._conn.share().when_budget(self, size_bytes, read, dropped)

    def expect(self, size_bytes: int) -> None:
        if not self._conn.gone:
            self._conn.share().expect(self, size_bytes)

    # --- the connection's side ----------------------------------------------------------------------------------------

    def hold(self, data: bytes) -> None:
        if self.held is None:
            self.held = deque()
        self.held.append(data)
        self.held_bytes += len(data)

    def _connection(self) -> bytes:
        assert self.head is not None
        keep_alive = not (self.closes or self._conn.hub.draining)
        return connection_field(keep_alive=keep_alive, version=self.head.version)

    def hurry(self) -> None:
        """The peer sends no more, and most that do so have gone: whoever waits for something answers now."""
        if self._callbacks is not None and not self.finished:
            self._callbacks.fire()

    def lost(self) -> None:
        """The peer has gone."""
        if self.stream_sink is not None:
            self.stream_sink.over()
        if self._callbacks is not None and not self.finished:
            self._callbacks.fire()


class H1Stream:
    """An answer of unknown length, chunked unless the client is too old for it."""

    __slots__ = ("_above", "_callbacks", "_chunked", "_conn", "_drained", "_exchange", "_low_bytes", "_share", "closed")

    def __init__(self, exchange: H1Exchange, conn: H1Connection, *, chunked: bool) -> None:
        self._exchange = exchange
        self._conn = conn
        self._chunked = chunked
        self._callbacks = CloseCallbacks()
        self._drained: Callable[[], None] | None = None
        self._low_bytes = WRITE_LOW_BYTES
        self._above = False  # more than the low mark was waiting
        self._share: StreamBudget | None = None
        self.closed = False

    def allowance(self, owner: AllowanceOwner) -> StreamBudget:
        self._share = StreamBudget(self._conn.hub.room, owner, self.buffered_bytes)
        return self._share

    def send(self, chunk_data: bytes) -> None:
        if chunk_data and not self.closed:
            if not self._chunked:
                self._conn.send(self._exchange, chunk_data)
            elif len(chunk_data) < LARGE_BYTES:
                self._conn.send(self._exchange, chunk(chunk_data))
            else:  # not copied: many streams may be sent the same
                for part in (b"%x\r\n" % len(chunk_data), chunk_data, b"\r\n"):
                    self._conn.send(self._exchange, part)
            if self._drained is not None:
                self._above = self.buffered_bytes() > self._low_bytes

    def line(self) -> Line | None:
        if self.closed or not self._conn.is_clear_for(self._exchange):
            return None
        transport = self._conn.transport
        return Line(chunk if self._chunked else _as_it_is, transport.get_write_buffer_size, transport.write)

    def buffered_bytes(self) -> int:
        return 0 if self.closed else self._conn.buffered_bytes() + self._exchange.held_bytes

    def set_drain_callback(self, callback: Callable[[], None], *, low_bytes: int = WRITE_LOW_BYTES) -> None:
        self._drained = callback
        self._low_bytes = low_bytes
        self._above = self.buffered_bytes() > low_bytes

    def moved(self) -> None:
        """The peer has taken some of what waited."""
        if self._above and self._drained is not None and self.buffered_bytes() <= self._low_bytes:
            self._above = False
            self._drained()

    def on_close(self, callback: Callable[[], None]) -> None:
        self._callbacks.add(callback)

    def end(self) -> None:
        if not self.closed:
            self._conn.finish(self._exchange, LAST_CHUNK if self._chunked else b"")
            self.over()

    def abort(self) -> None:
        if not self.closed:
            self._conn.abort()

    def over(self) -> None:
        if not self.closed:
            self.closed = True
            self._drained = None
            if self._share is not None:
                self._share.close()
            self._callbacks.fire()


def _as_it_is(data: bytes) -> bytes:
    return data
