"""Writes that say which version they expect (`docs/spec/readers.md#sec-6`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.api.client import Client
from tests.api.server import LiveServer


def write(client: Client, topic: str, *tags: str | None, status: int = 200, **fields: Any) -> Any:
    rows = [{"data": 1} if tag is None else {"data": 1, "tag": tag} for tag in tags]
    return client.ok("POST", f"/v0/topics/{topic}", {"records": rows, **fields}, status=status)


def conflict(client: Client, topic: str, detail: Any, **fields: Any) -> None:
    refusal = client.send("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}], **fields})
    client.refused(refusal, 409, "version_conflict", detail)


def test_a_write_is_accepted_only_at_the_head_it_expects(client: Client, topic: str) -> None:
    conflict(client, topic, {"topic": topic, "head_seq": 0}, if_head=1)
    client.refused(client.send("GET", f"/v0/topics/{topic}"), 404, "topic_not_found", {"topic": topic})
    first = write(client, topic, None, None, status=201, if_head=0)
    conflict(client, topic, {"topic": topic, "head_seq": 2}, if_head=0)
    assert write(client, topic, None, if_head=first["position"])["head_seq"] == 3
    conflict(client, topic, {"topic": topic, "head_seq": 3}, if_head=first["position"])
    conflict(client, topic, {"topic": topic, "head_seq": 3}, if_head="3-e1")
    assert client.ok("GET", f"/v0/topics/{topic}")["head_seq"] == 3


def test_each_tag_has_a_version_of_its_own(client: Client, topic: str) -> None:
    write(client, topic, "a", "b", status=201, if_tag_seq={"a": 0})
    write(client, topic, "a", if_tag_seq={"a": 1, "b": 2})
    conflict(client, topic, {"topic": topic, "tag": "a", "expected": 1, "actual": 3}, if_tag_seq={"b": 2, "a": 1})
    client.ok("POST", f"/v0/topics/{topic}/delete", {"match": "a"})
    write(client, topic, "a", if_tag_seq={"a": 0})


def test_a_retry_of_a_write_that_succeeded_gets_its_first_answer_whatever_the_version_is(
    client: Client, topic: str
) -> None:
    first = write(client, topic, "a", status=201, if_tag_seq={"a": 0}, idempotency_key="k")
    again = write(client, topic, "a", if_tag_seq={"a": 0}, idempotency_key="k")
    assert (again["first_seq"], again["deduped"]) == (first["first_seq"], True)
    conflict(
        client,
        topic,
        {"topic": topic, "tag": "a", "expected": 0, "actual": 1},
        if_tag_seq={"a": 0},
        idempotency_key="l",
    )
    assert write(client, topic, "a", if_tag_seq={"a": 1}, idempotency_key="l")["deduped"] is False


@pytest.mark.parametrize("fields", [{"if_head": "x"}, {"if_head": -1}, {"if_tag_seq": {}}, {"if_tag_seq": {"a": -1}}])
def test_an_expectation_that_makes_no_sense_is_refused(client: Client, topic: str, fields: Any) -> None:
    refusal = client.send("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}], **fields})
    client.refused(refusal, 400, "invalid_request")


def test_a_record_that_has_expired_has_no_version(server: LiveServer, client: Client, topic: str) -> None:
    client.ok("PUT", f"/v0/topics/{topic}", {"ttl_ms": 60_000}, status=201)
    write(client, topic, "a", if_tag_seq={"a": 0})
    server.clock.ahead_ms += 60_001
    write(client, topic, "a", if_tag_seq={"a": 0})
    conflict(client, topic, {"topic": topic, "tag": "a", "expected": 0, "actual": 2}, if_tag_seq={"a": 0})


def test_versions_are_found_in_a_topic_with_more_segments_than_are_kept_mapped(tmp_path: Path) -> None:
    with LiveServer(tmp_path, segment_max_events=1) as server:
        client = Client(server.port, http2=False)
        client.ok("POST", "/v0/topics/t", {"records": [{"data": n, "tag": f"k{n}"} for n in range(700)]}, status=201)
        server.checkpoint()
        write(client, "t", "z", if_tag_seq={"y": 0, "k0": 1, "z": 0, "k699": 700})
        refusal = client.send("GET", "/v0/topics/t/records/latest?tag=nobody")
        client.refused(refusal, 404, "record_not_found", {"topic": "t"})
        assert client.ok("GET", "/v0/topics/t/records/latest?tag=k0")["record"]["$seq"] == 1
        assert len(client.ok("GET", "/v0/topics/t/latest?limit=1000")["records"]) == 701
        client.close()
