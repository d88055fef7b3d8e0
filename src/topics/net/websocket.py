"""WebSocket without I/O: the opening handshake, and a session of messages (RFC 6455, through wsproto).

No extension is negotiated, so a frame of ours is a few bytes before the payload and is built here directly; what the
peer sends is parsed by wsproto. A message is handed out whole, and never larger than the limit: a frame that declares
more than is left of it is refused by its header, before any of its payload has come.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from typing import Literal, NamedTuple

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.extensions import Extension
from wsproto.frame_protocol import CloseReason, FrameDecoder, FrameProtocol, Opcode, RsvBits

from topics.net.messages import Request

_ACCEPT_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_TEXT_FINAL = 0x81
_LENGTH_16 = 126
_LENGTH_64 = 127

SUBPROTOCOL = b"topics"

GOING_AWAY = CloseReason.GOING_AWAY.value
POLICY_VIOLATION = CloseReason.POLICY_VIOLATION.value
TRY_AGAIN_LATER = CloseReason.TRY_AGAIN_LATER.value


# --- handshake --------------------------------------------------------------------------------------------------------


def handshake_problem(request: Request) -> str | None:
    """Why this request is not a WebSocket handshake; None if it is."""
    if request.http_version != "1.1" or request.method != "GET":
        return "a WebSocket is opened by GET over HTTP/1.1"
    if b"websocket" not in _tokens(request.header(b"upgrade")) or b"upgrade" not in _tokens(
        request.header(b"connection")
    ):
        return "the request does not ask to upgrade to websocket"
    if request.header(b"sec-websocket-version") != b"13":
        return "the only WebSocket version is 13"
    if request.body or not _is_key(request.header(b"sec-websocket-key")):
        return "the WebSocket handshake is malformed"
    return None


def accept_response(request: Request) -> bytes:
    """The answer that turns the connection into a WebSocket."""
    key = request.header(b"sec-websocket-key") or b""
    accept = base64.b64encode(hashlib.sha1(key + _ACCEPT_GUID).digest())
    chosen = _subprotocol(request.header(b"sec-websocket-protocol"))
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: %b\r\n%b\r\n"
        % (accept, b"" if chosen is None else b"Sec-WebSocket-Protocol: %b\r\n" % chosen)
    )


def _subprotocol(offered: bytes | None) -> bytes | None:
    """The one to confirm, among those that are ours: a browser that offers some takes no answer without one."""
    ours = [name for name in map(bytes.strip, (offered or b"").split(b",")) if (name + b".").startswith(b"topics.")]
    return SUBPROTOCOL if SUBPROTOCOL in ours else next(iter(ours), None)


def _tokens(value: bytes | None) -> list[bytes]:
    return [token.strip(b" \t") for token in (value or b"").lower().split(b",")]


def _is_key(key: bytes | None) -> bool:
    try:
        return key is not None and len(key) == 24 and len(base64.b64decode(key, validate=True)) == 16
    except binascii.Error:
        return False


# --- frames of ours ---------------------------------------------------------------------------------------------------


def text_frame(payload: bytes) -> bytes:
    """One unfragmented text message from server to client."""
    return text_header(len(payload)) + payload


def text_header(size: int) -> bytes:
    """What comes before the payload of such a message."""
    if size < _LENGTH_16:
        return struct.pack("!BB", _TEXT_FINAL, size)
    if size < 1 << 16:
        return struct.pack("!BBH", _TEXT_FINAL, _LENGTH_16, size)
    return struct.pack("!BBQ", _TEXT_FINAL, _LENGTH_64, size)


# --- session ----------------------------------------------------------------------------------------------------------


class WsMessage(NamedTuple):
    payload: bytes
    is_text: bool


class WsEnd(NamedTuple):
    """The peer closed, or broke the protocol; our close frame is in the output."""

    code: int


WsProgress = Literal["progress"]


class _LengthCheck(Extension):
    """Never offered to the peer: wsproto shows each frame's header to its extensions, and takes their refusal."""

    name = "length-check"

    def __init__(self, partial: bytearray, limit_bytes: int) -> None:
        self._partial = partial
        self._limit_bytes = limit_bytes

    def enabled(self) -> bool:
        return True

    def offer(self) -> bool | str:
        return False

    def frame_inbound_header(
        self, proto: FrameDecoder | FrameProtocol, opcode: Opcode, rsv: RsvBits, payload_length: int
    ) -> CloseReason | RsvBits:
        if not opcode.iscontrol() and len(self._partial) + payload_length > self._limit_bytes:
            return CloseReason.MESSAGE_TOO_BIG
        return RsvBits(False, False, False)


class WsSession:
    """The server's end of an open socket."""

    __slots__ = ("_conn", "_output", "_partial")

    def __init__(self, limit_bytes: int) -> None:
        self._partial = bytearray()  # of the message that is coming in, however small its pieces are
        self._conn = Connection(ConnectionType.SERVER, [_LengthCheck(self._partial, limit_bytes)])
        self._output: list[bytes] = []

    def receive(self, data: bytes) -> None:
        if self._conn.state in (ConnectionState.OPEN, ConnectionState.LOCAL_CLOSING):
            self._conn.receive_data(data)

    def next_event(self) -> WsMessage | WsEnd | WsProgress | None:
        """What comes next in the input; "progress" for one frame that made no whole message, None if there is none."""
        for event in self._conn.events():
            return self._take(event)
        return None

    def take_output(self) -> bytes:
        """Pongs and close frames that have to be sent."""
        output, self._output = self._output, []
        return b"".join(output)

    def close(self, code: int) -> None:
        """Begin the closing handshake; nothing happens if it has begun."""
        if self._conn.state in (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING):
            self._output.append(self._conn.send(CloseConnection(code=code)))
        self._partial.clear()

    @property
    def held_bytes(self) -> int:
        """Of a message that is not whole."""
        return len(self._partial)

    @property
    def closing(self) -> bool:
        return self._conn.state is not ConnectionState.OPEN

    @property
    def is_over(self) -> bool:
        """Both sides have said their close frame."""
        return self._conn.state is ConnectionState.CLOSED

    def _take(self, event: Event) -> WsMessage | WsEnd | WsProgress:
        if isinstance(event, TextMessage):
            return self._collect(event.data.encode("utf-8"), is_text=True, whole=event.message_finished)
        if isinstance(event, BytesMessage):
            return self._collect(bytes(event.data), is_text=False, whole=event.message_finished)
        if isinstance(event, CloseConnection):
            self.close(event.code)
            return WsEnd(event.code)
        if isinstance(event, Ping) and not self.closing:
            self._output.append(self._conn.send(event.response()))
        return "progress"

    def _collect(self, part: bytes, *, is_text: bool, whole: bool) -> WsMessage | WsProgress:
        if self.closing:
            return "progress"  # what arrives after our close frame is not read any more
        if not whole:
            self._partial += part
            return "progress"
        if self._partial:
            self._partial += part
            part = bytes(self._partial)
            self._partial.clear()
        return WsMessage(part, is_text)
