"""The exchange layer: whole answers or none, however the bytes arrive."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.client.following import Frame, SseReader
from topics.client.transport.http_messages import ClientCall, ResponseReader, plain_answer, render_request, result_of
from topics.client.transport.retry import Attempts, RetryPolicy, may_repeat
from topics.errors import NotReady, Throttled, TopicNotFound, TopicsError, Unreachable

PLAIN = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{"a":[1,2]}'
CHUNKED = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"a":\r\n6\r\n[1,2]}\r\n0\r\n\r\n'
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN


@given(
    response=st.sampled_from([PLAIN, CHUNKED, INTERIM]),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
def test_an_answer_is_the_same_however_it_is_cut(response: bytes, cuts: list[int]) -> None:
    reader = ResponseReader()
    places = sorted({0, len(response), *(cut for cut in cuts if cut < len(response))})
    for start, end in pairwise(places):
        assert not reader.is_complete
        reader.feed(response[start:end])
    assert reader.is_complete
    answer = reader.answer()
    assert (answer.status, answer.body, reader.keeps_alive) == (200, b'{"a":[1,2]}', True)


def test_a_connection_carries_several_answers() -> None:
    reader = ResponseReader()
    for _ in range(3):
        reader.feed(PLAIN)
        assert reader.answer().body == b'{"a":[1,2]}'
        assert reader.keeps_alive


def test_more_than_one_answer_to_one_call_ends_the_connection() -> None:
    reader = ResponseReader()
    reader.feed(PLAIN + b"HTTP/1.1 500 X\r\nContent-Length: 2\r\n\r\nno")
    answer = reader.answer()
    assert (answer.status, answer.body) == (200, b'{"a":[1,2]}')
    assert not reader.keeps_alive


def test_close_is_respected() -> None:
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
    reader.answer()
    assert not reader.keeps_alive


def test_what_is_not_http_is_no_answer() -> None:
    with pytest.raises(Unreachable):
        ResponseReader().feed(b"SSH-2.0-OpenSSH_9.2\r\n")


def test_a_request_has_its_length_and_the_fixed_lines() -> None:
    call: ClientCall[Any] = ClientCall(b"POST", "/v0/topics/a", bytes, body=b"{}")
    assert render_request(call, b"Host: h\r\n", base="/x") == (
        b"POST /x/v0/topics/a HTTP/1.1\r\nHost: h\r\nAccept: application/json\r\n"
        b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    )


def answered(status: int, body: bytes, extra: bytes = b"") -> Any:
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 %d X\r\n%bContent-Length: %d\r\n\r\n%b" % (status, extra, len(body), body))
    return result_of(ClientCall(b"GET", "/", bytes), reader.answer())


def test_an_envelope_is_raised_as_the_servers_error() -> None:
    with pytest.raises(TopicNotFound) as caught:
        answered(404, b'{"error":{"code":"topic_not_found","message":"none","detail":{"topic":"a"}}}')
    assert caught.value.detail == {"topic": "a"}


def test_an_answer_of_some_other_server_is_told_as_such() -> None:
    with pytest.raises(TopicsError, match="does not speak like a topics server") as caught:
        answered(502, b"<html>bad gateway</html>")
    assert (caught.value.code, caught.value.status) == ("foreign_answer", 502)


def test_retry_after_is_what_the_server_says() -> None:
    with pytest.raises(Throttled) as caught:
        answered(429, b'{"error":{"code":"throttled","message":"slow"}}', b"Retry-After: 7\r\n")
    assert caught.value.retry_after_s == 7


# --- server-sent events ----------------------------------------------------------------------------------------------

STREAM = b'retry: 2000\n\n: hb\n\nid: abc\nevent: record\ndata: {"a": 1}\n\nevent: error\ndata: {}\n\n: hb\n\n'


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=10))
def test_frames_are_the_same_however_the_stream_is_cut(cuts: list[int]) -> None:
    reader, frames = SseReader(), []
    for start, end in pairwise(sorted({0, len(STREAM), *cuts})):
        frames += reader.feed(STREAM[start:end])
    assert frames == [Frame(b"record", b'{"a": 1}', b"abc"), Frame(b"error", b"{}")]


def test_half_a_frame_is_no_frame() -> None:
    assert SseReader().feed(b"id: abc\nevent: record\ndata: {}\n") == []


# --- retries ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "repeatable", "expected"),
    [
        (Unreachable("x", sent=False), False, True),
        (Unreachable("x", sent=True), False, False),
        (Unreachable("x", sent=True), True, True),
        (NotReady(0.5), False, True),
        (Throttled.shed(10), False, True),
        (Throttled.cap("max_inflight_per_key", max=1), False, True),
        (Throttled.cap("max_topics", max=1), True, False),
        (TopicNotFound("a"), True, False),
        (TopicsError("500"), True, False),
    ],
)
def test_only_what_is_safe_and_helps_is_repeated(error: TopicsError, repeatable: bool, expected: bool) -> None:
    assert may_repeat(error, repeatable=repeatable) is expected


def test_pauses_double_up_to_a_longest_and_end_at_the_deadline() -> None:
    attempts = Attempts(RetryPolicy(total_s=10, first_s=1, longest_s=4), now=100.0)
    error, pauses, now = Unreachable("x", sent=False), [], 100.0
    while (pause := attempts.pause_s(error, repeatable=True, now=now, chance=lambda: 1.0)) is not None:
        pauses.append(pause)
        now += pause
    assert pauses == [1, 2, 4]


def test_a_pause_is_at_least_what_the_server_asked_for() -> None:
    attempts = Attempts(RetryPolicy(first_s=0.01), now=0.0)
    assert attempts.pause_s(NotReady(0.1), repeatable=True, now=0.0, chance=lambda: 0.0) == 1


@pytest.mark.parametrize(("total_s", "told"), [(30, ", for 30 s at most"), (float("inf"), ""), (2, None)])
def test_a_call_that_waits_for_a_server_says_so_once(
    total_s: float, told: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    attempts, away = Attempts(RetryPolicy(total_s=total_s), now=100.0), Unreachable("nobody there", sent=False)
    for now in (100.0, 100.9, 101.0, 101.5, 110.0):
        attempts.tell(away, now=now)
    said = [record.getMessage() for record in caplog.records]
    assert said == ([] if told is None else [f"nobody there; trying again until it answers{told}"])


USUAL = (
    b"HTTP/1.1 200 OK\r\nDate: Wed, 18 Nov 2026 08:01:05 GMT\r\n"
    b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
)


def test_an_answer_with_the_usual_head_is_taken_without_parsing() -> None:
    reader = ResponseReader()
    reader.feed(USUAL)
    parsed, taken = reader.answer(), plain_answer(USUAL)
    assert taken is not None
    assert (taken.status, taken.body) == (parsed.status, parsed.body) == (200, b"{}")


@pytest.mark.parametrize(
    "data",
    [
        USUAL[:-1],
        USUAL[:60],
        USUAL + b"H",
        USUAL.replace(b"200 OK", b"503 Service Unavailable"),
        USUAL.replace(b"Content-Type", b"Connection: close\r\nContent-Type"),
        USUAL.replace(b"Content-Type", b"Content-Encoding: gzip\r\nContent-Type"),
        b"",
    ],
)
def test_any_other_answer_is_parsed(data: bytes) -> None:
    assert plain_answer(data) is None
