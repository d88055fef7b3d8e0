"""The two bulk endpoints on the wire: what a manifest tells, what frames an answer holds and what its headers say."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.spark.served import Served

from topics.formats.segments import scan_segment


class Frames(NamedTuple):
    seqs: list[int]
    first: int
    last: int
    headers: dict[str, str]
    body: bytes

    @property
    def tombstone(self) -> Any:
        told = self.headers.get("topics-tombstone")
        return None if told is None else json.loads(told)


def frames(served: Served, topic: str, query: str = "", key: str | None = None) -> Frames:
    request = urllib.request.Request(f"{served.url}/v0/topics/{topic}/frames{query}")
    if key is not None:
        request.add_header("Authorization", f"Bearer {key}")
    with urllib.request.urlopen(request, timeout=30) as response:
        body = response.read()
        headers = {name.lower(): value for name, value in response.getheaders()}
    assert headers["content-type"] == "application/vnd.topics.frames"
    found = scan_segment(body)
    assert found.reason is None or found.reason == ""
    assert found.end == len(body)
    first, last = int(headers["topics-first-seq"]), int(headers["topics-last-seq"])
    return Frames([int(seq) for seq in found.seq], first, last, headers, body)


def refusal(served: Served, path: str, key: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(f"{served.url}{path}")
    if key is not None:
        request.add_header("Authorization", f"Bearer {key}")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=30)
    return caught.value.code, json.loads(caught.value.read())["error"]["code"]


def test_a_manifest_names_every_segment(served: Served) -> None:
    for n in range(5):
        served.write("m", *({"n": n} for _ in range(150)))
    served.wait_sealed("m", 3)
    told = served.segments("m")
    assert (told["topic"], told["head_seq"], told["earliest_seq"], told["evict_floor"]) == ("m", 750, 1, 1)
    assert told["evict_reason"] is None
    assert told["epoch"] == int(frames(served, "m").headers["topics-epoch"])
    parts = told["segments"]
    assert [part["first_seq"] for part in parts] == [1, *(part["last_seq"] + 1 for part in parts[:-1])]
    assert parts[-1]["last_seq"] == 750
    assert [part["state"] for part in parts[:3]] == ["sealed"] * 3
    assert all(part["state"] == "sealed" or part is parts[-1] for part in parts)
    times = {row[0]: row[1] for row in served.rows("m")}
    for part in parts:
        assert (part["min_ts"], part["max_ts"]) == (times[part["first_seq"]], times[part["last_seq"]])
        assert part["count"] == part["last_seq"] - part["first_seq"] + 1
        assert part["bytes"] > 0
        assert part["tier"] == "hot"
        assert "uri" not in part


def test_a_manifest_counts_what_is_live_and_says_why_records_are_gone(served: Served) -> None:
    served.put("capped", cap_records=100)
    served.write("capped", *range(120), tag="x")
    served.write("capped", *range(20), tag="y")
    served.delete("capped", match="y")
    told = served.segments("capped")
    assert (told["evict_floor"], told["evict_reason"]) == (41, "cap")
    assert sum(part["count"] for part in told["segments"]) == len(served.rows("capped"))


def test_frames_are_the_records_of_a_diff(served: Served) -> None:
    served.write("f", *({"n": n} for n in range(700)), tag="t", node="n", meta={"k": 1})
    served.delete("f", before_seq=11)
    got = frames(served, "f")
    assert got.seqs == [row[0] for row in served.rows("f")] == list(range(11, 701))
    assert (got.first, got.last, got.tombstone) == (1, 700, None)
    assert (got.headers["topics-head-seq"], got.headers["topics-earliest-seq"]) == ("700", "11")


def test_ranges_and_sizes_bound_an_answer(served: Served) -> None:
    served.write("r", *["x" * 100] * 600)
    part = frames(served, "r", "?from_seq=100&to_seq=105")
    assert (part.seqs, part.first, part.last) == ([101, 102, 103, 104, 105], 101, 105)
    one = frames(served, "r", "?from_seq=100&max_bytes=1")
    assert (one.seqs, one.last) == ([101], 101)
    some = frames(served, "r", "?max_bytes=20000")
    assert len(some.body) <= 20_000
    assert some.seqs == list(range(1, some.last + 1))
    beyond = frames(served, "r", "?from_seq=595&to_seq=9999")
    assert (beyond.seqs[-1], beyond.last) == (600, 600)
    none = frames(served, "r", "?from_seq=600")
    assert (none.seqs, none.first, none.last) == ([], 601, 600)
    assert frames(served, "r", "?from_seq=x&max_bytes=y").last == 600  # as everywhere: no number is no value
    cursor, seqs = 0, []
    while cursor < 600:
        page = frames(served, "r", f"?from_seq={cursor}&max_bytes=7000")
        seqs += page.seqs
        cursor = page.last
    assert seqs == list(range(1, 601))


def test_a_range_that_ends_before_it_begins_is_empty(served: Served) -> None:
    served.write("backwards", *range(20))
    found = frames(served, "backwards", "?from_seq=9&to_seq=5")
    assert (found.seqs, found.first, found.last, found.tombstone) == ([], 10, 9, None)
    assert frames(served, "backwards", "?from_seq=99&to_seq=5").tombstone["reason"] == "recreated"
    served.put("backwards", cap_records=4)
    found = frames(served, "backwards", "?from_seq=9&to_seq=5")
    assert (found.seqs, found.first, found.last) == ([], 17, 16)
    assert found.tombstone["gap_to"] == 16


def test_a_range_that_crosses_the_floor_carries_a_tombstone(served: Served) -> None:
    served.put("gap", cap_records=50)
    served.write("gap", *range(300))
    got = frames(served, "gap", "?from_seq=10")
    assert (got.tombstone["gap_from"], got.tombstone["gap_to"], got.tombstone["reason"]) == (11, 250, "cap")
    assert (got.first, got.seqs) == (251, list(range(251, 301)))
    assert frames(served, "gap", "?from_seq=250").tombstone is None


def test_a_cursor_of_another_instance_is_told(served: Served) -> None:
    served.write("again", *range(30))
    epoch = frames(served, "again").headers["topics-epoch"]
    served.drop("again")
    served.write("again", 1, 2)
    got = frames(served, "again", "?from_seq=30")
    assert got.headers["topics-epoch"] != epoch
    assert got.tombstone["reason"] == "recreated"
    assert (got.first, got.seqs) == (1, [1, 2])


def test_both_need_the_read_scope_and_obey_prefixes(tmp_path: Path) -> None:
    keys = "boss,reader:read:open,writer:write"
    served = Served(tmp_path, key="boss", api_keys=keys)
    try:
        served.write("open.a", 1)
        served.write("shut", 1)
        assert frames(served, "open.a", key="reader").seqs == [1]
        for endpoint in ("segments", "frames"):
            for topic, key, expected in (
                ("open.a", None, (401, "unauthorized")),
                ("open.a", "writer", (403, "forbidden")),
                ("shut", "reader", (403, "forbidden")),
                ("open.absent", "reader", (404, "topic_not_found")),
            ):
                assert refusal(served, f"/v0/topics/{topic}/{endpoint}", key) == expected
    finally:
        served.stop()


def test_bulk_reads_are_no_activity(served: Served) -> None:
    served.write("quiet", *range(10))
    frames(served, "quiet")
    served.segments("quiet")
    assert served.call("GET", "/v0/topics/quiet?touch=false")["last_read_ts"] is None
