"""SSE frames, content codings, rendering, the bucket: one function each, a few facts each."""

from __future__ import annotations

import gzip
import zlib

import pytest

from topics.errors import NotReady, PayloadTooLarge, Throttled
from topics.net.h1_renderer import H1Renderer, chunk, connection_field
from topics.net.h2_session import Bucket
from topics.net.messages import Response, error_response
from topics.server.connections.content import BrokenCoding, admits_gzip, deflate, inflate, inflate_small
from topics.wire.outgoing import sse

# --- SSE --------------------------------------------------------------------------------------------------------------


def test_a_frame_has_its_fields_in_order_and_ends_in_a_blank_line() -> None:
    assert sse.frame(b"abc", b"record", b'{"a":1}') == b'id: abc\nevent: record\ndata: {"a":1}\n\n'
    assert sse.frame(None, b"error", b"{}") == b"event: error\ndata: {}\n\n"


def test_a_line_break_in_a_payload_is_one_space_each() -> None:
    assert sse.frame(None, b"record", b'{"a":\r\n1,\n\r2}') == b'event: record\ndata: {"a":  1,  2}\n\n'


def test_fixed_frames() -> None:
    assert sse.HEARTBEAT == b": hb\n\n"
    assert sse.RETRY == b"retry: 2000\n\n"


# --- gzip -------------------------------------------------------------------------------------------------------------


def test_a_gzip_body_is_decoded() -> None:
    assert inflate(gzip.compress(b"hello"), 5) == b"hello"
    assert inflate(gzip.compress(b"he") + gzip.compress(b"llo"), 5) == b"hello"
    assert inflate(gzip.compress(b""), 0) == b""


def test_decoding_stops_at_the_limit() -> None:
    with pytest.raises(PayloadTooLarge):
        inflate(gzip.compress(b"hello!"), 5)
    with pytest.raises(PayloadTooLarge):
        inflate(gzip.compress(b"hel") + gzip.compress(b"lo!"), 5)


def test_a_bomb_costs_no_more_than_the_limit() -> None:
    bomb = gzip.compress(bytes(30_000_000), compresslevel=1)
    with pytest.raises(PayloadTooLarge):
        inflate(bomb, 1_000_000)


@pytest.mark.parametrize(
    "body",
    [
        b"not gzip",
        b"\x1f",
        b"\x1f\x8b",
        gzip.compress(b"hello")[:-1],
        gzip.compress(b"hello")[:-8],
        gzip.compress(b"hello") + b"x",
        gzip.compress(b"hello")[:-8] + b"\0" * 8,
        zlib.compress(b"hello"),
        gzip.compress(b"") * 17,
    ],
    ids=range(9),
)
def test_a_broken_body_is_told_from_a_large_one(body: bytes) -> None:
    with pytest.raises(BrokenCoding):
        inflate(body, 1000)


def test_only_small_work_is_done_in_place() -> None:
    assert inflate_small(gzip.compress(b"x" * 1000), 10_000_000) == b"x" * 1000
    assert inflate_small(gzip.compress(b"x" * 1_000_000), 10_000_000) is None
    with pytest.raises(PayloadTooLarge):
        inflate_small(gzip.compress(b"x" * 2000), 1000)


def test_what_we_compress_others_can_read() -> None:
    body = b'{"a":1}' * 1000
    packed = deflate(body)
    assert len(packed) < len(body) // 10
    assert gzip.decompress(packed) == body
    assert deflate(body) == packed


@pytest.mark.parametrize(
    ("header", "admitted"),
    [
        (None, False),
        (b"", False),
        (b"gzip", True),
        (b"GZIP", True),
        (b"deflate, gzip;q=0.5", True),
        (b"gzip;q=0", False),
        (b"gzip;q=0.000", False),
        (b"gzip ; q=1", True),
        (b"*", True),
        (b"*;q=0", False),
        (b"gzip;q=0, *", False),
        (b"br", False),
        (b"identity", False),
        (b"xgzip", False),
        (b"gzip;;;", False),
    ],
)
def test_accept_encoding(header: bytes | None, admitted: bool) -> None:
    assert admits_gzip(header) is admitted


# --- rendering --------------------------------------------------------------------------------------------------------


def test_an_answer_is_rendered_with_its_length() -> None:
    renderer = H1Renderer()
    renderer.set_date(b"Sat, 15 Nov 2025 21:00:00 GMT")
    assert renderer.response(Response(200, b"{}")) == (
        b"HTTP/1.1 200 OK\r\nDate: Sat, 15 Nov 2025 21:00:00 GMT\r\nContent-Type: application/json\r\n"
        b"Content-Length: 2\r\n\r\n{}"
    )


def test_a_new_date_is_used_at_once() -> None:
    renderer = H1Renderer()
    renderer.set_date(b"one")
    assert b"Date: one\r\n" in renderer.response(Response(200, b""))
    renderer.set_date(b"two")
    assert b"Date: two\r\n" in renderer.response(Response(200, b""))


def test_an_answer_to_head_has_the_length_and_no_body() -> None:
    assert H1Renderer().response(Response(200, b"hello"), with_body=False).endswith(b"Content-Length: 5\r\n\r\n")


@pytest.mark.parametrize("value", [b"a\r\nX: y", b"a\nb", b"a\rb"])
def test_a_header_value_cannot_add_lines(value: bytes) -> None:
    with pytest.raises(ValueError, match="line break"):
        H1Renderer().response(Response(200, b"", headers=((b"X", value),)))


def test_every_status_of_the_contract_has_its_phrase() -> None:
    for status in (200, 201, 400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 429, 500, 503):
        line = H1Renderer().response(Response(status, b"")).split(b"\r\n")[0]
        assert line.startswith(b"HTTP/1.1 %d " % status)
        assert b"Unknown" not in line


def test_a_connection_field_is_sent_only_where_it_says_something() -> None:
    assert connection_field(keep_alive=True, version="1.1") == b""
    assert connection_field(keep_alive=False, version="1.1") == b"Connection: close\r\n"
    assert connection_field(keep_alive=True, version="1.0") == b"Connection: keep-alive\r\n"


def test_a_chunk() -> None:
    assert chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"


def test_an_envelope_has_a_detail_only_if_the_error_has_one() -> None:
    response = error_response(PayloadTooLarge(10))
    assert (
        response.body == b'{"error":{"code":"payload_too_large","message":"a request body may hold at most 10 bytes"}}'
    )
    assert response.headers == ()
    assert b'"detail":{"replay_progress":0.5}' in error_response(NotReady(0.5)).body


@pytest.mark.parametrize("error", [Throttled(), NotReady(0.0)])
def test_429_and_503_say_when_to_come_back(error: Throttled | NotReady) -> None:
    assert error_response(error).headers == ((b"Retry-After", b"1"),)


# --- bucket -----------------------------------------------------------------------------------------------------------


def test_a_bucket_allows_its_burst_and_then_its_rate() -> None:
    bucket = Bucket(per_s=10, burst=5, now_s=100.0)
    assert bucket.take(5, 100.0)
    assert not bucket.take(1, 100.0)
    assert bucket.take(4, 100.5)
    assert bucket.take(5, 1000.0)
    assert not bucket.take(1, 1000.0)
