"""The table over a running server is what a full diff gives: through files where they are in reach, else as frames."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.spark.served import Served
from tests.spark.world import read_tasks

from topics.errors import ConfigError, DataLoss
from topics.formats.segments import encode_segment_frames
from topics.spark.logs import server_log
from topics.spark.logs.bulk_client import RemoteAnswer
from topics.spark.logs.log import LogAddress
from topics.spark.options import read_options
from topics.spark.planning.batch import plan_batch
from topics.spark.planning.cut import TopicCut


def read_url(served: Served, topics: str, **given: str) -> pa.Table:
    if served.key:
        given.setdefault("apiKey", served.key.partition(":")[0])
    options = read_options({"url": served.url, "subscribe": topics, **given}, streaming=False)
    return read_tasks(plan_batch(options), options)


def rows_in(table: pa.Table) -> list[tuple[Any, ...]]:
    ts = [value // 1000 for value in table.column("ts").cast(pa.int64()).to_pylist()]
    seq, node, tag = (table.column(name).to_pylist() for name in ("seq", "node", "tag"))
    data = [json.loads(text) for text in table.column("data").to_pylist()]
    meta = [None if text is None else json.loads(text) for text in table.column("meta").to_pylist()]
    return list(zip(seq, ts, node, tag, data, meta, strict=True))


@pytest.fixture(params=["files", "frames"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to the bytes of a sealed segment."""
    if request.param == "frames":
        monkeypatch.setattr(server_log, "reachable_file", lambda block, cold_path: None)
    return str(request.param)


def test_a_random_history_reads_the_same(served: Served, way: str) -> None:
    rng, topic = random.Random(7), f"history-{way}"
    served.put(topic, cap_records=900)
    for _ in range(25):
        count = rng.randint(1, 90)
        meta = {"meta": {"k": rng.randint(0, 3)}} if rng.random() < 0.5 else {}
        served.write(
            topic, *({"n": i, "é": "ü" * rng.randint(0, 9)} for i in range(count)), tag=f"t{count % 4}", **meta
        )
        if rng.random() < 0.3:
            served.delete(topic, match="t1" if rng.random() < 0.5 else "t*", before_seq=rng.randint(1, 900))
        assert rows_in(read_url(served, topic)) == served.rows(topic)
    served.wait_sealed(topic, 1)
    assert rows_in(read_url(served, topic)) == served.rows(topic)


def test_sealed_segments_are_read_from_files(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.write("sealed", *range(1000))
    served.wait_sealed("sealed", 4)
    asked: list[tuple[int, int]] = []
    real = server_log.frames_between

    def watched(address: Any, task: Any, lo: int, hi: int) -> Any:
        asked.append((lo, hi))
        return real(address, task, lo, hi)

    monkeypatch.setattr(server_log, "frames_between", watched)
    assert [row[0] for row in rows_in(read_url(served, "sealed"))] == list(range(1, 1001))
    sealed_to = max(s["last_seq"] for s in served.segments("sealed")["segments"] if s["state"] == "sealed")
    assert all(lo > sealed_to for lo, _ in asked)


def test_many_topics_are_planned_side_by_side(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes: list[int] = []
    alone = server_log.ServerLog._cuts_of_lane

    def seen(log: server_log.ServerLog, names: list[str]) -> Any:
        lanes.append(len(names))
        return alone(log, names)

    monkeypatch.setattr(server_log.ServerLog, "_cuts_of_lane", seen)
    for n in range(50):
        served.write(f"lane-{n:02}", n)
    options = read_options({"url": served.url, "subscribePrefix": "lane-"}, streaming=False)
    table = read_tasks(plan_batch(options), options)
    assert table.column("topic").to_pylist() == [f"lane-{n:02}" for n in range(50)]
    assert table.column("data").to_pylist() == [str(n) for n in range(50)]
    assert (len(lanes), sum(lanes)) == (4, 50)


def test_timestamps_choose_the_range(served: Served, way: str) -> None:
    topic = f"times-{way}"
    for n in range(60):
        served.write(topic, *[n] * 10)
    rows = served.rows(topic)
    middle = rows[300][1]
    after = [row for row in rows if row[1] >= middle]
    assert rows_in(read_url(served, topic, startingTimestamp=str(middle))) == after
    before = [row for row in rows if row[1] < middle]
    assert rows_in(read_url(served, topic, endingTimestamp=str(middle))) == before


def test_a_gap_fails_or_becomes_a_row(served: Served) -> None:
    served.put("gappy", cap_records=50)
    served.write("gappy", *range(500))
    given = {"startingOffsets": '{"gappy": 1}'}
    with pytest.raises(DataLoss, match=r"1\.\.450 of topic 'gappy' are lost \(cap\)"):
        read_url(served, "gappy", **given)
    table = read_url(served, "gappy", onDataLoss="rows", **given)
    lost = table.filter(pa.compute.equal(table["kind"], "tombstone")).to_pylist()
    assert [(row["gap_from"], row["gap_to"], row["reason"]) for row in lost] == [(1, 450, "cap")]
    assert table.num_rows == 51


def test_a_topic_that_goes_between_planning_and_reading(served: Served, way: str) -> None:
    topic = f"going-{way}"
    served.write(topic, *range(300))
    options = read_options({"url": served.url, "subscribe": topic}, streaming=False)
    tasks = plan_batch(options)
    served.drop(topic)
    with pytest.raises(DataLoss, match=rf"'{topic}' does not exist any more \(deleted\)"):
        read_tasks(tasks, options)
    served.write(topic, *range(7))
    with pytest.raises(DataLoss, match=rf"'{topic}' was created again .*: it is at seq 7 now"):
        read_tasks(tasks, options)


def test_unknown_topics_and_wrong_keys_are_told_at_planning(tmp_path: Path) -> None:
    served = Served(tmp_path, key="right:read+write+admin")
    try:
        served.write("a", 1)
        with pytest.raises(ConfigError, match=r"there is no topic 'b' in http.*; it has a"):
            read_url(served, "b")
        with pytest.raises(ConfigError, match=r"refuses the key.*unauthorized") as caught:
            read_url(served, "a", apiKey="wr0ng-secret")
        assert "wr0ng-secret" not in str(caught.value)
        assert rows_in(read_url(served, "a", apiKey="right"))[0][4] == 1
    finally:
        served.stop()


def test_records_that_are_in_no_file_come_from_the_server(served: Served) -> None:
    served.put("fleeting", durability="ephemeral")
    served.write("fleeting", *range(50), tag="t")
    served.call("PUT", "/v0/routers/copying", {"source": "routed", "dest": "copies"})
    served.write("routed", *range(30))
    for topic in ("fleeting", "copies"):
        deadline = time.monotonic() + 10
        while len(served.rows(topic)) < 30 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert rows_in(read_url(served, topic)) == served.rows(topic)
        assert len(served.rows(topic)) >= 30


class Told:
    """A server that answers from a list of `(seq, ts)` with gaps, one record at a time, as the frame endpoint does."""

    def __init__(self, records: dict[int, int], gaps: list[tuple[int, int]]) -> None:
        self.records, self.gaps = records, gaps

    def get(self, path: str, query: dict[str, int]) -> RemoteAnswer:
        low, last, headers = query["from_seq"] + 1, query["to_seq"], {}
        for number, (gap_from, gap_to) in enumerate(gap for gap in self.gaps if gap[1] >= low):
            if any(low <= seq < gap_from for seq in self.records) or number:
                last = min(last, gap_from - 1)
                break
            tombstone = {"gap_from": max(gap_from, low), "gap_to": gap_to, "reason": "restart"}
            low, headers = gap_to + 1, {"topics-tombstone": json.dumps(tombstone)}
        found = [seq for seq in sorted(self.records) if low <= seq <= last][:1]
        body = encode_segment_frames(seqs=found, ts=[self.records[seq] for seq in found], datas=[b"1"] * len(found))
        headers["topics-last-seq"] = str(found[0] if found else max(last, low - 1))
        return RemoteAnswer(200, headers, body.buffer)

    def close(self) -> None:
        return


def server_cut(last_seq: int, min_ts: int | None, max_ts: int | None) -> TopicCut:
    segment = {"first_seq": 1, "last_seq": last_seq, "min_ts": min_ts, "max_ts": max_ts, "bytes": 1, "count": 1}
    floors = {"head_seq": last_seq, "earliest_seq": 1, "evict_floor": 1}
    segments = [{**segment, "tier": "hot", "state": "active"}]
    return server_log.cut_from_manifest({"topic": "a", "topic_id": 1, "epoch": 1, **floors, "segments": segments})


@pytest.mark.parametrize("times", [(10, 90), (None, None)])
def test_times_are_found_behind_several_gaps_and_where_the_server_knows_none(times: tuple[Any, Any]) -> None:
    """Between two gaps every record is deleted; an index in the cold store may be out of reach."""
    told = Told({1: 10, 2: 20, 80: 30, 81: 40, 100: 90}, [(10, 19), (55, 59), (65, 69)])
    log = server_log.ServerLog(LogAddress(url="http://x"), told)  # type: ignore[arg-type]
    cut = server_cut(100, *times)
    for wanted in (5, 20, 25, 30, 35, 41, 91):
        first = log.seq_at(cut, wanted)
        assert [ts for seq, ts in told.records.items() if seq >= first] == [
            ts for ts in told.records.values() if ts >= wanted
        ]
