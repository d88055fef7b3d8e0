"""`docs/spec/http-api.md#sec-19-14`: schedules over the wire, and the history of jobs (`sec-19-3`)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.api.client import Client


def put(client: Client, name: str, topic: str, *, status: int = 201, **fields: Any) -> dict[str, Any]:
    answer = client.ok("PUT", f"/v0/schedules/{name}", {"topic": topic, **fields}, status=status)
    del answer["performance"]
    return answer


def test_a_schedule_from_its_creation_to_its_end(client: Client, topic: str) -> None:
    fields: dict[str, Any] = {"cron": "0 3 * * *", "timezone": "Europe/Berlin", "data": {"kind": "daily"}, "tag": "r"}
    shown = put(client, topic, topic, **fields)
    next_tick = shown.pop("next_tick")
    assert isinstance(next_tick, int)
    assert shown == {
        "schedule": topic,
        "created": True,
        "topic": topic,
        **fields,
        "missed": "one",
        "paused": False,
        "last_tick": None,
        "ticks": 0,
    }
    assert put(client, topic, topic, status=200, **fields)["created"] is False
    assert client.ok("POST", f"/v0/schedules/{topic}/run")["seq"] == 1
    [record] = client.diff(topic, include_tags=True)["records"]
    assert (record["data"], record["$tag"], record["meta"]["$schedule"]) == ({"kind": "daily"}, "r", topic)
    assert client.ok("POST", f"/v0/schedules/{topic}/pause")["next_tick"] is None
    assert client.ok("POST", f"/v0/schedules/{topic}/resume")["next_tick"] == next_tick
    assert [s["schedule"] for s in client.ok("GET", f"/v0/schedules?topic={topic}")["schedules"]] == [topic]
    assert client.ok("GET", f"/v0/schedules/{topic}")["next_tick"] == next_tick
    assert client.ok("DELETE", f"/v0/schedules/{topic}")["deleted"] is True
    assert client.ok("DELETE", f"/v0/schedules/{topic}")["deleted"] is False
    client.refused(client.send("GET", f"/v0/schedules/{topic}"), 404, "schedule_not_found", {"schedule": topic})


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"cron": "* * * * *", "timezone": "Mars/Olympus"}, "timezone"),
        ({"every_ms": 3_155_760_000_001}, "every_ms"),
        ({"every_ms": 1000, "start_at": 2**53}, "start_at"),
        ({"every_ms": 1000, "missed": "some"}, "missed"),
        ({"every_ms": 1000, "priority": 10}, "priority"),
        ({}, "cron or every_ms"),
    ],
)
def test_a_bad_field_is_named_and_nothing_is_created(
    client: Client, topic: str, fields: dict[str, Any], named: str
) -> None:
    response = client.send("PUT", f"/v0/schedules/{topic}", {"topic": topic, **fields})
    assert named in client.refused(response, 400, "invalid_request")["message"]
    assert client.send("GET", f"/v0/topics/{topic}").status_code == 404
    assert client.send("GET", f"/v0/schedules/{topic}").status_code == 404


def test_another_topic_is_refused(client: Client, topic: str) -> None:
    put(client, topic, topic, every_ms=60_000)
    body = {"topic": f"{topic}.other", "every_ms": 60_000}
    detail = {"schedule": topic, "reason": "schedule_topic_fixed"}
    client.refused(client.send("PUT", f"/v0/schedules/{topic}", body), 409, "topic_exists_incompatible", detail)


def test_an_ack_carries_results_into_the_history(client: Client, topic: str) -> None:
    client.ok("PUT", f"/v0/topics/{topic}", {"type": "queue", "done": f"{topic}.done"}, status=201)
    client.write(topic, 1, 2)
    client.ok("POST", f"/v0/topics/{topic}/claim", {"node": "w", "max": 2})
    client.ok("POST", f"/v0/topics/{topic}/ack", {"node": "w", "seqs": [1, 2], "results": [{"r": [1]}, None]})
    told = [record["data"] for record in client.diff(f"{topic}.done")["records"]]
    assert [(end["seq"], end["outcome"], end.get("result")) for end in told] == [
        (1, "acked", {"r": [1]}),
        (2, "acked", None),
    ]
    assert "result" not in told[1]
    for seqs, results in (([1, 2], [1]), ([1], ["x" * 65_536])):
        response = client.send("POST", f"/v0/topics/{topic}/ack", {"node": "w", "seqs": seqs, "results": results})
        assert "results" in client.refused(response, 400, "invalid_request")["message"]
