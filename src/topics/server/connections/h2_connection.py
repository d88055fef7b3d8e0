"""H2Connection: one HTTP/2 connection, from frames to the application.

Streams are independent: a request is handed over when its body is complete. The connection has an `H2Session`, which
does the framing and the flow control, and an `H2Output`, which sends the answers. It feeds the session, bounds what a
peer can make it hold, and keeps the connection alive with pings. Input is worked on in slices, so that one busy
connection does not hold the loop.
"""

from __future__ import annotations

from collections.abc import Callable

from topics.errors import InvalidRequest, PayloadTooLarge, Throttled, TopicsError
from topics.limits import H2_PING_MS, H2_PING_TIMEOUT_MS, IDLE_CONNECTION_MS, KIB
from topics.net.h2_session import (
    H2BadRequest,
    H2Body,
    H2BodyEnd,
    H2Event,
    H2Over,
    H2Request,
    H2Reset,
    H2Session,
    H2Window,
)
from topics.net.messages import Request, RequestHead, Response, error_response
from topics.net.transport_limits import DRAIN_BYTES_MAX, H2_UNSENT_BYTES_MAX, WRITE_STALL_S
from topics.server.connections.callbacks import failure_response, log
from topics.server.connections.content import decode_body
from topics.server.connections.h2_answers import H2Exchange, H2Output
from topics.server.connections.hub import NEVER_S, Hub, Peer, body_time_s

_SLICE_BYTES_MIN = 1 * KIB  # of input in one go: a hundred small requests
_SLICE_BYTES_MAX = 16 * KIB  # if there are few frames in it, as in a body
_FEW_EVENTS = 8
_TURN_S = 0.005  # longest piece of work on input before others get their turn
_CHECK_S = 5.0
_NO_HEAD = RequestHead(method="GET", raw_path=b"/", query=b"", headers={}, version="2")


class H2Connection(Peer):
    __slots__ = (
        "_are_windows_open",
        "_heard_s",
        "_input",
        "_pinged_s",
        "_since_s",
        "_taken_s",
        "_unsent_seen_bytes",
        "exchanges",
        "is_over",
        "output",
        "says_goodbye",
        "session",
    )

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        now_s = hub.wheel.now_s
        self.session = H2Session(hub.monotonic())
        self.output = H2Output(self)
        self.exchanges: dict[int, H2Exchange] = {}  # by stream id, until both sides are done with it
        self.says_goodbye = False  # no further stream is taken
        self.is_over = False
        self._input = bytearray()  # not yet worked on
        self._are_windows_open = False  # the peer takes more on all streams: pumped once for the input at hand
        self._since_s = now_s  # when the last stream ended
        self._heard_s = now_s  # when the peer last sent anything
        self._pinged_s = 0.0  # when we asked it to; 0 if it has answered
        self._unsent_seen_bytes = 0  # at the last check that found a change,
        self._taken_s = now_s  # which was then

    @property
    def is_idle(self) -> bool:
        return not self.exchanges and not self.session.waiting

    # --- input --------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._heard_s = self.hub.wheel.now_s
        self._pinged_s = 0.0
        waiting = bool(self._input)
        self._input += data
        if not waiting:
            self._read()

    def _read(self) -> None:
        """Work on the input until it is used up or others must have their turn."""
        monotonic = self.hub.monotonic
        now_s = monotonic()
        until_s = now_s + _TURN_S
        slice_bytes = _SLICE_BYTES_MIN
        self.output.is_corked = True
        while self._input and not self.is_over and now_s < until_s:
            piece = bytes(self._input[:slice_bytes])
            del self._input[:slice_bytes]
            events = self.session.receive(piece, now_s)
            for event in events:
                _HANDLERS[type(event)](self, event)
            if self._are_windows_open:
                self._are_windows_open = False
                self.output.pump()
            slice_bytes = min(2 * slice_bytes, _SLICE_BYTES_MAX) if len(events) <= _FEW_EVENTS else _SLICE_BYTES_MIN
            now_s = monotonic()
        self.output.is_corked = False
        if self.is_over:
            self._input.clear()
        elif self._input:
            self.transport.pause_reading()
            self.hub.loop.call_soon(self._read_on)
        self.output.flush()

    def _read_on(self) -> None:
        if not self.is_over:
            self._read()
            if not self._input and not self.is_over:
                self.transport.resume_reading()

    def _request(self, event: H2Request) -> None:
        hub = self.hub
        if self.says_goodbye or self.session.unsent_bytes >= H2_UNSENT_BYTES_MAX:
            self.session.reset(event.stream_id, refused=True)
            return
        request = Request(event.head, event.content_length, self.address, hub.monotonic())
        exchange = H2Exchange(self, event.stream_id, request)
        self.exchanges[event.stream_id] = exchange
        refusal = self._head(request)
        if refusal is not None:
            self._refuse(exchange, refusal)
        elif event.content_length is not None and event.content_length > hub.settings.max_body_bytes:
            self._abandon(exchange, PayloadTooLarge(hub.settings.max_body_bytes))
        elif event.head.expects_continue:
            self.session.send_head(event.stream_id, 100, (), end=False)

    def _head(self, request: Request) -> Response | None:
        try:
            return self.hub.app.head(request)
        except Exception as error:
            return failure_response(error)

    def _bad_request(self, event: H2BadRequest) -> None:
        """Its head, or the trailer of a body that was taken so far, is malformed."""
        exchange = self.exchanges.get(event.stream_id)
        if exchange is None:
            request = Request(_NO_HEAD, None, self.address, self.hub.monotonic())
            exchange = H2Exchange(self, event.stream_id, request)
            exchange.discarding = True  # the application knows nothing of it
            self.exchanges[event.stream_id] = exchange
        if not event.is_malformed:
            self._refuse(exchange, error_response(InvalidRequest(event.reason)))
        elif not exchange.finished:
            self._end_malformed(exchange, event.reason)

    def _end_malformed(self, exchange: H2Exchange, reason: str) -> None:
        """A stream error of type PROTOCOL_ERROR (RFC 9113 section 8.1.1); the answer before it says why, to people."""
        response, stream_id = error_response(InvalidRequest(reason)), exchange.stream_id
        length = (b"content-length", b"%d" % len(response.body))
        self.output.begin_answer(exchange, 400, ((b"content-type", response.content_type), length), end=False)
        self.output.send_chunk(exchange, response.body)
        self.session.reset(stream_id, malformed=True)
        self.drop(exchange)
        self.output.flush_soon()

    def _body(self, event: H2Body) -> None:
        exchange = self.exchanges.get(event.stream_id)
        self.session.acknowledge(event.stream_id, event.credit)
        if exchange is None or exchange.parts is None:
            return
        size_bytes = len(event.data)
        exchange.body_bytes += size_bytes
        if exchange.discarding:
            if exchange.body_bytes > DRAIN_BYTES_MAX:
                self.cancel(exchange)
            return
        exchange.parts.append(event.data)
        if exchange.body_bytes > self.hub.settings.max_body_bytes:
            self.hub.account_body(size_bytes)
            self._abandon(exchange, PayloadTooLarge(self.hub.settings.max_body_bytes))
        elif not self.hub.account_body(size_bytes):
            self._abandon(exchange, Throttled("too many unfinished request bodies are being held"))

    def _body_end(self, event: H2BodyEnd) -> None:
        exchange = self.exchanges.get(event.stream_id)
        if exchange is None:
            return
        if not exchange.discarding and exchange.request.content_length not in (None, exchange.body_bytes):
            self._end_malformed(exchange, "the body is not as long as its content-length")
            return
        parts, exchange.parts = exchange.parts or [], None
        if exchange.discarding:
            self.forget_finished(exchange)
            return
        body = b"".join(parts)
        request = exchange.request
        if body and b"content-encoding" in request.headers:
            decode_body(self.hub, request, body, lambda too_large: self._decoded(exchange, too_large))
        else:
            self.hub.account_body(-exchange.body_bytes)
            request.body = body
            self._handle(exchange)

    def _decoded(self, exchange: H2Exchange, too_large: bool) -> None:
        self.hub.account_body(-exchange.body_bytes)
        if too_large or exchange.finished:
            self.hub.abandon(exchange.request)
            exchange.reply(error_response(PayloadTooLarge(self.hub.settings.max_body_bytes)))
        else:
            self._handle(exchange)

    def _handle(self, exchange: H2Exchange) -> None:
        try:
            self.hub.app.handle(exchange.request, exchange)
        except Exception as error:
            exchange.reply(failure_response(error))

    def _reset(self, event: H2Reset) -> None:
        exchange = self.exchanges.get(event.stream_id)
        if exchange is not None:
            self.drop(exchange)

    def _window(self, event: H2Window) -> None:
        if not event.stream_id:
            self._are_windows_open = True
            return
        self.output.pump_stream(event.stream_id)
        exchange = self.exchanges.get(event.stream_id)  # None if its answer is complete and only waits to be taken
        if exchange is not None and exchange.stream_sink is not None:
            exchange.stream_sink.taken()

    def _ended(self, event: H2Over) -> None:
        self.is_over = True
        log.debug("HTTP/2 connection with %s ends: %s", self.address, event.reason)

    # --- refusals -----------------------------------------------------------------------------------------------------

    def _refuse(self, exchange: H2Exchange, response: Response) -> None:
        """Answer before the body is complete; the rest of it is taken and dropped, so that the answer arrives."""
        exchange.discarding = True
        if exchange.parts:
            exchange.parts.clear()
        exchange.reply(response)

    def _abandon(self, exchange: H2Exchange, error: TopicsError) -> None:
        if exchange.parts:
            self.hub.account_body(-exchange.body_bytes)
        self.hub.abandon(exchange.request)
        self._refuse(exchange, error_response(error))

    # --- the end of one stream ----------------------------------------------------------------------------------------

    def forget_finished(self, exchange: H2Exchange) -> None:
        """Forget a stream once both sides are done with it."""
        if exchange.finished and exchange.parts is None:
            self.exchanges.pop(exchange.stream_id, None)
            self._since_s = self.hub.wheel.now_s
            self.output.flush_soon()

    def cancel(self, exchange: H2Exchange) -> None:
        self.session.reset(exchange.stream_id)
        self.drop(exchange)
        self.output.flush_soon()

    def drop(self, exchange: H2Exchange) -> None:
        """A stream ended before its time."""
        self.exchanges.pop(exchange.stream_id, None)
        self._since_s = self.hub.wheel.now_s
        if exchange.parts is not None and not exchange.discarding:
            self.hub.account_body(-exchange.body_bytes)
            exchange.parts = None
            self.hub.abandon(exchange.request)
        self.output.forget(exchange)

    # --- the end of the connection ------------------------------------------------------------------------------------

    def eof_received(self) -> bool:
        self.lost()
        return False

    def lost(self) -> None:
        self.is_over = True
        for exchange in list(self.exchanges.values()):
            self.drop(exchange)
        self.output.lost()

    def drain(self) -> None:
        """Streams that run are finished first: many clients take nothing after a goodbye. New ones are refused."""
        if not self.says_goodbye:
            self.says_goodbye = True
            self.output.flush()

    def pause_writing(self) -> None:
        self.output.pause()

    def resume_writing(self) -> None:
        self.output.resume()

    def on_timer(self, now_s: float) -> float:
        if self.is_over or self.write_stalled(now_s):
            self.cut()
            return NEVER_S
        self._drop_slow_bodies(now_s)
        self._drop_untaken_answers(now_s)
        idle_s = now_s - self._since_s if not self.exchanges else 0.0
        if idle_s >= IDLE_CONNECTION_MS / 1000 + WRITE_STALL_S:
            self.cut()
            return NEVER_S
        if idle_s >= IDLE_CONNECTION_MS / 1000:
            self.drain()
        elif self._pinged_s and now_s - self._pinged_s >= H2_PING_TIMEOUT_MS / 1000:
            self.cut()
            return NEVER_S
        elif not self._pinged_s and now_s - self._heard_s >= H2_PING_MS / 1000:
            self._pinged_s = now_s
            self.session.ping()
            self.output.flush()
        return now_s + _CHECK_S

    def _drop_slow_bodies(self, now_s: float) -> None:
        for exchange in list(self.exchanges.values()):
            is_unfinished = exchange.parts is not None
            if is_unfinished and now_s - exchange.since_s >= body_time_s(exchange.body_bytes):
                if exchange.discarding:
                    self.cancel(exchange)
                else:
                    self._abandon(exchange, InvalidRequest("the request body came too slowly"))

    def _drop_untaken_answers(self, now_s: float) -> None:
        """Requests wait for budget, and for too long the peer took no byte of any answer before them."""
        unsent_bytes = self.session.unsent_bytes
        if unsent_bytes != self._unsent_seen_bytes or not self.output.has_waiting_requests:
            self._unsent_seen_bytes = unsent_bytes
            self._taken_s = now_s
        elif now_s - self._taken_s >= WRITE_STALL_S:
            for stream_id in self.session.reset_untaken():
                exchange = self.exchanges.get(stream_id)
                if exchange is not None:
                    self.drop(exchange)
            self.output.flush()


_HANDLERS: dict[type[H2Event], Callable[..., None]] = {
    H2Request: H2Connection._request,
    H2BadRequest: H2Connection._bad_request,
    H2Body: H2Connection._body,
    H2BodyEnd: H2Connection._body_end,
    H2Reset: H2Connection._reset,
    H2Window: H2Connection._window,
    H2Over: H2Connection._ended,
}
