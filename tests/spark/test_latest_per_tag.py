"""`latestPerTag=true` gives the table that `latest` gives, from a directory and from a server."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.spark.served import Served
from tests.spark.world import World, options

from topics.spark.options import ReadOptions, read_options
from topics.spark.planning.batch import plan_batch, read_spec
from topics.spark.scanning import newest_rows
from topics.spark.scanning.schema import table_fields


def read(given: ReadOptions) -> pa.Table:
    fields = table_fields(given.table_columns, with_loss=False)
    spec = read_spec(given, fields)
    batches = [batch for task in plan_batch(given) for batch in newest_rows.newest_rows(task, spec)]
    return pa.Table.from_batches(batches, spec.schema)


def tags_to_data(table: pa.Table) -> dict[Any, Any]:
    names = ("key", "value") if "key" in table.column_names else ("tag", "data")
    return dict(zip(*(table[name].to_pylist() for name in names), strict=True))


@pytest.mark.parametrize("rows_max", [7, 200_000])
def test_a_directory_gives_the_newest_of_each_tag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_max: int
) -> None:
    monkeypatch.setattr(newest_rows, "PENDING_ROWS_MAX", rows_max)
    rng, world, wanted = random.Random(3), World(tmp_path), dict[str, str]()
    for n in range(120):
        tag, data = rng.choice("abcdefgh"), rng.choice((n, n, n, None))
        world.write("t", data, tag=tag)
        wanted[tag] = "null" if data is None else str(n)
        if n in (40, 90):
            world.sim.checkpoint()
    world.write("t", 7)  # without a tag
    shown = {tag: data for tag, data in wanted.items() if data != "null"}
    assert tags_to_data(read(options(world, "t", latestPerTag="true"))) == shown
    assert tags_to_data(read(options(world, "t", latestPerTag="true", kafkaSchema="true"))) == {
        tag.encode(): data.encode() for tag, data in shown.items()
    }
    only = read(options(world, "t", latestPerTag="true", columns="seq", tag="a"))
    assert only.column_names == ["seq"]
    assert only.num_rows == ("a" in shown)
    world.stop()


def test_a_server_gives_the_same_as_latest(served: Served) -> None:
    for n in range(300):
        served.write("table", n, tag=f"k{n % 37}")
    given = {"url": served.url, "subscribe": "table", "latestPerTag": "true"}
    if served.key:
        given["apiKey"] = served.key.partition(":")[0]
    table = read(read_options(given, streaming=False))
    page = served.call("GET", "/v0/topics/table/latest?limit=1000")
    assert tags_to_data(table) == {row["$tag"]: str(row["data"]) for row in page["records"]}
    assert table.num_rows == 37
