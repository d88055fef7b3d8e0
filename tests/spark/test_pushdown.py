"""Pushed filters mean what Spark's mean: what is taken is applied in full, and the rest is handed back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.spark.world import Row, World, options, rows_in

from topics.errors import DataLoss
from topics.spark.batch import plan_batch, read_spec
from topics.spark.scan import scan
from topics.spark.schema import table_fields

datasource = pytest.importorskip("pyspark.sql.datasource")
from pyspark.sql.datasource import (  # noqa: E402
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringEndsWith,
    StringStartsWith,
)

from topics.spark.pushdown import push  # noqa: E402

Holds = Callable[[Row], bool]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = World(tmp_path_factory.mktemp("world"))
    for n in range(120):
        made.write("a", {"n": n}, tag=(None, "t1", "t2", "u")[n % 4], node=("n1", None)[n % 2])
        made.clock.advance(n % 3)
    made.sim.checkpoint()
    made.write("a", *range(5), tag="t1")
    return made


def pushed_rows(world: World, filters: list[Filter], **given: str) -> tuple[list[Row], list[Filter]]:
    import pyarrow as pa

    wanted = options(world, "a", **given)
    pushed, left = push(filters, with_tombstones=False, with_limit=wanted.limit is not None)
    spec = read_spec(wanted, table_fields(wanted.table_columns, with_loss=False), pushed)
    tasks = plan_batch(wanted, pushed, clock=world.clock.wall_ms)
    batches = [batch for task in tasks for batch in scan(task, spec)]
    return rows_in(pa.Table.from_batches(batches, schema=spec.schema)), left


def at(ts_ms: float) -> datetime:
    return datetime.fromtimestamp(ts_ms / 1000, UTC)


def cases(rows: list[Row]) -> list[tuple[Filter, Holds]]:
    ts = rows[50].ts
    return [
        (EqualTo(("seq",), 7), lambda r: r.seq == 7),
        (GreaterThan(("seq",), 100), lambda r: r.seq > 100),
        (GreaterThanOrEqual(("seq",), 100), lambda r: r.seq >= 100),
        (LessThan(("seq",), 20), lambda r: r.seq < 20),
        (LessThanOrEqual(("seq",), 20), lambda r: r.seq <= 20),
        (EqualTo(("ts",), at(ts)), lambda r: r.ts == ts),
        (EqualTo(("ts",), at(ts + 0.5)), lambda r: False),
        (GreaterThan(("ts",), at(ts)), lambda r: r.ts > ts),
        (GreaterThanOrEqual(("ts",), at(ts)), lambda r: r.ts >= ts),
        (GreaterThanOrEqual(("ts",), at(ts + 0.5)), lambda r: r.ts > ts),
        (LessThan(("ts",), at(ts)), lambda r: r.ts < ts),
        (LessThan(("ts",), at(ts + 0.5)), lambda r: r.ts <= ts),
        (LessThanOrEqual(("ts",), at(ts)), lambda r: r.ts <= ts),
        (EqualTo(("topic",), "a"), lambda r: True),
        (EqualTo(("topic",), "b"), lambda r: False),
        (In(("topic",), ("b", "a")), lambda r: True),
        (EqualTo(("tag",), "t1"), lambda r: r.tag == "t1"),
        (In(("tag",), ("u", "t2", None)), lambda r: r.tag in ("u", "t2")),
        (StringStartsWith(("tag",), "t"), lambda r: bool(r.tag) and str(r.tag).startswith("t")),
        (IsNull(("tag",)), lambda r: r.tag is None),
        (IsNotNull(("tag",)), lambda r: r.tag is not None),
        (EqualTo(("node",), "n1"), lambda r: r.node == "n1"),
        (IsNotNull(("seq",)), lambda r: True),
    ]


def test_what_is_taken_is_applied_in_full(world: World) -> None:
    rows = world.rows("a")
    for filter_, holds in cases(rows):
        found, left = pushed_rows(world, [filter_])
        assert left == [], filter_
        assert found == [row for row in rows if holds(row)], filter_


def test_filters_narrow_each_other(world: World) -> None:
    rows = world.rows("a")
    some = cases(rows)
    for first, one in some:
        for second, two in some[::5]:
            found, _ = pushed_rows(world, [first, second])
            assert found == [row for row in rows if one(row) and two(row)], (first, second)


def test_what_cannot_be_applied_goes_back_to_spark(world: World) -> None:
    others: list[Filter] = [
        Not(EqualTo(("tag",), "t1")),
        StringEndsWith(("tag",), "1"),
        EqualTo(("data",), "1"),
        EqualTo(("seq",), "7"),
        EqualTo(("data", "n"), 7),
    ]
    found, left = pushed_rows(world, others)
    assert left == others
    assert found == world.rows("a")


def test_a_limit_counts_before_filters_do(world: World) -> None:
    """As it does when Spark filters: the first ten records, and of those the ones that pass."""
    tag: Any = EqualTo(("tag",), "t1")
    found, left = pushed_rows(world, [tag, EqualTo(("topic",), "a")], limit="10")
    assert left == [tag]
    assert [row.seq for row in found] == list(range(1, 11))


def test_a_gap_is_one_whatever_the_filters_ask_for(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.put("a", cap_records=10)
    world.write("a", *range(40))
    for filter_ in (GreaterThan(("seq",), 35), EqualTo(("topic",), "b")):
        with pytest.raises(DataLoss, match=r"1\.\.30 of topic 'a' are lost \(cap\)"):
            pushed_rows(world, [filter_], startingOffsets='{"a":1}')
