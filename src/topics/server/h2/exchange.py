"""H2Exchange and H2Stream: one stream of an HTTP/2 connection and its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from topics.errors import InvalidRequest
from topics.net.messages import AllowanceOwner, Headers, Request, Response, StreamSink, WsSink
from topics.net.transport_limits import WRITE_LOW_BYTES
from topics.server.callbacks import CloseCallbacks, guarded
from topics.server.content import encode_response
from topics.server.failure import failure_response
from topics.server.stream_budget import StreamBudget

if TYPE_CHECKING:
    from topics.server.h2.connection import H2Connection


class H2Exchange:
    """The responder of one request, and what has come of its body."""

    __slots__ = (
        "_answered",
        "_callbacks",
        "_conn",
        "body_bytes",
        "discarding",
        "finished",
        "parts",
        "request",
        "since_s",
        "stream_id",
        "stream_sink",
    )

    def __init__(self, conn: H2Connection, stream_id: int, request: Request, since_s: float) -> None:
        self._conn = conn
        self._answered = False
        self._callbacks: CloseCallbacks | None = None
        self.stream_id = stream_id
        self.request = request
        self.since_s = since_s  # when the head came
        self.parts: list[bytes] | None = []  # of the body; None once it is complete
        self.body_bytes = 0
        self.discarding = False  # the answer is given: the rest of the body is thrown away
        self.finished = False  # the last byte of the answer was handed over
        self.stream_sink: H2Stream | None = None

    # --- Responder ---------------------------------------------------------------------------------------------------

    def reply(self, response: Response) -> None:
        if self._answered:
            return
        self._answered = True
        hub = self._conn.hub
        if hub.settings.gzip_min_bytes and len(response.body) >= hub.settings.gzip_min_bytes:
            encode_response(hub, self.request.head, response, self._send)
        else:
            self._send(response)

    def reply_ok(self, body: bytes) -> None:
        self.reply(Response(200, body))

    def _send(self, response: Response) -> None:
        if not _sendable(response.headers):
            response = failure_response(ValueError("a header field may not hold a line break"))
        body = b"" if self.request.method == "HEAD" else response.body
        headers = (
            (b"content-type", response.content_type),
            (b"content-length", b"%d" % len(response.body)),
            *response.headers,
        )
        self._conn.begin_answer(self, response.status, headers, end=not body)
        if body:
            self._conn.send(self, body, end=True)
        self._conn.finish(self)

    def stream(self, status: int, headers: Headers) -> StreamSink:
        assert not self._answered, "a request is answered once"
        if not _sendable(headers):
            raise ValueError("a header field may not hold a line break")
        self._answered = True
        sink = H2Stream(self, self._conn)
        headless = self.request.method == "HEAD"
        self._conn.begin_answer(self, status, headers, end=headless)
        if headless or self.finished:
            sink.over()
            self._conn.finish(self)
        else:
            self.stream_sink = sink
        return sink

    def upgrade_websocket(self) -> WsSink:
        raise InvalidRequest("a WebSocket is opened over HTTP/1.1")

    def on_close(self, callback: Callable[[], None]) -> None:
        if self._callbacks is None:
            self._callbacks = CloseCallbacks()
            if self.finished and not self._answered:
                self._callbacks.fire()
        self._callbacks.add(callback)

    def keep_order(self) -> None:
        return

    def has_room(self, size_bytes: int) -> bool:
        return self._conn.share().has_room(size_bytes)

    def when_budget(self, read: Callable[[], None], dropped: Callable[[], None], *, size_bytes: int = 0) -> None:
        if self.finished:
            guarded(dropped)
        else:
            self._conn.share().when_budget(self, size_bytes, read, dropped)

    def expect(self, size_bytes: int) -> None:
        if not self.finished:
            self._conn.share().expect(self, size_bytes)

    # --- the connection's side ----------------------------------------------------------------------------------------

    def lost(self) -> None:
        """The peer gave up this stream or has gone."""
        waiting, self.finished = not self.finished, True
        if self.stream_sink is not None:
            self.stream_sink.over()
        if waiting and self._callbacks is not None:
            self._callbacks.fire()


def _sendable(headers: Headers) -> bool:
    return not any(byte in part for field in headers for part in field for byte in (b"\r", b"\n", b"\0"))


class H2Stream:
    """An answer of unknown length; what the peer's window does not admit waits in the session."""

    __slots__ = ("_above", "_callbacks", "_conn", "_drained", "_exchange", "_low_bytes", "_share", "closed")

    def __init__(self, exchange: H2Exchange, conn: H2Connection) -> None:
        self._exchange = exchange
        self._conn = conn
        self._callbacks = CloseCallbacks()
        self._drained: Callable[[], None] | None = None
        self._low_bytes = WRITE_LOW_BYTES
        self._above = False  # more than the low mark was waiting
        self._share: StreamBudget | None = None
        self.closed = False

    def allowance(self, owner: AllowanceOwner) -> StreamBudget:
        self._share = StreamBudget(self._conn.hub.room, owner, self.buffered_bytes)
        return self._share

    def send(self, chunk: bytes) -> None:
        if chunk and not self.closed:
            self._conn.send(self._exchange, chunk)
            self._above = self.buffered_bytes() > self._low_bytes

    def line(self) -> None:
        """Frames of all streams share the connection, and each stream has its window: there is no way around that."""
        return

    def buffered_bytes(self) -> int:
        return 0 if self.closed else self._conn.pending_bytes(self._exchange)

    def set_drain_callback(self, callback: Callable[[], None], *, low_bytes: int = WRITE_LOW_BYTES) -> None:
        self._drained = callback
        self._low_bytes = low_bytes
        self._above = self.buffered_bytes() > low_bytes

    def moved(self) -> None:
        """Some of what waited was sent."""
        if self._above and self._drained is not None and self.buffered_bytes() <= self._low_bytes:
            self._above = False
            self._drained()

    def on_close(self, callback: Callable[[], None]) -> None:
        self._callbacks.add(callback)

    def end(self) -> None:
        if not self.closed:
            self._conn.send(self._exchange, b"", end=True)
            self._conn.finish(self._exchange)
            self.over()

    def abort(self) -> None:
        if not self.closed:
            self._conn.cancel(self._exchange)

    def over(self) -> None:
        if not self.closed:
            self.closed = True
            self._drained = None
            if self._share is not None:
                self._share.close()
            self._callbacks.fire()
