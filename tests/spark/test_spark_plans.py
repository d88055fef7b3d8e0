"""A query gives the rows that its words ask for, whatever Spark keeps of the queries before it.

Spark keeps partitions and read function with a loaded table, and gives them to every scan of it. So each test uses one
table in several scans, with Spark's filter pushdown for Python sources on and off."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.served import SPARK, Served
from tests.spark.world import Row, World

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

RECORDS = 1000
PUSHDOWN_CONF = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("world"), segment_max_events=150)
    for n in range(0, RECORDS, 10):
        records = [{"n": n + i} for i in range(10)]
        made.write("orders", *records, tag=("a", "b")[n // 10 % 2], node=("n1", None, "n2")[n % 3])
        made.clock.advance(7)
    made.sim.checkpoint()
    yield made
    made.stop()


@pytest.fixture(params=["off", "on"])
def df(request: pytest.FixtureRequest, spark: SparkSession, world: World) -> Iterator[DataFrame]:
    """One table, loaded once; with Spark's filter pushdown off and on, and asked for as older jobs do."""
    before = str(spark.conf.get(PUSHDOWN_CONF, "false"))
    spark.conf.set(PUSHDOWN_CONF, "true" if request.param == "on" else "false")
    options = {"path": world.data_dir, "subscribe": "orders"} | ({"pushdown": "true"} if request.param == "on" else {})
    yield spark.read.format("topics").options(**options).load()
    spark.conf.set(PUSHDOWN_CONF, before)


def seqs(df: DataFrame) -> list[int]:
    return sorted(row.seq for row in df.select("seq").collect())


def of_tag(tag: str) -> list[int]:
    return [seq for seq in range(1, RECORDS + 1) if (seq - 1) // 10 % 2 == "ab".index(tag)]


def test_both_sides_of_a_union_keep_their_own_filter(df: DataFrame) -> None:
    both = df.where("seq <= 10").union(df.where("tag = 'a'"))
    assert seqs(both) == sorted([*range(1, 11), *of_tag("a")])
    assert both.count() == 510


def test_both_sides_of_a_self_join_keep_their_own_filter(df: DataFrame) -> None:
    left, right = df.where("seq <= 20").alias("l"), df.where("tag = 'b'").alias("r")
    assert left.join(right, "seq").count() == 10
    assert df.where("seq > 990").join(df.select("seq"), "seq").count() == 10


def test_a_view_is_whole_after_a_query_with_a_filter(spark: SparkSession, df: DataFrame) -> None:
    df.createOrReplaceTempView("plans")
    counts = [
        spark.sql(f"SELECT count(*) AS n FROM plans {where}").collect()[0].n
        for where in ("WHERE seq <= 10", "", "WHERE tag = 'a'", "", "WHERE seq > 900 AND tag = 'b'")
    ]
    assert counts == [10, RECORDS, RECORDS // 2, RECORDS, 50]


def test_subqueries_over_one_view_do_not_mix(spark: SparkSession, df: DataFrame) -> None:
    df.createOrReplaceTempView("plans")
    found = spark.sql(
        "SELECT (SELECT count(*) FROM plans WHERE tag = 'a') AS a, (SELECT max(seq) FROM plans WHERE seq < 7) AS low,"
        " count(*) AS n FROM plans WHERE seq IN (SELECT seq FROM plans WHERE seq BETWEEN 5 AND 30 AND tag = 'b')"
    ).collect()[0]
    assert (found.a, found.low, found.n) == (RECORDS // 2, 6, 10)


def test_a_cached_table_is_not_changed_by_other_queries(df: DataFrame) -> None:
    assert df.where("seq = 3").count() == 1
    cached = df.where("tag = 'b'").cache()
    try:
        assert cached.count() == RECORDS // 2
        assert df.where("seq <= 5").count() == 5
        assert cached.where("seq <= 20").count() == 10
        assert df.count() == RECORDS
    finally:
        cached.unpersist()


def test_aggregates_count_every_record_once(df: DataFrame) -> None:
    total = RECORDS * (RECORDS + 1) // 2
    assert df.where("seq <= 10").selectExpr("sum(seq) s").collect()[0].s == 55
    found = df.selectExpr("count(*) n", "count(DISTINCT seq) d", "sum(seq) s", "max(seq) m").collect()[0]
    assert (found.n, found.d, found.s, found.m) == (RECORDS, RECORDS, total, RECORDS)
    assert {row.tag: row["count"] for row in df.groupBy("tag").count().collect()} == {"a": 500, "b": 500}
    assert df.limit(7).count() == 7
    assert len(df.where("tag = 'a'").take(3)) == 3


Holds = Callable[[Row], bool]


def condition(rng: random.Random, rows: list[Row]) -> tuple[str, Holds]:
    """SQL, and the same in Python."""
    low, ts, tag = rng.randint(0, RECORDS), rng.choice(rows).ts, rng.choice("abc")
    chosen: list[tuple[str, Holds]] = [
        (f"seq > {low}", lambda row: row.seq > low),
        (f"seq BETWEEN {low} AND {low + 90}", lambda row: low <= row.seq <= low + 90),
        (f"tag = '{tag}'", lambda row: row.tag == tag),
        ("node IS NULL", lambda row: row.node is None),
        ("node LIKE 'n%' AND node <> 'n1'", lambda row: row.node == "n2"),
        (f"ts >= timestamp_millis({ts})", lambda row: row.ts >= ts),
        (f"ts < timestamp_millis({ts}) OR seq = {low}", lambda row: row.ts < ts or row.seq == low),
        ("topic = 'orders'", lambda row: True),
        ("topic IN ('clicks')", lambda row: False),
    ]
    return rng.choice(chosen)


def test_random_filters_over_one_table_give_what_python_gives(df: DataFrame, world: World) -> None:
    rng, rows = random.Random(17), world.rows("orders")
    for _ in range(6):
        (one, holds_one), (two, holds_two) = condition(rng, rows), condition(rng, rows)
        expected = [row.seq for row in rows if holds_one(row)]
        also = [row.seq for row in rows if holds_two(row)]
        assert seqs(df.where(one).union(df.where(two))) == sorted(expected + also), (one, two)
        assert seqs(df.where(f"({one}) AND ({two})")) == sorted({*expected} & {*also}), (one, two)


@pytest.mark.skipif(SPARK < (4, 1), reason="PySpark 4.0 plans a table anew for every action")
def test_a_table_over_a_server_is_its_first_cut_while_segments_go(spark: SparkSession, tmp_path: Path) -> None:
    """The manifest changes between planning and reading: what is gone since is told, the rest comes once."""
    served = Served(tmp_path, segment_max_events="100")
    try:
        served.put("orders", cap_records=1000)
        served.write("orders", *range(900))
        served.wait_sealed("orders", 8)
        options = {"url": served.url, "subscribe": "orders", "onDataLoss": "rows"}
        df = spark.read.format("topics").options(**options).load()
        assert df.count() == 900
        served.write("orders", *range(600))
        rows = df.collect()
        records = sorted(row.seq for row in rows if row.kind == "record")
        gone = {seq for row in rows if row.kind == "tombstone" for seq in range(row.gap_from, row.gap_to + 1)}
        assert records == sorted(set(records))
        assert {*records} | gone == set(range(1, 901))
        assert {*range(501, 901)} <= {*records}
    finally:
        served.stop()


def test_a_table_of_the_catalog_keeps_its_options(spark: SparkSession, world: World) -> None:
    spark.sql(f"CREATE TABLE kept USING topics OPTIONS (path '{world.data_dir}', subscribe 'orders')")
    try:
        assert spark.sql("SELECT count(*) AS n FROM kept WHERE tag = 'a'").collect()[0].n == RECORDS // 2
        spark.sql("CREATE VIEW of_b AS SELECT seq FROM kept WHERE tag = 'b'")
        assert spark.table("of_b").count() == RECORDS // 2
        spark.sql("DROP VIEW of_b")
        assert spark.newSession().table("kept").count() == RECORDS
    finally:
        spark.sql("DROP TABLE kept")
    for text, sentence in (
        (f"CREATE TABLE bad USING topics OPTIONS (path '{world.data_dir}', subscirbe 'x')", "did you mean subscribe?"),
        ("CREATE TABLE bad USING topics OPTIONS (url 'http://x', subscribe 'a', apiKey 'k')", "keeps no key"),
    ):
        with pytest.raises(Exception, match=re.escape(sentence)):
            spark.sql(text)
    spark.sql("CREATE TABLE bare (seq BIGINT) USING topics OPTIONS (path '/x', subscribe 'a')")
    with pytest.raises(Exception, match="this table keeps no options: make it without columns"):
        spark.table("bare").count()
    spark.sql("DROP TABLE bare")
