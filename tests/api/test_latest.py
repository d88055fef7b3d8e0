"""The newest record of each tag over HTTP, and topics that keep only that (`docs/spec/readers.md#sec-7`)."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from tests.api.client import Client


def latest(client: Client, topic: str, query: str = "") -> Any:
    return client.ok("GET", f"/v0/topics/{topic}/latest{query}")


def write(client: Client, topic: str, *rows: tuple[str | None, Any]) -> None:
    records = [{"data": data} | ({} if tag is None else {"tag": tag}) for tag, data in rows]
    answer = client.send("POST", f"/v0/topics/{topic}", {"records": records})
    assert answer.status_code in (200, 201)


def table(page: Any) -> dict[str, Any]:
    return {record["$tag"]: record["data"] for record in page["records"]}


def test_the_newest_of_each_tag_in_byte_order(client: Client, topic: str) -> None:
    write(client, topic, ("b", 1), ("a", 2), (None, 3), ("b", 4), ("é", 5), ("B", 6), ("", 7))
    page = latest(client, topic)
    assert [(record["$tag"], record["data"]) for record in page["records"]] == [
        ("", 7), ("B", 6), ("a", 2), ("b", 4), ("é", 5),
    ]  # fmt: skip
    assert (page["topic"], page["next"], page["head_seq"]) == (topic, None, 7)
    assert page["position"].startswith("7-e")
    assert client.ok("POST", f"/v0/topics/{topic}/diff", {"from_seq": page["position"]})["tombstone"] is None


def test_pages_go_on_after_a_tag_and_can_be_cut_by_prefix(client: Client, topic: str) -> None:
    write(client, topic, *((f"{kind}:{at:02}", at) for at in range(30) for kind in ("x", "y", "z")))
    seen: dict[str, Any] = {}
    query, pages = "?tag=y:&limit=7", 0
    while query:
        page = latest(client, topic, query)
        assert len(page["records"]) <= 7
        seen |= table(page)
        pages += 1
        query = "" if page["next"] is None else f"?tag=y:&limit=7&after={quote(page['next'])}"
    assert (seen, pages) == ({f"y:{at:02}": at for at in range(30)}, 5)
    assert table(latest(client, topic, "?tag=z:2*")) == {f"z:{at}": at for at in range(20, 30)}


def test_a_page_ends_at_a_mebibyte(client: Client, topic: str) -> None:
    for at in range(5):
        write(client, topic, (f"t{at}", "x" * 400_000))
    page = latest(client, topic)
    assert ([record["$tag"] for record in page["records"]], page["next"]) == (["t0", "t1"], "t1")
    assert [record["$tag"] for record in latest(client, topic, "?after=t3")["records"]] == ["t4"]


def test_null_hides_its_tag_until_it_is_written_again(client: Client, topic: str) -> None:
    write(client, topic, ("a", 1), ("b", 1), ("a", None), ("c", "null"))
    assert table(latest(client, topic)) == {"b": 1, "c": "null"}
    write(client, topic, ("a", 2), ("b", None))
    assert table(latest(client, topic)) == {"a": 2, "c": "null"}


def test_what_makes_no_sense_is_refused(client: Client, topic: str) -> None:
    write(client, topic, ("a", 1))
    client.refused(client.send("GET", f"/v0/topics/{topic}/latest?limit=ten"), 400, "invalid_request")
    client.refused(client.send("GET", "/v0/topics/nothere/latest"), 404, "topic_not_found", {"topic": "nothere"})
    client.ok("PUT", f"/v0/topics/{topic}.q", {"type": "queue"}, status=201)
    client.refused(client.send("GET", f"/v0/topics/{topic}.q/latest"), 400, "invalid_request")


@pytest.mark.parametrize("config", [{"type": "queue", "compact": "tag"}, {"compact": "node"}, {"compact_grace_ms": -1}])
def test_a_config_that_cannot_be_compacted_is_refused(client: Client, topic: str, config: Any) -> None:
    client.refused(client.send("PUT", f"/v0/topics/{topic}", config), 400, "invalid_request")


def test_compaction_shows_in_a_config_only_where_it_is_set(client: Client, topic: str) -> None:
    made = client.ok("PUT", f"/v0/topics/{topic}", {"compact": "tag", "compact_grace_ms": 5}, status=201)["config"]
    assert (made["compact"], made["compact_grace_ms"]) == ("tag", 5)
    plain = client.ok("PUT", f"/v0/topics/{topic}", {})["config"]
    assert "compact" not in plain
    assert "compact_grace_ms" not in plain
