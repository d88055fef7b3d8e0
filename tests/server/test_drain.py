"""The way out: what a server that is told to stop does with each kind of connection."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, ResponseReceived

Live = Any


def test_idle_connections_close_at_once_and_no_new_ones_are_taken(live: Live) -> None:
    fresh, used = live.client(), live.client()
    assert used.request("GET", "/echo").status == 200
    live.until(lambda: len(live.hub.peers) == 2)
    started = time.monotonic()
    live.ask_to_stop()
    assert fresh.ended()
    assert used.ended()
    live.stop()
    assert time.monotonic() - started < 5
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", live.port), timeout=5)
    assert live.app.was_shut_down


def test_a_running_request_is_answered_and_then_its_connection_closed(live: Live) -> None:
    client = live.client()
    client.send(b"GET /later/x HTTP/1.1\r\nHost: a\r\n\r\n")
    live.until(lambda: len(live.app.waiting) == 1)
    live.ask_to_stop()
    live.until(lambda: live.hub.draining)
    live.call(lambda: live.app.do_echo(*live.app.waiting[0]))
    response = client.response()
    assert (response.status, response.keeps_alive) == (200, False)
    assert client.ended()
    live.stop()


def test_a_body_on_its_way_is_still_taken(live: Live) -> None:
    client = live.client()
    client.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n01234")
    live.until(lambda: len(live.app.heads) == 1)
    live.ask_to_stop()
    live.until(lambda: live.hub.draining)
    client.send(b"56789")
    response = client.response()
    assert (response.status, response.body, response.keeps_alive) == (200, b"0123456789", False)
    assert client.ended()
    live.stop()


def test_streams_get_their_last_words(live: Live) -> None:
    client = live.client()
    client.send(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
    assert client.head().status == 200
    assert client.chunk() == b"retry: 2000\n\n"
    live.ask_to_stop()
    assert client.chunk() == b"event: error\ndata: bye\n\n"
    assert client.chunk() == b""
    assert client.ended()
    live.stop()


def test_sockets_get_their_last_words_and_a_close(live: Live) -> None:
    client = live.client()
    client.send(
        b"GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert client.response().status == 101
    live.until(lambda: len(live.app.sockets) == 1)
    live.ask_to_stop()
    assert client.exactly(9) == b"\x81\x03bye\x88\x02\x03\xe9"
    client.send(b"\x88\x82\0\0\0\0\x03\xe9")
    assert client.ended()
    live.stop()


def test_http_2_finishes_what_runs_and_says_goodbye_then(live: Live) -> None:
    client = live.client()
    h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    h2.initiate_connection()
    h2.send_headers(
        1, [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/later/x")], end_stream=True
    )
    client.send(h2.data_to_send())
    live.until(lambda: len(live.app.waiting) == 1)
    live.ask_to_stop()
    live.until(lambda: live.hub.draining)
    live.call(lambda: live.app.do_echo(*live.app.waiting[0]))
    kinds = [type(event) for event in h2.receive_data(client.rest())]  # the library takes nothing behind a goodbye
    assert ResponseReceived in kinds
    assert kinds[-1] is ConnectionTerminated
    live.stop()


def test_what_does_not_end_in_time_is_cut(start_server: Any) -> None:
    live = start_server(drain_ms=50)
    client = live.client()
    client.send(b"GET /later/x HTTP/1.1\r\nHost: a\r\n\r\n")
    live.until(lambda: len(live.app.waiting) == 1)
    live.ask_to_stop()
    live.wait_for_the_end()
    with pytest.raises((EOFError, ConnectionResetError)):
        client.response()
    assert live.app.gone == ["/later/x"]
