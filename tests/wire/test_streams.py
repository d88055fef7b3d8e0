"""SSE payloads and ids, WebSocket commands and frames."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import BatchTooLarge, InvalidRequest, TopicFull
from topics.model.position import Position
from topics.model.results import Appended, Tombstone, WatchStart
from topics.wire.incoming.requests import TopicStart
from topics.wire.outgoing import sse
from topics.wire.outgoing import ws_messages as ws
from topics.wire.outgoing.live_json import caught_up_json, deleted_json, record_json, tombstone_json
from topics.wire.page_tokens import decode_base64url, encode_base64url

GAP = Tombstone(1, 7, "cap", 7, 8, 12)
PERFORMANCE = b'{"server_total_ms":0.2}'
SEVEN = msgspec.Raw(b"7")


# --- SSE -------------------------------------------------------------------------------------------------------------


def test_record_event() -> None:
    record = b'{"$seq":8,"$ts":1755000000123,"data":{"n":8}}'
    assert record_json("invoices", record, from_seq=7, to_seq=8, head_seq=12, epoch=255) == (
        b'{"topic":"invoices","from_seq":7,"head_seq":12,"records":[{"$seq":8,"$ts":1755000000123,"data":{"n":8}}],'
        b'"to_seq":8,"next":"8-eff"}'
    )


def test_other_events() -> None:
    assert caught_up_json("t", head_seq=12, epoch=1) == b'{"topic":"t","head_seq":12,"next":"12-e1"}'
    assert deleted_json("t") == b'{"topic":"t","head_seq":0,"reason":"deleted"}'
    assert msgspec.json.decode(sse.shutdown_data())["code"] == "server_shutting_down"
    assert sse.work_error_data("t", code=409, error="gone") == b'{"code":409,"error":"gone","topic":"t"}'
    assert sse.job_data("mailer", b'{"$seq":3}') == b'{"topic":"mailer","$seq":3}'


@pytest.mark.parametrize(
    ("reason", "first", "later"),
    [
        ("cap", "from_seq_too_old", "cap"),
        ("ttl", "from_seq_too_old", "ttl"),
        ("mixed", "from_seq_too_old", "mixed"),
        ("source_trim", "source_trim", "source_trim"),
        ("recreated", "recreated", "recreated"),
        ("restart", "restart", "restart"),
    ],
)
def test_tombstones_are_labelled_by_the_first_read(reason: str, first: str, later: str) -> None:
    gap = msgspec.structs.replace(GAP, reason=reason)
    keys = ["topic", "reason", "gap_from", "gap_to", "earliest_seq", "head_seq", "next"]
    for is_first_read, label in ((True, first), (False, later)):
        shown = msgspec.json.decode(sse.tombstone_data("t", gap, is_first_read=is_first_read, at=7, epoch=1))
        assert (list(shown), shown["reason"]) == (keys, label)
    assert msgspec.json.decode(tombstone_json("t", gap, gap.reason, at=7, epoch=1, op=ws.TOMBSTONE))["reason"] == reason


def test_ids_are_compact_unpadded_base64url() -> None:
    assert sse.encode_id({"invoices": 8}) == b"eyJpbnZvaWNlcyI6OH0"
    assert sse.encode_id({"audit": 9, "invoices": 12}) == encode_base64url(b'{"audit":9,"invoices":12}')
    both = {"audit": Position(9, 5), "invoices": Position(12, 6)}
    assert sse.encode_id(both) == encode_base64url(b'{"audit":"9-e5","audit":9,"invoices":"12-e6","invoices":12}')


NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,7}", fullmatch=True)
NUMBERS = st.integers(0, 2**64 - 1)


@given(st.dictionaries(NAMES, st.builds(Position, NUMBERS, st.none() | NUMBERS), max_size=4))
def test_ids_come_back(positions: dict[str, Position]) -> None:
    assert sse.decode_id(sse.encode_id(positions)) == positions
    assert sse.decode_id(b" " + sse.encode_id(positions) + b" ") == positions or not positions


def test_an_id_is_a_map_of_cursors_to_every_json_reader() -> None:
    both = {"audit": Position(9, 5), "invoices": Position(12, 6)}
    raw = decode_base64url(sse.encode_id(both))
    assert raw is not None
    assert json.loads(raw) == msgspec.json.decode(raw) == {"audit": 9, "invoices": 12}


def test_an_id_without_epochs_is_one_too() -> None:
    assert sse.decode_id(encode_base64url(b'{"audit":9}')) == {"audit": Position(9)}


NO_IDS = [
    None, b"", b" ", b"!", b"12", b"\xff", b"AAAAA", encode_base64url(b"[]"), encode_base64url(b"{"),
    encode_base64url(b"1"),
    encode_base64url(b'{"a":-1}'), encode_base64url(b'{"a":1.0}'), encode_base64url(b'{"a":true}'),
    encode_base64url(b'{"a":"1"}'), encode_base64url(b'{"a":18446744073709551616}'), encode_base64url(b'{"\xff":1}'),
    encode_base64url(b'{"a":1,"b":null}'), encode_base64url(b"[" * 5000),
]  # fmt: skip


@pytest.mark.parametrize("header", NO_IDS)
def test_what_is_no_id_is_ignored(header: bytes | None) -> None:
    assert sse.decode_id(header) is None


# --- WebSocket commands ----------------------------------------------------------------------------------------------


def test_subscribe_defaults() -> None:
    command = ws.decode_command(b'{"op":"subscribe","topic":"t"}')
    assert isinstance(command, ws.Subscribe)
    assert (command.limit, command.max_batch_bytes, command.lenient) == (1000, 1048576, False)
    assert (command.include_data, command.include_tags, command.include_meta) == (True, False, True)
    assert command.starts() == {"t": TopicStart()}
    assert bytes(command.request_id) == b"null"


def test_subscribe_clamps() -> None:
    for sent, effective in ((0, 256), (1, 1), (1001, 1000)):
        command = ws.decode_command(b'{"op":"subscribe","limit":%d}' % sent)
        assert isinstance(command, ws.Subscribe)
        assert command.limit == effective
    for sent, effective in ((0, 1048576), (2**64 - 1, 8388608)):
        command = ws.decode_command(b'{"op":"subscribe","max_batch_bytes":%d}' % sent)
        assert isinstance(command, ws.Subscribe)
        assert command.max_batch_bytes == effective


def test_a_topic_named_twice_uses_its_own_entry() -> None:
    command = ws.decode_command(
        b'{"op":"subscribe","topic":"a","from_seq":3,"tail":true,"topics":{"a":{"from_seq":7},"b":{"tail":true}}}'
    )
    assert isinstance(command, ws.Subscribe)
    assert command.starts() == {"a": TopicStart(7), "b": TopicStart(0, True)}
    alone = ws.decode_command(b'{"op":"subscribe","topic":"a","from_seq":3,"tail":true}')
    assert isinstance(alone, ws.Subscribe)
    assert alone.starts() == {"a": TopicStart(3, True)}


@pytest.mark.parametrize("body", [b'{"op":"subscribe"}', b'{"op":"subscribe","topic":null,"topics":{}}'])
def test_a_subscription_without_a_topic_decodes_but_is_invalid(body: bytes) -> None:
    command = ws.decode_command(body)
    assert isinstance(command, ws.Subscribe)
    with pytest.raises(InvalidRequest):
        command.starts()


def test_a_subscription_has_no_limit_of_256_topics() -> None:
    body = b'{"op":"subscribe","topics":{%b}}' % b",".join(b'"t%d":{}' % at for at in range(300))
    command = ws.decode_command(body)
    assert isinstance(command, ws.Subscribe)
    assert len(command.starts()) == 300


def test_unsubscribe() -> None:
    command = ws.decode_command(b'{"op":"unsubscribe","topic":"a","topics":["b","a"]}')
    assert isinstance(command, ws.Unsubscribe)
    assert command.names() == ["a", "b"]
    nothing = ws.decode_command(b'{"op":"unsubscribe"}')
    assert isinstance(nothing, ws.Unsubscribe)
    with pytest.raises(InvalidRequest):
        nothing.names()


def test_publish() -> None:
    command = ws.decode_command(
        b'{"records":[{"data": {"a" : 1},"tag":"t"}],"topic":"x","op":"publish","node":"n","idempotency_key":"k"}'
    )
    assert isinstance(command, ws.Publish)
    assert (command.topic, command.return_seqs, command.create) == ("x", True, None)
    batch = command.batch()
    assert (batch.blobs, batch.nodes, batch.tags, batch.key) == ([b'{"d":{"a" : 1}}'], b"n", [b"t"], b"k")
    refused = ws.decode_command(b'{"op":"publish","topic":"x","records":[],"create":false}')
    assert isinstance(refused, ws.Publish)
    assert refused.create is False
    with pytest.raises(InvalidRequest):
        refused.batch()
    many = ws.decode_command(b'{"op":"publish","topic":"x","records":[%b]}' % b",".join([b'{"data":1}'] * 10_001))
    assert isinstance(many, ws.Publish)
    with pytest.raises(BatchTooLarge):
        many.batch()


def test_payloads_of_a_publish_carry_lone_surrogates_and_nothing_else_does() -> None:
    command = ws.decode_command(rb'{"op":"publish","topic":"x","records":[{"data":"\ud800"}]}')
    assert isinstance(command, ws.Publish)
    assert command.batch().blobs == [rb'{"d":"\ud800"}']
    for body in (
        rb'{"op":"ping","request_id":"\ud800"}',
        rb'{"op":"ping","records":[{"data":"\ud800"}]}',
        rb'{"op":"publish","topic":"\ud800","records":[{"data":1}]}',
        rb'{"op":"publish","topic":"x","records":[{"data":"\ud800"}],"request_id":"\ud800"}',
    ):
        with pytest.raises(InvalidRequest):
            ws.decode_command(body)


@pytest.mark.parametrize("request_id", [b"7", b'"a"', b"null", b"[1 , 2]", b'{"x":1.50}', b"true", b'"\xc3\xa9"'])
def test_request_ids_are_echoed_as_they_came(request_id: bytes) -> None:
    command = ws.decode_command(b'{"op":"ping","request_id": %b }' % request_id)
    assert ws.pong_frame(command.request_id) == b'{"op":"pong","request_id":%b}' % request_id


BAD_COMMANDS = [
    b"", b"x", b"null", b"[]", b"{}", b'{"op":null}', b'{"op":1}', b'{"op":"nope"}', b'{"op":"Ping"}', b'{"topic":"t"}',
    b'{"op":"subscribe","topic":1}', b'{"op":"subscribe","topics":null}', b'{"op":"subscribe","topics":["a"]}',
    b'{"op":"subscribe","topics":{"a":null}}', b'{"op":"subscribe","limit":-1}', b'{"op":"subscribe","limit":1.0}',
    b'{"op":"subscribe","from_seq":18446744073709551616}', b'{"op":"subscribe","tail":1}',
    b'{"op":"subscribe","node":1}',
    b'{"op":"unsubscribe","topics":{}}', b'{"op":"unsubscribe","topics":[1]}', b'{"op":"publish"}',
    b'{"op":"publish","topic":"t"}', b'{"op":"publish","records":[]}', b'{"op":"publish","topic":null,"records":[]}',
    b'{"op":"publish","topic":"t","records":[{}]}', b'{"op":"publish","topic":"t","records":[],"return_seqs":null}',
    b'{"op":"ping"} ,', b'{"op":"ping","x":NaN}', b'{"op":"ping","x":"\xff"}',
    b'{"op":"ping","x":' + b"[" * 127 + b"]" * 127 + b"}",
]  # fmt: skip


@pytest.mark.parametrize("body", BAD_COMMANDS)
def test_bad_commands(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        ws.decode_command(body)


# --- WebSocket frames ------------------------------------------------------------------------------------------------


def test_frames() -> None:
    start = {"t": WatchStart(3, 12, 1)}
    assert ws.subscribed_frame(SEVEN, start) == (
        b'{"op":"subscribed","request_id":7,"topics":{"t":{"from_seq":3,"head_seq":12,"earliest_seq":1}}}'
    )
    assert ws.unsubscribed_frame(SEVEN, ['a"b']) == b'{"op":"unsubscribed","request_id":7,"topics":["a\\"b"]}'
    assert record_json("t", b'{"$seq":8}', from_seq=7, to_seq=8, head_seq=12, epoch=1, op=ws.RECORD) == (
        b'{"op":"record","topic":"t","from_seq":7,"head_seq":12,"records":[{"$seq":8}],"to_seq":8,"next":"8-e1"}'
    )
    shown = b'{"op":"caught_up","topic":"t","head_seq":12,"next":"12-e1"}'
    assert caught_up_json("t", head_seq=12, epoch=1, op=ws.CAUGHT_UP) == shown
    assert (
        deleted_json("t", op=ws.TOPIC_DELETED) == b'{"op":"topic_deleted","topic":"t","head_seq":0,"reason":"deleted"}'
    )
    assert tombstone_json("t", GAP, GAP.reason, at=7, epoch=1, op=ws.TOMBSTONE) == (
        b'{"op":"tombstone","topic":"t","reason":"cap","gap_from":1,"gap_to":7,"earliest_seq":8,"head_seq":12,'
        b'"next":"7-e1"}'
    )


def test_ack_frame() -> None:
    result = Appended(3, 2, 4, 1, created=True)
    assert ws.ack_frame(SEVEN, "t", result, return_seqs=True, performance=PERFORMANCE) == (
        b'{"op":"ack","request_id":7,"topic":"t","first_seq":3,"last_seq":4,"seqs":[3,4],"head_seq":4,"count":2,'
        b'"created":true,"deduped":false,"position":"4-e1","performance":{"server_total_ms":0.2}}'
    )
    shown = msgspec.json.decode(ws.ack_frame(SEVEN, "t", result, return_seqs=False, performance=PERFORMANCE))
    assert shown["seqs"] is None


def test_error_frames() -> None:
    assert ws.error_frame(None, "unsupported_message", 'say "text"') == (
        b'{"op":"error","code":"unsupported_message","message":"say \\"text\\""}'
    )
    assert ws.error_frame(ws.NO_REQUEST_ID, ws.INVALID_JSON, "m").startswith(b'{"op":"error","request_id":null,')
    full = TopicFull("t", cap_records=1, cap_bytes=0, head_seq=1, earliest_seq=1)
    shown = msgspec.json.decode(ws.refusal_frame(SEVEN, full))
    assert (shown["request_id"], shown["code"]) == (7, "topic_full")
    assert "detail" not in shown
