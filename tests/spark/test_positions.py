"""Spark's doors, without Spark: an offset of another life is announced, one of this life is not (docs/loss.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.api.server import LiveServer
from tests.spark.world import read_tasks
from tests.ways import TOLD, TOPIC, Told, Way, World, copied, restored_from_an_older_copy

from topics.errors import ConfigError, DataLoss
from topics.spark.options import ReadOptions, read_options
from topics.spark.planning.batch import plan_batch
from topics.spark.planning.stream import StreamPlanner

Rows = list[dict[str, Any]]


@contextmanager
def source(data: Path, *, by: str) -> Iterator[dict[str, str]]:
    with ExitStack() as stack:
        if by == "path":
            yield {"path": str(data), "subscribe": TOPIC}
        else:
            server = stack.enter_context(LiveServer(data))
            yield {"url": f"http://127.0.0.1:{server.port}", "subscribe": TOPIC}


def told_by(rows: Rows) -> Told:
    return [row["reason"] if row["kind"] == "tombstone" else row["seq"] for row in rows]


def batch(options: dict[str, str], **given: str) -> Rows:
    chosen = read_options({**options, "onDataLoss": "rows", **given}, streaming=False)
    return _rows(plan_batch(chosen), chosen)


def _rows(tasks: Any, options: ReadOptions) -> Rows:
    found: Rows = read_tasks(tasks, options).to_pylist()
    return sorted(found, key=lambda row: row["seq"] or 0)


class Stream:
    """A query with its checkpoint."""

    def __init__(self, offset: dict[str, Any] | None = None) -> None:
        self.offset = offset

    def run(self, options: dict[str, str], **given: str) -> Rows:
        chosen = read_options({"onDataLoss": "rows", "startingOffsets": "earliest", **options, **given}, streaming=True)
        rows: Rows = []
        with closing(StreamPlanner(chosen)) as planner:
            start = planner.initial() if self.offset is None else self.offset
            end = planner.latest(start, rows_max=None, bytes_max=None)
            if end != start:
                rows = _rows(planner.tasks(start, end), chosen)
        self.offset = json.loads(json.dumps(end))
        return rows


@pytest.mark.parametrize("by", ["path", "url"])
@pytest.mark.parametrize("way", TOLD, ids=lambda way: way.__name__)
def test_a_stream_that_is_restarted_is_told_what_became_of_its_topic(tmp_path: Path, way: Way, by: str) -> None:
    world, stream = World(tmp_path), Stream()
    with source(world.data, by=by) as options:
        assert told_by(stream.run(options)) == list(range(1, 11))
    way(world)
    with source(world.data, by=by) as options:
        before = json.loads(json.dumps(stream.offset))
        if TOLD[way] == ["gone"]:
            with pytest.raises(DataLoss, match="does not exist any more"):
                stream.run(options, onDataLoss="fail")
            return
        assert told_by(stream.run(options)) == TOLD[way]
        if "recreated" in TOLD[way]:  # by default the query fails
            with pytest.raises(DataLoss, match="recreated"):
                Stream(before).run(options, onDataLoss="fail")


@pytest.mark.parametrize("form", ["position", "offset"])
@pytest.mark.parametrize("by", ["path", "url"])
@pytest.mark.parametrize("way", TOLD, ids=lambda way: way.__name__)
def test_a_read_that_starts_at_a_position_is_told_what_became_of_its_topic(
    tmp_path: Path, way: Way, by: str, form: str
) -> None:
    world = World(tmp_path)
    with source(world.data, by=by) as options:
        last = batch(options)[-1]
    start: Any = f"{last['seq']}-e{last['epoch']:x}"
    if form == "offset":
        start = {"epoch": last["epoch"], "seq": last["seq"] + 1}
    starting = json.dumps({TOPIC: start})
    way(world)
    with source(world.data, by=by) as options:
        if TOLD[way] == ["gone"]:
            with pytest.raises(ConfigError, match="there is no topic"):
                batch(options, startingOffsets=starting)
            return
        assert told_by(batch(options, startingOffsets=starting)) == TOLD[way]
        assert told_by(Stream().run(options, startingOffsets=starting)) == TOLD[way]
        if "recreated" in TOLD[way]:
            with pytest.raises(ConfigError, match="position of another topic"):
                batch(options, endingOffsets=starting)


@pytest.mark.parametrize("by", ["path", "url"])
def test_a_row_keeps_its_epoch_in_a_copy_and_what_comes_after_has_another(tmp_path: Path, by: str) -> None:
    """Whoever deduplicates by topic, epoch and seq takes no two records for one, and no record for two."""
    world = World(tmp_path)
    with source(world.data, by=by) as options:
        original = [(row["epoch"], row["seq"]) for row in batch(options)]
    copied(world)
    with source(world.data, by=by) as options:
        copy = [(row["epoch"], row["seq"]) for row in batch(options)]
    assert copy[:10] == original
    assert {epoch for epoch, _ in copy[10:]}.isdisjoint(epoch for epoch, _ in original)


def test_rows_of_a_copy_that_went_another_way_are_not_those_of_the_original(tmp_path: Path) -> None:
    world = World(tmp_path)
    with source(world.data, by="path") as options:
        original = {(row["epoch"], row["seq"]) for row in batch(options)}
    restored_from_an_older_copy(world)
    with source(world.data, by="path") as options:
        copy = {(row["epoch"], row["seq"]) for row in batch(options)}
    assert len(original & copy) == 5


def test_an_offset_of_the_old_form_of_a_checkpoint_still_works(tmp_path: Path) -> None:
    world = World(tmp_path)
    with source(world.data, by="path") as options:
        epoch = batch(options)[0]["epoch"]
        assert told_by(Stream({TOPIC: {"epoch": epoch, "seq": 8}}).run(options)) == [8, 9, 10]
        assert told_by(batch(options, startingOffsets=json.dumps({TOPIC: 8}))) == [8, 9, 10]
        ending = json.dumps({TOPIC: f"7-e{epoch:x}"})
        assert told_by(batch(options, endingOffsets=ending)) == list(range(1, 8))
