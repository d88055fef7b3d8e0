"""Compressed request bodies and responses over a real socket, in the order of refusals of the contract."""

from __future__ import annotations

import gzip
import json
import random
from typing import Any

import pytest

Live = Any
StartServer = Any

GZIP = "Content-Encoding: gzip\r\n"


@pytest.mark.parametrize("size", [1, 1000, 300_000, 3_000_000])
def test_a_gzip_body_reaches_the_application_decoded(live: Live, size: int) -> None:
    body = random.Random(size).randbytes(size)
    with live.client() as client:
        response = client.request("POST", "/echo", body=gzip.compress(body), headers=GZIP)
        assert (response.status, response.body) == (200, body)
        assert client.request("GET", "/echo").status == 200


def test_requests_behind_a_large_compressed_body_keep_their_order(live: Live) -> None:
    packed = gzip.compress(b"x" * 5_000_000)
    with live.client() as client:
        client.send(
            b"POST /echo/1 HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
        )
        client.send(packed + b"GET /echo/2 HTTP/1.1\r\nHost: a\r\n\r\nGET /echo/3 HTTP/1.1\r\nHost: a\r\n\r\n")
        assert [client.response().headers["x-path"] for _ in range(3)] == ["/echo/1", "/echo/2", "/echo/3"]
    assert live.call(lambda: [request.raw_path for request in live.app.handled]) == [b"/echo/1", b"/echo/2", b"/echo/3"]


def test_a_half_closed_client_gets_the_answer_to_a_large_compressed_body(live: Live) -> None:
    packed = gzip.compress(b"x" * 5_000_000)
    with live.client() as client:
        client.send(
            b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
        )
        client.send(packed + b"GET /echo/2 HTTP/1.1\r\nHost: a\r\n\r\n")
        client.end_sending()
        assert len(client.response().body) == 5_000_000
        assert client.response().headers["x-path"] == "/echo/2"
        assert client.ended()
    assert live.call(lambda: live.hub._bodies_bytes) == 0


@pytest.mark.parametrize("decoded_bytes", [1001, 2_000_000])
def test_the_decoded_size_counts(start_server: StartServer, decoded_bytes: int) -> None:
    live = start_server(max_body_bytes=decoded_bytes - 1)
    with live.client() as client:
        response = client.request("POST", "/echo", body=gzip.compress(b"x" * decoded_bytes), headers=GZIP)
        assert response.status == 413
        assert json.loads(response.body)["error"]["code"] == "payload_too_large"
        fits = client.request("POST", "/echo", body=gzip.compress(b"x" * (decoded_bytes - 1)), headers=GZIP)
        assert fits.status == 200
    assert live.call(lambda: (len(live.app.handled), len(live.app.abandoned))) == (1, 1)


@pytest.mark.parametrize("body", [b"junk", gzip.compress(b"hello")[:-1]], ids=["junk", "cut"])
def test_a_broken_body_is_left_to_the_endpoint_to_refuse(live: Live, body: bytes) -> None:
    with live.client() as client:
        response = client.request("POST", "/echo", body=body, headers=GZIP)
        assert (response.status, response.body) == (400, b"broken_coding")


@pytest.mark.parametrize("coding", ["deflate", "br", "gzip, gzip", "identity", "x-gzip"])
def test_another_coding_is_left_to_the_endpoint_to_refuse(live: Live, coding: str) -> None:
    with live.client() as client:
        response = client.request("POST", "/echo", body=b"x", headers=f"Content-Encoding: {coding}\r\n")
        assert response.body == b"unsupported_coding"


def test_an_empty_body_has_no_coding_to_be_wrong(live: Live) -> None:
    with live.client() as client:
        assert client.request("PUT", "/echo", body=b"", headers="Content-Encoding: br\r\n").status == 200
        assert client.request("PUT", "/echo", body=b"", headers=GZIP).status == 200


# --- responses --------------------------------------------------------------------------------------------------------


def test_responses_are_identity_unless_asked_for_by_both_sides(live: Live, start_server: StartServer) -> None:
    with live.client() as client:
        response = client.request("GET", "/large?5000", headers="Accept-Encoding: gzip\r\n")
        assert "content-encoding" not in response.headers
        assert "vary" not in response.headers
    live = start_server(gzip_min_bytes=1000)
    with live.client() as client:
        response = client.request("GET", "/large?5000")
        assert (response.headers.get("content-encoding"), response.headers["vary"]) == (None, "Accept-Encoding")
        assert response.body == b"x" * 5000


@pytest.mark.parametrize("size", [1000, 5000, 1_000_000])
def test_large_json_is_compressed_for_who_wants_it(start_server: StartServer, size: int) -> None:
    live = start_server(gzip_min_bytes=1000)
    with live.client() as client:
        response = client.request("GET", f"/large?{size}", headers="Accept-Encoding: gzip, br\r\n")
        assert (response.headers["content-encoding"], response.headers["vary"]) == ("gzip", "Accept-Encoding")
        assert gzip.decompress(response.body) == b"x" * size
        assert client.request("GET", "/large?999", headers="Accept-Encoding: gzip\r\n").body == b"x" * 999


def test_the_head_of_a_compressed_answer_is_that_of_the_answer(start_server: StartServer) -> None:
    live = start_server(gzip_min_bytes=1000)
    with live.client() as client:
        whole, head = (
            client.request(method, "/large?5000", headers="Accept-Encoding: gzip\r\n") for method in ("GET", "HEAD")
        )
        assert len(whole.body) < 5000
        names = ("content-length", "content-encoding", "vary")
        assert [head.headers[name] for name in names] == [whole.headers[name] for name in names]


def test_pipelined_answers_keep_their_order_while_one_is_compressed_elsewhere(start_server: StartServer) -> None:
    live = start_server(gzip_min_bytes=1000)
    with live.client() as client:
        client.send(b"GET /large?3000000 HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n")
        client.send(b"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n")
        assert client.response().headers["content-encoding"] == "gzip"
        assert client.response().headers["x-path"] == "/echo"


def test_streams_are_never_compressed(start_server: StartServer) -> None:
    live = start_server(gzip_min_bytes=1)
    with live.client() as client:
        client.send(b"GET /stream HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n")
        response = client.head()
        assert "content-encoding" not in response.headers
        assert client.chunk() == b"retry: 2000\n\n"
