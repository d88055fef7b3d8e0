"""H1Connection: one HTTP/1 connection, from bytes to the application and back.

Requests are handed over in order and their answers leave in order, whenever they come (pipelining). What one turn of
the loop answers leaves in one write. A connection that waits for its peer waits on the server's wheel, and a peer that
does not take its answers is not read from.

`_mode` says what happens to input:

    READING    requests are read from it
    SKIPPING   the rest of a body is thrown away whose request is answered already; then READING
    STREAMING  it is kept, within a bound, until the stream that is being sent ends
    DEAF       it is thrown away: the connection ends with the answers that are still to be sent
    GONE       there is none: the transport is lost or belongs to another protocol
"""

from __future__ import annotations

import asyncio
from collections import deque

from topics.errors import Internal, InvalidRequest, PayloadTooLarge, Throttled, TopicsError
from topics.limits import IDLE_CONNECTION_MS
from topics.net.answers import error_response
from topics.net.h1.reader import H1Reader
from topics.net.h1.render import CONTINUE
from topics.net.limits import (
    BODY_BYTES_PER_S_MIN,
    BODY_GRACE_S,
    DRAIN_BYTES_MAX,
    DRAIN_S,
    HEAD_TIMEOUT_S,
    KEEP_BYTES_MAX,
    LINGER_S,
    PIPELINE_MAX,
    STREAM_INPUT_BYTES_MAX,
    WRITE_HIGH_BYTES,
    WRITE_LOW_BYTES,
)
from topics.net.messages import Request, RequestHead, Response
from topics.net.ws import accept_response
from topics.server.content import decode_body
from topics.server.h1_exchange import H1Exchange
from topics.server.hub import Hub, log
from topics.server.peer import NEVER_S, Peer
from topics.server.ws_connection import WsConnection

READING, SKIPPING, STREAMING, DEAF, GONE = range(5)
LOOK_S = 10.0  # between two looks at a connection that has no deadline of its own


class H1Connection(Peer):
    __slots__ = (
        "_accounted_bytes",
        "_blocked",
        "_current",
        "_discard_left_bytes",
        "_ending",
        "_eof",
        "_exchanges",
        "_feeding",
        "_linger_s",
        "_mode",
        "_out",
        "_partial",
        "_paused",
        "_reader",
        "_since_s",
    )

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self._reader = H1Reader(hub.settings.max_body_bytes)
        self._exchanges: deque[H1Exchange] = deque()  # not finished, or waiting behind one that is not
        self._current: H1Exchange | None = None  # the last of them, while its body is incomplete
        self._out: list[bytes] = []  # goes to the transport at the end of this turn
        self._mode = READING
        self._feeding = False  # `_out` is flushed when the input at hand is done with
        self._blocked = False  # reading is paused
        self._paused = False  # the transport has enough to write
        self._partial = False  # a head is incomplete
        self._ending = False  # the last answer is in `_out` or gone
        self._eof = False  # the peer will send no more
        self._since_s = hub.wheel.now_s  # start of the wait that `on_timer` looks at
        self._accounted_bytes = 0  # of the unfinished body, in the hub's budget
        self._discard_left_bytes = 0
        self._linger_s = LINGER_S

    # --- input --------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._reader.receive(data)
        if self._mode == READING:
            self._feed()
        else:
            self._set_input_aside(len(data))

    def _feed(self) -> None:
        """Read all the requests there are, then send all the answers there are."""
        self._feeding = True
        try:
            self._read_requests()
        except TopicsError as error:
            self._fail(error)
        finally:
            self._feeding = False
        if self._out or self._ending:
            self.flush()

    def _read_requests(self) -> None:
        reader = self._reader
        while self._mode == READING:
            exchange = self._current
            if exchange is None:
                if len(self._exchanges) >= PIPELINE_MAX or self._paused or self.hub.held:
                    self._block()
                    return
                head = reader.next_head()
                if head is None:
                    self._note_partial_head()
                    return
                exchange = self._begin(head)
                if exchange is None:
                    continue
            body = reader.read_body()
            if body is None:
                self._note_partial_body(exchange)
                return
            self._current = None
            self._dispatch(exchange, body)

    def _begin(self, head: RequestHead) -> H1Exchange | None:
        """Show a head to the application; None if the request is refused by it."""
        hub = self.hub
        self._partial = False
        request = Request(head, self._reader.content_length, self.address, hub.monotonic())
        exchange = H1Exchange(self, request, closes=not head.keep_alive)
        self._exchanges.append(exchange)
        try:
            refusal = hub.app.head(request)
        except Exception as error:
            refusal = _failure(error)
        if refusal is not None:
            self._refuse(exchange, refusal)
            return None
        length = request.content_length
        if length is not None and length > hub.settings.max_body_bytes:
            hub.app.abandon(request)
            self._refuse(exchange, error_response(PayloadTooLarge(hub.settings.max_body_bytes)))
            return None
        self._current = exchange
        if head.expects_continue and self._exchanges[0] is exchange:
            self._send_continue()
        return exchange

    def _dispatch(self, exchange: H1Exchange, body: bytes) -> None:
        request = exchange.request
        assert request is not None
        if self._accounted_bytes:
            self._account(0)
        if exchange.closes:
            self._go_deaf()
        if body and b"content-encoding" in request.headers:
            self._decode(exchange, request, body)
            return
        request.body = body
        try:
            self.hub.app.handle(request, exchange)
        except Exception as error:
            exchange.reply(_failure(error))

    def _decode(self, exchange: H1Exchange, request: Request, body: bytes) -> None:
        """Hand the request over decoded. Later ones wait meanwhile: their order is part of what they mean."""
        waiting = True

        def decoded(too_large: bool) -> None:
            nonlocal waiting
            waiting = False
            self._decoded(exchange, request, too_large=too_large)

        decode_body(self.hub, request, body, decoded)
        if waiting and self._mode == READING:
            self._mode = STREAMING

    def _decoded(self, exchange: H1Exchange, request: Request, *, too_large: bool) -> None:
        off_loop = not self._feeding
        if self._mode == STREAMING and off_loop:
            self._mode = READING
        if too_large or self._mode == GONE:
            self.hub.app.abandon(request)
            exchange.reply(error_response(PayloadTooLarge(self.hub.settings.max_body_bytes)))
        else:
            try:
                self.hub.app.handle(request, exchange)
            except Exception as error:
                exchange.reply(_failure(error))
        if off_loop and self._mode == READING:
            self._feed()

    def _set_input_aside(self, size_bytes: int) -> None:
        if self._mode == STREAMING:
            if self._reader.waiting_bytes() > STREAM_INPUT_BYTES_MAX:
                self.abort()
        elif self._mode == SKIPPING:
            self._skip()
        elif self._mode == DEAF:
            self._reader.take_rest()
            self._discard_left_bytes -= size_bytes
            if self._discard_left_bytes < 0:
                self.abort()

    def _skip(self) -> None:
        try:
            passed = self._reader.discard_body()
        except TopicsError:
            self.abort()
            return
        if passed:
            self._mode = READING
            self._feed()

    # --- refusals -----------------------------------------------------------------------------------------------------

    def _refuse(self, exchange: H1Exchange, response: Response) -> None:
        """Answer before the body was read. What remains of it is read and dropped, so that the answer arrives."""
        assert exchange.request is not None
        self._current = None
        to_come = self._reader.bytes_to_come()
        unsure = exchange.request.head.expects_continue and to_come != 0  # will the body come now, or the next request?
        if exchange.closes or unsure or to_come is None or to_come > KEEP_BYTES_MAX:
            self._close_with(exchange, response)
            return
        exchange.reply(response)
        if not self._reader.discard_body():
            self._mode = SKIPPING
            self._since_s = self.hub.wheel.now_s

    def _fail(self, error: TopicsError) -> None:
        """The input cannot be read on."""
        exchange, self._current = self._current, None
        if exchange is None:
            exchange = H1Exchange(self, None, closes=True)
            self._exchanges.append(exchange)
        elif exchange.request is not None:
            self.hub.app.abandon(exchange.request)
        self._close_with(exchange, error_response(error))

    def _close_with(self, exchange: H1Exchange, response: Response) -> None:
        exchange.closes = True
        if self._accounted_bytes:
            self._account(0)
        self._go_deaf()
        self._discard_left_bytes = DRAIN_BYTES_MAX
        self._linger_s = DRAIN_S
        exchange.reply(response)

    def _go_deaf(self) -> None:
        self._mode = DEAF
        self._discard_left_bytes = KEEP_BYTES_MAX
        self._reader.take_rest()

    # --- waiting for input --------------------------------------------------------------------------------------------

    def _note_partial_head(self) -> None:
        if not self._partial and self._reader.waiting_bytes():
            self._partial = True
            self._since_s = self.hub.wheel.now_s
            self.hub.wheel.arm(self, self._since_s + HEAD_TIMEOUT_S)

    def _note_partial_body(self, exchange: H1Exchange) -> None:
        if not self._accounted_bytes:
            self._since_s = self.hub.wheel.now_s
            self.hub.wheel.arm(self, self._since_s + LOOK_S)
        if not self._account(max(1, self._reader.held_bytes())):
            raise Throttled("too many unfinished request bodies are being held")

    def _account(self, held_bytes: int) -> bool:
        change, self._accounted_bytes = held_bytes - self._accounted_bytes, held_bytes
        return self.hub.account_body(change)

    def _block(self) -> None:
        """Leave further requests in the socket until there is room for their answers."""
        if not self._blocked:
            self._blocked = True
            self.transport.pause_reading()
            if self.hub.held:
                self.hub.when_released(self._unblock)

    def _unblock(self) -> None:
        if self._blocked and self._mode != GONE:
            self._blocked = False
            self.transport.resume_reading()
            if self._mode == READING:
                self._feed()

    # --- output -------------------------------------------------------------------------------------------------------

    def finish(self, exchange: H1Exchange, data: bytes) -> None:
        """The last bytes of an answer."""
        exchange.finished = True
        if self._mode == GONE:
            return
        exchanges = self._exchanges
        if exchanges[0] is not exchange:
            self._hold(exchange, data)
            return
        exchanges.popleft()
        if data:
            self._out.append(data)
        self._after(exchange)
        if exchanges:
            self._release()
        if not self._feeding:
            if exchanges:
                self.hub.flush_soon(self)
            else:
                self.flush()

    def _after(self, exchange: H1Exchange) -> None:
        """An answer is complete and in its place."""
        if exchange.stream_sink is not None and self._mode == STREAMING:
            self._end_stream(exchange)
        if exchange.closes or (self.hub.draining and not self._exchanges):
            self._ending = True
        elif not self._partial:
            self._since_s = self.hub.wheel.now_s
        if self._blocked and len(self._exchanges) <= PIPELINE_MAX // 2:
            self.hub.loop.call_soon(self._unblock)

    def _release(self) -> None:
        """The exchange at the front has changed: let the next ones go as far as they are."""
        exchanges = self._exchanges
        while exchanges:
            front = exchanges[0]
            if front.held:
                self._out.extend(front.held)
                front.held = None
            if not front.finished:
                if front is self._current and front.request is not None and front.request.head.expects_continue:
                    self._send_continue()
                return
            exchanges.popleft()
            self._after(front)

    def send(self, exchange: H1Exchange, data: bytes) -> None:
        """Some bytes of an answer that is not complete; they go to the transport at once if it is their turn."""
        if self._exchanges[0] is not exchange:
            self._hold(exchange, data)
        elif self._feeding or self._out:
            self._out.append(data)
        else:
            self.transport.write(data)

    def _hold(self, exchange: H1Exchange, data: bytes) -> None:
        if exchange.held is None:
            exchange.held = []
        exchange.held.append(data)

    def _send_continue(self) -> None:
        """Ask for the body, unless some of it is here already (RFC 9110 section 10.1.1)."""
        if not self._reader.waiting_bytes() and self._reader.bytes_to_come() != 0:
            self._out.append(CONTINUE)

    def flush(self) -> None:
        if self._mode == GONE:
            return
        out = self._out
        if out:
            data = out[0] if len(out) == 1 else b"".join(out)
            out.clear()
            self.transport.write(data)
        if self._ending:
            self._half_close()

    def _half_close(self) -> None:
        """All is said. Wait for the peer's end before closing: closing on unread input would reset the answer away."""
        self._ending = False
        if self._mode != DEAF:
            self._go_deaf()
        if self._eof or (not self.transport.can_write_eof() and self._linger_s == LINGER_S):
            self._mode = GONE
            self.transport.close()
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._since_s = self.hub.wheel.now_s
        self.hub.wheel.arm(self, self._since_s + self._linger_s)

    def buffered_bytes(self) -> int:
        return 0 if self._mode == GONE else self.transport.get_write_buffer_size()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        front = self._exchanges[0] if self._exchanges else None
        if front is not None and front.stream_sink is not None:
            front.stream_sink.drained()
        if self._blocked:
            self._unblock()

    # --- streams and other protocols ----------------------------------------------------------------------------------

    def begin_stream(self, exchange: H1Exchange, head: bytes) -> None:
        if self._mode == GONE:
            exchange.lost()
            return
        if self._mode == READING:
            self._mode = STREAMING
        self._reader.forget_template()
        self.send(exchange, head)

    def _end_stream(self, exchange: H1Exchange) -> None:
        self._mode = READING
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)
        if self._reader.waiting_bytes() and not exchange.closes:
            self.hub.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._mode == READING:
            self._feed()

    def may_upgrade(self, exchange: H1Exchange) -> bool:
        return self._mode in (READING, DEAF) and len(self._exchanges) == 1 and self._exchanges[0] is exchange

    def upgrade(self, exchange: H1Exchange) -> WsConnection:
        assert exchange.request is not None
        self._out.append(accept_response(exchange.request))
        self.flush()
        exchange.finished = True
        self._exchanges.clear()
        self._mode = GONE
        socket = WsConnection(self.hub)
        self.replace_by(socket)
        socket.begin(self._reader.take_rest())
        return socket

    # --- the end ------------------------------------------------------------------------------------------------------

    @property
    def gone(self) -> bool:
        return self._mode == GONE

    def eof_received(self) -> bool:
        """The peer sends no more. It may still want its answers, but nobody waits for the end of a stream that way."""
        self._eof = True
        if any(exchange.stream_sink is not None and not exchange.finished for exchange in self._exchanges):
            self.transport.close()
            self.lost()
            return False
        if self._mode == READING and (self._current is not None or self._reader.waiting_bytes()):
            self._fail(InvalidRequest("the request ended before it was complete"))
        if self._mode == GONE or not self._exchanges:
            return False
        self._exchanges[-1].closes = True
        self._mode = DEAF
        return self.transport.can_write_eof()

    def lost(self) -> None:
        if self._mode == GONE and not self._exchanges:
            return
        self._mode = GONE
        self._out.clear()
        if self._accounted_bytes:
            self._account(0)
        current, self._current = self._current, None
        exchanges, self._exchanges = self._exchanges, deque()
        if current is not None and current.request is not None:
            self.hub.app.abandon(current.request)
        for exchange in exchanges:
            exchange.lost()

    def abort(self) -> None:
        self.transport.abort()
        self.lost()

    def drain(self) -> None:
        if not self._exchanges:
            self.transport.close()
            return
        self._exchanges[-1].closes = True
        if self._current is None and self._mode == READING:
            self._go_deaf()

    def on_timer(self, now_s: float) -> float:
        if self._mode == GONE:
            return NEVER_S
        if self._mode != STREAMING and self.write_stalled(now_s):
            self.abort()
            return NEVER_S
        due_s = self._due_s(now_s)
        if due_s > now_s:
            return min(due_s, now_s + LOOK_S)
        self._expire()
        return now_s + LOOK_S

    def _due_s(self, now_s: float) -> float:
        if self._current is not None:
            return self._since_s + BODY_GRACE_S + self._reader.held_bytes() / BODY_BYTES_PER_S_MIN
        if self._exchanges or self._mode == STREAMING or self._paused:
            return now_s + LOOK_S
        if self._mode == DEAF:
            return self._since_s + self._linger_s
        if self._mode == SKIPPING:
            return self._since_s + DRAIN_S
        return self._since_s + (HEAD_TIMEOUT_S if self._partial else IDLE_CONNECTION_MS / 1000)

    def _expire(self) -> None:
        if self._current is not None:
            self._fail(InvalidRequest("the request body came too slowly"))
        elif self._mode == READING and self._partial:
            self._fail(InvalidRequest("the request head came too slowly"))
        elif self._mode == READING:
            self.transport.close()
        else:
            self.abort()


def _failure(error: Exception) -> Response:
    """The answer to a request that the application failed on."""
    if isinstance(error, TopicsError):
        return error_response(error)
    log.error("a request failed", exc_info=error)
    return error_response(Internal())


__all__ = ["H1Connection", "asyncio"]
