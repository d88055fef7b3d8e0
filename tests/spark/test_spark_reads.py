"""The data source as Spark users see it: batch and streaming reads, found without registration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.served import SPARK, Served, limited
from tests.spark.world import World

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A directory with sealed segments, an active one, log frames and deletes."""
    made = World(tmp_path_factory.mktemp("world"))
    for n in range(40):
        made.write("orders", *({"n": n, "i": i} for i in range(5)), tag=f"t{n % 4}", node=("n1", None)[n % 2])
        made.clock.advance(10)
    made.sim.checkpoint()
    made.delete("orders", match="t3")
    made.write("orders", {"late": True}, tag="t0", meta={"k": "v"})
    made.write("clicks", 1, 2, 3)
    yield made
    made.stop()


def table(spark: SparkSession, world: World, **options: str) -> DataFrame:
    chosen = {"path": world.data_dir, **({} if "subscribePattern" in options else {"subscribe": "orders"}), **options}
    return spark.read.format("topics").options(**chosen).load()


def seqs(df: DataFrame) -> list[int]:
    return sorted(row.seq for row in df.select("seq").collect())


def message(error: BaseException) -> str:
    """The one sentence that our code raised, out of Spark's wrapping."""
    lines = [line for line in str(error).splitlines() if line.startswith("topics.errors.")]
    assert lines, str(error)
    return lines[-1].partition(": ")[2]


def test_the_table_has_the_documented_columns(spark: SparkSession, world: World) -> None:
    from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

    assert table(spark, world).schema == StructType(
        [
            StructField("topic", StringType(), False),
            StructField("epoch", LongType(), False),
            StructField("seq", LongType(), False),
            StructField("ts", TimestampType(), False),
            StructField("node", StringType(), True),
            StructField("tag", StringType(), True),
            StructField("data", StringType(), False),
            StructField("meta", StringType(), True),
        ]
    )


def test_a_batch_read_gives_the_records_of_a_diff(spark: SparkSession, world: World) -> None:
    rows = sorted(table(spark, world).collect(), key=lambda row: row.seq)
    expected = world.rows("orders")
    assert [(r.topic, r.seq, r.node, r.tag, r.data, r.meta) for r in rows] == [
        ("orders", e.seq, e.node, e.tag, e.data, e.meta) for e in expected
    ]
    assert [int(r.ts.timestamp() * 1000 + 0.5) for r in rows] == [e.ts for e in expected]


def test_columns_and_schemas_choose_what_is_decoded(spark: SparkSession, world: World) -> None:
    assert table(spark, world, columns="seq,ts").columns == ["seq", "ts"]
    chosen = {"path": world.data_dir, "subscribe": "orders"}
    df = spark.read.format("topics").schema("data STRING, seq BIGINT").options(**chosen).load()
    assert df.columns == ["data", "seq"]
    assert df.count() == len(world.rows("orders"))


@pytest.mark.skipif(SPARK < (4, 1), reason="PySpark 4.0 plans a table anew for every action")
def test_two_actions_see_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write("orders", *range(30))
    df = table(spark, world)
    assert seqs(df) == list(range(1, 31))
    world.write("orders", *range(30))
    world.sim.checkpoint()
    assert seqs(df) == list(range(1, 31))
    assert df.count() == 30
    assert table(spark, world).count() == 60


def test_offsets_timestamps_limits_tags_and_nodes_narrow_a_read(spark: SparkSession, world: World) -> None:
    rows = world.rows("orders")
    expected = [row.seq for row in rows if 20 <= row.seq < 33]
    assert seqs(table(spark, world, startingOffsets='{"orders":20}', endingOffsets='{"orders":33}')) == expected
    at = rows[60].ts
    some = [row.seq for row in rows if row.ts >= at and row.node == "n1" and row.tag][:7]
    assert seqs(table(spark, world, startingTimestamp=str(at), limit="7", tag="t*", node="n1")) == some


def test_a_pattern_reads_every_topic_it_matches(spark: SparkSession, world: World) -> None:
    counts = {
        row.topic: row["count"] for row in table(spark, world, subscribePattern=".*").groupBy("topic").count().collect()
    }
    assert counts == {"orders": len(world.rows("orders")), "clicks": 3}


def test_bad_input_says_what_would_be_right(spark: SparkSession, world: World, tmp_path: Path) -> None:
    path = world.data_dir
    cases: list[tuple[dict[str, str], str]] = [
        ({"path": path, "subscribed": "a"}, "did you mean subscribe?"),
        ({"subscribe": "a"}, "exactly one of path"),
        ({"path": path, "subscribe": "nope"}, "there is no topic 'nope'"),
        ({"path": str(tmp_path), "subscribe": "a"}, "is no data directory"),
        ({"path": path, "subscribe": "orders", "limit": "many"}, "whole number, not 'many'"),
    ]
    for options, expected in cases:
        with pytest.raises(Exception) as caught:
            spark.read.format("topics").options(**options).load().count()
        assert expected in message(caught.value)


def test_the_sentence_comes_before_any_traceback(spark: SparkSession, world: World) -> None:
    for options, sentence in (
        ({"path": world.data_dir, "colums": "seq", "subscribe": "orders"}, "did you mean columns?"),
        ({"path": world.data_dir, "subscribe": "nowhere"}, "there is no topic 'nowhere'"),
        ({"path": world.data_dir, "subscribe": "orders", "startingOffsets": '{"orders": 900000}'}, "give at most that"),
    ):
        with pytest.raises(Exception) as caught:
            spark.read.format("topics").options(**options).load().count()
        assert sentence in str(caught.value).splitlines()[0]


def test_rows_that_nobody_wants_any_more_are_no_error(spark: SparkSession, tmp_path: Path, capfd: Any) -> None:
    world = World(tmp_path, segment_max_events=100)
    for _ in range(20):
        world.write("wide", *(["x" * 5000] * 100))
    world.sim.checkpoint()
    assert len(table(spark, world, subscribe="wide").limit(1).collect()) == 1
    assert table(spark, world, subscribe="wide").count() == 2000
    assert "Traceback" not in capfd.readouterr().err


def test_an_unknown_column_of_a_schema_is_named(spark: SparkSession, world: World) -> None:
    reader = spark.read.format("topics").options(path=world.data_dir, subscribe="orders")
    with pytest.raises(Exception) as caught:
        reader.schema("seq BIGINT, body STRING").load().count()
    assert "names 'body'; the columns are topic, epoch, seq, ts" in message(caught.value)
    with pytest.raises(Exception) as caught:
        reader.schema("seq INT").load().count()
    assert "column seq is bigint, not int" in message(caught.value)


def test_a_gap_stops_the_read_unless_told_otherwise(spark: SparkSession, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.put("capped", cap_records=30)
    world.write("capped", *range(100))
    given = {"subscribe": "capped", "startingOffsets": '{"capped": 11}'}
    with pytest.raises(Exception) as caught:
        table(spark, world, **given).count()
    assert "records 11..70 of topic 'capped' are lost (cap)" in message(caught.value)
    assert seqs(table(spark, world, **given, failOnDataLoss="false")) == list(range(71, 101))
    rows = table(spark, world, **given, onDataLoss="rows").where("kind = 'tombstone'").collect()
    assert [(r.gap_from, r.gap_to, r.reason, r.seq) for r in rows] == [(11, 70, "cap", None)]


def test_a_damaged_frame_stops_the_read(spark: SparkSession, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write("a", *range(60))
    world.sim.checkpoint()
    world.stop()
    damaged = sorted((tmp_path / "data" / "topics").glob("*/*.data"))[1]
    raw = bytearray(damaged.read_bytes())
    raw[200] ^= 1
    damaged.write_bytes(raw)
    with pytest.raises(Exception) as caught:
        table(spark, world, subscribe="a", onDataLoss="warn").count()
    assert damaged.name in str(caught.value)
    assert "seq" in message(caught.value)


# --- streaming -------------------------------------------------------------------------------------------------------


class Stream:
    """A streaming query into Parquet, restarted at will from its checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path, **options: str) -> None:
        self.spark = spark
        self.folder = folder
        self.options = options
        self.progress: list[Any] = []

    def run(self) -> None:
        """Read what is there now, and stop."""
        df = self.spark.readStream.format("topics").options(**self.options).load()
        query = (
            df.writeStream.format("parquet")
            .option("path", str(self.folder / "out"))
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        assert not query.isActive
        self.progress = query.recentProgress

    def rows(self) -> list[Any]:
        return self.spark.read.parquet(str(self.folder / "out")).collect()

    def seqs(self, topic: str) -> list[int]:
        return sorted(row.seq for row in self.rows() if row.topic == topic)


def test_a_limit_is_kept_or_refused(spark: SparkSession, served: Served, tmp_path: Path) -> None:
    served.write("limits", *range(250))
    given = {"url": served.url, "subscribe": "limits", "startingOffsets": "earliest"}
    if not limited(100):
        with pytest.raises(Exception) as caught:
            Stream(spark, tmp_path, **given, maxOffsetsPerTrigger="100").run()
        assert "option maxOffsetsPerTrigger needs PySpark 4.2 or newer" in str(caught.value)
        return
    stream = Stream(spark, tmp_path, **given, **limited(100))
    stream.run()
    sizes = [progress["numInputRows"] for progress in stream.progress if progress["numInputRows"]]
    assert sizes == [100, 100, 50]


def test_a_stream_delivers_each_record_once_across_restarts(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, url=served.url, subscribePrefix="s-", startingOffsets="earliest", **limited(100))
    served.write("s-a", *range(250), tag="x")
    stream.run()
    assert stream.seqs("s-a") == list(range(1, 251))
    served.write("s-a", *range(30))
    served.write("s-later", *range(40))
    stream.run()
    stream.run()
    assert stream.seqs("s-a") == list(range(1, 281))
    assert stream.seqs("s-later") == list(range(1, 41))
    source = stream.progress[-1]["sources"][0]
    if limited(1):
        assert json.loads(source["endOffset"])["s-a"]["seq"] == 281
        assert json.loads(source["latestOffset"])["s-a"]["seq"] == 281  # so that progress shows the backlog


def test_the_cursor_of_a_query_that_waits_stands_at_the_end(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    served.write("followed", *range(5))
    given = {"url": served.url, "subscribe": "followed", "startingOffsets": "earliest", "cursor": "job"}
    rows = spark.readStream.format("topics").options(**given).load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        found = served.call("GET", "/v0/topics/followed/cursors/job")
        assert (found["seq"], found["lag"]["records"]) == (5, 0)
        assert found["meta"] == {"kind": "spark", "query": "job"}
    finally:
        query.stop()


def test_a_recreated_topic_is_a_gap_of_a_stream(spark: SparkSession, served: Served, tmp_path: Path) -> None:
    given = {"url": served.url, "subscribe": "again", "startingOffsets": "earliest"}
    served.write("again", *range(20))
    stream = Stream(spark, tmp_path, **given, onDataLoss="rows")
    stream.run()
    served.drop("again")
    served.write("again", *range(5))
    with pytest.raises(Exception) as caught:
        Stream(spark, tmp_path, **given).run()
    assert "(recreated)" in str(caught.value)
    stream.run()
    rows = stream.rows()
    tombstones = [(r.gap_from, r.gap_to, r.reason) for r in rows if r.kind == "tombstone"]
    assert tombstones == [(1, 5, "recreated")]
    epochs = {r.epoch for r in rows if r.kind == "record"}
    assert len(epochs) == 2
    assert sorted(r.seq for r in rows if r.kind == "record" and r.epoch == max(epochs)) == [1, 2, 3, 4, 5]


def test_committed_records_can_be_trimmed(spark: SparkSession, served: Served, tmp_path: Path) -> None:
    served.write("trim", *range(30))
    given = {"url": served.url, "subscribe": "trim", "startingOffsets": "earliest", "trimCommitted": "true"}
    stream = Stream(spark, tmp_path, **given, **limited(10))
    stream.run()
    assert stream.seqs("trim") == list(range(1, 31))
    # The last batch is never committed by Spark, so it stays.
    assert [row[0] for row in served.rows("trim")] == list(range(21 if limited(10) else 1, 31))


def test_the_key_shows_nowhere(spark: SparkSession, tmp_path: Path, event_logs: Path, capfd: Any) -> None:
    secret = "s3cr3t-kEy-0042"
    served = Served(tmp_path / "served", key=f"{secret}:read+write+admin+delete")
    try:
        served.write("k", *range(10))
        given = {"url": served.url, "apiKey": secret}
        df = spark.read.format("topics").options(subscribe="k", **given).load()
        assert df.count() == 10
        df.explain("formatted")
        df.createOrReplaceTempView("with_a_key")  # the plan of this command spells out a relation's options
        spark.catalog.dropTempView("with_a_key")
        df.select("data").write.format("topics").mode("append").options(topic="k2", **given).save()
        with pytest.raises(Exception) as caught:
            df.select("data").write.format("topics").mode("append").options(topic="bad/name", **given).save()
        with pytest.raises(Exception) as lost:
            spark.read.format("topics").options(subscribe="absent", **given).load().count()
        Stream(spark, tmp_path / "stream", subscribe="k", startingOffsets="earliest", **given).run()
        assert secret not in str(caught.value) + str(lost.value)
        out, err = capfd.readouterr()
        assert secret not in out + err
        logs = [path for path in event_logs.rglob("*") if path.is_file()]
        assert logs
        assert all(secret.encode() not in path.read_bytes() for path in logs)
        checkpoints = [path for path in (tmp_path / "stream").rglob("*") if path.is_file()]
        assert all(secret.encode() not in path.read_bytes() for path in checkpoints)
    finally:
        served.stop()
