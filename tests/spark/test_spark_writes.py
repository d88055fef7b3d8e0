"""The sink as Spark users see it: rows arrive once, whatever happens to tasks."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.served import SPARK, Served, limited
from tests.spark.test_spark_reads import message

import topics.spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def write(df: DataFrame, served: Served, **options: str) -> None:
    df.write.format("topics").mode("append").options(url=served.url, **options).save()


def test_rows_arrive_with_all_their_columns(spark: SparkSession, served: Served) -> None:
    df = spark.createDataFrame(
        [
            ("w-a", '{"x": 1.50}', "t", "n", '{"k":1}'),
            ("w-b", "null", None, None, None),
            ("w-a", '"é"', "t2", None, None),
        ],
        "topic string, data string, tag string, node string, meta string",
    ).coalesce(1)
    write(df, served)
    assert [row[2:] for row in served.rows("w-a")] == [("n", "t", {"x": 1.5}, {"k": 1}), (None, "t2", "é", None)]
    assert [row[2:] for row in served.rows("w-b")] == [(None, None, None, None)]
    assert served.call("GET", "/v0/topics/w-a")["config"]["idempotency_window_ms"] == 24 * 3600 * 1000


def test_other_types_are_spelled_as_to_json_spells_them(spark: SparkSession, served: Served) -> None:
    from pyspark.sql import functions as f

    times = "'km', map(time'12:34:56.789', 1), 'h', time'12:34:56.780', 'hh', time'12:30:00',"
    df = spark.sql(
        f"""SELECT named_struct('i', id, 'n', if(id % 2 = 0, null, 'x'), 'd', date'2026-01-31',
                  't', timestamp'2026-01-31 10:11:12.345', 'z', timestamp_ntz'2026-01-31 10:11:12.345678',
                  'a', array(1, null, 3), 'r', cast(0.1 AS float), 'm', map('k', 1.5D, 'l', null),
                  'b', X'00FF', 'q', cast(1.10 AS decimal(9,2)),
                  'f', cast('NaN' AS double), 'o', true, 's', named_struct('e', cast(null AS int)),
                  'old', timestamp'0999-01-02 03:04:05.067', 'oldz', timestamp_ntz'0001-01-01 00:00:00',
                  'v', array(null, null), 'w', named_struct('e', null), 'k', map(1, 'a', -2, 'b'),
                  'y', map(true, date'0031-01-02'),
                  'kd', map(date'1969-12-30', 1), 'kt', map(timestamp'2026-01-31 01:00:00', 1),
                  'kz', map(timestamp_ntz'2026-01-31 10:11:12.345678', 1), 'kq', map(cast(1e-7 AS decimal(9,8)), 1),
                  'kf', map(0.1F, 1, 1e7F, 2, 16777216F, 3, -2.5e-4F, 4),
                  'kr', map(0.1D, 1, 1e20D, 2, 123456.789D, 3, 9.99e-4D, 4, 100D, 5, cast('-Infinity' AS double), 6),
                  'ki', map(interval '1 02:03:04.5' day to second, 1),
                  {times if SPARK >= (4, 2) else ""}
                  'ia', interval '-5' day, 'ib', interval '5' hour, 'ic', interval '3.25' second,
                  'id', interval '1 2' day to hour, 'ie', interval '-123:02:03.000001' hour to second,
                  'if', interval '1 02:03:04' day to second, 'ig', interval '0' minute,
                  'ih', interval '1:03' minute to second
                  ) AS data
           FROM range(3)"""
    ).coalesce(1)
    expected = [json.loads(row[0]) for row in df.select(f.to_json("data")).collect()]
    write(df, served, topic="typed")
    assert [row[4] for row in served.rows("typed")] == expected
    write(spark.range(3).selectExpr("id AS data").coalesce(1), served, topic="numbers")
    assert [row[4] for row in served.rows("numbers")] == [0, 1, 2]


def test_what_was_read_can_be_written_and_is_the_same(spark: SparkSession, served: Served) -> None:
    served.write("origin", *({"n": n, "text": "x" * (n % 50)} for n in range(3000)), tag="t", meta={"m": 1})
    df = spark.read.format("topics").options(url=served.url, subscribe="origin", minPartitions="1").load()
    write(df.drop("topic"), served, topic="copy", batchRecords="100")
    assert [row[2:] for row in served.rows("copy")] == [row[2:] for row in served.rows("origin")]


RECORDS = int(os.environ.get("SPARK_RECORDS", "100000"))


def test_source_transform_sink_source_is_its_input(spark: SparkSession, tmp_path: Path) -> None:
    """SPARK_RECORDS=1000000 for the large one."""
    served = Served(tmp_path, segment_max_events="20000", wal_file_bytes=str(64 << 20), checkpoint_interval_ms="1000")
    try:
        text = "to_json(named_struct('id', id, 'half', id / 2, 'name', concat('n', id % 1000))) AS data"
        made = spark.range(0, RECORDS, 1, 4).selectExpr(text, "concat('t', id % 7) AS tag", "'{\"v\":1}' AS meta")
        write(made, served, topic="one")

        def read(topic: str) -> DataFrame:
            return spark.read.format("topics").options(url=served.url, subscribe=topic).load()

        changed = read("one").selectExpr("upper(data) AS data", "concat(tag, '!') AS tag", "meta", "'n1' AS node")
        write(changed.selectExpr("lower(data) AS data", "tag", "meta", "node"), served, topic="two")
        expected = made.selectExpr("lower(data) AS data", "concat(tag, '!') AS tag", "meta", "'n1' AS node")
        found = read("two").cache()
        sums = (
            "count(*)",
            "count(DISTINCT data)",
            "sum(xxhash64(data, tag, meta, node) % 1000000007)",
            "max(length(data))",
        )
        assert found.selectExpr(*sums).collect() == expected.selectExpr(*sums).collect()
        assert found.selectExpr("min(seq)", "max(seq)", "count(DISTINCT seq)").collect()[0] == (1, RECORDS, RECORDS)
        found.unpersist()
    finally:
        served.stop()


def test_a_thread_with_a_session_of_its_own_writes_what_another_made(spark: SparkSession, served: Served) -> None:
    frame = spark.createDataFrame([("threads", "1")], ["topic", "data"])

    def write_there() -> None:
        topics.spark.session()
        write(frame, served)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write_there).result()
    assert [row[4] for row in served.rows("threads")] == [1]


def test_a_named_write_that_is_repeated_appends_nothing(spark: SparkSession, served: Served) -> None:
    df = spark.range(500).selectExpr("cast(id AS string) AS data").coalesce(2)
    for _ in range(2):
        write(df, served, topic="twice", jobId="nightly-1", batchRecords="60")
    assert sorted(row[4] for row in served.rows("twice")) == list(range(500))


def test_rows_that_no_server_takes_go_to_the_dead_letter_topic(spark: SparkSession, served: Served) -> None:
    bad = ["{not json", '1},{"data":2', None, '"' + "x" * (1 << 20) + '"']
    df = spark.createDataFrame([(text,) for text in [*bad, "1", "2"]], "data string").coalesce(1)
    write(df, served, topic="clean", deadLetterTopic="dead")
    assert [row[4] for row in served.rows("clean")] == [1, 2]
    letters = [row[4] for row in served.rows("dead")]
    assert [letter["reason"].split(",")[0] for letter in letters] == [
        "data is not valid JSON",
        "data is not valid JSON",
        "data is null",
        "data and meta have 1048578 bytes",
    ]
    assert letters[0]["data"] == "{not json"
    with pytest.raises(Exception) as caught:
        write(df, served, topic="clean")
    assert "cannot be written: data is not valid JSON" in message(caught.value)


def test_bad_writes_are_told_at_planning(spark: SparkSession, served: Served) -> None:
    df = spark.range(1).selectExpr("cast(id AS string) AS data")
    cases: list[tuple[Any, dict[str, str], str]] = [
        (df.write.mode("overwrite"), {"topic": "x"}, "can only be appended to"),
        (df.write.mode("append"), {}, "name the topic"),
        (df.write.mode("append"), {"topic": "x", "batchRecord": "5"}, "did you mean batchRecords?"),
        (df.withColumn("size", df.data).write.mode("append"), {"topic": "x"}, "takes no column 'size'"),
        (df.withColumnRenamed("data", "tag").write.mode("append"), {"topic": "x"}, "no column data"),
    ]
    for writer, options, expected in cases:
        with pytest.raises(Exception) as caught:
            writer.format("topics").options(url=served.url, **options).save()
        assert expected in message(caught.value)


def test_a_server_that_is_gone_fails_the_task_with_one_sentence(spark: SparkSession) -> None:
    df = spark.range(1).selectExpr("cast(id AS string) AS data")
    with pytest.raises(Exception) as caught:
        df.write.format("topics").mode("append").options(url="http://127.0.0.1:9", topic="x", maxRetries="1").save()
    assert "http://127.0.0.1:9 does not answer" in str(caught.value)


def test_a_stream_that_is_restarted_in_mid_batch_appends_nothing_twice(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    for n in range(200):  # large enough that Spark passes every few rows on before it asks for more
        served.write("from", {"n": n, "pad": "x" * 20_000})
    fuse = tmp_path / "fuse"
    fuse.touch()

    def run() -> None:
        source = spark.readStream.format("topics").options(
            url=served.url, subscribe="from", startingOffsets="earliest", minPartitions="1", **limited(80)
        )
        query = (
            source.load()
            .mapInArrow(burning(str(fuse), f"{served.url}/v0/topics/to"), "data string")
            .writeStream.format("topics")
            .options(url=served.url, topic="to", batchRecords="7")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")  # so that some rows arrive before the failure
    try:
        with pytest.raises(Exception, match="the fuse burned"):
            run()
        assert 0 < len(served.rows("to")) < (80 if limited(80) else 200)
        fuse.unlink()
        run()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert [row[4]["n"] for row in served.rows("to")] == list(range(200))


def burning(fuse: str, topic: str) -> Any:
    """Passes rows through; while the fuse is there, a task fails in the middle, once some of its rows have arrived."""

    def arrived() -> bool:
        try:
            urllib.request.urlopen(topic, timeout=5).close()
        except OSError:
            return False
        return True

    def through(batches: Any) -> Any:
        seen = 0
        for batch in batches:
            if seen >= 60 and os.path.exists(fuse):
                deadline = time.monotonic() + 60
                while not arrived() and time.monotonic() < deadline:
                    time.sleep(0.05)
                raise RuntimeError("the fuse burned")
            seen += batch.num_rows
            yield batch.select(["data"])

    return through
