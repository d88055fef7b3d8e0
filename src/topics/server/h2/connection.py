"""H2Connection: one HTTP/2 connection, from frames to the application; the way back is `H2Output`.

Streams are independent: a request is handed over when its body is complete. The session does the framing and the flow
control; this class feeds it, bounds what a peer can make it hold, and keeps the connection alive with pings. Input is
worked on in slices, so that one busy connection does not hold the loop.
"""

from __future__ import annotations

from collections.abc import Callable

from topics.errors import InvalidRequest, PayloadTooLarge, Throttled, TopicsError
from topics.limits import H2_PING_MS, H2_PING_TIMEOUT_MS, IDLE_CONNECTION_MS, KIB
from topics.net.h2_session import H2BadRequest, H2Body, H2BodyEnd, H2Event, H2Over, H2Request, H2Reset, H2Window
from topics.net.messages import Request, RequestHead, Response, error_response
from topics.net.transport_limits import (
    BODY_BYTES_PER_S_MIN,
    BODY_GRACE_S,
    DRAIN_BYTES_MAX,
    H2_UNSENT_BYTES_MAX,
    WRITE_STALL_S,
)
from topics.server.content import decode_body
from topics.server.failure import failure_response
from topics.server.h2.exchange import H2Exchange
from topics.server.h2.output import H2Output
from topics.server.hub import Hub, log
from topics.server.peer import NEVER_S

_SLICE_BYTES_MIN = 1 * KIB  # of input in one go: a hundred small requests
_SLICE_BYTES_MAX = 16 * KIB  # if there are few frames in it, as in a body
_FEW_EVENTS = 8
_TURN_S = 0.005  # longest piece of work on input before others get their turn
_LOOK_S = 5.0
_NO_HEAD = RequestHead(method="GET", raw_path=b"/", query=b"", headers={}, version="2")


class H2Connection(H2Output):
    __slots__ = ("_heard_s", "_input", "_is_open", "_pinged_s", "_taken_s", "_unsent_seen_bytes")

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        now_s = hub.wheel.now_s
        self._input = bytearray()  # not yet worked on
        self._is_open = False  # the peer takes more on all streams: looked at once for the input at hand
        self._heard_s = now_s  # when the peer last sent anything
        self._pinged_s = 0.0  # when we asked it to; 0 if it has answered
        self._unsent_seen_bytes = 0  # at the last look that found a change,
        self._taken_s = now_s  # which was then

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
        self._feeding = True
        while self._input and not self._over and not self.hub.held and now_s < until_s:
            piece = bytes(self._input[:slice_bytes])
            del self._input[:slice_bytes]
            events = self._session.receive(piece, now_s)
            for event in events:
                _HANDLERS[type(event)](self, event)
            if self._is_open:
                self._is_open = False
                self._pump()
            slice_bytes = min(2 * slice_bytes, _SLICE_BYTES_MAX) if len(events) <= _FEW_EVENTS else _SLICE_BYTES_MIN
            now_s = monotonic()
        self._feeding = False
        if self._over:
            self._input.clear()
        elif self._input:
            self.transport.pause_reading()
            if self.hub.held:
                self.hub.when_released(self._read_on)
            else:
                self.hub.loop.call_soon(self._read_on)
        self.flush()

    def _read_on(self) -> None:
        if not self._over:
            self._read()
            if not self._input and not self._over:
                self.transport.resume_reading()

    def _request(self, event: H2Request) -> None:
        hub = self.hub
        if self._goodbye or self._session.unsent_bytes >= H2_UNSENT_BYTES_MAX:
            self._session.reset(event.stream_id, refused=True)
            return
        request = Request(event.head, event.content_length, self.address, hub.monotonic())
        exchange = H2Exchange(self, event.stream_id, request, hub.wheel.now_s)
        self._streams[event.stream_id] = exchange
        refusal = self._head(request)
        if refusal is not None:
            self._refuse(exchange, refusal)
        elif event.content_length is not None and event.content_length > hub.settings.max_body_bytes:
            self._abandon(exchange, PayloadTooLarge(hub.settings.max_body_bytes))
        elif event.head.expects_continue:
            self._session.send_head(event.stream_id, 100, (), end=False)

    def _head(self, request: Request) -> Response | None:
        try:
            return self.hub.app.head(request)
        except Exception as error:
            return failure_response(error)

    def _bad_request(self, event: H2BadRequest) -> None:
        """Its head, or the trailer of a body that was taken so far, is malformed."""
        exchange = self._streams.get(event.stream_id)
        if exchange is None:
            request = Request(_NO_HEAD, None, self.address, self.hub.monotonic())
            exchange = H2Exchange(self, event.stream_id, request, self.hub.wheel.now_s)
            exchange.discarding = True  # the application knows nothing of it
            self._streams[event.stream_id] = exchange
        if not event.is_malformed:
            self._refuse(exchange, error_response(InvalidRequest(event.reason)))
        elif not exchange.finished:
            self._end_malformed(exchange, event.reason)

    def _end_malformed(self, exchange: H2Exchange, reason: str) -> None:
        """A stream error of type PROTOCOL_ERROR (RFC 9113 section 8.1.1); the answer before it says why, to people."""
        response, stream_id = error_response(InvalidRequest(reason)), exchange.stream_id
        length = (b"content-length", b"%d" % len(response.body))
        self.begin_answer(exchange, 400, ((b"content-type", response.content_type), length), end=False)
        self.send(exchange, response.body)
        self._session.reset(stream_id, malformed=True)
        self._drop(exchange)
        self._flush_soon()

    def _body(self, event: H2Body) -> None:
        exchange = self._streams.get(event.stream_id)
        self._session.acknowledge(event.stream_id, event.credit)
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
        exchange = self._streams.get(event.stream_id)
        if exchange is None:
            return
        if not exchange.discarding and exchange.request.content_length not in (None, exchange.body_bytes):
            self._end_malformed(exchange, "the body is not as long as its content-length")
            return
        parts, exchange.parts = exchange.parts or [], None
        if exchange.discarding:
            self._forget_finished(exchange)
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
        exchange = self._streams.get(event.stream_id)
        if exchange is not None:
            self._drop(exchange)

    def _window(self, event: H2Window) -> None:
        if not event.stream_id:
            self._is_open = True
            return
        self._pump_one(event.stream_id)
        exchange = self._streams.get(event.stream_id)  # None if its answer is complete and only waits to be taken
        if exchange is not None:
            self._moved(exchange)

    def _ended(self, event: H2Over) -> None:
        self._over = True
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

    # --- the end ------------------------------------------------------------------------------------------------------

    def eof_received(self) -> bool:
        self.lost()
        return False

    def lost(self) -> None:
        self._over = True
        for exchange in list(self._streams.values()):
            self._drop(exchange)
        if self._share is not None:
            self._share.close()

    def drain(self) -> None:
        self._leave()

    def _leave(self) -> None:
        """Streams that run are finished first: many clients take nothing behind a goodbye. New ones are refused."""
        if not self._goodbye:
            self._goodbye = True
            self.flush()

    def on_timer(self, now_s: float) -> float:
        if self._over or self.write_stalled(now_s):
            self.cut()
            return NEVER_S
        self._drop_slow_bodies(now_s)
        self._drop_untaken_answers(now_s)
        idle_s = now_s - self._since_s if not self._streams else 0.0
        if idle_s >= IDLE_CONNECTION_MS / 1000 + WRITE_STALL_S:
            self.cut()
            return NEVER_S
        if idle_s >= IDLE_CONNECTION_MS / 1000:
            self._leave()
        elif self._pinged_s and now_s - self._pinged_s >= H2_PING_TIMEOUT_MS / 1000:
            self.cut()
            return NEVER_S
        elif not self._pinged_s and now_s - self._heard_s >= H2_PING_MS / 1000:
            self._pinged_s = now_s
            self._session.ping()
            self.flush()
        return now_s + _LOOK_S

    def _drop_slow_bodies(self, now_s: float) -> None:
        for exchange in list(self._streams.values()):
            allowed_s = BODY_GRACE_S + exchange.body_bytes / BODY_BYTES_PER_S_MIN
            if exchange.parts is not None and now_s - exchange.since_s >= allowed_s:
                if exchange.discarding:
                    self.cancel(exchange)
                else:
                    self._abandon(exchange, InvalidRequest("the request body came too slowly"))

    def _drop_untaken_answers(self, now_s: float) -> None:
        """Requests wait for room, and for too long the peer took no byte of any answer before them."""
        unsent_bytes = self._session.unsent_bytes
        if unsent_bytes != self._unsent_seen_bytes or self._share is None or not self._share.has_waiting:
            self._unsent_seen_bytes = unsent_bytes
            self._taken_s = now_s
        elif now_s - self._taken_s >= WRITE_STALL_S:
            for stream_id in self._session.reset_untaken():
                exchange = self._streams.get(stream_id)
                if exchange is not None:
                    self._drop(exchange)
            self.flush()


_HANDLERS: dict[type[H2Event], Callable[..., None]] = {
    H2Request: H2Connection._request,
    H2BadRequest: H2Connection._bad_request,
    H2Body: H2Connection._body,
    H2BodyEnd: H2Connection._body_end,
    H2Reset: H2Connection._reset,
    H2Window: H2Connection._window,
    H2Over: H2Connection._ended,
}
