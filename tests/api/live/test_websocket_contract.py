"""`GET /v0/ws` over a real socket (`docs/spec/http-api.md#sec-18`), also against peers that mean no good."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.api.client import Client
from tests.api.live.test_watch_contract import streams_open, wait_for
from tests.api.server import LiveServer
from tests.server.raw_http import RawClient
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

_names = count()
TIMEOUT_S = 10.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("data")) as live:
        yield live


@pytest.fixture
def topic() -> str:
    return f"s{next(_names)}"


@pytest.fixture
def ws(server: LiveServer) -> Iterator[ClientConnection]:
    with open_socket(server) as made:
        yield made


def open_socket(server: LiveServer, **options: Any) -> Any:
    return connect(f"ws://127.0.0.1:{server.port}/v0/ws", max_size=None, compression=None, **options)


def say(ws: ClientConnection, op: str, **fields: Any) -> None:
    ws.send(json.dumps({"op": op, **fields}))


def hear(ws: ClientConnection, op: str | None = None) -> dict[str, Any]:
    """The next message, or the next one of that kind."""
    while True:
        message: dict[str, Any] = json.loads(ws.recv(timeout=TIMEOUT_S))
        if op is None or message["op"] == op:
            return message


def test_a_conversation(ws: ClientConnection, topic: str) -> None:
    say(ws, "publish", topic=topic, records=[{"data": {"n": 1}}], request_id=1)
    assert hear(ws)["created"]
    say(ws, "subscribe", topic=topic, request_id=2)
    assert hear(ws) == {
        "op": "subscribed",
        "request_id": 2,
        "topics": {topic: {"from_seq": 0, "head_seq": 1, "earliest_seq": 1}},
    }
    record = hear(ws)
    assert record.pop("records")[0]["data"] == {"n": 1}
    assert (position := record.pop("next")).startswith("1-e")
    assert record == {"op": "record", "topic": topic, "from_seq": 0, "to_seq": 1, "head_seq": 1}
    assert hear(ws) == {"op": "caught_up", "topic": topic, "head_seq": 1, "next": position}
    say(ws, "publish", topic=topic, records=[{"data": 2}], request_id=3)
    assert [hear(ws)["op"] for _ in range(3)] == ["ack", "record", "caught_up"]
    say(ws, "unsubscribe", topic=topic, request_id=4)
    assert hear(ws) == {"op": "unsubscribed", "request_id": 4, "topics": [topic]}
    say(ws, "ping")
    assert hear(ws) == {"op": "pong", "request_id": None}


def test_writes_over_http_reach_the_socket(server: LiveServer, ws: ClientConnection, topic: str) -> None:
    client = Client(server.port, http2=True)
    client.put(topic)
    say(ws, "subscribe", topic=topic)
    hear(ws, "caught_up")
    for number in range(20):
        client.write(topic, number)
    seen: list[int] = []
    while len(seen) < 20:
        seen += [record["data"] for record in hear(ws, "record")["records"]]
    assert seen == list(range(20))
    client.close()


def test_many_publishes_in_a_row_are_acked_in_order(ws: ClientConnection, topic: str) -> None:
    for number in range(200):
        say(ws, "publish", topic=topic, records=[{"data": number}], request_id=number)
    acks = [hear(ws, "ack") for _ in range(200)]
    assert [ack["request_id"] for ack in acks] == list(range(200))
    assert [ack["first_seq"] for ack in acks] == list(range(1, 201))


def test_protocol_pings_are_answered_and_binary_is_refused_politely(ws: ClientConnection) -> None:
    assert ws.ping().wait(TIMEOUT_S)
    ws.send(b"\0\1\2")
    error = hear(ws)
    assert error.pop("message")
    assert error == {"op": "error", "code": "unsupported_message"}
    say(ws, "ping", request_id="still here")
    assert hear(ws)["request_id"] == "still here"


def test_fragmented_and_large_messages_are_taken(ws: ClientConnection, topic: str) -> None:
    text = json.dumps({"op": "publish", "topic": topic, "records": [{"data": "x" * 1_000_000}] * 20})
    ws.send(text[at : at + 65_536] for at in range(0, len(text), 65_536))
    assert hear(ws, "ack")["count"] == 20


def test_a_large_backlog_arrives_whole_through_a_socket(server: LiveServer, ws: ClientConnection, topic: str) -> None:
    client = Client(server.port, http2=False)
    client.write(topic, *["x" * 10_000] * 1_000, status=201)
    say(ws, "subscribe", topic=topic, max_batch_bytes=8 << 20)
    seen = 0
    while seen < 1_000:
        seen += len(hear(ws, "record")["records"])
    assert hear(ws)["op"] == "caught_up"
    client.close()


# --- opening ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        "",
        "Upgrade: websocket\r\n",
        "Connection: Upgrade\r\nUpgrade: websocket\r\n",
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 12\r\nSec-WebSocket-Key: {key}\r\n",
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: short\r\n",
    ],
)
def test_no_proper_handshake_is_400(server: LiveServer, headers: str) -> None:
    with RawClient(server.port) as raw:
        answer = raw.request("GET", "/v0/ws", headers=headers.replace("{key}", "dGhlIHNhbXBsZSBub25jZQ=="))
        assert answer.status == 400
        assert json.loads(answer.body)["error"]["code"] == "invalid_request"


def test_over_http2_it_is_400(server: LiveServer) -> None:
    client = Client(server.port, http2=True)
    client.refused(client.raw("GET", "/v0/ws"), 400, "invalid_request")
    client.close()


def test_with_keys_a_bearer_is_needed_and_rights_hold_per_command(tmp_path: Path) -> None:
    keys = "all,reader:read:pub,nothing:read:none"
    with LiveServer(tmp_path, api_keys=keys, max_sse_connections_per_key=2) as live:
        for options in ({}, {"additional_headers": {"Authorization": "Bearer wrong"}}):
            with pytest.raises(InvalidStatus) as refused, open_socket(live, **options):
                pass
            assert refused.value.response.status_code == 401
        with pytest.raises(InvalidStatus) as refused, connect(f"ws://127.0.0.1:{live.port}/v0/ws?token=all"):
            pass
        assert refused.value.response.status_code == 401
        admin = {"additional_headers": {"Authorization": "Bearer all"}}
        reader = {"additional_headers": {"Authorization": "Bearer reader"}}
        with open_socket(live, **admin) as full, open_socket(live, **reader) as half:
            say(full, "publish", topic="pub", records=[{"data": 1}])
            say(full, "publish", topic="priv", records=[{"data": 1}])
            hear(full), hear(full)
            say(half, "subscribe", topic="pub")
            assert hear(half)["op"] == "subscribed"
            say(half, "subscribe", topic="priv")
            assert hear(half, "error")["code"] == "forbidden"
            say(half, "publish", topic="pub", records=[{"data": 1}])
            assert hear(half, "error")["code"] == "forbidden"
            with open_socket(live, **admin):
                with pytest.raises(InvalidStatus) as refused, open_socket(live, **admin):
                    pass
                assert refused.value.response.status_code == 429
                assert refused.value.response.headers["retry-after"] == "1"
            wait_for(lambda: streams_open(live) == 2)


# --- ends -------------------------------------------------------------------------------------------------------------


def test_a_closed_socket_frees_its_place_and_its_subscriptions(server: LiveServer, topic: str) -> None:
    before = streams_open(server)
    with open_socket(server) as ws:
        say(ws, "publish", topic=topic, records=[{"data": 1}])
        say(ws, "subscribe", topic=topic)
        hear(ws, "caught_up")
        assert streams_open(server) == before + 1
    wait_for(lambda: streams_open(server) == before)
    wait_for(lambda: server.on_loop(lambda: not server.app.live.delivery._watched))  # type: ignore[union-attr]


def test_shutdown_says_so_and_closes_with_1001(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live:
        ws = open_socket(live, legacy=True)
        say(ws, "ping")
        hear(ws)
    error = hear(ws)
    assert error.keys() == {"op", "code", "message"}
    assert error["code"] == "server_shutting_down"
    with pytest.raises(ConnectionClosed):
        ws.recv(timeout=TIMEOUT_S)
    assert ws.close_code == 1001
    ws.close()


# --- bad peers --------------------------------------------------------------------------------------------------------


def handshake(server: LiveServer) -> RawClient:
    raw = RawClient(server.port)
    raw.send(
        b"GET /v0/ws HTTP/1.1\r\nHost: localhost\r\n"
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert raw.head().status == 101
    return raw


def masked(opcode: int, payload: bytes, *, final: bool = True) -> bytes:
    size = len(payload)
    head = bytes([opcode | (0x80 if final else 0)])
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 1 << 16:
        head += struct.pack("!BH", 0x80 | 126, size)
    else:
        head += struct.pack("!BQ", 0x80 | 127, size)
    return head + b"\0\0\0\0" + payload


@pytest.mark.parametrize(
    "frame",
    [
        b"\x81\x05hello",  # not masked
        masked(0x3, b"x"),  # an opcode nobody knows
        masked(0x1, b"\xff\xfe"),  # text that is no UTF-8
        masked(0x9, b"x" * 200),  # a ping that is too long
        masked(0x0, b"x"),  # a continuation of nothing
        b"\xf1\x80\0\0\0\0",  # reserved bits
        b"\x81\xff" + struct.pack("!Q", 1 << 62) + b"\0\0\0\0",  # a length that never comes
    ],
)
def test_a_peer_that_breaks_the_protocol_is_closed_and_others_go_on(
    server: LiveServer, ws: ClientConnection, frame: bytes
) -> None:
    before = streams_open(server)
    raw = handshake(server)
    raw.send(frame)
    if frame.startswith(b"\x81\xff"):
        raw.close()
    else:
        assert raw.rest()[:1] in (b"\x88", b"")
        raw.close()
    wait_for(lambda: streams_open(server) == before)
    say(ws, "ping")
    assert hear(ws)["op"] == "pong"


def test_a_message_over_64_mib_is_refused_with_its_close_code(server: LiveServer) -> None:
    raw = handshake(server)
    chunk = masked(0x0, b"x" * (1 << 20), final=False)
    sent = raw.socket
    sent.settimeout(30)
    try:
        sent.sendall(masked(0x1, b"x", final=False))
        for _ in range(70):
            sent.sendall(chunk)
    except OSError:
        pass
    try:
        closing = raw.rest()
    except OSError:
        closing = b""
    assert closing == b"" or (closing[0] == 0x88 and struct.unpack("!H", closing[2:4])[0] == 1009)
    raw.close()


def test_a_client_that_reads_nothing_is_slowed_down_by_its_own_socket(server: LiveServer, topic: str) -> None:
    """Thousands of commands whose replies nobody takes: the server stops reading them, and serves everybody else."""
    raw = handshake(server)
    raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.socket.settimeout(1.0)
    command = masked(0x1, json.dumps({"op": "ping", "request_id": "x" * 5_000}).encode())
    sent = 0
    try:
        while sent < 200 << 20:
            raw.socket.sendall(command * 50)
            sent += len(command) * 50
    except TimeoutError:
        pass
    assert sent < 200 << 20, "the server read everything"
    with open_socket(server) as ws:
        say(ws, "publish", topic=topic, records=[{"data": 1}])
        assert hear(ws)["op"] == "ack"
    raw.close()


def test_hundreds_of_sessions_never_opened_leave_others_unaffected(server: LiveServer, topic: str) -> None:
    client = Client(server.port, http2=True)
    client.put(topic)
    for _ in range(300):
        client.ok("POST", "/v0/watch", {"topics": {topic: {}}})
    assert server.on_loop(lambda: len(server.app.live.sessions)) >= 300  # type: ignore[union-attr]
    client.write(topic, 1)
    server.clock.ahead_ms += 300_000
    client.ok("POST", "/v0/watch", {"topics": {topic: {}}})
    assert server.on_loop(lambda: len(server.app.live.sessions)) == 1  # type: ignore[union-attr]
    client.close()
