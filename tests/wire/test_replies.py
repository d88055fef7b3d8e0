"""Reply bodies, performance blocks, list cursors and error envelopes."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import Internal, TopicNotFound
from topics.errors import InvalidRequest as Refused
from topics.model.config import DEFAULT_CONFIG
from topics.model.results import (
    AckResult,
    Appended,
    DeleteResult,
    DeleteTopicResult,
    ExtendResult,
    PutTopicResult,
    QueueCounters,
    Tombstone,
    TopicPage,
    TopicState,
    TopicSummary,
)
from topics.model.router import RouterPage, RouterState, RouterSummary
from topics.wire.outgoing.replies import (
    ack_performance,
    append_performance,
    append_reply,
    claim_reply,
    diff_performance,
    diff_reply,
    error_body,
    health_reply,
    performance,
    ready_reply,
    seq_list,
    struct_reply,
)
from topics.wire.page_tokens import decode_base64url, decode_cursor, encode_base64url, encode_cursor

PERFORMANCE = b'{"server_total_ms":0.2}'


def test_append_reply() -> None:
    result = Appended(13, 2, 14, 10)
    assert append_reply("invoices", result, return_seqs=True, performance=PERFORMANCE) == (
        b'{"topic":"invoices","first_seq":13,"last_seq":14,"seqs":[13,14],"head_seq":14,"count":2,'
        b'"created":false,"deduped":false,"position":"14-ea","performance":{"server_total_ms":0.2}}'
    )
    shown = msgspec.json.decode(append_reply("invoices", result, return_seqs=False, performance=PERFORMANCE))
    assert "seqs" not in shown
    created = Appended(1, 1, 1, 1, created=True)
    assert b'"seqs":[1],"head_seq":1,"count":1,"created":true,"deduped":false' in append_reply(
        "t", created, return_seqs=True, performance=PERFORMANCE
    )
    deduped = Appended(1, 1, 1, 1, deduped=True)
    assert b'"created":false,"deduped":true' in append_reply("t", deduped, return_seqs=True, performance=PERFORMANCE)


@given(st.integers(1, 2**64 - 20), st.integers(0, 15))
def test_seq_list(first: int, more: int) -> None:
    assert msgspec.json.decode(seq_list(first, first + more)) == list(range(first, first + more + 1))


def test_diff_reply() -> None:
    reply = diff_reply(
        "invoices",
        b'{"$seq":8}',
        next_from_seq=8,
        head_seq=12,
        earliest_seq=8,
        tombstone=None,
        epoch=10,
        performance=PERFORMANCE,
    )
    assert reply == (
        b'{"topic":"invoices","records":[{"$seq":8}],"next_from_seq":8,"head_seq":12,"earliest_seq":8,'
        b'"caught_up":false,"tombstone":null,"lag":4,"next":"8-ea","performance":{"server_total_ms":0.2}}'
    )


def test_diff_reply_at_the_head_with_a_tombstone() -> None:
    reply = diff_reply(
        "t",
        b"",
        next_from_seq=12,
        head_seq=12,
        earliest_seq=13,
        tombstone=Tombstone(1, 12, "ttl", 12, 13, 12),
        epoch=10,
        performance=PERFORMANCE,
    )
    shown = msgspec.json.decode(reply)
    assert (shown["records"], shown["caught_up"], shown["lag"]) == ([], True, 0)
    assert shown["tombstone"] == {
        "gap_from": 1, "gap_to": 12, "reason": "ttl", "missed_estimate": 12, "earliest_seq": 13, "head_seq": 12,
    }  # fmt: skip


def test_claim_reply() -> None:
    assert claim_reply("mailer", [b'{"$seq":3}', b'{"$seq":4}'], ready=5, performance=PERFORMANCE) == (
        b'{"topic":"mailer","claimed":[{"$seq":3},{"$seq":4}],"count":2,"ready":5,"performance":{"server_total_ms":0.2}}'
    )
    assert b'"claimed":[],"count":0' in claim_reply("mailer", [], ready=0, performance=PERFORMANCE)


KEYS: list[tuple[msgspec.Struct, list[str]]] = [
    (PutTopicResult("t", True, DEFAULT_CONFIG), ["topic", "created", "config"]),
    (
        TopicState("t", "log", 0, 1, 1, 0, 0, DEFAULT_CONFIG, 0, None, None),
        ["topic", "type", "head_seq", "earliest_seq", "next_seq", "count", "bytes", "config", "effective_priority",
         "last_write_ts", "last_read_ts"],
    ),
    (
        TopicState("t", "queue", 0, 1, 1, 0, 0, DEFAULT_CONFIG, 0, 1, 2, QueueCounters(4, 1, 0, 2)),
        ["topic", "type", "head_seq", "earliest_seq", "next_seq", "count", "bytes", "config", "effective_priority",
         "last_write_ts", "last_read_ts", "queue"],
    ),
    (DeleteResult("t", 1, 2, 3, 4, 5), ["topic", "deleted", "earliest_seq", "head_seq", "count", "bytes"]),
    (DeleteTopicResult("t", False, []), ["topic", "deleted", "routers_removed"]),
    (TopicPage([]), ["topics"]),
    (TopicPage([TopicSummary("t", 0, 1, 0, 0, False, 0)], "c"), ["topics", "next_cursor"]),
    (RouterPage([RouterSummary("r", "a", "b", "at_least_once", 0)]), ["routers"]),
    (
        RouterState("r", "a", "b", True, True, None, False, "at_least_once", forwarded_total=0),
        ["router", "source", "dest", "preserve_node", "preserve_tag", "filter", "allow_cycle", "guarantee",
         "forwarded_total"],
    ),
    (
        RouterState("r", "a", "b", True, True, ["tag", "Eq", "x"], False, "exactly_once", created=False),
        ["router", "source", "dest", "preserve_node", "preserve_tag", "filter", "allow_cycle", "guarantee", "created"],
    ),
    (AckResult("t", 1, [2], 3, 4), ["topic", "acked", "skipped", "ready", "in_flight"]),
    (ExtendResult("t", 1, [], {3: 9}), ["topic", "extended", "skipped", "deadlines"]),
]  # fmt: skip


@pytest.mark.parametrize(("result", "keys"), KEYS)
def test_struct_replies_have_exactly_the_keys_of_the_contract(result: msgspec.Struct, keys: list[str]) -> None:
    shown = msgspec.json.decode(struct_reply(result, PERFORMANCE))
    assert list(shown) == [*keys, "performance"]
    assert shown["performance"] == {"server_total_ms": 0.2}


def test_deadlines_have_seqs_as_strings() -> None:
    reply = struct_reply(ExtendResult("t", 1, [], {3: 1755000060000}), PERFORMANCE)
    assert b'"deadlines":{"3":1755000060000}' in reply


# --- performance -----------------------------------------------------------------------------------------------------


def test_performance_blocks() -> None:
    assert msgspec.json.decode(performance(0.0)) == {"server_total_ms": 0.0}
    assert msgspec.json.decode(diff_performance(1.5, records_scanned=3)) == {
        "server_total_ms": 1.5,
        "records_scanned": 3,
    }
    assert (
        msgspec.json.decode(diff_performance(1.5, records_scanned=3, cold_segments_read=2))["cold_segments_read"] == 2
    )
    assert msgspec.json.decode(ack_performance(1.5, fsync_ms=0.0)) == {"server_total_ms": 1.5}
    assert msgspec.json.decode(ack_performance(1.5, fsync_ms=0.5)) == {"server_total_ms": 1.5, "fsync_ms": 0.5}


def test_a_write_shows_its_log_times_unless_it_was_found_done_already() -> None:
    fresh, repeated = Appended(1, 1, 1, 1, append_ms=0.1, sync_ms=0.25), Appended(1, 1, 1, 1, deduped=True)
    shown = msgspec.json.decode(append_performance(1, fresh, throttle_wait_ms=3))
    assert shown == {"server_total_ms": 1, "wal_append_ms": 0.1, "fsync_ms": 0.25, "throttle_wait_ms": 3}
    assert msgspec.json.decode(append_performance(1, repeated)) == {"server_total_ms": 1}


# --- errors and probes -----------------------------------------------------------------------------------------------


def test_error_bodies() -> None:
    shown = msgspec.json.decode(error_body(TopicNotFound('no "such\n')))
    assert list(shown) == ["error"]
    assert (shown["error"]["code"], shown["error"]["detail"]) == ("topic_not_found", {"topic": 'no "such\n'})
    assert shown["error"]["message"]
    assert "detail" not in msgspec.json.decode(error_body(Internal()))["error"]


def test_probe_bodies() -> None:
    assert msgspec.json.decode(health_reply("0.1.0", uptime_ms=61250)) == {
        "status": "ok", "version": "0.1.0", "uptime_ms": 61250,
    }  # fmt: skip
    assert ready_reply(topics=3) == b'{"status":"ready","wal_replay_complete":true,"topics":3}'


# --- list cursors ----------------------------------------------------------------------------------------------------


def test_the_cursor_of_the_contract() -> None:
    assert encode_cursor("a") == "eyJhZnRlciI6ImEifQ"
    assert decode_cursor("eyJhZnRlciI6ImEifQ") == "a"


@given(st.text(max_size=20))
def test_cursors_come_back(name: str) -> None:
    assert decode_cursor(encode_cursor(name)) == name


@pytest.mark.parametrize("token", ["", None])
def test_an_empty_cursor_is_none(token: str | None) -> None:
    assert decode_cursor(token) is None


def token(content: bytes) -> str:
    return encode_base64url(content).decode()


@pytest.mark.parametrize(
    "bad",
    ["!", "a b", "eyJhZnRlciI6ImEifQ\n", "eyJhZnRlciI6ImEifQ!", "A", "AAAAA", "é", "=", "eyJhZnRlciI6ImEifQ=", "ey/+",
     token(b"x"), token(b"{"), token(b"\xff"), token(b'{"after":"\xff"}'), token(b"NaN"),
     token(b"[" * 5000)],
)  # fmt: skip
def test_a_broken_cursor_is_refused(bad: str) -> None:
    with pytest.raises(Refused):
        decode_cursor(bad)


@pytest.mark.parametrize(
    "content", [b"{}", b"[]", b"1", b"null", b'{"after":1}', b'{"after":null}', b'"a"', b'{"x":"a"}']
)
def test_json_without_a_name_is_no_cursor(content: bytes) -> None:
    assert decode_cursor(token(content)) is None


def test_correct_padding_is_tolerated() -> None:
    assert decode_cursor("eyJhZnRlciI6ImEifQ==") == "a"


@given(st.binary(max_size=20))
def test_base64url(raw: bytes) -> None:
    encoded = encode_base64url(raw)
    assert b"=" not in encoded
    assert decode_base64url(encoded) == raw
