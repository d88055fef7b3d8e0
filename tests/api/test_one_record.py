"""One record by its seq, the newest of a tag, and reads by GET that a cache may keep (`docs/spec/readers.md#sec-4`)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.api.client import Client


def filled(client: Client, topic: str, **config: Any) -> str:
    """Records 0 to 5, tagged a, b, a, b, ...; the address of its records."""
    client.put(topic, **config)
    client.write(topic, *({"data": at, "tag": "ab"[at % 2]} for at in range(6)))
    return f"/v0/topics/{topic}/records"


def missing(client: Client, topic: str, at: str, **detail: Any) -> None:
    answer = client.send("GET", f"/v0/topics/{topic}/records/{at}")
    client.refused(answer, 404, "record_not_found", {"topic": topic, **detail})


# --- one record ------------------------------------------------------------------------------------------------------


def test_a_record_is_had_by_its_seq_and_by_its_position(client: Client, topic: str) -> None:
    at = filled(client, topic)
    third = client.ok("GET", f"{at}/3")
    assert (third["topic"], third["record"]["$seq"], third["record"]["$tag"], third["record"]["data"]) == (
        topic, 3, "a", 2,
    )  # fmt: skip
    assert client.ok("GET", f"{at}/{third['position']}")["record"] == third["record"]
    assert client.ok("POST", f"/v0/topics/{topic}/diff", {"from_seq": third["position"]})["records"][0]["$seq"] == 4


def test_a_record_that_is_not_there_says_why(client: Client, topic: str) -> None:
    filled(client, topic, cap_records=4)
    client.ok("POST", f"/v0/topics/{topic}/delete", {"match": "b"})
    missing(client, topic, "1", seq=1, why="lost", reason="cap")
    missing(client, topic, "4", seq=4, why="deleted")
    missing(client, topic, "7", seq=7, why="not_yet")
    missing(client, topic, "5-e1", seq=5, why="lost", reason="recreated")


@pytest.mark.parametrize("at", ["0", "-1", "x", "1-2", "99999999999999999999"])
def test_what_is_no_seq_is_refused(client: Client, topic: str, at: str) -> None:
    address = filled(client, topic)
    client.refused(client.send("GET", f"{address}/{at}"), 400, "invalid_request")


def test_the_newest_record_is_had_of_all_of_a_tag_and_of_a_prefix(client: Client, topic: str) -> None:
    at = filled(client, topic)
    newest = {
        tag: client.ok("GET", f"{at}/latest{tag}")["record"]["data"] for tag in ("", "?tag=a", "?tag=b", "?tag=*")
    }
    assert newest == {"": 5, "?tag=a": 4, "?tag=b": 5, "?tag=*": 5}
    client.ok("POST", f"/v0/topics/{topic}/delete", {"match": "b"})
    missing(client, topic, "latest?tag=b")
    client.refused(client.send("GET", f"{at}/latest?tag="), 400, "invalid_request")
    client.refused(client.send("GET", "/v0/topics/absent/records/latest"), 404, "topic_not_found", {"topic": "absent"})


# --- reads by GET ----------------------------------------------------------------------------------------------------


def test_a_read_by_get_answers_as_a_diff_does(client: Client, topic: str) -> None:
    at = filled(client, topic)
    client.ok("POST", f"/v0/topics/{topic}/cursors/c", {"position": 4}, status=201)
    asked = {
        "?from=2&limit=2": {"from_seq": 2, "limit": 2},
        "?tag=b&include_tags=true": {"tag": "b", "include_tags": True},
        "?from=cursor:c": {"cursor": "c"},
        "?from=@0": {"from_ts": 0},
        "?from=@99999999999999": {"from_ts": 99999999999999},
        "?node=n&wait_ms=0": {"node": "n"},
    }
    for query, body in asked.items():
        got, wanted = client.ok("GET", at + query), client.ok("POST", f"/v0/topics/{topic}/diff", body)
        assert {**got, "performance": 0} == {**wanted, "performance": 0}, query


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("?fom=3", "fom"), ("?from=x", "from"), ("?from=@soon", "from"), ("?from=cursor:", "from"),
        ("?limit=ten", "limit"), ("?wait_ms=-1", "wait_ms"), ("?tag=", "tag"), ("?node=", "node"),
        ("?include_tags=maybe", "include_tags"),
    ],
)  # fmt: skip
def test_a_typing_error_reads_nothing_and_is_named(client: Client, topic: str, query: str, named: str) -> None:
    answer = client.send("GET", filled(client, topic) + query)
    client.refused(answer, 400, "invalid_request")
    assert named in answer.json()["error"]["message"]


def test_a_page_below_the_head_is_unchanged_until_a_record_of_it_goes(client: Client, topic: str) -> None:
    at = filled(client, topic)
    page = f"{at}?from=1&limit=3"
    first = client.send("GET", page)
    tag = first.headers["etag"]
    assert first.headers["cache-control"] == "private, max-age=0, must-revalidate"
    client.write(topic, "more")
    again = client.raw("GET", page, headers={"If-None-Match": tag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert client.raw("GET", page, headers={"If-None-Match": '"other"'}).status_code == 200
    assert client.ok("GET", f"{at}/1")["record"]["data"] == 0  # the connection goes on
    client.ok("POST", f"/v0/topics/{topic}/delete", {"before_seq": 3})
    changed = client.raw("GET", page, headers={"If-None-Match": tag})
    assert (changed.status_code, [record["$seq"] for record in changed.json()["records"]]) == (200, [3, 4, 5])


def test_a_page_at_the_head_is_not_kept(client: Client, topic: str) -> None:
    at = filled(client, topic)
    assert "etag" not in client.send("GET", at).headers
    assert "etag" not in client.send("GET", f"{at}?from=6").headers
