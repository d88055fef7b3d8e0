"""WebSocket commands and frames on the simulated clock (`docs/spec/http-api.md#sec-18`)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.delivery.rig import Rig, WsClient

from topics.engine.ticket import Ticket
from topics.model.position import token
from topics.wire.access.keys import ADMIN, READ, WRITE, Key


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.write("a", 1, 2)
    rig.put("b")
    return rig


def ops(socket: WsClient) -> list[str]:
    return [message["op"] for message in socket.messages()]


def test_a_subscription_is_confirmed_before_its_first_frame(rig: Rig) -> None:
    socket = rig.socket()
    socket.say("subscribe", topic="a", request_id=7)
    rig.pump()
    assert ops(socket) == ["subscribed", "record", "caught_up"]
    assert socket.messages()[0] == {
        "op": "subscribed",
        "request_id": 7,
        "topics": {"a": {"from_seq": 0, "head_seq": 2, "earliest_seq": 1}},
    }
    assert socket.messages()[2] == {
        "op": "caught_up", "topic": "a", "head_seq": 2, "next": token(2, rig.topic("a").epoch),
    }  # fmt: skip


def test_tail_starts_at_the_head_and_is_level_at_once(rig: Rig) -> None:
    socket = rig.socket()
    socket.say("subscribe", topic="a", tail=True)
    rig.pump()
    assert ops(socket) == ["subscribed", "caught_up"]
    rig.write("a", 3)
    assert socket.records("a") == [3]
    assert ops(socket)[-1] == "caught_up"


def test_a_name_given_both_ways_uses_its_entry_in_topics(rig: Rig) -> None:
    socket = rig.socket()
    socket.say("subscribe", topic="a", from_seq=0, topics={"a": {"from_seq": 1}, "b": {}})
    rig.pump()
    assert socket.messages()[0]["topics"] == {
        "a": {"from_seq": 1, "head_seq": 2, "earliest_seq": 1},
        "b": {"from_seq": 0, "head_seq": 0, "earliest_seq": 1},
    }
    assert socket.records("a") == [2]


def test_subscribing_again_replaces_the_subscription(rig: Rig) -> None:
    socket = rig.socket()
    socket.say("subscribe", topic="a")
    socket.say("subscribe", topic="a", from_seq=1)
    rig.pump()
    assert socket.records("a") == [1, 2, 2]
    rig.write("a", 3)
    assert socket.records("a") == [1, 2, 2, 3]


def test_the_ack_of_a_publish_comes_before_its_record(rig: Rig) -> None:
    socket = rig.socket()
    socket.say("subscribe", topic="a", tail=True)
    for number in range(5):
        socket.say("publish", topic="a", records=[{"data": number}], request_id=number)
    rig.pump()
    acked: set[int] = set()
    for message in socket.messages():
        if message["op"] == "ack":
            acked |= set(message["seqs"])
        elif message["op"] == "record":
            assert {record["$seq"] for record in message["records"]} <= acked
    assert socket.records("a") == list(range(5))


def test_an_ack_shows_what_the_write_did(rig: Rig) -> None:
    socket = rig.socket()
    socket.say("publish", topic="new", records=[{"data": 1}], return_seqs=False, idempotency_key="k")
    socket.say("publish", topic="new", records=[{"data": 1}], idempotency_key="k", request_id={"x": [1]})
    rig.pump()
    first, second = socket.messages()
    performance = first.pop("performance")
    assert first == {
        "op": "ack", "request_id": None, "topic": "new", "first_seq": 1, "last_seq": 1, "seqs": None,
        "head_seq": 1, "count": 1, "created": True, "deduped": False, "position": token(1, rig.topic("new").epoch),
    }  # fmt: skip
    assert performance.keys() == {"server_total_ms", "wal_append_ms", "fsync_ms"}
    assert second["deduped"]
    assert second["request_id"] == {"x": [1]}
    assert second["performance"].keys() == {"server_total_ms"}


def test_after_unsubscribed_nothing_of_the_topic_is_sent(rig: Rig) -> None:
    socket = rig.socket()
    socket.say("subscribe", topic="a")
    rig.pump()
    rig.write("a", 3, deliver=False)  # marked, not yet served
    socket.say("unsubscribe", topic="a", topics=["nope", "a"], request_id="u")
    socket.subscription()
    rig.pump()
    rig.write("a", 4)
    assert ops(socket)[-1] == "unsubscribed"
    assert socket.messages()[-1]["topics"] == ["a", "nope"]
    assert socket.records("a") == [1, 2]


def test_a_deleted_topic_ends_its_subscription_and_a_new_one_starts_afresh(rig: Rig) -> None:
    socket = rig.socket()
    socket.say("subscribe", topics={"a": {}, "b": {}})
    rig.pump()
    rig.drop("a")
    assert socket.messages()[-1] == {"op": "topic_deleted", "topic": "a", "head_seq": 0, "reason": "deleted"}
    rig.write("a", "new")
    rig.write("b", "still here")
    assert socket.records("a") == [1, 2]
    assert socket.records("b") == ["still here"]
    socket.say("subscribe", topic="a", from_seq=2)
    rig.pump()
    gap = socket.of("tombstone", "a")[0]
    assert (gap["reason"], gap["gap_from"], gap["gap_to"]) == ("recreated", 1, 1)
    assert socket.records("a") == [1, 2, "new"]


def test_a_tombstone_shows_its_true_reason(rig: Rig) -> None:
    rig.put("c", cap_records=2)
    rig.write("c", *range(5))
    socket = rig.socket()
    socket.say("subscribe", topic="c")
    rig.pump()
    assert ops(socket) == ["subscribed", "tombstone", "record", "caught_up"]
    assert socket.messages()[1] == {
        "op": "tombstone", "topic": "c", "reason": "cap", "gap_from": 1, "gap_to": 3, "earliest_seq": 4, "head_seq": 5,
        "next": token(3, rig.topic("c").epoch),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"op": "subscribe"}, "invalid_request"),
        ({"op": "subscribe", "topics": {}}, "invalid_request"),
        ({"op": "subscribe", "topic": "nope"}, "topic_not_found"),
        ({"op": "unsubscribe"}, "invalid_request"),
        ({"op": "publish", "topic": "a", "records": []}, "invalid_request"),
        ({"op": "publish", "topic": "no such name!", "records": [{"data": 1}]}, "invalid_request"),
        ({"op": "publish", "topic": "nope", "records": [{"data": 1}], "create": False}, "topic_not_found"),
        ({"op": "publish", "topic": "a", "records": [{"data": "x" * 1_048_575}]}, "record_too_large"),
    ],
)
def test_a_refused_command_shows_the_code_of_http_and_the_request_id(
    rig: Rig, command: dict[str, Any], code: str
) -> None:
    socket = rig.socket()
    socket.say(**command, request_id=[1])
    socket.say("ping")
    rig.pump()
    refusal, pong = socket.messages()
    assert refusal.pop("message")
    assert refusal == {"op": "error", "request_id": [1], "code": code}
    assert pong == {"op": "pong", "request_id": None}


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"[]", b"null", b'"x"', b"\xff", b'{"op":1}', b'{"op":"nope"}', b'{"request_id":1}',
        b'{"op":"ping",}', b'{"op":"publish","topic":"a"}', b'{"op":"publish","records":[{"data":1}]}',
        b'{"op":"publish","topic":1,"records":[]}', b'{"op":"subscribe","topic":"a","from_seq":-1}',
        b'{"op":"subscribe","topic":"a","limit":1.5}', b'{"op":"subscribe","topics":["a"]}',
        b'{"op":"subscribe","topics":{"a":null}}', b'{"op":"unsubscribe","topics":"a"}',
        b'{"op":"ping","x":' + b"[" * 200 + b"]" * 200 + b"}",
    ],
)  # fmt: skip
def test_text_that_is_no_command_is_invalid_json_without_a_request_id(rig: Rig, text: bytes) -> None:
    socket = rig.socket()
    socket.say_raw(text)
    socket.say("ping", request_id=1)
    rig.pump()
    error, pong = socket.messages()
    assert (error["op"], error["code"], error["request_id"]) == ("error", "invalid_json", None)
    assert pong["request_id"] == 1


def test_a_binary_message_is_told_apart_and_the_socket_stays_open(rig: Rig) -> None:
    socket = rig.socket()
    socket.say_raw(b"\0\1", is_text=False)
    socket.say("ping")
    rig.pump()
    error, _ = socket.messages()
    assert error.pop("message")
    assert error == {"op": "error", "code": "unsupported_message"}


def test_lenient_drops_unknown_topics(rig: Rig) -> None:
    socket = rig.socket()
    socket.say("subscribe", topics={"a": {}, "nope": {}}, lenient=True)
    socket.say("subscribe", topic="nope", lenient=True)
    rig.pump()
    assert [list(message["topics"]) for message in socket.of("subscribed")] == [["a"], []]


def test_lenient_drops_topics_that_go_while_floors_are_logged(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.put("b")
    logged: Ticket[None] = Ticket()
    monkeypatch.setattr(rig.engine.floor_log, "ensure_shown_logged", lambda _: logged)
    socket = rig.socket()
    socket.say("subscribe", topics={"a": {}, "b": {}}, lenient=True)
    rig.pump()
    rig.drop("b")
    logged.resolve(None)
    rig.pump()
    assert [list(message["topics"]) for message in socket.of("subscribed")] == [["a"]]


# --- rights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scopes", "command", "allowed"),
    [
        (READ, {"op": "subscribe", "topic": "a"}, True),
        (WRITE, {"op": "subscribe", "topic": "a"}, False),
        (READ, {"op": "subscribe", "topic": "b"}, False),
        (READ, {"op": "subscribe", "topics": {"a": {}, "b": {}}}, False),
        (READ, {"op": "subscribe", "topic": "b", "lenient": True}, False),
        (WRITE, {"op": "publish", "topic": "a", "records": [{"data": 1}]}, True),
        (READ, {"op": "publish", "topic": "a", "records": [{"data": 1}]}, False),
        (WRITE, {"op": "publish", "topic": "b", "records": [{"data": 1}]}, False),
        (WRITE, {"op": "publish", "topic": "a", "records": [{"data": 1}], "config": {}}, False),
        (WRITE | ADMIN, {"op": "publish", "topic": "a", "records": [{"data": 1}], "config": {}}, True),
        (0, {"op": "ping"}, True),
        (0, {"op": "unsubscribe", "topic": "ab"}, True),
        (0, {"op": "unsubscribe", "topic": "zzz"}, False),
    ],
)
def test_each_command_needs_its_scope_and_its_names(
    rig: Rig, scopes: int, command: dict[str, Any], allowed: bool
) -> None:
    socket = rig.socket(Key(b"k", scopes, ("a",)))
    socket.say(**command)
    rig.pump()
    refused = socket.of("error")
    assert [message["code"] for message in refused] == ([] if allowed else ["forbidden"])


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_at_most_four_messages_wait_and_meanwhile_no_command_is_read(rig: Rig) -> None:
    socket = rig.socket()
    socket.reads = False
    for number in range(10):
        socket.say("ping", request_id=number)
    rig.pump()
    assert len(socket.sent) == 4
    assert not socket.reading
    socket.take(len(socket.sent[0]))
    rig.advance(50)
    assert len(socket.sent) == 5
    while socket.buffered_bytes():
        socket.take()
        rig.pump()
    assert [message["request_id"] for message in socket.messages()] == list(range(10))


def test_no_command_is_read_either_while_records_take_all_places(rig: Rig) -> None:
    socket = rig.socket()
    socket.say("subscribe", topic="a", tail=True)
    rig.pump()
    socket.reads = False
    before = len(socket.sent)
    for number in range(5):
        rig.write("a", number)
    socket.say("ping")
    rig.pump()
    assert len(socket.sent) == before + 4
    while socket.buffered_bytes():
        socket.take()
        rig.pump()
    assert socket.records("a") == list(range(5))
    assert socket.of("pong")


def test_a_slow_socket_gets_every_record_in_order_and_never_more_than_four_at_a_time(rig: Rig) -> None:
    socket = rig.socket()
    socket.reads = False
    socket.say("subscribe", topic="b", limit=2)
    for number in range(40):
        rig.write("b", number)
        assert len([1 for _ in socket.sent]) - len(socket.messages()) <= 4
        if number % 7 == 0:
            socket.take()
            rig.pump()
    while socket.buffered_bytes():
        socket.take()
        rig.pump()
    assert socket.records("b") == list(range(40))
    assert ops(socket)[-1] == "caught_up"


def test_a_deletion_is_told_once_there_is_a_place(rig: Rig) -> None:
    socket = rig.socket()
    socket.say("subscribe", topics={"a": {}, "b": {}})
    rig.pump()
    socket.reads = False
    for _ in range(4):
        socket.say("ping")
    rig.pump()
    rig.drop("a")
    rig.drop("b")
    assert len(socket.of("topic_deleted")) == 0
    while socket.buffered_bytes():
        socket.take()
        rig.pump()
    assert [message["topic"] for message in socket.of("topic_deleted")] == ["a", "b"]


def test_a_socket_that_goes_while_its_publish_is_written_leaves_nothing_behind(rig: Rig) -> None:
    socket = rig.socket()
    socket.say("subscribe", topic="a")
    rig.pump()
    socket.say("publish", topic="a", records=[{"data": 3}])
    socket.subscription()
    socket.cut()
    rig.pump()
    assert rig.topic("a").head == 3
    assert len(rig.live.streams) == 0
    assert not rig.live.delivery._watched


def test_shutdown_is_announced_and_closes_with_going_away(rig: Rig) -> None:
    socket, stream = rig.socket(), rig.watch({"a": 0})
    rig.live.streams.shut_down()
    assert socket.messages()[-1].keys() == {"op", "code", "message"}
    assert socket.messages()[-1]["code"] == "server_shutting_down"
    assert socket.close_code == 1001
    assert stream.closed
    assert stream.frames()[-1].data["code"] == "server_shutting_down"
    assert len(rig.live.streams) == 0
