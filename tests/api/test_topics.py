"""`docs/spec/http-api.md#sec-11` and `docs/spec/http-api.md#sec-12`: config, create, state, list, drop."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from tests.api.client import JSON_TYPE, Client
from tests.api.server import LiveServer

DEFAULTS = {
    "type": "log",
    "ttl_ms": 0,
    "cap_records": 0,
    "cap_bytes": 0,
    "discard": "old",
    "durable": False,
    "durability": "disk",
    "priority": None,
    "auto_priority": True,
    "auto_create": True,
    "idempotency_window_ms": 120000,
    "dedupe_node": True,
    "lease_ms": 30000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "leases_durable": False,
}


def test_a_field_of_queues_is_shown_where_it_is_set(client: Client, topic: str) -> None:
    shown = client.put(topic, type="queue", concurrency=3)["config"]
    assert shown == {**DEFAULTS, "type": "queue", "concurrency": 3}
    assert client.state(topic)["config"] == shown


def test_put_creates_with_the_default_config(client: Client, topic: str) -> None:
    answer = client.put(topic)
    assert answer["topic"] == topic
    assert answer["created"] is True
    assert answer["config"] == DEFAULTS


def test_put_without_a_body_is_an_empty_object_whatever_the_content_type(client: Client, topic: str) -> None:
    response = client.raw("PUT", f"/v0/topics/{topic}", headers={"content-type": "text/plain"})
    assert response.status_code == 201
    assert response.json()["config"] == DEFAULTS


def test_put_replaces_the_whole_config(client: Client, topic: str) -> None:
    client.put(topic, ttl_ms=5, cap_records=7, priority=-3)
    answer = client.put(topic, status=200, cap_bytes=9)
    assert answer["created"] is False
    assert answer["config"] == {**DEFAULTS, "cap_bytes": 9}


def test_an_identical_put_changes_nothing(client: Client, topic: str) -> None:
    client.put(topic, ttl_ms=5)
    assert client.put(topic, status=200, ttl_ms=5)["created"] is False


@pytest.mark.parametrize(
    ("sent", "durability", "durable"),
    [
        ({"durable": True}, "fsync", True),
        ({"durable": False}, "disk", False),
        ({"durable": True, "durability": "disk"}, "disk", False),
        ({"durability": "fsync"}, "fsync", True),
        ({"durability": None, "durable": True}, "fsync", True),
        ({"durability": "memory"}, "memory", False),
        ({"durability": "ephemeral"}, "ephemeral", False),
    ],
)
def test_durability_is_resolved_and_durable_follows_it(
    client: Client, topic: str, sent: dict[str, Any], durability: str, durable: bool
) -> None:
    config = client.put(topic, **sent)["config"]
    assert (config["durability"], config["durable"]) == (durability, durable)


def test_lease_and_jitter_are_clamped_before_storing_and_priority_is_not(client: Client, topic: str) -> None:
    config = client.put(topic, lease_ms=0, claim_jitter_ms=99_999, priority=5000)["config"]
    assert (config["lease_ms"], config["claim_jitter_ms"], config["priority"]) == (100, 5000, 5000)
    assert client.state(topic)["effective_priority"] == 1000


def test_type_cannot_change(client: Client, topic: str) -> None:
    client.put(topic, type="queue")
    response = client.send("PUT", f"/v0/topics/{topic}", {})
    detail = {"topic": topic, "existing_type": "queue", "requested_type": "log"}
    client.refused(response, 409, "topic_exists_incompatible", detail)


def test_dead_letter_must_be_another_valid_name(client: Client, topic: str) -> None:
    response = client.send("PUT", f"/v0/topics/{topic}", {"dead_letter": "no/name"})
    client.refused(response, 400, "invalid_request", {"dead_letter": "no/name"})
    own = client.send("PUT", f"/v0/topics/{topic}", {"type": "queue", "dead_letter": topic})
    client.refused(own, 400, "invalid_request")
    assert "detail" not in own.json()["error"], "the name is well-formed"
    assert client.put(topic, dead_letter=topic)["config"]["dead_letter"] == topic  # a log may name itself


@pytest.mark.parametrize("name", ["-a", ".a", "a b", "a%2Fb", "a%0A", "%C3%A9", "a" * 256, "a>b"])
def test_bad_names_are_refused_where_something_is_created(client: Client, name: str) -> None:
    client.refused(client.send("PUT", f"/v0/topics/{name}", {}), 400, "invalid_request")
    client.refused(client.send("POST", f"/v0/topics/{name}", {"records": [{"data": 1}]}), 400, "invalid_request")


@pytest.mark.parametrize("name", ["-a", "a b", "a" * 256])
def test_elsewhere_a_bad_name_simply_does_not_exist(client: Client, name: str) -> None:
    assert client.send("GET", f"/v0/topics/{name}").status_code == 404
    assert client.ok("DELETE", f"/v0/topics/{name}")["deleted"] is False


def test_names_are_case_sensitive_and_up_to_255_bytes(client: Client) -> None:
    for first in "Nn":
        client.ok("DELETE", f"/v0/topics/{first}{'x' * 254}")
        client.put(first + "x" * 254)


# --- state -----------------------------------------------------------------------------------------------------------


def test_state_of_a_fresh_topic(client: Client, topic: str) -> None:
    client.put(topic)
    state = client.ok("GET", f"/v0/topics/{topic}?touch=false")
    del state["performance"]
    assert state == {
        "topic": topic,
        "type": "log",
        "head_seq": 0,
        "earliest_seq": 1,
        "next_seq": 1,
        "count": 0,
        "bytes": 0,
        "config": DEFAULTS,
        "effective_priority": 0,
        "last_write_ts": None,
        "last_read_ts": None,
    }


def test_touch_comes_before_the_answer(client: Client, topic: str) -> None:
    client.put(topic)
    state = client.state(topic)
    assert state["last_read_ts"] is not None
    assert state["effective_priority"] == 500


def test_state_of_an_absent_topic_creates_nothing(client: Client, topic: str) -> None:
    client.refused(client.send("GET", f"/v0/topics/{topic}"), 404, "topic_not_found", {"topic": topic})
    assert client.send("GET", f"/v0/topics/{topic}").status_code == 404


def test_queue_counters_only_on_queues(client: Client, topic: str) -> None:
    client.put(topic, type="queue")
    client.write(topic, 1, 2)
    assert client.state(topic)["queue"].items() >= {"ready": 2, "in_flight": 0, "dead_lettered": 0}.items()


# --- list ------------------------------------------------------------------------------------------------------------


def test_list_pages_in_byte_order_without_overlap(client: Client, topic: str) -> None:
    names = sorted(f"{topic}.{end}" for end in ("a", "B", "c:1", "c-1", "_"))
    for name in reversed(names):
        client.put(name)
    seen: list[str] = []
    cursor = ""
    for _ in range(10):
        page = client.ok("GET", f"/v0/topics?prefix={topic}.&page_size=2&cursor={cursor}")
        seen += [entry["topic"] for entry in page["topics"]]
        if "next_cursor" not in page:
            break
        cursor = page["next_cursor"]
    assert seen == names


def test_list_entries_have_exactly_these_keys(client: Client, topic: str) -> None:
    client.write(topic, {"data": "abc"}, status=201)
    page = client.ok("GET", f"/v0/topics?prefix={topic}")
    assert page["topics"] == [
        {
            "topic": topic,
            "head_seq": 1,
            "earliest_seq": 1,
            "count": 1,
            "bytes": 5,
            "durable": False,
            "effective_priority": 0,
            "type": "log",
            "last_write_ts": page["topics"][0]["last_write_ts"],
        }
    ]
    assert page["topics"][0]["last_write_ts"] == client.state(topic)["last_write_ts"]
    assert "next_cursor" not in page


def test_an_empty_list_has_no_cursor(client: Client) -> None:
    page = client.ok("GET", "/v0/topics?prefix=nobody-has-this")
    assert page["topics"] == []
    assert "next_cursor" not in page


def test_page_size_is_clamped_and_nonsense_means_the_default(client: Client, topic: str) -> None:
    for at in range(3):
        client.put(f"{topic}.{at}")
    assert len(client.ok("GET", f"/v0/topics?prefix={topic}.&page_size=0")["topics"]) == 1
    assert len(client.ok("GET", f"/v0/topics?prefix={topic}.&page_size=x")["topics"]) == 3
    assert len(client.ok("GET", f"/v0/topics?prefix={topic}.&page_size=-1")["topics"]) == 3


@pytest.mark.parametrize("cursor", ["!!!", "a", "bm90IGpzb24", "eyJhZnRlciI6ImEi"])
def test_a_broken_list_cursor_is_refused(client: Client, cursor: str) -> None:
    client.refused(client.send("GET", f"/v0/topics?cursor={cursor}"), 400, "invalid_request")


def test_a_cursor_without_after_counts_as_none(client: Client) -> None:
    token = base64.urlsafe_b64encode(b'{"x":1}').decode().rstrip("=")
    client.ok("GET", f"/v0/topics?cursor={token}")


def test_the_cursor_is_base64url_of_the_last_name(client: Client, topic: str) -> None:
    client.put(f"{topic}.a")
    client.put(f"{topic}.b")
    cursor = client.ok("GET", f"/v0/topics?prefix={topic}.&page_size=1")["next_cursor"]
    assert base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)) == b'{"after":"%b.a"}' % topic.encode()
    assert "=" not in cursor


def test_list_touch_moves_the_priority_but_not_last_read(client: Client, topic: str) -> None:
    client.put(topic)
    page = client.ok("GET", f"/v0/topics?prefix={topic}&touch=true")
    assert page["topics"][0]["effective_priority"] == 500
    assert client.ok("GET", f"/v0/topics/{topic}?touch=false")["last_read_ts"] is None


# --- drop ------------------------------------------------------------------------------------------------------------


def test_drop_and_drop_again(client: Client, topic: str) -> None:
    client.write(topic, 1, status=201)
    answer = client.ok("DELETE", f"/v0/topics/{topic}")
    assert (answer["topic"], answer["deleted"], answer["routers_removed"]) == (topic, True, [])
    assert client.ok("DELETE", f"/v0/topics/{topic}")["deleted"] is False
    assert client.send("GET", f"/v0/topics/{topic}").status_code == 404


def test_a_recreated_topic_starts_at_one(client: Client, topic: str) -> None:
    client.write(topic, 1, 2, 3, status=201)
    client.ok("DELETE", f"/v0/topics/{topic}")
    assert client.write(topic, 1, status=201)["first_seq"] == 1


def test_if_empty_refuses_a_topic_with_records(client: Client, topic: str) -> None:
    client.write(topic, 1, 2, status=201)
    response = client.send("DELETE", f"/v0/topics/{topic}?if_empty=true")
    client.refused(response, 409, "topic_not_empty", {"topic": topic, "count": 2})
    client.ok("POST", f"/v0/topics/{topic}/delete", {"before_seq": 9})
    assert client.ok("DELETE", f"/v0/topics/{topic}?if_empty=1")["deleted"] is True


def test_bodies_on_get_and_delete_are_ignored(client: Client, topic: str) -> None:
    client.put(topic)
    assert client.raw("DELETE", f"/v0/topics/{topic}", content=b"{nonsense", headers=JSON_TYPE).status_code == 200


def test_one_of_many_concurrent_creates_creates(server: LiveServer, client: Client, topic: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.send("PUT", f"/v0/topics/{topic}", {}).status_code, range(16)))
    assert sorted(answers) == [200] * 15 + [201]
