"""WebSocket over a real socket, against wsproto's client state machine."""

from __future__ import annotations

import json
import select
import struct
from typing import Any

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    Pong,
    Request,
    TextMessage,
)

from topics.limits import MIB
from topics.server.connections import ws_connection
from topics.testing.clock import SimClock

Live = Any

HANDSHAKE = (
    b"GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


class WsClient:
    def __init__(self, live: Live) -> None:
        self.raw = live.client()
        self._ws = WSConnection(ConnectionType.CLIENT)
        self.raw.send(self._ws.send(Request(host="a", target="/ws")))
        self._events: list[Event] = []
        assert isinstance(self.event(), AcceptConnection)

    def send(self, event: Event) -> None:
        self.raw.send(self._ws.send(event))

    def event(self) -> Event:
        while not self._events:
            data = self.raw.socket.recv(1 << 16)
            self._ws.receive_data(data or None)
            self._events.extend(self._ws.events())
        return self._events.pop(0)

    def text(self) -> str:
        parts = []
        while True:
            event = self.event()
            assert isinstance(event, TextMessage)
            parts.append(event.data)
            if event.message_finished:
                return "".join(parts)

    def closed_with(self) -> int:
        event = self.event()
        assert isinstance(event, CloseConnection)
        return int(event.code)


def frame(opcode: int, payload: bytes, *, fin: bool = True, masked: bool = True, rsv: int = 0) -> bytes:
    size = len(payload)
    mask_bit = 0x80 if masked else 0
    first = (0x80 if fin else 0) | rsv | opcode
    if size < 126:
        head = struct.pack("!BB", first, mask_bit | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", first, mask_bit | 126, size)
    else:
        head = struct.pack("!BBQ", first, mask_bit | 127, size)
    return head + (b"\0\0\0\0" if masked else b"") + payload


def open_raw(live: Live) -> Any:
    client = live.client()
    assert client.send(HANDSHAKE).response().status == 101
    return client


def close_code(client: Any) -> int:
    """The code of the close frame that comes next, followed by the end of the connection."""
    head = client.exactly(2)
    assert head[0] == 0x88
    payload = client.exactly(head[1])
    assert client.ended()
    return int(struct.unpack("!H", payload[:2])[0])


# --- handshake --------------------------------------------------------------------------------------------------------


def test_the_handshake_of_the_rfc(live: Live) -> None:
    with live.client() as client:
        response = client.send(HANDSHAKE).response()
        assert response.status == 101
        assert response.headers["sec-websocket-accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        assert response.headers["upgrade"] == "websocket"
        assert "sec-websocket-extensions" not in response.headers


@pytest.mark.parametrize(
    "change",
    [
        (b"Upgrade: websocket\r\n", b""),
        (b"Upgrade: websocket\r\n", b"Upgrade: h2c\r\n"),
        (b"Connection: Upgrade\r\n", b""),
        (b"Connection: Upgrade\r\n", b"Connection: keep-alive\r\n"),
        (b"Version: 13", b"Version: 8"),
        (b"Sec-WebSocket-Version: 13\r\n", b""),
        (b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", b""),
        (b"dGhlIHNhbXBsZSBub25jZQ==", b"c2hvcnQ="),
        (b"dGhlIHNhbXBsZSBub25jZQ==", b"dGhlIHNhbXBsZSBub25jZ*=="),
        (b"GET /ws HTTP/1.1", b"GET /ws HTTP/1.0"),
        (b"GET /ws", b"POST /ws"),
    ],
)
def test_anything_else_is_400_and_no_websocket(live: Live, change: tuple[bytes, bytes]) -> None:
    with live.client() as client:
        response = client.send(HANDSHAKE.replace(*change)).response()
        assert response.status == 400
        assert json.loads(response.body)["error"]["code"] == "invalid_request"


def test_a_handshake_behind_a_waiting_request_is_refused(live: Live) -> None:
    with live.client() as client:
        client.send(b"GET /later/x HTTP/1.1\r\nHost: a\r\n\r\n" + HANDSHAKE)
        live.until(lambda: len(live.app.handled) == 2)
        live.call(lambda: live.app.do_echo(*live.app.waiting[0]))
        assert client.response().status == 200
        assert client.response().status == 400


# --- messages ---------------------------------------------------------------------------------------------------------


def test_text_goes_both_ways(live: Live) -> None:
    client = WsClient(live)
    for size in (0, 1, 120, 126, 70_000):
        message = "echo é" + "x" * size
        client.send(TextMessage(data=message))
        assert client.text() == message


def test_frames_that_come_with_the_handshake_are_not_lost(live: Live) -> None:
    with live.client() as client:
        client.send(HANDSHAKE + frame(1, b"echo now"))
        assert client.response().status == 101
        assert client.exactly(10) == b"\x81\x08echo now"


def test_binary_is_delivered_as_such(live: Live) -> None:
    client = WsClient(live)
    client.send(BytesMessage(data=b"\x00\xff"))
    live.until(lambda: live.app.messages == [(b"\x00\xff", False)])


def test_fragments_are_joined_around_a_ping(live: Live) -> None:
    client = WsClient(live)
    client.send(TextMessage(data="ec", message_finished=False))
    client.send(Ping(payload=b"p"))
    client.send(TextMessage(data="ho"))
    assert client.event() == Pong(payload=b"p")
    assert client.text() == "echo"


def test_a_large_message_arrives_whole(live: Live) -> None:
    client = WsClient(live)
    client.raw.send(frame(1, b"x" * 20_000_000))
    live.until(lambda: [len(payload) for payload, _ in live.app.messages] == [20_000_000])


def test_a_flood_of_tiny_frames_leaves_others_their_turn(live: Live) -> None:
    with open_raw(live) as flooder, live.client() as other:
        flooder.send(frame(10, b"") * 30_000)
        assert other.request("GET", "/echo").status == 200
        flooder.send(frame(1, b"echo"))
        assert flooder.exactly(6) == b"\x81\x04echo"


def test_paused_reading_delivers_nothing_until_it_is_resumed(live: Live) -> None:
    with open_raw(live) as client:
        live.until(lambda: len(live.app.sockets) == 1)
        live.call(lambda: live.app.sockets[0].pause_reading())
        client.send(frame(1, b"echo 1") + frame(1, b"echo 2"))
        assert live.call(lambda: live.app.messages) == []
        live.call(lambda: live.app.sockets[0].resume_reading())
        assert client.exactly(16) == b"\x81\x06echo 1\x81\x06echo 2"


def test_a_client_that_goes_while_reading_is_paused_is_noticed(live: Live) -> None:
    client = open_raw(live)
    live.until(lambda: len(live.app.sockets) == 1)
    live.call(lambda: live.app.sockets[0].pause_reading())
    client.send(frame(1, b"unread"))
    client.close()
    live.until(lambda: live.app.gone == ["ws"])


def test_what_the_client_does_not_take_is_counted(live: Live) -> None:
    with open_raw(live) as client:
        live.until(lambda: len(live.app.sockets) == 1)
        live.call(lambda: live.app.sockets[0].send_text(b"x" * 20_000_000))
        assert live.call(lambda: live.app.sockets[0].buffered_bytes()) > 1_000_000
        assert len(client.exactly(20_000_010)) == 20_000_010
        live.until(lambda: live.app.sockets[0].buffered_bytes() == 0)


# --- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "raw"),
    [
        (1002, frame(1, b"x", masked=False)),
        (1002, frame(3, b"x")),
        (1002, frame(1, b"x", rsv=0x40)),
        (1002, frame(0, b"continues nothing")),
        (1002, frame(1, b"a", fin=False) + frame(1, b"b")),
        (1002, frame(9, b"x", fin=False)),
        (1002, frame(9, b"x" * 126)),
        (1002, frame(8, b"\x03")),
        (1002, frame(8, struct.pack("!H", 999))),
        (1002, frame(8, struct.pack("!H", 1005))),
        (1002, b"\x81\xfe\x00\x05\0\0\0\0hello"),
        (1007, frame(1, b"\xff\xfe")),
        (1007, frame(1, b"\xc3")),
        (1007, frame(1, b"\xed\xa0\x80")),
        (1007, frame(8, struct.pack("!H", 1000) + b"\xff")),
    ],
)
def test_a_broken_frame_closes_with_its_code(live: Live, code: int, raw: bytes) -> None:
    with open_raw(live) as client:
        client.send(raw)
        assert close_code(client) == code
    live.until(lambda: live.app.gone == ["ws"])


def test_a_message_over_the_limit_closes_with_1009(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.server.connections.ws_connection.WS_MESSAGE_BYTES_MAX", 1000)
    with open_raw(live) as client:
        client.send(frame(1, b"x" * 600, fin=False) + frame(0, b"x" * 401))
        assert close_code(client) == 1009
    with open_raw(live) as client:
        client.send(frame(1, b"echo" + b"x" * 596, fin=False) + frame(0, b"x" * 400))
        assert len(client.exactly(1004)) == 1004


def test_the_peers_close_is_answered_with_its_code(live: Live) -> None:
    with open_raw(live) as client:
        client.send(frame(8, struct.pack("!H", 3001) + b"bye"))
        assert close_code(client) == 3001
    live.until(lambda: live.app.gone == ["ws"])


def test_our_close_is_sent_and_waits_for_the_peers(live: Live) -> None:
    client = WsClient(live)
    live.until(lambda: len(live.app.sockets) == 1)
    live.call(lambda: live.app.sockets[0].close(1001))
    assert live.call(lambda: (live.app.gone, live.app.sockets[0].closed)) == (["ws"], True)
    closing = client.event()
    assert isinstance(closing, CloseConnection)
    assert closing.code == 1001
    client.send(closing.response())
    assert client.raw.ended()


def test_a_peer_that_never_answers_our_close_is_cut(start_server: Any) -> None:
    from topics.testing.clock import SimClock

    live = start_server(clock=SimClock())
    with open_raw(live) as client:
        live.pass_time(1)
        live.until(lambda: len(live.app.sockets) == 1)
        live.call(lambda: live.app.sockets[0].close(1000))
        live.pass_time(4)
        live.until(lambda: not live.hub.peers)
        assert client.exactly(2)[0] == 0x88


@pytest.mark.parametrize("way", ["close", "reset", "end_sending"])
def test_a_peer_that_goes_is_noticed_at_once(live: Live, way: str) -> None:
    client = open_raw(live)
    live.until(lambda: len(live.app.sockets) == 1)
    getattr(client, way)()
    live.until(lambda: live.app.gone == ["ws"])
    live.call(lambda: live.app.sockets[0].send_text(b"to nobody"))


def test_a_bug_in_a_handler_closes_with_1011(live: Live) -> None:
    client = WsClient(live)
    client.send(TextMessage(data="fail"))
    assert client.closed_with() == 1011


def test_pings_that_nobody_reads_the_pongs_of_end_the_connection(live: Live) -> None:
    client = open_raw(live)
    live.until(lambda: len(live.app.sockets) == 1)
    live.call(lambda: live.app.sockets[0].send_text(b"x" * 20_000_000))
    with pytest.raises(OSError):  # noqa: PT012
        for _ in range(100):
            client.send(frame(9, b"p" * 125) * 1000)
    live.until(lambda: live.app.gone == ["ws"])


# --- messages that do not end -----------------------------------------------------------------------------------------


def begin_message(client: Any, size: int) -> None:
    client.send(frame(1, b"x" * size, fin=False))


def bodies_bytes(live: Live) -> int:
    held: int = live.call(lambda: live.hub._bodies_bytes)
    return held


@pytest.mark.parametrize("way", ["finish", "close", "reset", "too big"])
def test_what_has_come_of_a_message_is_held_until_it_is_whole_or_over(
    live: Live, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(ws_connection, "WS_MESSAGE_BYTES_MAX", 2_000_000)
    client = open_raw(live)
    begin_message(client, 1_000_000)
    live.until(lambda: live.hub._bodies_bytes == 1_000_000)
    if way == "finish":
        client.send(frame(0, b"!"))
    elif way == "too big":
        client.send(frame(0, b"x" * 1_000_001))
        assert close_code(client) == 1009
    else:
        getattr(client, way)()
    live.until(lambda: live.hub._bodies_bytes == 0)


def test_unfinished_messages_share_the_budget_of_unfinished_bodies(start_server: Any) -> None:
    live = start_server(max_body_bytes=1_000_000)  # the budget is the least there is, 64 MiB
    clients = [open_raw(live) for _ in range(14)]
    for client in clients:
        begin_message(client, 5_000_000)
    told = select.select([client.socket for client in clients], [], [], 10)[0]
    assert {close_code(client) for client in clients if client.socket in told} == {1013}
    assert bodies_bytes(live) <= 64 * MIB
    assert 0 < len(live.app.gone) < 5


def test_a_message_that_comes_too_slowly_is_given_up_and_a_slow_one_is_not(start_server: Any) -> None:
    live = start_server(clock=SimClock())
    slow, stalled = open_raw(live), open_raw(live)
    for client in (slow, stalled):
        begin_message(client, 5_000)
    live.until(lambda: live.hub._bodies_bytes == 10_000)
    for second in range(60):
        slow.send(frame(0, b"y" * 1500, fin=False))
        live.until(lambda second=second: live.hub._bodies_bytes >= 5_000 + 1500 * (second + 1))
        live.pass_time(1)
    assert close_code(stalled) == 1008
    assert bodies_bytes(live) == 5_000 + 60 * 1500
    slow.send(frame(0, b"!"))
    live.until(lambda: live.hub._bodies_bytes == 0)


def test_a_message_does_not_come_too_slowly_while_nobody_reads_it(start_server: Any) -> None:
    live = start_server(clock=SimClock())
    client = open_raw(live)
    begin_message(client, 5_000)
    live.until(lambda: live.hub._bodies_bytes == 5_000)
    live.call(lambda: live.app.sockets[0].pause_reading())
    live.pass_time(120)
    live.call(lambda: live.app.sockets[0].resume_reading())
    live.pass_time(10)
    client.send(frame(0, b"!"))
    live.until(lambda: live.hub._bodies_bytes == 0)
    assert live.call(lambda: live.app.gone) == []
