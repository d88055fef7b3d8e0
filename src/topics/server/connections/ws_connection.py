"""WsConnection: an open WebSocket, and the sink that the application talks to it through.

Messages are handed over one by one; while the application has paused reading, a bounded amount of input is kept and
the rest stays in the socket, so that a peer that has gone is still noticed by its end of file. A message that is not
whole is an unfinished body: it has a rate to come in, and counts in the budget of all of them.
"""

from __future__ import annotations

from collections.abc import Callable

from topics.limits import H2_PING_MS, KIB, WS_MESSAGE_BYTES_MAX
from topics.net.messages import AllowanceOwner
from topics.net.transport_limits import (
    LINGER_S,
    STREAM_INPUT_BYTES_MAX,
    WRITE_LOW_BYTES,
    WS_CONTROL_PENDING_BYTES_MAX,
)
from topics.net.websocket import (
    GOING_AWAY,
    POLICY_VIOLATION,
    TRY_AGAIN_LATER,
    WsEnd,
    WsMessage,
    WsSession,
    text_frame,
    text_header,
)
from topics.server.connections.budget import StreamBudget
from topics.server.connections.callbacks import CloseCallbacks, log
from topics.server.connections.hub import NEVER_S, Hub, Peer, body_time_s

_FRAMES_PER_TURN = 256  # so that a flood of tiny frames does not hold the loop
_CHECK_S = H2_PING_MS / 1000
LARGE_BYTES = 256 * KIB  # a message of this size is handed over in parts rather than copied into one


class WsConnection(Peer):
    __slots__ = (
        "_budget",
        "_callbacks",
        "_closing_since_s",
        "_control_bytes",
        "_discards_input",
        "_drained",
        "_held_bytes",
        "_held_since_s",
        "_input_bytes",
        "_on_message",
        "_reading",
        "_scheduled",
        "_session",
        "closed",
    )

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self._session = WsSession(WS_MESSAGE_BYTES_MAX)
        self._callbacks = CloseCallbacks()
        self._on_message: Callable[[bytes, bool], None] | None = None
        self._drained: Callable[[], None] | None = None
        self._reading = True
        self._scheduled = False  # `_read` will run in a later turn
        self._input_bytes = 0  # received since the input was last used up
        self._held_bytes = 0  # of a message that is not whole, in the hub's budget
        self._held_since_s = 0.0  # when there were none
        self._control_bytes = 0  # pongs since the peer last took all output
        self._closing_since_s = 0.0  # when our close frame was sent
        self._discards_input = False  # what still comes is thrown away: the peer broke the protocol
        self._budget: StreamBudget | None = None
        self.closed = False

    def begin(self, data: bytes) -> None:
        """`data` came together with the handshake; it waits until the application has set its callback."""
        if data:
            self._session.receive(data)
            self._read_soon()

    # --- input --------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._discards_input:
            return
        self._session.receive(data)
        self._input_bytes += len(data)
        if not self._scheduled:
            self._read()
        elif self._input_bytes > STREAM_INPUT_BYTES_MAX:
            self.transport.pause_reading()

    def _read(self) -> None:
        self._scheduled = False
        for _ in range(_FRAMES_PER_TURN):
            if not self._reading and not self._session.closing:
                if self._input_bytes > STREAM_INPUT_BYTES_MAX:
                    self.transport.pause_reading()
                break
            event = self._session.next_event()
            if event is None:
                self._input_bytes = 0
                self.transport.resume_reading()
                break
            if isinstance(event, WsMessage):
                self._send_control()
                self._deliver(event)
            elif isinstance(event, WsEnd):
                self._finish()
                return
        else:
            self._read_soon()
        self._send_control()
        if not self.closed and not self._hold(self._session.held_bytes):
            self.close(TRY_AGAIN_LATER)

    def _hold(self, held_bytes: int) -> bool:
        """False if unfinished bodies and messages are too much together, and this one has grown."""
        if not self._held_bytes:
            self._held_since_s = self.hub.wheel.now_s
        change, self._held_bytes = held_bytes - self._held_bytes, held_bytes
        return not change or self.hub.account_body(change) or change < 0

    def _read_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.hub.loop.call_soon(self._read)

    def _deliver(self, message: WsMessage) -> None:
        if self._on_message is None or self.closed:
            return
        try:
            self._on_message(message.payload, message.is_text)
        except Exception:
            log.exception("handling a WebSocket message failed")
            self.close(1011)

    # --- WsSink -------------------------------------------------------------------------------------------------------

    def send_text(self, payload: bytes) -> None:
        if not self.closed and not self._session.closing:
            if len(payload) < LARGE_BYTES:
                self.transport.write(text_frame(payload))
            else:  # not copied: many sockets may be sent the same
                self.transport.write(text_header(len(payload)))
                self.transport.write(payload)

    def allowance(self, owner: AllowanceOwner) -> StreamBudget:
        self._budget = StreamBudget(self.hub.budget, owner, self.buffered_bytes)
        return self._budget

    def on_message(self, callback: Callable[[bytes, bool], None]) -> None:
        self._on_message = callback

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._read_soon()

    def close(self, code: int = 1000) -> None:
        if not self.closed and not self._session.closing:
            self._session.close(code)
            self._send_control()
            self._linger()
            self.lost()

    def abort(self) -> None:
        if not self.closed:
            self.transport.abort()
            self.lost()

    def buffered_bytes(self) -> int:
        return 0 if self.closed else self.transport.get_write_buffer_size()

    def set_drain_callback(self, callback: Callable[[], None], *, low_bytes: int = WRITE_LOW_BYTES) -> None:
        self._drained = callback
        if not self.closed:
            self.transport.set_write_buffer_limits(high=low_bytes, low=low_bytes)

    def on_close(self, callback: Callable[[], None]) -> None:
        self._callbacks.add(callback)

    # --- output and end -----------------------------------------------------------------------------------------------

    def _send_control(self) -> None:
        output = self._session.take_output()
        if not output or self.transport.is_closing():
            return
        waiting = self.transport.get_write_buffer_size()
        self._control_bytes = self._control_bytes + len(output) if waiting else 0
        if self._control_bytes > WS_CONTROL_PENDING_BYTES_MAX:
            self.abort()
        else:
            self.transport.write(output)

    def _finish(self) -> None:
        """Both sides have closed, or the peer broke the protocol: send what is left and end. In the second case there
        may be more input, and closing on it would reset our close frame away."""
        self._send_control()
        if self._session.is_over:
            self.transport.close()
        else:
            self._discards_input = True
            self.transport.resume_reading()
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self._linger()
        self.lost()

    def _linger(self) -> None:
        self._closing_since_s = self.hub.wheel.now_s
        self.hub.wheel.arm(self, self._closing_since_s + LINGER_S)

    def resume_writing(self) -> None:
        if self._drained is not None and not self.closed:
            self._drained()

    def eof_received(self) -> bool:
        self.lost()
        return False

    def lost(self) -> None:
        """The application's part ends here; the closing handshake may still be on its way."""
        if not self.closed:
            self.closed = True
            self._drained = None
            self._reading = True
            self._hold(0)
            if self._budget is not None:
                self._budget.close()
            self._callbacks.fire()

    def drain(self) -> None:
        self.close(GOING_AWAY)

    def on_timer(self, now_s: float) -> float:
        if self._session.closing and self._closing_since_s:
            if now_s - self._closing_since_s >= LINGER_S:
                self.transport.abort()
                return NEVER_S
            return self._closing_since_s + LINGER_S
        if self.write_stalled(now_s):
            self.abort()
            return NEVER_S
        if not self._reading:
            self._held_since_s = now_s
        elif self._held_bytes and now_s - self._held_since_s >= body_time_s(self._held_bytes):
            self.close(POLICY_VIOLATION)
        return now_s + _CHECK_S
