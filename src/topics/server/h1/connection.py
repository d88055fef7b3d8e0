"""H1Connection: one HTTP/1 connection, from bytes to the application; the way back is `H1Output`.

Requests are handed over in order, each as soon as it is complete, without waiting for the answers to earlier ones. A
peer that does not take its answers is not read from. A connection that waits for its peer waits on the wheel.
"""

from __future__ import annotations

from collections import deque

from topics.errors import InvalidRequest, PayloadTooLarge, TopicsError
from topics.net.messages import Request, RequestHead, Response, error_response
from topics.net.transport_limits import (
    DRAIN_BYTES_MAX,
    DRAIN_S,
    KEEP_BYTES_MAX,
    PIPELINE_MAX,
    STREAM_INPUT_BYTES_MAX,
)
from topics.net.websocket import accept_response
from topics.server.content import decode_body
from topics.server.failure import failure_response
from topics.server.h1.deadlines import H1Deadlines
from topics.server.h1.exchange import H1Exchange
from topics.server.h1.output import DEAF, GONE, READING, SKIPPING, WAITING
from topics.server.ws_connection import WsConnection

REQUESTS_PER_TURN = 128  # of one connection, before others get their turn


class H1Connection(H1Deadlines):
    __slots__ = ()

    # --- input --------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._goes_fast(data):
            return
        self._reader.receive(data)
        if self._mode == READING:
            self._feed()
        else:
            self._set_input_aside(len(data))

    def _goes_fast(self, data: bytes) -> bool:
        """One whole request like the last one, on a connection that owes nothing: the application may take it so."""
        hub = self.hub
        if self._exchanges or self._mode != READING or self._paused or hub.held or hub.draining:
            return False
        repeated = self._reader.repeated(data)
        if repeated is None:
            return False
        head, body = repeated
        assert head.fast_append is not None
        exchange = H1Exchange(self, head, None, False)
        self._exchanges.append(exchange)
        try:
            is_taken = head.fast_append(body, exchange)
        except Exception as error:
            exchange.reply(failure_response(error))
            is_taken = True
        if not is_taken:
            self._exchanges.clear()
        return is_taken

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
        reader, hub = self._reader, self.hub
        left = REQUESTS_PER_TURN
        while self._mode == READING:
            exchange = self._current
            if exchange is None:
                if self._paused or hub.held or not left or len(self._exchanges) >= PIPELINE_MAX:
                    self._block()
                    return
                head = self._stalled or reader.next_head()
                if head is None:
                    if reader.waiting_bytes():
                        self._note_partial_head()
                    return
                if self._exchanges and not _may_overlap(self._exchanges[-1], head):
                    self._stalled = head
                    self._block()
                    return
                self._stalled = None
                left -= 1
                exchange = self._begin(head)
                if exchange is None:
                    continue
            body = reader.read_body()
            if body is None:
                self._note_partial_body()
                return
            self._current = None
            self._dispatch(exchange, body)

    def _begin(self, head: RequestHead) -> H1Exchange | None:
        """Show a head to the application; None if the request is refused by it."""
        hub = self.hub
        self._partial = False
        request = Request(head, self._reader.content_length, self.address, hub.monotonic())
        exchange = H1Exchange(self, head, request, not head.keep_alive)
        self._exchanges.append(exchange)
        if not self._is_admitted(exchange, request):
            return None
        length = request.content_length
        if length is not None and length > hub.settings.max_body_bytes:
            hub.abandon(request)
            self._refuse(exchange, error_response(PayloadTooLarge(hub.settings.max_body_bytes)))
            return None
        self._current = exchange
        if head.expects_continue and self._exchanges[0] is exchange:
            self._send_continue()
        return exchange

    def _is_admitted(self, exchange: H1Exchange, request: Request) -> bool:
        try:
            refusal = self.hub.app.head(request)
        except Exception as error:
            refusal = failure_response(error)
        if refusal is not None:
            self._refuse(exchange, refusal)
        return refusal is None

    def go_usual_way(self, exchange: H1Exchange, body: bytes) -> None:
        """The application took a request and gives it back: it is the only one here, and complete."""
        if self._mode == GONE:
            return
        assert exchange.head is not None
        request = exchange.request = Request(exchange.head, len(body), self.address, self.hub.monotonic())
        if self._is_admitted(exchange, request):
            self._dispatch(exchange, body)

    def _dispatch(self, exchange: H1Exchange, body: bytes) -> None:
        request = exchange.request
        assert request is not None
        if exchange.closes:
            self._go_deaf()
        if body and b"content-encoding" in request.headers:
            self._decode(exchange, request, body)
            return
        if self._accounted_bytes:
            self._account(0)
        request.body = body
        try:
            self.hub.app.handle(request, exchange)
        except Exception as error:
            exchange.reply(failure_response(error))

    def _set_input_aside(self, size_bytes: int) -> None:
        if self._mode == WAITING:
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

    # --- compressed bodies --------------------------------------------------------------------------------------------

    def _decode(self, exchange: H1Exchange, request: Request, body: bytes) -> None:
        """Hand the request over decoded. Later ones wait meanwhile: their order is part of what they mean."""
        waiting = True

        def decoded(too_large: bool) -> None:
            nonlocal waiting
            waiting = False
            self._decoded(exchange, request, too_large=too_large)

        self._account(len(body))
        decode_body(self.hub, request, body, decoded)
        if waiting and self._mode == READING:
            self._mode = WAITING

    def _decoded(self, exchange: H1Exchange, request: Request, *, too_large: bool) -> None:
        self._account(0)
        if self._mode == WAITING:
            self._mode = READING
        if too_large or self._mode == GONE:
            self.hub.abandon(request)
            exchange.reply(error_response(PayloadTooLarge(self.hub.settings.max_body_bytes)))
        else:
            try:
                self.hub.app.handle(request, exchange)
            except Exception as error:
                exchange.reply(failure_response(error))
        if not self._feeding:
            self._read_on()

    # --- refusals -----------------------------------------------------------------------------------------------------

    def _refuse(self, exchange: H1Exchange, response: Response) -> None:
        """Answer before the body was read. What remains of it is read and dropped, so that the answer arrives."""
        assert exchange.request is not None
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
            exchange = H1Exchange(self, None, None, True)
            self._exchanges.append(exchange)
        elif exchange.request is not None:
            self.hub.abandon(exchange.request)
        self._close_with(exchange, error_response(error))

    def _close_with(self, exchange: H1Exchange, response: Response) -> None:
        exchange.closes = True
        if self._accounted_bytes:
            self._account(0)
        self._go_deaf()
        self._discard_left_bytes = DRAIN_BYTES_MAX
        self._linger_s = DRAIN_S
        exchange.reply(response)

    # --- waiting for input --------------------------------------------------------------------------------------------

    def _block(self) -> None:
        """Leave further requests in the socket until there is room for them and their answers."""
        if self._blocked:
            return
        self._blocked = True
        self.transport.pause_reading()
        if self.hub.held:
            self.hub.when_released(self._unblock)
        elif self._stalled is None and not self._paused and len(self._exchanges) <= PIPELINE_MAX // 2:
            self.hub.loop.call_soon(self._unblock)

    def _unblock(self) -> None:
        if self._blocked and self._mode != GONE:
            self._blocked = False
            self.transport.resume_reading()
            self._read_on()

    def _read_on(self) -> None:
        if self._mode == READING:
            self._feed()
        if self._eof and self._mode == READING and not self._blocked:
            self._end_of_input()

    # --- other protocols ----------------------------------------------------------------------------------------------

    def may_upgrade(self, exchange: H1Exchange) -> bool:
        return self._mode in (READING, DEAF) and len(self._exchanges) == 1 and self._exchanges[0] is exchange

    def upgrade(self, exchange: H1Exchange) -> WsConnection:
        assert exchange.request is not None
        self._out.append(accept_response(exchange.request))
        self.flush()
        exchange.finished = True
        self._exchanges.clear()
        self._mode = GONE
        if self._share is not None:
            self._share.close()
        socket = WsConnection(self.hub)
        self.replace_by(socket)
        socket.begin(self._reader.take_rest())
        return socket

    # --- the end ------------------------------------------------------------------------------------------------------

    def eof_received(self) -> bool:
        """The peer sends no more. It may still want its answers, but nobody waits for the end of a stream that way."""
        self._eof = True
        if any(exchange.stream_sink is not None and not exchange.finished for exchange in self._exchanges):
            self.lost()
            return False
        if self._mode == WAITING or self._blocked:
            return self.transport.can_write_eof()
        return self._end_of_input()

    def _end_of_input(self) -> bool:
        """All that came has been read; False if the connection may close at once."""
        if self._mode == READING and (self._current is not None or self._reader.waiting_bytes()):
            self._fail(InvalidRequest("the request ended before it was complete"))
        if self._mode == GONE:
            return False
        if not self._exchanges:
            self.transport.close()
            return False
        self._exchanges[-1].closes = True
        self._mode = DEAF
        for exchange in list(self._exchanges):
            exchange.hurry()
        return self.transport.can_write_eof()

    def lost(self) -> None:
        self._mode = GONE
        self._stalled = None
        self._out.clear()
        if self._accounted_bytes:
            self._account(0)
        current, self._current = self._current, None
        exchanges, self._exchanges = self._exchanges, deque()
        if current is not None and current.request is not None:
            self.hub.abandon(current.request)
        for exchange in exchanges:
            exchange.lost()
        if self._share is not None:
            self._share.close()

    def abort(self) -> None:
        self.cut()

    def drain(self) -> None:
        if not self._exchanges:
            self.close_idle()
            return
        self._exchanges[-1].closes = True
        if self._current is None and self._mode == READING:
            self._go_deaf()


def _may_overlap(last: H1Exchange, head: RequestHead) -> bool:
    """Whether a request may be carried out before the one in front of it on its connection is answered.

    If neither changes anything (RFC 9112 section 9.3.2), or if both have one head: what asks the same of the same keeps
    its order by itself, unless the first was taken whole, to be carried out later, or says that it waits for others."""
    if last.request is None or last.head is None or last.keeps_order:
        return False
    return last.head is head or (last.head.method in _SAFE and head.method in _SAFE)


_SAFE = frozenset(("GET", "HEAD"))
