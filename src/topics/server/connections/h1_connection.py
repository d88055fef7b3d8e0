"""H1Connection: one HTTP/1 connection, from bytes to the application.

Requests are handed over in order, each as soon as it is complete, mostly without waiting for the answers to earlier
ones (`H1Exchange.may_overlap`). A peer that does not take its answers is not read from. The connection has an
`H1Reader`, which parses, an `H1Output`, which sends the answers in order, and `H1Deadlines`, which end what takes too
long.

`mode` says what happens to input:

    READING     requests are read from it
    SKIPPING    the rest of a body is thrown away whose request is answered already; then READING
    WAITING     it is kept, within a bound: a stream is being sent, or a body is being decoded on a thread; then READING
    DISCARDING  it is thrown away: the connection ends with the answers that are still to be sent
    GONE        there is none: the transport is lost or belongs to another protocol
"""

from __future__ import annotations

from topics.errors import InvalidRequest, PayloadTooLarge, Throttled, TopicsError
from topics.limits import IDLE_CONNECTION_MS
from topics.net.h1_reader import H1Reader
from topics.net.messages import Request, RequestHead, Response, error_response
from topics.net.transport_limits import (
    DRAIN_BYTES_MAX,
    DRAIN_S,
    HEAD_TIMEOUT_S,
    KEEP_BYTES_MAX,
    LINGER_S,
    PIPELINE_MAX,
    STREAM_INPUT_BYTES_MAX,
)
from topics.net.websocket import accept_response
from topics.server.connections.callbacks import failure_response
from topics.server.connections.content import decode_body
from topics.server.connections.h1_answers import H1Exchange, H1Output
from topics.server.connections.hub import NEVER_S, Hub, Peer, body_time_s
from topics.server.connections.ws_connection import WsConnection

READING, SKIPPING, WAITING, DISCARDING, GONE = range(5)
REQUESTS_PER_TURN = 128  # of one connection, before others get their turn
CHECK_S = 10.0  # between two checks of a connection that has no deadline of its own


class H1Connection(Peer):
    __slots__ = (
        "_deferred_head",
        "_discard_left_bytes",
        "_eof",
        "current",
        "deadlines",
        "is_read_paused",
        "mode",
        "output",
        "reader",
    )

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self.reader = H1Reader(hub.settings.max_body_bytes)
        self.output = H1Output(self)
        self.deadlines = H1Deadlines(self)
        self.mode = READING
        self.current: H1Exchange | None = None  # the last of the output's exchanges, while its body is incomplete
        self.is_read_paused = False
        self._deferred_head: RequestHead | None = None  # its request waits until all before it are answered
        self._eof = False  # the peer will send no more
        self._discard_left_bytes = 0  # of input, while DISCARDING

    @property
    def is_idle(self) -> bool:
        """Between two requests, with every answer taken."""
        is_waiting = self.mode == READING and not self.deadlines.head_is_partial and not self.reader.waiting_bytes()
        return is_waiting and self.output.is_empty

    # --- input --------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._append_fast(data):
            return
        self.reader.receive(data)
        if self.mode == READING:
            self._feed()
        else:
            self._set_input_aside(len(data))

    def _append_fast(self, data: bytes) -> bool:
        """Offer one whole request that repeats the last head to the application, if no answer is outstanding."""
        output = self.output
        if output.exchanges or self.mode != READING or output.is_paused or self.hub.draining:
            return False
        repeated = self.reader.repeated(data)
        if repeated is None:
            return False
        head, body = repeated
        assert head.fast_append is not None
        exchange = H1Exchange(self, head, None, False)
        output.exchanges.append(exchange)
        try:
            is_taken = head.fast_append(body, exchange)
        except Exception as error:
            exchange.reply(failure_response(error))
            is_taken = True
        if not is_taken:
            output.exchanges.clear()
        return is_taken

    def _feed(self) -> None:
        """Read all the requests there are, then send all the answers there are."""
        output = self.output
        output.is_corked = True
        try:
            self._read_requests()
        except TopicsError as error:
            self.fail(error)
        finally:
            output.is_corked = False
        if output.unwritten or output.is_ending:
            output.flush()

    def _read_requests(self) -> None:
        reader, output = self.reader, self.output
        left = REQUESTS_PER_TURN
        while self.mode == READING:
            exchange = self.current
            if exchange is None:
                if output.is_paused or not left or len(output.exchanges) >= PIPELINE_MAX:
                    self._pause_reading()
                    return
                head = self._deferred_head or reader.next_head()
                if head is None:
                    if reader.waiting_bytes():
                        self.deadlines.head_began()
                    return
                if output.exchanges and not output.exchanges[-1].may_overlap(head):
                    self._deferred_head = head
                    self._pause_reading()
                    return
                self._deferred_head = None
                left -= 1
                exchange = self._begin(head)
                if exchange is None:
                    continue
            body = reader.read_body()
            if body is None:
                self.deadlines.body_grew(reader.held_bytes())
                return
            self.current = None
            self._dispatch(exchange, body)

    def _begin(self, head: RequestHead) -> H1Exchange | None:
        """Show a head to the application; None if the request is refused by it."""
        hub = self.hub
        self.deadlines.head_is_partial = False
        request = Request(head, self.reader.content_length, self.address, hub.monotonic())
        exchange = H1Exchange(self, head, request, not head.keep_alive)
        self.output.exchanges.append(exchange)
        if not self._is_admitted(exchange, request):
            return None
        length = request.content_length
        if length is not None and length > hub.settings.max_body_bytes:
            hub.abandon(request)
            self._refuse(exchange, error_response(PayloadTooLarge(hub.settings.max_body_bytes)))
            return None
        self.current = exchange
        if head.expects_continue:
            self.output.send_continue(exchange)
        return exchange

    def _is_admitted(self, exchange: H1Exchange, request: Request) -> bool:
        try:
            refusal = self.hub.app.head(request)
        except Exception as error:
            refusal = failure_response(error)
        if refusal is not None:
            self._refuse(exchange, refusal)
        return refusal is None

    def awaits_continue(self, exchange: H1Exchange) -> bool:
        """Does the client wait for 100 Continue? Not if some of its body is here (RFC 9110 section 10.1.1)."""
        expects = exchange is self.current and exchange.head is not None and exchange.head.expects_continue
        return expects and not self.reader.waiting_bytes() and self.reader.bytes_to_come() != 0

    def take_back(self, exchange: H1Exchange, body: bytes) -> None:
        """The fast append path declines a request that it took: it is the only one here, and complete."""
        if self.mode == GONE:
            return
        assert exchange.head is not None
        request = exchange.request = Request(exchange.head, len(body), self.address, self.hub.monotonic())
        if self._is_admitted(exchange, request):
            self._dispatch(exchange, body)

    def _dispatch(self, exchange: H1Exchange, body: bytes) -> None:
        request = exchange.request
        assert request is not None
        if exchange.closes:
            self._discard_input()
        if body and b"content-encoding" in request.headers:
            self._decode(exchange, request, body)
            return
        if self.deadlines.accounted_bytes:
            self.deadlines.account(0)
        request.body = body
        try:
            self.hub.app.handle(request, exchange)
        except Exception as error:
            exchange.reply(failure_response(error))

    def _set_input_aside(self, size_bytes: int) -> None:
        if self.mode == WAITING:
            if self.reader.waiting_bytes() > STREAM_INPUT_BYTES_MAX:
                self.cut()
        elif self.mode == DISCARDING:
            self.reader.take_rest()
            self._discard_left_bytes -= size_bytes
            if self._discard_left_bytes < 0:
                self.cut()
        elif self.mode == SKIPPING:
            try:
                is_skipped = self.reader.discard_body()
            except TopicsError:
                self.cut()
                return
            if is_skipped:
                self.mode = READING
                self._feed()

    # --- compressed bodies --------------------------------------------------------------------------------------------

    def _decode(self, exchange: H1Exchange, request: Request, body: bytes) -> None:
        """Hand the request over decoded. Later requests wait meanwhile: their order is part of what they mean."""
        self.deadlines.account(len(body))
        decode_body(self.hub, request, body, lambda too_large: self._decoded(exchange, request, too_large))
        if request.body is None and self.mode == READING:  # it is being decoded on a thread
            self.mode = WAITING

    def _decoded(self, exchange: H1Exchange, request: Request, too_large: bool) -> None:
        self.deadlines.account(0)
        if self.mode == WAITING:
            self.mode = READING
        if too_large or self.mode == GONE:
            self.hub.abandon(request)
            exchange.reply(error_response(PayloadTooLarge(self.hub.settings.max_body_bytes)))
        else:
            try:
                self.hub.app.handle(request, exchange)
            except Exception as error:
                exchange.reply(failure_response(error))
        if not self.output.is_corked:
            self._read_on()

    # --- refusals -----------------------------------------------------------------------------------------------------

    def _refuse(self, exchange: H1Exchange, response: Response) -> None:
        """Answer before the body was read. What remains of it is read and dropped, so that the answer arrives."""
        assert exchange.request is not None
        to_come = self.reader.bytes_to_come()
        unsure = exchange.request.head.expects_continue and to_come != 0  # will the body come now, or the next request?
        if exchange.closes or unsure or to_come is None or to_come > KEEP_BYTES_MAX:
            self._close_with(exchange, response)
            return
        exchange.reply(response)
        if not self.reader.discard_body():
            self.mode = SKIPPING
            self.deadlines.since_s = self.hub.wheel.now_s

    def fail(self, error: TopicsError) -> None:
        """The input cannot be read on."""
        exchange, self.current = self.current, None
        if exchange is None:
            exchange = H1Exchange(self, None, None, True)
            self.output.exchanges.append(exchange)
        elif exchange.request is not None:
            self.hub.abandon(exchange.request)
        self._close_with(exchange, error_response(error))

    def _close_with(self, exchange: H1Exchange, response: Response) -> None:
        exchange.closes = True
        self.deadlines.account(0)
        self._discard_input()
        self._discard_left_bytes = DRAIN_BYTES_MAX
        self.deadlines.linger_s = DRAIN_S
        exchange.reply(response)

    def _discard_input(self) -> None:
        self.mode = DISCARDING
        self._discard_left_bytes = KEEP_BYTES_MAX
        self.reader.take_rest()

    # --- waiting for answers ------------------------------------------------------------------------------------------

    def begin_stream(self, exchange: H1Exchange, head: bytes) -> None:
        """An answer becomes a stream: further requests wait for its end."""
        if self.mode == GONE:
            exchange.lost()
            return
        if self.mode == READING:
            self.mode = WAITING
        self.reader.forget_template()
        self.output.send(exchange, head)

    def answered(self, exchange: H1Exchange) -> None:
        """An answer is complete and in its place: what waited for it goes on."""
        hub, output = self.hub, self.output
        if exchange.stream_sink is not None and self.mode == WAITING:
            self.mode = READING
            if self.reader.waiting_bytes() and not exchange.closes:
                hub.loop.call_soon(self._read_on)
        if exchange.closes or (hub.draining and not output.exchanges):
            output.is_ending = True
        elif not self.deadlines.head_is_partial:
            self.deadlines.since_s = hub.wheel.now_s
        outstanding_max = PIPELINE_MAX // 2 if self._deferred_head is None else 0
        if self.is_read_paused and len(output.exchanges) <= outstanding_max:
            hub.loop.call_soon(self._resume_reading)

    def _pause_reading(self) -> None:
        """Leave further requests in the socket until they and their answers can be taken on."""
        if self.is_read_paused:
            return
        self.is_read_paused = True
        self.transport.pause_reading()
        output = self.output
        if self._deferred_head is None and not output.is_paused and len(output.exchanges) <= PIPELINE_MAX // 2:
            self.hub.loop.call_soon(self._resume_reading)

    def _resume_reading(self) -> None:
        if self.is_read_paused and self.mode != GONE:
            self.is_read_paused = False
            self.transport.resume_reading()
            self._read_on()

    def _read_on(self) -> None:
        if self.mode == READING:
            self._feed()
        if self._eof and self.mode == READING and not self.is_read_paused:
            self._end_of_input()

    def pause_writing(self) -> None:
        self.output.pause()

    def resume_writing(self) -> None:
        self.output.resume()
        self._resume_reading()
        self.output.admit_waiting()

    # --- other protocols ----------------------------------------------------------------------------------------------

    def may_upgrade(self, exchange: H1Exchange) -> bool:
        exchanges = self.output.exchanges
        return self.mode in (READING, DISCARDING) and len(exchanges) == 1 and exchanges[0] is exchange

    def upgrade(self, exchange: H1Exchange) -> WsConnection:
        assert exchange.request is not None
        exchange.finished = True
        self.mode = GONE
        self.output.write_last(accept_response(exchange.request))
        socket = WsConnection(self.hub)
        self.replace_by(socket)
        socket.begin(self.reader.take_rest())
        return socket

    # --- the end ------------------------------------------------------------------------------------------------------

    def half_close(self) -> None:
        """All is said. Wait for the peer's end before closing: closing on unread input would reset the answer away."""
        if self.mode != DISCARDING:
            self._discard_input()
        can_half_close = self.transport.can_write_eof()
        if self._eof or not (can_half_close or self.deadlines.linger_s > LINGER_S):
            self.mode, self.output.is_gone = GONE, True
            if self.hub.draining:
                self.close_idle()
            else:
                self.transport.close()
            return
        if can_half_close:
            self.transport.write_eof()
        self.deadlines.linger()

    def eof_received(self) -> bool:
        """The peer sends no more. It may still want its answers, but nobody waits for the end of a stream that way."""
        self._eof = True
        if any(exchange.stream_sink is not None and not exchange.finished for exchange in self.output.exchanges):
            self.lost()
            return False
        if self.mode == WAITING or self.is_read_paused:
            return self.transport.can_write_eof()
        return self._end_of_input()

    def _end_of_input(self) -> bool:
        """All that came has been read; False if the connection may close at once."""
        if self.mode == READING and (self.current is not None or self.reader.waiting_bytes()):
            self.fail(InvalidRequest("the request ended before it was complete"))
        if self.mode == GONE:
            return False
        exchanges = self.output.exchanges
        if not exchanges:
            self.transport.close()
            return False
        exchanges[-1].closes = True
        self.mode = DISCARDING
        for exchange in list(exchanges):
            exchange.end_wait()
        return self.transport.can_write_eof()

    def lost(self) -> None:
        self.mode, self.output.is_gone = GONE, True
        self._deferred_head = None
        self.deadlines.account(0)
        current, self.current = self.current, None
        if current is not None and current.request is not None:
            self.hub.abandon(current.request)
        self.output.lost()

    def drain(self) -> None:
        if not self.output.exchanges:
            self.close_idle()
            return
        self.output.exchanges[-1].closes = True
        if self.current is None and self.mode == READING:
            self._discard_input()

    def on_timer(self, now_s: float) -> float:
        if self.mode == GONE:
            return NEVER_S
        if self.mode != WAITING and self.write_stalled(now_s):
            self.cut()
            return NEVER_S
        due_s = self.deadlines.due_s(now_s)
        if due_s > now_s:
            return min(due_s, now_s + CHECK_S)
        self._expire()
        return now_s + CHECK_S

    def _expire(self) -> None:
        if self.current is not None:
            self.fail(InvalidRequest("the request body came too slowly"))
        elif self.mode == READING and self.deadlines.head_is_partial:
            self.fail(InvalidRequest("the request head came too slowly"))
        elif self.mode == READING:
            self.transport.close()
        else:
            self.cut()


class H1Deadlines:
    """How long a connection waits for its peer, and how much of an unfinished body it holds meanwhile.

    A head has a time to come in, a body a minimum rate, an idle connection an end. The hub's wheel asks every few
    seconds (`H1Connection.on_timer`); nothing here has a timer of its own."""

    __slots__ = ("_conn", "accounted_bytes", "head_is_partial", "linger_s", "since_s")

    def __init__(self, conn: H1Connection) -> None:
        self._conn = conn
        self.since_s = conn.hub.wheel.now_s  # start of the present wait
        self.head_is_partial = False
        self.accounted_bytes = 0  # of the unfinished body, in the hub's sum of all of them
        self.linger_s = LINGER_S

    def _restart(self, wait_s: float) -> None:
        """A wait begins that may end before the wheel asks by itself."""
        wheel = self._conn.hub.wheel
        self.since_s = wheel.now_s
        wheel.arm(self._conn, wheel.now_s + wait_s)

    def linger(self) -> None:
        """Our last byte is sent: the peer's end is still to come."""
        self._restart(self.linger_s)

    def head_began(self) -> None:
        if not self.head_is_partial:
            self.head_is_partial = True
            self._restart(HEAD_TIMEOUT_S)

    def body_grew(self, held_bytes: int) -> None:
        if not self.accounted_bytes:
            self._restart(CHECK_S)
        if not self.account(max(1, held_bytes)):
            raise Throttled("too many unfinished request bodies are being held")

    def account(self, held_bytes: int) -> bool:
        """False if the unfinished bodies of all connections together are too large now."""
        change, self.accounted_bytes = held_bytes - self.accounted_bytes, held_bytes
        return self._conn.hub.account_body(change)

    def due_s(self, now_s: float) -> float:
        """When the present wait ends."""
        conn = self._conn
        if conn.current is not None:
            return self.since_s + body_time_s(conn.reader.held_bytes())
        if conn.output.exchanges or conn.mode == WAITING or conn.transport.get_write_buffer_size():
            self.since_s = max(self.since_s, now_s)
            return now_s + CHECK_S
        if conn.mode == DISCARDING:
            return self.since_s + self.linger_s
        if conn.mode == SKIPPING:
            return self.since_s + DRAIN_S
        return self.since_s + (HEAD_TIMEOUT_S if self.head_is_partial else IDLE_CONNECTION_MS / 1000)
