"""Streams over HTTP/1.1: flushed at once, bounded by what the client takes, noticed when the client goes."""

from __future__ import annotations

import time
from typing import Any

import pytest

Live = Any
StartServer = Any

OPEN = b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"


def open_stream(live: Live) -> Any:
    client = live.client()
    response = client.send(OPEN).head()
    assert response.status == 200
    assert response.headers["transfer-encoding"] == "chunked"
    assert client.chunk() == b"retry: 2000\n\n"
    return client


def test_a_stream_has_its_headers_and_its_first_frame_at_once(live: Live) -> None:
    with live.client() as client:
        response = client.send(OPEN).head()
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["x-accel-buffering"] == "no"
        assert "content-length" not in response.headers
        assert client.chunk() == b"retry: 2000\n\n"


def test_each_frame_is_sent_at_once(live: Live) -> None:
    with open_stream(live) as client:
        for number in range(20):
            live.call(lambda number=number: live.app.streams[0].send(b"data: %d\n\n" % number))
            assert client.chunk() == b"data: %d\n\n" % number


def test_an_empty_chunk_does_not_end_the_stream(live: Live) -> None:
    with open_stream(live) as client:
        live.call(lambda: (live.app.streams[0].send(b""), live.app.streams[0].send(b"x")))
        assert client.chunk() == b"x"


@pytest.mark.parametrize("way", ["close", "reset", "end_sending"])
def test_a_client_that_goes_is_noticed_at_once(live: Live, way: str) -> None:
    client = open_stream(live)
    started = time.monotonic()
    getattr(client, way)()
    live.until(lambda: live.app.gone == ["stream"])
    assert time.monotonic() - started < 1.0  # the contract says 100 ms; this machine is shared
    live.until(lambda: not live.hub.peers)
    live.call(lambda: live.app.streams[0].send(b"to nobody"))
    assert live.call(lambda: (live.app.streams[0].closed, live.app.streams[0].buffered_bytes())) == (True, 0)


def test_a_stuck_client_that_goes_is_noticed_although_output_waits(live: Live) -> None:
    client = open_stream(live)
    live.call(lambda: live.app.streams[0].send(b"x" * 50_000_000))
    client.end_sending()
    live.until(lambda: live.app.gone == ["stream"])
    client.close()


def test_what_the_client_does_not_take_is_counted_and_its_going_down_is_told(live: Live) -> None:
    with open_stream(live) as client:
        live.call(lambda: live.app.streams[0].send(b"x" * 20_000_000))
        assert live.call(lambda: live.app.streams[0].buffered_bytes()) > 1_000_000
        assert live.call(lambda: live.app.drained) == 0
        assert len(client.chunk()) == 20_000_000
        live.until(lambda: live.app.drained == 1)
        assert live.call(lambda: live.app.streams[0].buffered_bytes()) == 0


def test_the_low_mark_is_the_applications_choice(live: Live) -> None:
    told: list[int] = []
    with open_stream(live) as client:
        stream = live.call(lambda: live.app.streams[0])
        live.call(lambda: [stream.send(b"x" * 100_000) for _ in range(200)])
        waiting = live.call(stream.buffered_bytes)
        live.call(
            lambda: stream.set_drain_callback(lambda: told.append(stream.buffered_bytes()), low_bytes=waiting // 2)
        )
        assert told == []
        for _ in range(150):
            assert len(client.chunk()) == 100_000
        live.until(lambda: len(told) == 1)  # and not only when everything is taken
    assert told[0] <= waiting // 2


def test_a_stream_that_ends_leaves_the_connection_open(live: Live) -> None:
    with open_stream(live) as client:
        live.call(lambda: live.app.streams[0].end())
        assert client.chunk() == b""
        assert client.request("GET", "/echo").status == 200
    assert live.call(lambda: live.app.gone) == ["stream"]


def test_an_aborted_stream_is_cut_and_its_client_sees_that(live: Live) -> None:
    with open_stream(live) as client:
        live.call(lambda: live.app.streams[0].abort())
        with pytest.raises((EOFError, ConnectionResetError)):
            client.chunk()
    assert live.call(lambda: live.app.gone) == ["stream"]


def test_a_request_behind_a_stream_is_answered_after_it(live: Live) -> None:
    with live.client() as client:
        client.send(OPEN + b"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n")
        assert client.head().status == 200
        assert client.chunk() == b"retry: 2000\n\n"
        assert live.call(lambda: len(live.app.handled)) == 1
        live.call(lambda: live.app.streams[0].end())
        assert client.chunk() == b""
        assert client.response().headers["x-path"] == "/echo"


def test_a_stream_behind_a_waiting_request_is_held_back(live: Live) -> None:
    with live.client() as client:
        client.send(b"GET /later/x HTTP/1.1\r\nHost: a\r\n\r\n" + OPEN)
        live.until(lambda: len(live.app.streams) == 1)
        live.call(lambda: live.app.streams[0].send(b"held"))
        assert live.call(lambda: live.app.streams[0].buffered_bytes()) > 0
        live.call(lambda: live.app.do_echo(*live.app.waiting[0]))
        assert client.response().headers["x-path"] == "/later/x"
        assert client.head().status == 200
        assert (client.chunk(), client.chunk()) == (b"retry: 2000\n\n", b"held")


def test_endless_input_behind_a_stream_is_not_kept(live: Live) -> None:
    client = open_stream(live)
    with pytest.raises(OSError):  # noqa: PT012
        for _ in range(100):
            client.send(b"x" * 10_000)
            time.sleep(0.001)
    live.until(lambda: live.app.gone == ["stream"])


def test_head_on_a_stream_is_its_head_and_a_closed_sink(live: Live) -> None:
    with live.client() as client:
        response = client.request("HEAD", "/stream")
        assert (response.status, response.headers["content-type"]) == (200, "text/event-stream")
        assert live.call(lambda: (live.app.streams[0].closed, live.app.gone)) == (True, ["stream"])
        assert client.request("GET", "/echo").status == 200


def test_http_1_0_gets_a_stream_that_ends_with_the_connection(live: Live) -> None:
    with live.client() as client:
        client.send(b"GET /stream HTTP/1.0\r\n\r\n")
        response = client.head()
        assert (response.headers["connection"], response.headers.get("transfer-encoding")) == ("close", None)
        live.until(lambda: len(live.app.streams) == 1)
        live.call(lambda: (live.app.streams[0].send(b"data: 1\n\n"), live.app.streams[0].end()))
        assert client.rest() == b"retry: 2000\n\ndata: 1\n\n"


def test_a_stream_of_known_length_is_not_chunked(live: Live) -> None:
    with live.client() as client:
        response = client.request("GET", "/sized")
        assert (response.headers.get("transfer-encoding"), response.body) == (None, b"0123456789")
        assert client.request("GET", "/echo").status == 200


def test_an_idle_stream_is_not_timed_out(start_server: StartServer) -> None:
    from topics.testing.clock import SimClock

    live = start_server(clock=SimClock())
    with open_stream(live) as client:
        live.pass_time(300)
        live.call(lambda: live.app.streams[0].send(b"still here"))
        assert client.chunk() == b"still here"
