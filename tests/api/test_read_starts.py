"""Reads by tag, from a time and from a named cursor, in diff, watch and WebSocket (`docs/spec/readers.md#sec-2`)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.api.client import Client


def diff(client: Client, topic: str, **fields: Any) -> Any:
    return client.ok("POST", f"/v0/topics/{topic}/diff", fields)


def seqs(page: Any) -> list[int]:
    return [record["$seq"] for record in page["records"]]


@pytest.fixture
def tagged(client: Client, topic: str) -> str:
    """Records 1..9 with tags a1, b, a2 in turn."""
    rows = [{"data": at, "tag": ("a1", "b", "a2")[at % 3]} for at in range(9)]
    client.ok("POST", f"/v0/topics/{topic}", {"records": rows}, status=201)
    return topic


def test_a_diff_by_tag_gives_the_matches_and_moves_over_the_rest(client: Client, tagged: str) -> None:
    page = diff(client, tagged, tag="b")
    assert (seqs(page), page["next_from_seq"], page["caught_up"]) == ([2, 5, 8], 9, True)
    assert seqs(diff(client, tagged, tag="a*")) == [1, 3, 4, 6, 7, 9]
    assert seqs(diff(client, tagged, tag=["tag", "Eq", "a*"])) == []
    assert seqs(diff(client, tagged, tag="*", limit=2, from_seq=3)) == [4, 5]


@pytest.mark.parametrize(
    "field", [{"tag": ""}, {"tag": ["tag", "Lt", "x"]}, {"from_ts": -1}, {"from_seq": 3, "from_ts": 1}]
)
def test_a_start_or_a_tag_that_makes_no_sense_is_refused(client: Client, tagged: str, field: Any) -> None:
    client.refused(client.send("POST", f"/v0/topics/{tagged}/diff", field), 400, "invalid_request")


def test_a_diff_begins_at_a_time(client: Client, tagged: str) -> None:
    records = diff(client, tagged)["records"]
    assert seqs(diff(client, tagged, from_ts=records[0]["$ts"])) == list(range(1, 10))
    page = diff(client, tagged, from_ts=2**52)
    assert (seqs(page), page["next_from_seq"], page["caught_up"]) == ([], 9, True)


def test_a_diff_begins_at_a_cursor(client: Client, tagged: str) -> None:
    client.ok("POST", f"/v0/topics/{tagged}/cursors/c", {"position": 6}, status=201)
    assert seqs(diff(client, tagged, cursor="c")) == [7, 8, 9]
    assert seqs(diff(client, tagged, cursor="c", tag="b")) == [8]
    missing = client.send("POST", f"/v0/topics/{tagged}/diff", {"cursor": "d"})
    client.refused(missing, 404, "cursor_not_found", {"topic": tagged, "cursor": "d"})


def test_a_watch_begins_at_a_cursor_or_a_time(client: Client, tagged: str) -> None:
    client.ok("POST", f"/v0/topics/{tagged}/cursors/c", {"position": 6}, status=201)
    made = client.ok("POST", "/v0/watch", {"topics": {tagged: {"cursor": "c"}}})
    assert made["topics"][tagged]["from_seq"] == 6
    made = client.ok("POST", "/v0/watch", {"topics": {tagged: {"from_ts": 2**52}}})
    assert made["topics"][tagged]["from_seq"] == 9
    missing = client.send("POST", "/v0/watch", {"topics": {tagged: {"cursor": "d"}}})
    client.refused(missing, 404, "cursor_not_found", {"topic": tagged, "cursor": "d"})
