"""`docs/spec/http-api.md#sec-10`, `docs/spec/http-api.md#sec-13`, `docs/spec/http-api.md#sec-14` and
`docs/spec/http-api.md#sec-15`: write, diff, delete, and what they say about loss."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.api.client import JSON_TYPE, Client
from tests.api.server import LiveServer


def seqs(answer: dict[str, Any]) -> list[int]:
    return [record["$seq"] for record in answer["records"]]


# --- write -----------------------------------------------------------------------------------------------------------


def test_first_write_creates_and_the_second_does_not(client: Client, topic: str) -> None:
    first = client.write(topic, "a", "b", status=201)
    assert (first["first_seq"], first["last_seq"], first["seqs"], first["head_seq"]) == (1, 2, [1, 2], 2)
    assert (first["count"], first["created"], first["deduped"]) == (2, True, False)
    second = client.write(topic, "c")
    assert (second["seqs"], second["head_seq"], second["created"]) == ([3], 3, False)
    assert {"server_total_ms", "wal_append_ms", "fsync_ms"} <= set(second["performance"])


def test_fsync_ms_is_positive_only_for_the_fsync_class(client: Client, topic: str) -> None:
    client.put(topic, durability="fsync")
    assert client.write(topic, 1)["performance"]["fsync_ms"] > 0
    for durability in ("disk", "memory", "ephemeral"):
        client.put(f"{topic}.{durability}", durability=durability)
        assert client.write(f"{topic}.{durability}", 1)["performance"]["fsync_ms"] == 0.0


def test_return_seqs_false_omits_the_list(client: Client, topic: str) -> None:
    answer = client.ok("POST", f"/v0/topics/{topic}?return_seqs=false", {"records": [{"data": 1}]}, status=201)
    assert "seqs" not in answer
    assert answer["first_seq"] == 1


def test_payloads_come_back_byte_for_byte(client: Client, topic: str) -> None:
    data = '{"b":1.0, "a":1e400,"a":2 ,"x":"\\u00e9\\ud83d\\ude00 é😀\\/","big":' + "9" * 400 + "}"
    meta = '{ "k" : [1 , 2.50] }'
    body = f'{{"records":[{{"data": {data} ,"meta":  {meta} }}]}}'.encode()
    assert client.raw("POST", f"/v0/topics/{topic}", content=body, headers=JSON_TYPE).status_code == 201
    text = client.raw("POST", f"/v0/topics/{topic}/diff").text
    assert f'"data":{data},"meta":{meta}' in text


def test_bytes_count_the_texts_as_sent(client: Client, topic: str) -> None:
    body = b'{"records":[{"data":[1, 2],"meta":{"k" :1},"tag":"ttt","node":"nnn"}]}'
    client.raw("POST", f"/v0/topics/{topic}", content=body, headers=JSON_TYPE)
    assert client.state(topic)["bytes"] == len("[1, 2]") + len('{"k" :1}')


def test_a_write_may_be_forbidden_to_create(client: Client, topic: str) -> None:
    records = [{"data": 1}]
    for fields in ({"create": False}, {"config": {"auto_create": False}}):
        response = client.send("POST", f"/v0/topics/{topic}", {"records": records, **fields})
        client.refused(response, 404, "topic_not_found", {"topic": topic})
    answer = client.ok(
        "POST",
        f"/v0/topics/{topic}",
        {"records": records, "create": True, "config": {"auto_create": False, "ttl_ms": 77_000}},
        status=201,
    )
    assert answer["created"] is True
    assert client.state(topic)["config"]["ttl_ms"] == 77_000


def test_inline_config_of_an_existing_topic_is_ignored(client: Client, topic: str) -> None:
    client.put(topic)
    client.write(topic, 1, config={"ttl_ms": 1})
    assert client.state(topic)["config"]["ttl_ms"] == 0


@pytest.mark.parametrize(
    ("records", "code"),
    [
        ([], "invalid_request"),
        ([{"data": 1}] * 10_001, "batch_too_large"),
        ([{"data": "x" * (1 << 20)}], "record_too_large"),
        ([{"data": 1, "tag": "t" * 257}], "invalid_request"),
        ([{"data": 1, "node": "n" * 129}], "invalid_request"),
        ([{"data": 1, "meta": {"k": "v" * 16_384}}], "invalid_request"),
        ([{"data": 1, "meta": {str(at): at for at in range(65)}}], "invalid_request"),
        ([{"tag": "t"}], "invalid_request"),
        ([{"data": 1, "tag": 5}], "invalid_request"),
        ([{"data": 1}, {"data": "x" * (1 << 20), "tag": "t" * 257}], "invalid_request"),
    ],
)
def test_bad_records_are_refused_and_nothing_is_created(
    client: Client, topic: str, records: list[dict[str, object]], code: str
) -> None:
    client.refused(client.send("POST", f"/v0/topics/{topic}", {"records": records}), 400, code)
    assert client.send("GET", f"/v0/topics/{topic}").status_code == 404


def test_limits_are_inclusive(client: Client, topic: str) -> None:
    client.write(topic, {"data": "x" * ((1 << 20) - 2)}, status=201)
    client.write(topic, {"data": 1, "tag": "t" * 256, "node": "n" * 128, "meta": {str(at): 0 for at in range(64)}})
    client.ok("POST", f"/v0/topics/{topic}?return_seqs=0", {"records": [{"data": 0}] * 10_000})


# --- idempotency -----------------------------------------------------------------------------------------------------


def test_a_repeated_key_appends_nothing_and_answers_as_before(client: Client, topic: str) -> None:
    client.put(topic)
    first = client.write(topic, 1, 2, idempotency_key="k")
    client.write(topic, 3)
    again = client.write(topic, "other", idempotency_key="k")
    assert (again["seqs"], again["count"], again["head_seq"]) == (first["seqs"], 2, 2)
    assert (again["created"], again["deduped"]) == (False, True)
    assert set(again["performance"]) == {"server_total_ms"}
    assert client.state(topic)["head_seq"] == 3


def test_the_header_key_counts_and_the_body_beats_it(client: Client, topic: str) -> None:
    client.put(topic)
    body = {"records": [{"data": 1}]}
    path = f"/v0/topics/{topic}"
    header: dict[str, Any] = {"idempotency-key": "h"}
    client.ok("POST", path, body, **header)
    assert client.ok("POST", path, body, **header)["deduped"] is True
    assert client.ok("POST", path, {**body, "idempotency_key": "b"}, **header)["deduped"] is False
    assert client.ok("POST", path, {**body, "idempotency_key": ""})["deduped"] is False
    assert client.ok("POST", path, {**body, "idempotency_key": ""})["deduped"] is True


def test_concurrent_writes_with_one_key_append_once(client: Client, topic: str) -> None:
    client.put(topic, durability="fsync")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.write(topic, 1, idempotency_key="k")["seqs"], range(16)))
    assert answers == [[1]] * 16
    assert client.state(topic)["head_seq"] == 1


def test_a_retry_succeeds_on_a_full_topic(client: Client, topic: str) -> None:
    client.put(topic, discard="reject", cap_records=1)
    client.write(topic, 1, idempotency_key="k")
    assert client.write(topic, 1, idempotency_key="k")["deduped"] is True


def test_a_key_is_new_again_after_its_window(server: LiveServer, client: Client, topic: str) -> None:
    client.put(topic, idempotency_window_ms=1000)
    client.write(topic, 1, idempotency_key="k")
    server.clock.ahead_ms += 1_000_000
    assert client.write(topic, 1, idempotency_key="k")["deduped"] is False


def test_a_window_of_zero_switches_keys_off(client: Client, topic: str) -> None:
    client.put(topic, idempotency_window_ms=0)
    client.write(topic, 1, idempotency_key="k")
    assert client.write(topic, 1, idempotency_key="k")["deduped"] is False


def test_a_key_has_at_most_256_bytes(client: Client, topic: str) -> None:
    response = client.send("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}], "idempotency_key": "é" * 129})
    client.refused(response, 400, "invalid_request")


# --- caps ------------------------------------------------------------------------------------------------------------


def test_the_worked_example_of_section_14(client: Client, topic: str) -> None:
    client.put(topic, cap_records=5)
    for at in range(12):
        client.write(topic, at)
    first = client.diff(topic, from_seq=0)
    assert seqs(first) == [8, 9, 10, 11, 12]
    assert (first["next_from_seq"], first["caught_up"], first["lag"]) == (12, True, 0)
    assert first["tombstone"] == {
        "gap_from": 1,
        "gap_to": 7,
        "reason": "cap",
        "missed_estimate": 7,
        "earliest_seq": 8,
        "head_seq": 12,
    }
    second = client.diff(topic, from_seq=7, limit=2)
    assert (seqs(second), second["next_from_seq"], second["caught_up"]) == ([8, 9], 9, False)
    assert (second["tombstone"], second["lag"]) == (None, 3)
    third = client.diff(topic, from_seq=12)
    assert (seqs(third), third["next_from_seq"], third["caught_up"], third["tombstone"]) == ([], 12, True, None)
    fourth = client.diff(topic, from_seq=40)
    assert seqs(fourth) == [8, 9, 10, 11, 12]
    assert (fourth["tombstone"]["reason"], fourth["tombstone"]["gap_from"], fourth["tombstone"]["gap_to"]) == (
        "recreated",
        1,
        12,
    )


def test_a_batch_larger_than_the_cap_keeps_its_newest(client: Client, topic: str) -> None:
    client.put(topic, cap_records=3)
    client.write(topic, *range(10))
    assert seqs(client.diff(topic)) == [8, 9, 10]


def test_a_byte_cap_evicts_the_oldest(client: Client, topic: str) -> None:
    client.put(topic, cap_bytes=10)
    for at in range(5):
        client.write(topic, 1000 + at)
    state = client.state(topic)
    assert (state["count"], state["bytes"], state["earliest_seq"]) == (2, 8, 4)
    assert client.diff(topic)["tombstone"]["reason"] == "cap"


def test_a_record_that_can_never_fit_is_refused(client: Client, topic: str) -> None:
    client.put(topic, cap_bytes=10)
    response = client.send("POST", f"/v0/topics/{topic}", {"records": [{"data": "x" * 9}]})
    client.refused(response, 400, "record_too_large")


def test_reject_refuses_and_loses_nothing(client: Client, topic: str) -> None:
    client.put(topic, discard="reject", cap_records=2, cap_bytes=100)
    client.write(topic, 1, 2)
    response = client.send("POST", f"/v0/topics/{topic}", {"records": [{"data": 3}]})
    detail = {"topic": topic, "cap_records": 2, "cap_bytes": 100, "head_seq": 2, "earliest_seq": 1}
    client.refused(response, 422, "topic_full", detail)
    too_many = client.send("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}] * 3})
    client.refused(too_many, 400, "record_too_large")
    client.ok("POST", f"/v0/topics/{topic}/delete", {"before_seq": 2})
    assert client.write(topic, 3)["first_seq"] == 3


def test_expired_records_are_announced(server: LiveServer, client: Client, topic: str) -> None:
    client.put(topic, ttl_ms=60_000)
    client.write(topic, 1, 2)
    server.clock.ahead_ms += 60_500
    client.write(topic, 3)
    answer = client.diff(topic)
    assert seqs(answer) == [3]
    assert (answer["tombstone"]["reason"], answer["tombstone"]["gap_to"]) == ("ttl", 2)
    assert client.state(topic)["count"] == 1


def test_tighter_caps_bite_at_the_put_and_looser_ones_bring_nothing_back(client: Client, topic: str) -> None:
    client.write(topic, *range(10), status=201)
    client.put(topic, status=200, cap_records=3)
    assert client.state(topic)["earliest_seq"] == 8
    client.put(topic, status=200)
    assert seqs(client.diff(topic)) == [8, 9, 10]


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_longer_ttl_brings_nothing_back_that_had_expired_unseen(
    server: LiveServer, client: Client, topic: str, durability: str
) -> None:
    client.put(topic, durability=durability, ttl_ms=60_000)
    client.write(topic, 1, 2)
    server.clock.ahead_ms += 60_500
    client.put(topic, status=200, durability=durability)
    answer = client.diff(topic)
    assert (seqs(answer), answer["earliest_seq"]) == ([], 3)
    assert (answer["tombstone"]["reason"], answer["tombstone"]["gap_to"]) == ("ttl", 2)


# --- diff ------------------------------------------------------------------------------------------------------------


def test_diff_without_a_body_reads_from_the_start(client: Client, topic: str) -> None:
    client.write(topic, "a", status=201)
    response = client.raw("POST", f"/v0/topics/{topic}/diff")
    assert response.status_code == 200
    assert [record["data"] for record in response.json()["records"]] == ["a"]


def test_diff_shows_what_was_asked_for(client: Client, topic: str) -> None:
    client.write(topic, {"data": None, "tag": "t", "node": "n", "meta": {"k": 1}}, {"data": 2}, status=201)
    plain, bare = client.diff(topic)["records"]
    assert set(plain) == {"$seq", "$ts", "$node", "data", "meta"}
    assert set(bare) == {"$seq", "$ts", "data"}
    assert client.diff(topic, include_tags=True)["records"][0]["$tag"] == "t"
    assert "meta" not in client.diff(topic, include_meta=False)["records"][0]


def test_node_filters_hide_and_the_cursor_moves_on(client: Client, topic: str) -> None:
    client.write(topic, {"data": 1, "node": "a"}, {"data": 2, "node": "b"}, {"data": 3}, status=201)
    assert seqs(client.diff(topic, node="a")) == [2, 3]
    assert seqs(client.diff(topic, node=["a", "b"])) == [3]
    hidden = client.diff(topic, node=["a", "b"], limit=1, from_seq=0)
    assert (seqs(hidden), hidden["next_from_seq"]) == ([3], 3)
    client.put(topic, status=200, dedupe_node=False)
    assert seqs(client.diff(topic, node="a")) == [1, 2, 3]


def test_batch_node_is_the_default(client: Client, topic: str) -> None:
    client.write(topic, {"data": 1}, {"data": 2, "node": "own"}, status=201, node="batch")
    assert [record["$node"] for record in client.diff(topic)["records"]] == ["batch", "own"]


def test_the_byte_budget_stops_before_the_record_but_never_before_the_first(client: Client, topic: str) -> None:
    client.write(topic, "x" * 98, "y" * 98, "z" * 98, status=201)
    assert seqs(client.diff(topic, max_batch_bytes=200)) == [1, 2]
    assert seqs(client.diff(topic, max_batch_bytes=1)) == [1]
    assert seqs(client.diff(topic, max_batch_bytes=0)) == [1, 2, 3]


def test_limit_zero_means_the_default_and_large_ones_are_clamped(client: Client, topic: str) -> None:
    client.ok("POST", f"/v0/topics/{topic}?return_seqs=0", {"records": [{"data": 0}] * 1200}, status=201)
    assert len(client.diff(topic, limit=0)["records"]) == 256
    assert len(client.diff(topic, limit=5000)["records"]) == 1000


@pytest.mark.parametrize(
    "fields",
    [
        {"from_seq": -1},
        {"from_seq": 1.0},
        {"from_seq": "1"},
        {"from_seq": True},
        {"from_seq": None},
        {"from_seq": 2**64},
        {"limit": 2**32},
        {"node": 5},
        {"node": [1]},
        {"include_tags": 1},
        {"include_meta": None},
        {"wait_ms": -5},
    ],
)
def test_wrong_types_are_refused_before_the_topic_is_looked_up(client: Client, fields: dict[str, object]) -> None:
    client.refused(client.send("POST", "/v0/topics/absent/diff", fields), 400, "invalid_request")


def test_diff_of_an_absent_topic(client: Client, topic: str) -> None:
    client.refused(client.send("POST", f"/v0/topics/{topic}/diff", {}), 404, "topic_not_found", {"topic": topic})


# --- long poll -------------------------------------------------------------------------------------------------------


def test_a_long_poll_ends_with_the_record_that_comes(client: Client, server: LiveServer, topic: str) -> None:
    client.put(topic)
    other = Client(server.port, http2=False)
    writer = threading.Timer(0.2, lambda: other.write(topic, "late"))
    writer.start()
    began = time.monotonic()
    answer = client.diff(topic, wait_ms=15_000)
    assert seqs(answer) == [1]
    assert time.monotonic() - began < 10
    writer.join()
    other.close()


def test_a_long_poll_that_finds_something_does_not_wait(client: Client, topic: str) -> None:
    client.write(topic, 1, status=201)
    began = time.monotonic()
    client.diff(topic, wait_ms=20_000)
    assert time.monotonic() - began < 10


def test_a_long_poll_ends_at_its_deadline(client: Client, topic: str) -> None:
    client.put(topic)
    answer = client.diff(topic, wait_ms=50)
    assert (answer["records"], answer["caught_up"]) == ([], True)


def test_a_long_poll_ends_with_its_topic(client: Client, server: LiveServer, topic: str) -> None:
    client.put(topic)
    other = Client(server.port, http2=False)
    dropper = threading.Timer(0.2, lambda: other.ok("DELETE", f"/v0/topics/{topic}"))
    dropper.start()
    response = client.send("POST", f"/v0/topics/{topic}/diff", {"wait_ms": 15_000})
    client.refused(response, 404, "topic_not_found", {"topic": topic})
    dropper.join()
    other.close()


# --- delete ----------------------------------------------------------------------------------------------------------


def test_delete_by_seq_by_tag_and_by_both(client: Client, topic: str) -> None:
    client.write(topic, *({"data": at, "tag": "ab"[at % 2] + ":1"} for at in range(6)), status=201)
    answer = client.ok("POST", f"/v0/topics/{topic}/delete", {"before_seq": 2})
    assert (answer["deleted"], answer["earliest_seq"], answer["head_seq"], answer["count"]) == (1, 2, 6, 5)
    assert client.ok("POST", f"/v0/topics/{topic}/delete", {"match": "b:1", "before_seq": 5})["deleted"] == 2
    assert client.ok("POST", f"/v0/topics/{topic}/delete", {"match": ["tag", "Glob", "a*"]})["deleted"] == 2
    assert seqs(client.diff(topic)) == [6]
    assert client.ok("POST", f"/v0/topics/{topic}/delete", {"match": "*"})["earliest_seq"] == 7
    empty = client.diff(topic)
    assert (empty["records"], empty["tombstone"], empty["next_from_seq"]) == ([], None, 6)
    assert client.ok("POST", f"/v0/topics/{topic}/delete", {"match": "*"})["deleted"] == 0


def test_untagged_records_never_match_and_stars_inside_are_literal(client: Client, topic: str) -> None:
    client.write(topic, {"data": 1}, {"data": 2, "tag": "a*b"}, {"data": 3, "tag": "axb"}, status=201)
    assert client.ok("POST", f"/v0/topics/{topic}/delete", {"match": ["tag", "Eq", "a*b"]})["deleted"] == 1
    assert client.ok("POST", f"/v0/topics/{topic}/delete", {"match": "*"})["deleted"] == 1
    assert seqs(client.diff(topic)) == [1]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"before_seq": None, "match": None},
        {"match": ["tag", "Eq"]},
        {"match": ["tag", "Like", "x"]},
        {"match": ["node", "Eq", "x"]},
        {"match": ["tag", "Glob", "x"]},
        {"match": ["tag", "Eq", 5]},
        {"match": 5},
        {"before_seq": -1},
    ],
)
def test_bad_selectors_beat_the_absent_topic(client: Client, body: dict[str, object]) -> None:
    client.refused(client.send("POST", "/v0/topics/absent/delete", body), 400, "invalid_request")


def test_deleting_nothing_is_no_error(client: Client, topic: str) -> None:
    client.write(topic, 1, status=201)
    for before_seq in (0, 1):
        assert client.ok("POST", f"/v0/topics/{topic}/delete", {"before_seq": before_seq})["deleted"] == 0
    assert client.ok("POST", f"/v0/topics/{topic}/delete", {"before_seq": 2**64 - 1})["deleted"] == 1
    assert client.write(topic, 2)["first_seq"] == 2


def test_a_restart_keeps_everything(tmp_path_factory: pytest.TempPathFactory, dialect: str) -> None:
    data = tmp_path_factory.mktemp("restart")
    with LiveServer(data) as live:
        client = Client(live.port, http2=dialect == "h2c")
        client.write("a", {"data": 1, "tag": "x"}, 2, 3, status=201)
        client.ok("POST", "/v0/topics/a/delete", {"match": "x"})
        client.put("e", durability="ephemeral")
        client.write("e", 1, 2)
        client.close()
    with LiveServer(data) as live:
        client = Client(live.port, http2=dialect == "h2c")
        assert seqs(client.diff("a")) == [2, 3]
        assert client.diff("a")["tombstone"] is None
        gone = client.diff("e")
        assert (gone["records"], gone["head_seq"], gone["tombstone"]["reason"]) == ([], 2, "restart")
        assert client.write("e", 3)["first_seq"] == 3
        client.close()
