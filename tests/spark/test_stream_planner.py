"""Streams without Spark: offsets, limits, gaps and topics that come and go, batch by batch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.spark.world import World, read_tasks

from topics.errors import ConfigError, DataLoss
from topics.spark.jobs.job import topic_option
from topics.spark.options import ReadOptions, read_options
from topics.spark.planning.batch import PARALLELISM_ENV
from topics.spark.planning.cut import LossWarning
from topics.spark.planning.stream import StreamPlanner

Offset = dict[str, Any]


class Query:
    """What Spark does with a stream: an offset log, batches, and a new reader after every restart."""

    def __init__(self, world: World, topics: str = "a", **given: str) -> None:
        self.world = world
        chosen = topic_option(topics)
        self.options: ReadOptions = read_options({"path": world.data_dir, **chosen, **given}, streaming=True)
        self.restart()
        self.offset: Offset = self.planner.initial()
        self.rows: list[dict[str, Any]] = []

    def restart(self) -> None:
        self.planner = StreamPlanner(self.options, clock=self.world.clock.wall_ms)

    def latest(self) -> Offset:
        limits = {"rows_max": self.options.max_offsets_per_trigger, "bytes_max": self.options.max_bytes_per_trigger}
        return self.planner.latest(self.offset, **limits)

    def read(self, end: Offset) -> list[dict[str, Any]]:
        table: pa.Table = read_tasks(self.planner.tasks(self.offset, end), self.options)
        found: list[dict[str, Any]] = table.to_pylist()
        return found

    def batch(self) -> int:
        """One batch; how many rows it had."""
        end = self.latest()
        found = self.read(end) if end != self.offset else []
        self.offset = end
        self.rows += found
        return len(found)

    def drain(self) -> None:
        before = None
        while before != self.offset:
            before = self.offset
            self.batch()

    def seqs(self, topic: str = "a") -> list[int]:
        return [row["seq"] for row in self.rows if row["topic"] == topic and row["seq"] is not None]

    def tombstones(self) -> list[tuple[int, int, str]]:
        return [(r["gap_from"], r["gap_to"], r["reason"]) for r in self.rows if r["kind"] == "tombstone"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.write("a", *range(50))
    made.sim.checkpoint()
    return made


def test_a_stream_starts_at_the_end_unless_told_otherwise(world: World) -> None:
    late, early = Query(world), Query(world, startingOffsets="earliest")
    third = Query(world, startingOffsets='{"a":41}')
    world.write("a", *range(10))
    for query in (late, early, third):
        query.drain()
    assert late.seqs() == list(range(51, 61))
    assert early.seqs() == list(range(1, 61))
    assert third.seqs() == list(range(41, 61))
    assert late.offset == {"a": {"epoch": early.rows[0]["epoch"], "seq": 61}}


def test_times_choose_where_a_stream_starts(world: World) -> None:
    world.clock.advance(1000)
    at = world.clock.wall_ms()
    world.write("a", "x", "y")
    query = Query(world, startingTimestamp=str(at))
    query.drain()
    assert query.seqs() == [51, 52]


@pytest.mark.parametrize("seed", range(4))
def test_batches_follow_each_other_without_gap_or_overlap(world: World, seed: int) -> None:
    """Also when a batch is planned twice, by another reader, after the log has moved on."""
    rng = random.Random(seed)
    query = Query(world, startingOffsets="earliest", maxOffsetsPerTrigger="17")
    for _ in range(40):
        world.write("a", *range(rng.randint(0, 12) or 1))
        verb = rng.choice((query.batch, query.batch, query.restart, world.sim.checkpoint, world.sim.snapshot))
        verb()
        end = query.latest()
        first = query.read(end)
        assert len(first) <= 17
        if rng.random() < 0.5:
            world.write("a", "between")
            world.sim.checkpoint()
            query.restart()
        assert query.read(end) == first
    query.drain()
    assert query.seqs() == [row.seq for row in world.rows("a")]


def test_a_repeated_batch_has_the_same_partitions_wherever_its_records_lie_by_then(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink's idempotency keys hold partition numbers: other rows under a number would be taken for old ones."""
    query = Query(world, "a*", startingOffsets="earliest", failOnDataLoss="false", maxRecordsPerPartition="18")
    world.write("a", *range(45))
    world.write("a2", *range(33))
    query.batch()  # a2 joins
    query.restart()
    query.offset["a"]["seq"] = 1
    end = query.latest()

    def partitions(cores: int) -> list[list[tuple[str, int]]]:
        monkeypatch.setenv(PARALLELISM_ENV, str(cores))
        query.restart()
        tables = [read_tasks([task], query.options) for task in query.planner.tasks(query.offset, end)]
        return [[(row["topic"], row["seq"]) for row in table.to_pylist()] for table in tables]

    first = partitions(2)
    expected = [("a", seq) for seq in range(1, 96)] + [("a2", seq) for seq in range(1, 34)]
    assert [row for rows in first for row in rows] == expected
    world.sim.checkpoint()  # from the log into segments
    assert partitions(7) == first
    world.put("a", cap_records=80)
    with pytest.warns(LossWarning):
        assert partitions(2) == [[row for row in rows if row[0] != "a" or row[1] > 15] for rows in first]
    world.drop("a")
    with pytest.warns(LossWarning):
        assert partitions(2) == [[row for row in rows if row[0] != "a"] for rows in first]


def test_small_batches_are_not_cut_into_crumbs(world: World) -> None:
    query = Query(world, startingOffsets="earliest")
    assert len(query.planner.tasks(query.offset, query.latest())) == 1


def test_a_topic_that_ends_before_the_offset_is_another_one(world: World) -> None:
    """A server that lost its disk, or was put back from a backup, gives the same epoch again."""
    strict, lenient = Query(world), Query(world, onDataLoss="rows", maxOffsetsPerTrigger="20")
    for query in (strict, lenient):
        query.offset["a"]["seq"] = 1000
    with pytest.raises(DataLoss, match="recreated"):
        strict.batch()
    lenient.drain()
    assert lenient.tombstones() == [(1, 50, "recreated")]
    assert lenient.seqs() == list(range(1, 51))


def test_a_later_topic_joins_from_its_earliest_record(world: World) -> None:
    query = Query(world, "a*")
    query.drain()
    world.write("a", 1)
    world.write("a2", *range(7))
    world.delete("a2", before=3)
    world.write("b", 1)
    query.drain()
    assert query.seqs("a") == [51]
    assert query.seqs("a2") == [3, 4, 5, 6, 7]
    assert set(query.offset) == {"a", "a2"}


def test_available_now_reads_what_is_there_and_stops(world: World) -> None:
    query = Query(world, "a*", startingOffsets="earliest", maxOffsetsPerTrigger="20")
    query.planner.fix_target()
    world.write("a", *range(30))
    world.write("a2", 1)
    query.drain()
    assert query.seqs() == list(range(1, 51))
    assert query.seqs("a2") == []
    told = query.planner.report()
    assert told is not None
    assert {name: point["seq"] for name, point in told.items()} == {"a": 81, "a2": 2}  # the backlog shows


def test_bytes_bound_a_batch_and_never_stop_it(world: World) -> None:
    world.write("big", *("x" * size for size in (10, 5000, 10, 10, 4000, 10)))
    query = Query(world, "big", startingOffsets="earliest", maxBytesPerTrigger="500")
    sizes: list[int] = []
    while not sizes or sizes[-1]:
        sizes.append(query.batch())
    assert query.seqs("big") == [1, 2, 3, 4, 5, 6]
    assert sizes == [1, 1, 2, 1, 1, 0]


def test_both_limits_hold_together(world: World) -> None:
    query = Query(world, startingOffsets="earliest", maxOffsetsPerTrigger="3", maxBytesPerTrigger="1000000")
    assert query.batch() == 3
    query = Query(world, startingOffsets="earliest", maxOffsetsPerTrigger="40", maxBytesPerTrigger="200")
    assert 1 <= query.batch() < 10


@pytest.mark.parametrize("policy", ["fail", "warn", "rows"])
def test_records_evicted_before_they_were_read_are_a_gap(world: World, policy: str) -> None:
    query = Query(world, startingOffsets='{"a":31}', onDataLoss=policy)
    world.put("a", cap_records=10)
    world.write("a", 1)
    if policy == "fail":
        with pytest.raises(DataLoss, match=r"records 31\.\.41 of topic 'a' are lost \(cap\)"):
            query.drain()
        return
    if policy == "warn":
        with pytest.warns(LossWarning, match=r"31\.\.41 of topic 'a' are lost \(cap\)"):
            query.drain()
    else:
        query.drain()
        assert query.tombstones() == [(31, 41, "cap")]
    assert query.seqs() == list(range(42, 52))


@pytest.mark.parametrize("policy", ["fail", "warn", "rows"])
def test_a_topic_made_anew_is_a_gap_and_starts_over(world: World, policy: str) -> None:
    query = Query(world, startingOffsets='{"a":41}', onDataLoss=policy)
    query.drain()
    world.drop("a")
    world.write("a", "n", "e", "w")
    query.restart()
    if policy == "fail":
        with pytest.raises(DataLoss, match=r"topic 'a' was created again .*\(recreated\)"):
            query.drain()
        return
    if policy == "warn":
        with pytest.warns(LossWarning, match="recreated"):
            query.drain()
    else:
        query.drain()
        assert query.tombstones() == [(1, 3, "recreated")]
    assert query.seqs() == [*range(41, 51), 1, 2, 3]


def test_a_topic_that_is_gone_stops_a_stream_that_named_it(world: World) -> None:
    named, matched = Query(world, "a"), Query(world, "a*")
    world.drop("a")
    with pytest.raises(DataLoss, match=r"topic 'a' does not exist any more \(deleted\): the reader was at seq 51"):
        named.batch()
    assert matched.batch() == 0
    with pytest.raises(ConfigError, match="there is no topic 'a'"):
        Query(world, "a")


def test_a_batch_of_a_topic_that_went_meanwhile_says_so(world: World) -> None:
    query = Query(world, "a*", startingOffsets="earliest")
    end = query.latest()
    world.drop("a")
    with pytest.raises(DataLoss, match=r"'a' does not exist any more \(deleted\): the reader was at seq 1"):
        query.read(end)
    world.write("a", "n", "e", "w")
    with pytest.raises(DataLoss, match=r"'a' was created again .*: it is at seq 3 now"):
        query.read(end)


def test_a_log_that_has_lost_its_end_is_a_gap(world: World) -> None:
    query = Query(world, startingOffsets="earliest", onDataLoss="rows")
    epoch = query.offset["a"]["epoch"]
    found = query.read({"a": {"epoch": epoch, "seq": 61}})
    assert [row["seq"] for row in found if row["kind"] == "record"] == list(range(1, 51))
    assert [(r["gap_from"], r["gap_to"], r["reason"]) for r in found if r["kind"] == "tombstone"] == [
        (51, 60, "restart")
    ]


def test_a_stream_gives_the_columns_and_tags_it_was_asked_for(world: World) -> None:
    world.write("a", 1, 2, tag="t")
    query = Query(world, startingOffsets="earliest", columns="topic,seq,tag", tag="t*")
    query.drain()
    assert query.rows == [{"topic": "a", "seq": 51, "tag": "t"}, {"topic": "a", "seq": 52, "tag": "t"}]


@pytest.mark.parametrize("topics", ["b", "b*"])
def test_a_topic_that_a_restarted_stream_is_not_asked_for_keeps_its_place(
    world: World, topics: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.write("b", *range(7))
    query = Query(world, "a,b", startingOffsets="earliest")
    end = query.latest()
    query.options = Query(world, topics).options
    query.restart()
    assert len(query.read(end)) == 57  # a batch that was begun is what it was
    query.offset = end
    world.write("a", "later")
    world.write("b", "later")
    query.drain()
    assert query.seqs("b") == [8]
    query.options = Query(world, "a,b").options
    query.restart()
    query.drain()
    assert (query.seqs("a"), query.seqs("b")) == ([51], [8])
    assert not caplog.records
