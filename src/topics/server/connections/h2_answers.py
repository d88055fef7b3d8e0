"""The sending half of an HTTP/2 connection: `H2Exchange` answers one stream, `H2Output` frames all answers.

Answers leave when they come, as far as the peer's windows and the transport take them. What one turn of the loop frames
leaves in one write. The reading half is `H2Connection`, which has one output; both work on one `H2Session`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from topics.errors import InvalidRequest
from topics.net.messages import Headers, Request, Response, StreamSink, WsSink
from topics.net.transport_limits import H2_BACKLOG_BYTES_MAX, H2_UNSENT_BYTES_MAX, UNSENT_BYTES_MAX, WRITE_HIGH_BYTES
from topics.server.connections.answer_stream import AnswerStream
from topics.server.connections.budget import ConnectionBudget
from topics.server.connections.callbacks import CloseCallbacks, failure_response, guarded
from topics.server.connections.content import encode_response

if TYPE_CHECKING:
    from topics.server.connections.h2_connection import H2Connection


class H2Exchange:
    """One request and its answer: the responder that the application gets, and what has come of the body."""

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

    def __init__(self, conn: H2Connection, stream_id: int, request: Request) -> None:
        self._conn = conn
        self._answered = False
        self._callbacks: CloseCallbacks | None = None
        self.stream_id = stream_id
        self.request = request
        self.since_s = conn.hub.wheel.now_s  # when the head came
        self.parts: list[bytes] | None = []  # of the body; None once it is complete
        self.body_bytes = 0
        self.discarding = False  # the answer is given: the rest of the body is thrown away
        self.finished = False  # the last byte of the answer was handed over, or nobody wants it any more
        self.stream_sink: AnswerStream[H2Exchange] | None = None

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
        if not _is_sendable(response.headers):
            response = failure_response(ValueError("a header field may not hold a line break"))
        body = b"" if self.request.method == "HEAD" else response.body
        headers = (
            (b"content-type", response.content_type),
            (b"content-length", b"%d" % len(response.body)),
            *response.headers,
        )
        output = self._conn.output
        output.begin_answer(self, response.status, headers, end=not body)
        if body:
            output.send_chunk(self, body, end=True)
        output.finish(self)

    def stream(self, status: int, headers: Headers) -> StreamSink:
        assert not self._answered, "a request is answered once"
        if not _is_sendable(headers):
            raise ValueError("a header field may not hold a line break")
        self._answered = True
        output = self._conn.output
        sink = AnswerStream(self, output, self._conn.hub.budget)
        has_no_body = self.request.method == "HEAD"
        output.begin_answer(self, status, headers, end=has_no_body)
        if has_no_body or self.finished:
            sink.over()
            output.finish(self)
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

    def has_budget(self, size_bytes: int) -> bool:
        return self._conn.output.budget().admits(size_bytes)

    def when_budget(self, read: Callable[[], None], dropped: Callable[[], None], *, size_bytes: int = 0) -> None:
        if self.finished:
            guarded(dropped)
        else:
            self._conn.output.budget().when_budget(self, size_bytes, read, dropped)

    def expect(self, size_bytes: int) -> None:
        if not self.finished:
            self._conn.output.budget().expect(self, size_bytes)

    # --- the connection's side ----------------------------------------------------------------------------------------

    def lost(self) -> None:
        """The peer gave up this stream or has gone."""
        is_waiting, self.finished = not self.finished, True
        if self.stream_sink is not None:
            self.stream_sink.over()
        if is_waiting and self._callbacks is not None:
            self._callbacks.fire()


def _is_sendable(headers: Headers) -> bool:
    return not any(byte in part for field in headers for part in field for byte in (b"\r", b"\n", b"\0"))


class H2Output:
    """The answers of one connection, from its exchanges through the session to its transport."""

    __slots__ = (
        "_budget",
        "_conn",
        "_is_flush_scheduled",
        "_is_paused",
        "_session",
        "_unflushed_bytes",
        "is_corked",
    )

    def __init__(self, conn: H2Connection) -> None:
        self._conn = conn
        self._session = conn.session
        self._budget: ConnectionBudget[H2Exchange] | None = None  # once a request asked for it
        self._is_flush_scheduled = False
        self._is_paused = False  # the transport has enough to write
        self._unflushed_bytes = 0  # framed since the last flush
        self.is_corked = False  # the connection works on input, and flushes when it is done with it

    # --- the budget ---------------------------------------------------------------------------------------------------

    def budget(self) -> ConnectionBudget[H2Exchange]:
        budget = self._budget
        if budget is None:
            budget = self._budget = ConnectionBudget(self, self._conn.hub.budget)
        return budget

    @property
    def has_waiting_requests(self) -> bool:
        return self._budget is not None and self._budget.has_waiting

    def unsent_bytes(self) -> int:
        return self._session.unsent_bytes + self._conn.transport.get_write_buffer_size()

    def sendable_bytes(self) -> int:
        return self.unsent_bytes()

    def blocks_others(self, exchange: H2Exchange) -> bool:
        return False

    def pick_over_budget(
        self, waiting: Collection[H2Exchange], *, held_bytes: int, making_bytes: int
    ) -> H2Exchange | None:
        """A stream that the peer keeps open must not wait for others that it does not take from."""
        if held_bytes >= H2_UNSENT_BYTES_MAX or making_bytes + self._session.flowing_bytes() >= UNSENT_BYTES_MAX:
            return None
        return next((exchange for exchange in waiting if self._session.is_open(exchange.stream_id)), None)

    def cut(self) -> None:
        self._conn.cut()

    # --- answers ------------------------------------------------------------------------------------------------------

    def begin_answer(self, exchange: H2Exchange, status: int, headers: Headers, *, end: bool) -> None:
        if not exchange.finished:
            date = (b"date", self._conn.hub.date)
            self._session.send_head(exchange.stream_id, status, (date, *headers), end=end)
            self.flush_soon()

    def send_chunk(self, exchange: H2Exchange, data: bytes, *, end: bool = False) -> None:
        if not exchange.finished:
            self._session.send(exchange.stream_id, data, end=end)
            self.pump_stream(exchange.stream_id)
            self.flush_soon()

    def finish(self, exchange: H2Exchange) -> None:
        """The answer is complete, although part of it may still wait for the peer's window."""
        exchange.finished = True
        self._conn.forget_finished(exchange)
        if self._budget is not None:
            self._budget.answered(exchange)

    def forget(self, exchange: H2Exchange) -> None:
        """Nobody wants the answer any more."""
        exchange.lost()
        if self._budget is not None:
            self._budget.forget(exchange)

    def lost(self) -> None:
        if self._budget is not None:
            self._budget.close()

    # --- StreamOutput -------------------------------------------------------------------------------------------------

    def buffered_bytes(self, exchange: H2Exchange) -> int:
        return self._session.pending_bytes(exchange.stream_id)

    def line(self, exchange: H2Exchange) -> None:
        """None: frames of all streams share the connection, and each stream has its window."""
        return

    def end_stream(self, exchange: H2Exchange) -> None:
        self.send_chunk(exchange, b"", end=True)
        self.finish(exchange)

    def abort_stream(self, exchange: H2Exchange) -> None:
        self._conn.cancel(exchange)

    # --- to the transport ---------------------------------------------------------------------------------------------

    def _framable_bytes(self) -> int:
        """What may be framed now: no more than the transport should hold."""
        if self._is_paused:
            return 0
        return WRITE_HIGH_BYTES - self._conn.transport.get_write_buffer_size() - self._unflushed_bytes

    def pump_stream(self, stream_id: int) -> None:
        left_bytes = self._framable_bytes()
        while sent := self._session.pump_stream(stream_id, left_bytes):
            left_bytes -= sent
            self._unflushed_bytes += sent

    def pump(self) -> None:
        """Frame what waits on all streams."""
        if not self._conn.is_over:
            self._unflushed_bytes += self._session.pump(self._framable_bytes())
            for exchange in list(self._conn.exchanges.values()):
                if exchange.stream_sink is not None:
                    exchange.stream_sink.taken()
            self.flush_soon()

    def flush_soon(self) -> None:
        if not self.is_corked and not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._conn.hub.flush_soon(self)

    def flush(self) -> None:
        conn, transport = self._conn, self._conn.transport
        self._is_flush_scheduled = False
        if transport.is_closing():
            return
        is_done = conn.says_goodbye and conn.is_idle
        if is_done and not conn.is_over:
            self._session.say_goodbye()
        output = self._session.take_output()
        if output:
            transport.write(output)
        framed_bytes, self._unflushed_bytes = self._unflushed_bytes, 0
        if framed_bytes and self._session.waiting and not self._is_paused:
            conn.hub.loop.call_soon(self.pump)  # the transport took it all: frame what is left
        if conn.is_over or is_done:
            conn.close_idle()
            conn.lost()
        elif transport.get_write_buffer_size() > WRITE_HIGH_BYTES + H2_BACKLOG_BYTES_MAX:
            conn.cut()
        elif self._budget is not None:
            self._budget.admit_waiting()

    def pause(self) -> None:
        self._is_paused = True
        if not self._conn.is_over:
            self.budget().measure()

    def resume(self) -> None:
        self._is_paused = False
        self.pump()
