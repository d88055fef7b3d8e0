"""`docs/spec/http-api.md#sec-19`: queues over the wire."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.api.client import JSON_TYPE, Client
from tests.api.server import LiveServer


def claim(client: Client, topic: str, node: str = "w", **fields: Any) -> dict[str, Any]:
    return client.ok("POST", f"/v0/topics/{topic}/claim", {"node": node, **fields})


def queue(client: Client, topic: str, *jobs: Any, **config: Any) -> None:
    client.put(topic, type="queue", **config)
    if jobs:
        client.write(topic, *jobs)


def test_a_claim_hands_out_jobs_in_order_with_leases(client: Client, topic: str) -> None:
    queue(client, topic, {"data": {"to": "x"}, "tag": "m-1", "meta": {"k": "v"}, "node": "hidden"}, 2, 3)
    answer = claim(client, topic, max=2, lease_ms=5000)
    first, second = answer["claimed"]
    assert (answer["topic"], answer["count"], answer["ready"]) == (topic, 2, 1)
    assert set(first) == {"$seq", "lease_id", "deadline", "$ts", "$tag", "deliveries", "data", "meta"}
    assert (first["$seq"], first["lease_id"], first["deliveries"]) == (1, "lease_1", 1)
    assert set(second) == {"$seq", "lease_id", "deadline", "$ts", "deliveries", "data"}
    assert second["lease_id"] == "lease_2"
    assert client.state(topic)["queue"].items() >= {"ready": 1, "in_flight": 2, "dead_lettered": 0}.items()


def test_a_claim_may_take_many_jobs_of_one_batch(client: Client, topic: str) -> None:
    queue(client, topic, *range(100))
    claimed = claim(client, topic, max=1000)["claimed"]
    assert [job["data"] for job in claimed] == list(range(100))


def test_a_claim_may_be_large(client: Client, topic: str) -> None:
    jobs = [{"n": at, "text": "x" * 100_000} for at in range(10)]
    queue(client, topic, *[{"data": job, "tag": "t"} for job in jobs])
    answer = claim(client, topic, max=1000)
    assert [job["data"] for job in answer["claimed"]] == jobs
    assert (answer["count"], answer["ready"], answer["claimed"][9]["$tag"]) == (10, 0, "t")


def test_an_empty_queue_gives_an_empty_claim(client: Client, topic: str) -> None:
    queue(client, topic)
    assert (claim(client, topic)["claimed"], claim(client, topic)["ready"]) == ([], 0)


def test_ack_deletes_and_a_second_ack_is_skipped(client: Client, topic: str) -> None:
    queue(client, topic, 1, 2)
    claim(client, topic, max=2)
    answer = client.ok("POST", f"/v0/topics/{topic}/ack", {"node": "w", "seqs": [1, 1, 9]})
    assert (answer["acked"], answer["skipped"], answer["ready"], answer["in_flight"]) == (1, [1, 9], 0, 1)
    again = client.ok("POST", f"/v0/topics/{topic}/ack", {"node": "w", "seqs": [1]})
    assert (again["acked"], again["skipped"]) == (0, [1])
    assert client.state(topic)["count"] == 1
    assert client.diff(topic)["tombstone"] is None


def test_an_answer_names_jobs_that_a_cap_took_out_of_the_hands_of_their_holder(client: Client, topic: str) -> None:
    queue(client, topic, 1, 2, 3, cap_records=3)
    claim(client, topic, max=2)
    client.write(topic, 4)
    lost = [{"seq": 1, "reason": "cap"}]
    for call, fields in (("extend", {"lease_ms": 1000}), ("nack", {}), ("ack", {})):
        answer = client.ok("POST", f"/v0/topics/{topic}/{call}", {"node": "w", "seqs": [1], **fields})
        assert (answer["skipped"], answer["lost"]) == ([1], lost)
        other = client.ok("POST", f"/v0/topics/{topic}/{call}", {"node": "other", "seqs": [1], **fields})
        assert "lost" not in other
    assert client.state(topic)["queue"]["lost_in_flight"] == 1


def test_only_the_holder_with_the_right_fence_counts(client: Client, topic: str) -> None:
    queue(client, topic, 1)
    claim(client, topic, "a")
    path = f"/v0/topics/{topic}/ack"
    assert client.ok("POST", path, {"node": "b", "seqs": [1]})["skipped"] == [1]
    assert client.ok("POST", path, {"node": "a", "seqs": [1], "lease_ids": ["lease_9"]})["skipped"] == [1]
    assert client.ok("POST", path, {"node": "a", "seqs": [1], "lease_ids": ["lease_1"]})["acked"] == 1


def test_nack_makes_ready_and_keeps_the_count(client: Client, topic: str) -> None:
    queue(client, topic, 1, 2)
    claim(client, topic)
    answer = client.ok("POST", f"/v0/topics/{topic}/nack", {"node": "w", "seqs": [1]})
    assert (answer["nacked"], answer["skipped"], answer["ready"], answer["in_flight"]) == (1, [], 2, 0)
    job = claim(client, topic)["claimed"][0]
    assert (job["$seq"], job["deliveries"], job["lease_id"]) == (1, 2, "lease_2")


def test_a_delayed_nack_is_neither_ready_nor_in_flight(server: LiveServer, client: Client, topic: str) -> None:
    queue(client, topic, 1)
    claim(client, topic)
    client.ok("POST", f"/v0/topics/{topic}/nack", {"node": "w", "seqs": [1], "delay_ms": 600_000})
    assert client.state(topic)["queue"].items() >= {"ready": 0, "in_flight": 0, "dead_lettered": 0}.items()
    assert claim(client, topic)["claimed"] == []
    server.clock.ahead_ms += 600_001
    assert claim(client, topic)["claimed"][0]["$seq"] == 1


def test_extend_sets_the_deadline_from_now(client: Client, topic: str) -> None:
    queue(client, topic, 1)
    job = claim(client, topic, lease_ms=1000)["claimed"][0]
    answer = client.ok("POST", f"/v0/topics/{topic}/extend", {"node": "w", "seqs": [1, 5], "lease_ms": 60_000})
    assert (answer["extended"], answer["skipped"]) == (1, [5])
    assert answer["deadlines"]["1"] > job["deadline"]


def test_extend_carries_progress_and_names_what_is_wrong_with_it(client: Client, topic: str) -> None:
    queue(client, topic, 1)
    claim(client, topic)
    asked = {"node": "w", "seqs": [1], "lease_ms": 60_000}
    client.ok("POST", f"/v0/topics/{topic}/extend", {**asked, "progress": [{"fraction": 1, "text": "rows"}]})
    (job,) = client.ok("GET", f"/v0/topics/{topic}/jobs")["jobs"]
    assert (job["progress"]["fraction"], job["progress"]["text"]) == (1, "rows")
    assert job["progress"]["ts"] <= job["deadline"]
    for progress, told in (
        ([], None),
        ([None], None),
        ([None, None], "2 entries of progress were given for 1 seqs"),
        ([{"fraction": 1.1}], "<= 1.0"),
        ([{"fraction": -1}], ">= 0.0"),
        ([{"text": "ä" * 129}], "progress[0]: text has at most 256 bytes"),
    ):
        answer = client.send("POST", f"/v0/topics/{topic}/extend", {**asked, "progress": progress})
        assert answer.status_code == (200 if told is None else 400)
        assert told is None or told in answer.text


def test_an_expired_lease_is_handed_out_again_before_fresh_jobs(server: LiveServer, client: Client, topic: str) -> None:
    queue(client, topic, 1, 2)
    claim(client, topic, lease_ms=1000)
    server.clock.ahead_ms += 2000
    assert client.state(topic)["queue"]["ready"] == 2
    job = claim(client, topic)["claimed"][0]
    assert (job["$seq"], job["deliveries"]) == (1, 2)


def test_dead_letters_carry_their_provenance(client: Client, topic: str) -> None:
    queue(
        client,
        topic,
        {"data": "poison", "tag": "t", "node": "n", "meta": {"k": 1}},
        max_deliveries=1,
        dead_letter=f"{topic}.dead",
    )
    claim(client, topic)
    client.ok("POST", f"/v0/topics/{topic}/nack", {"node": "w", "seqs": [1]})
    assert claim(client, topic)["claimed"] == []
    letter = client.diff(f"{topic}.dead", include_tags=True)["records"][0]
    assert (letter["data"], letter["$tag"], letter["$node"]) == ("poison", "t", "n")
    assert (
        letter["meta"].items()
        >= {
            "k": 1,
            "$dead_letter_from": topic,
            "$dead_letter_deliveries": "1",
            "$dead_letter_src_seq": "1",
            "$dead_letter_reason": "max_deliveries",
        }.items()
    )
    assert client.state(topic)["queue"] == {"ready": 0, "in_flight": 0, "delayed": 0, "dead_lettered": 1}


@pytest.mark.parametrize("verb", ["claim", "ack", "nack", "extend"])
def test_queue_calls_on_a_log_or_on_nothing(client: Client, topic: str, verb: str) -> None:
    body: dict[str, Any] = {"node": "w", "seqs": [1], "lease_ms": 1000}
    path = f"/v0/topics/{topic}/{verb}"
    client.refused(client.send("POST", path, body), 404, "topic_not_found", {"topic": topic})
    client.put(topic)
    client.refused(client.send("POST", path, body), 409, "not_a_queue", {"topic": topic})


def test_the_order_of_a_claims_errors(client: Client, topic: str) -> None:
    path = f"/v0/topics/{topic}/claim"
    client.refused(client.raw("POST", path), 400, "invalid_request")
    client.refused(
        client.raw("POST", path, content=b"{}", headers={"content-type": "text/plain"}), 415, "unsupported_media_type"
    )
    client.refused(client.raw("POST", path, content=b"{}", headers=JSON_TYPE), 400, "invalid_request")
    client.refused(client.send("POST", path, {"node": ""}), 404, "topic_not_found", {"topic": topic})
    client.put(topic, type="queue")
    client.refused(client.send("POST", path, {"node": ""}), 400, "invalid_request")
    client.refused(client.send("POST", path, {"node": "n" * 129}), 400, "invalid_request")


@pytest.mark.parametrize(
    ("fields", "code", "detail"),
    [
        ({"seqs": list(range(1001))}, "batch_too_large", {"seqs": 1001, "max": 1000}),
        ({"seqs": [1], "lease_ids": ["lease_1", "lease_2"]}, "invalid_request", None),
        ({"seqs": [1], "lease_ids": ["nope"]}, "invalid_request", None),
        ({"seqs": [1], "node": ""}, "invalid_request", None),
        ({"seqs": [-1]}, "invalid_request", None),
    ],
)
@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
def test_bad_bodies_beat_the_absent_topic(
    client: Client, verb: str, fields: dict[str, Any], code: str, detail: dict[str, int] | None
) -> None:
    body = {"node": "w", "lease_ms": 1000, **fields}
    client.refused(client.send("POST", f"/v0/topics/absent/{verb}", body), 400, code, detail)


def test_empty_seqs_are_fine(client: Client, topic: str) -> None:
    queue(client, topic)
    assert client.ok("POST", f"/v0/topics/{topic}/ack", {"node": "w", "seqs": []})["acked"] == 0


def test_a_client_that_leaves_a_coalescing_window_is_leased_nothing(
    client: Client, server: LiveServer, dialect: str, topic: str
) -> None:
    queue(client, topic, 1, claim_jitter_ms=1000)
    leaving = Client(server.port, http2=dialect == "h2c")
    with pytest.raises(httpx.ReadTimeout):
        leaving.raw("POST", f"/v0/topics/{topic}/claim", content=b'{"node":"a"}', headers=JSON_TYPE, timeout=0.2)
    leaving.close()
    assert [job["deliveries"] for job in claim(client, topic)["claimed"]] == [1]


def test_a_coalescing_window_deals_evenly(client: Client, server: LiveServer, topic: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    queue(client, topic, *range(12), claim_jitter_ms=400)
    clients = [Client(server.port, http2=False) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        shares = list(pool.map(lambda c: claim(c, topic, max=10)["count"], clients))
    assert shares == [4, 4, 4]
    for each in clients:
        each.close()


def test_job_fields_lists_and_actions_over_http(client: Client, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    queue(client, topic, max_deliveries=5, dead_letter=f"{topic}.dead", retry={"base_ms": 60_000})
    written = client.ok(
        "POST",
        path,
        {
            "records": [
                {"data": 1, "tag": "a"},
                {"data": 2, "delay_ms": 60_000},
                {"data": 3, "priority": 9, "unique": "k"},
                {"data": 4, "unique": {"key": "k", "on_conflict": "keep"}},
            ]
        },
    )
    assert (written["seqs"], written["count"], written["kept"]) == ([1, 2, 3, 3], 3, [3])
    first = claim(client, topic)["claimed"][0]
    assert first["data"] == 3
    nacked = {"node": "w", "seqs": [3], "error": "boom"}
    client.ok("POST", f"{path}/nack", nacked | {"node": claim_node(client, path)})
    jobs = client.ok("GET", f"{path}/jobs?state=delayed")["jobs"]
    assert [(job["seq"], job.get("error")) for job in jobs] == [(2, None), (3, "boom")]
    assert client.ok("POST", f"{path}/retry", {"seqs": [2, 3]})["retried"] == 2
    assert client.ok("POST", f"{path}/cancel", {"seqs": [2]})["cancelled"] == 1
    assert client.ok("POST", f"{path}/pause")["paused"] is True
    assert claim(client, topic)["claimed"] == []
    assert client.ok("POST", f"{path}/resume")["paused"] is False
    waited = claim(client, topic, wait_ms=1000)["claimed"]
    assert [job["data"] for job in waited] == [3]
    client.ok("POST", f"{path}/nack", {"node": claim_node(client, path), "seqs": [3], "final": True, "error": "no"})
    done = client.ok("POST", f"/v0/topics/{topic}.dead/redrive", {"error": "no"})
    assert (done["redriven"], done["caught_up"]) == (1, True)
    assert [job["seq"] for job in client.ok("GET", f"{path}/jobs")["jobs"]] == [1, 4]


def claim_node(client: Client, path: str) -> str:
    [worker] = [one for one in client.ok("GET", f"{path}/workers")["workers"] if one["in_flight"]]
    node: str = worker["node"]
    return node
