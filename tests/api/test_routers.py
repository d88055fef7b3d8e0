"""`docs/spec/http-api.md#sec-16`: routers over the wire."""

from __future__ import annotations

from typing import Any

import pytest
from tests.api.client import Client


def route(client: Client, name: str, source: str, dest: str, *, status: int = 201, **fields: Any) -> dict[str, Any]:
    return client.ok("PUT", f"/v0/routers/{name}", {"source": source, "dest": dest, **fields}, status=status)


def test_put_creates_both_topics_and_echoes(client: Client, topic: str) -> None:
    answer = route(client, f"{topic}-%3Ed", f"{topic}.s", f"{topic}.d", filter="pub:*")
    del answer["performance"]
    assert answer == {
        "router": f"{topic}->d",
        "created": True,
        "source": f"{topic}.s",
        "dest": f"{topic}.d",
        "preserve_node": True,
        "preserve_tag": True,
        "filter": ["tag", "Glob", "pub:*"],
        "allow_cycle": False,
        "guarantee": "at_least_once",
    }
    assert client.write(f"{topic}.s", 1)["created"] is False
    assert route(client, f"{topic}->d", f"{topic}.s", f"{topic}.d", status=200)["filter"] is None


def test_a_read_of_the_dest_sees_what_was_acked_at_the_source(client: Client, topic: str) -> None:
    client.write(f"{topic}.s", "before", status=201)
    route(client, topic, f"{topic}.s", f"{topic}.d")
    client.write(f"{topic}.s", {"data": 1, "tag": "t", "node": "n", "meta": {"k": 1}})
    copies = client.diff(f"{topic}.d", include_tags=True)["records"]
    assert [(c["$seq"], c["data"], c["$tag"], c["$node"], c["meta"]) for c in copies] == [(1, 1, "t", "n", {"k": 1})]
    shown = client.ok("GET", f"/v0/routers/{topic}")
    assert shown["forwarded_total"] == 1
    assert "created" not in shown


def test_preserve_flags_clear_node_and_tag(client: Client, topic: str) -> None:
    route(client, topic, f"{topic}.s", f"{topic}.d", preserve_node=False, preserve_tag=False)
    client.write(f"{topic}.s", {"data": 1, "tag": "t", "node": "n"})
    assert set(client.diff(f"{topic}.d", include_tags=True)["records"][0]) == {"$seq", "$ts", "data"}


def test_filters_pass_over_what_does_not_match(client: Client, topic: str) -> None:
    route(client, topic, f"{topic}.s", f"{topic}.d", filter=["tag", "Eq", "a"])
    client.write(f"{topic}.s", {"data": 1, "tag": "a"}, {"data": 2, "tag": "b"}, {"data": 3})
    assert [c["data"] for c in client.diff(f"{topic}.d")["records"]] == [1]


def test_exactly_once_adds_its_evidence(client: Client, topic: str) -> None:
    route(client, topic, f"{topic}.s", f"{topic}.d", guarantee="exactly_once")
    client.write(f"{topic}.s", {"data": 1, "meta": {"k": 1}})
    meta = client.diff(f"{topic}.d")["records"][0]["meta"]
    proof = meta.pop("_topics_router")
    assert meta == {"k": 1}
    assert set(proof) == {"idempotency_key", "router", "source_topic", "source_topic_id", "source_epoch", "source_seq"}
    assert proof["idempotency_key"] == (
        f"router:{topic}:{proof['source_topic_id']}:{proof['source_epoch']}:{proof['source_seq']}"
    )


def test_refusals_create_nothing(client: Client, topic: str) -> None:
    def put(name: str, **body: Any) -> Any:
        return client.send("PUT", f"/v0/routers/{name}", body)

    a, b, c = (f"{topic}.{x}" for x in "abc")
    client.refused(put(topic, source=a, dest=a), 400, "invalid_request")
    client.refused(put("bad name", source=a, dest=b), 400, "invalid_request")
    client.refused(put(topic, source="no/pe", dest=b), 400, "invalid_request")
    client.refused(put(topic, source=a, dest=b, filter=["tag", "Glob", "x"]), 400, "invalid_request")
    client.refused(put(topic, source=a, dest=b, create_dest=False), 404, "topic_not_found", {"topic": b})
    assert client.send("GET", f"/v0/topics/{a}").status_code == 404
    route(client, f"{topic}.1", a, b)
    route(client, f"{topic}.2", b, c)
    cycle = put(f"{topic}.3", source=c, dest=a)
    client.refused(cycle, 409, "router_cycle", {"cycle": [c, a, b, c]})
    fan_in = put(f"{topic}.4", source=a, dest=c)
    client.refused(fan_in, 409, "topic_exists_incompatible", {"topic": c, "reason": "router_dest_fan_in"})
    repoint = put(f"{topic}.1", source=a, dest=f"{topic}.z")
    client.refused(
        repoint,
        409,
        "topic_exists_incompatible",
        {"router": f"{topic}.1", "reason": "router_repoint_forbidden", "existing_source": a, "existing_dest": b},
    )
    assert client.send("GET", f"/v0/topics/{topic}.z").status_code == 404


def test_a_cycle_that_is_allowed_comes_to_rest(client: Client, topic: str) -> None:
    a, b = f"{topic}.a", f"{topic}.b"
    route(client, f"{topic}.1", a, b)
    route(client, f"{topic}.2", b, a, allow_cycle=True)
    client.write(a, "x")
    for _ in range(20):
        client.diff(a), client.diff(b)
    assert client.state(a)["head_seq"] + client.state(b)["head_seq"] == 9


def test_list_delete_and_cascade(client: Client, topic: str) -> None:
    route(client, f"{topic}.1", f"{topic}.s", f"{topic}.d")
    route(client, f"{topic}.2", f"{topic}.s", f"{topic}.e")
    page = client.ok("GET", f"/v0/routers?prefix={topic}.&page_size=1")
    assert [set(r) for r in page["routers"]] == [{"router", "source", "dest", "guarantee", "forwarded_total"}]
    rest = client.ok("GET", f"/v0/routers?prefix={topic}.&cursor={page['next_cursor']}")
    assert [r["router"] for r in rest["routers"]] == [f"{topic}.2"]
    assert [r["router"] for r in client.ok("GET", f"/v0/routers?dest={topic}.d")["routers"]] == [f"{topic}.1"]
    assert client.ok("DELETE", f"/v0/routers/{topic}.1")["deleted"] is True
    assert client.ok("DELETE", f"/v0/routers/{topic}.1")["deleted"] is False
    client.refused(client.send("GET", f"/v0/routers/{topic}.1"), 404, "router_not_found", {"router": f"{topic}.1"})
    dropped = client.ok("DELETE", f"/v0/topics/{topic}.s")
    assert dropped["routers_removed"] == [f"{topic}.2"]


def test_a_full_reject_dest_stalls_and_loses_nothing(client: Client, topic: str) -> None:
    client.put(f"{topic}.d", discard="reject", cap_records=1)
    route(client, topic, f"{topic}.s", f"{topic}.d")
    client.write(f"{topic}.s", 1, 2, 3)
    seen = []
    for _ in range(3):
        answer = client.diff(f"{topic}.d")
        seen += [record["data"] for record in answer["records"]]
        client.ok("POST", f"/v0/topics/{topic}.d/delete", {"before_seq": answer["head_seq"] + 1})
    assert seen == [1, 2, 3]


@pytest.mark.parametrize(
    "fields", [{}, {"source": "a"}, {"source": 1, "dest": "b"}, {"source": "a", "dest": "b", "guarantee": "x"}]
)
def test_bad_router_bodies(client: Client, topic: str, fields: dict[str, Any]) -> None:
    client.refused(client.send("PUT", f"/v0/routers/{topic}", fields), 400, "invalid_request")
