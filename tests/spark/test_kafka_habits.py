"""A job that was written for Spark's Kafka source runs on topics when two lines are changed (docs/spark.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.served import Served, limited
from tests.spark.test_spark_reads import message

from topics.spark.options import READ_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

USERS = ("ann", "bob", None)
RECORDS = 90


class KafkaJob:
    """The job of the guide. Moving it changes FORMAT and SERVERS, and nothing below them."""

    FORMAT = "topics"

    def __init__(self, spark: SparkSession, servers: str) -> None:
        self.spark = spark
        self.servers = servers

    def batch(self, **options: str) -> DataFrame:
        return (
            self.spark.read.format(self.FORMAT)
            .option("kafka.bootstrap.servers", self.servers)
            .options(**{"subscribe": "orders", **options})
            .load()
        )

    def totals(self) -> dict[str, int]:
        rows = (
            self.batch(startingOffsets="earliest", endingOffsets="latest")
            .selectExpr("CAST(key AS STRING) AS user", "from_json(CAST(value AS STRING), 'amount INT') AS event")
            .groupBy("user")
            .sum("event.amount")
            .collect()
        )
        return {row[0]: row[1] for row in rows}

    def stream(self, folder: Path, **options: str) -> list[Any]:
        """Sums by window behind a watermark, from an offset, in small batches."""
        from pyspark.sql import functions as f

        counted = (
            self.spark.readStream.format(self.FORMAT)
            .option("kafka.bootstrap.servers", self.servers)
            .option("subscribe", "orders")
            .option("startingOffsets", """{"orders": {"0": 11}}""")
            .options(**options)
            .load()
            .select(f.from_json(f.col("value").cast("string"), "amount INT, at TIMESTAMP").alias("event"))
            .select("event.*")
            .withWatermark("at", "10 minutes")
            .groupBy(f.window("at", "1 hour"))
            .agg(f.sum("amount").alias("amount"))
        )
        query = (
            counted.writeStream.format("parquet")
            .outputMode("append")
            .option("path", str(folder / "out"))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        assert not query.isActive
        return [progress["numInputRows"] for progress in query.recentProgress]

    def write(self, folder: Path) -> None:
        query = (
            self.spark.readStream.format(self.FORMAT)
            .option("kafka.bootstrap.servers", self.servers)
            .option("subscribe", "orders")
            .option("startingOffsets", "earliest")
            .load()
            .selectExpr("key", "upper(CAST(value AS STRING)) AS value")
            .writeStream.format(self.FORMAT)
            .option("kafka.bootstrap.servers", self.servers)
            .option("topic", "copies")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)


@pytest.fixture(scope="module")
def orders(served: Served) -> Served:
    for n in range(RECORDS):
        at = f"2026-01-01T{n // 10:02}:{n % 10 * 6:02}:00Z"
        shared = {"node": "n1"} if n % 2 else {}
        extra = {} if USERS[n % 3] is None else {"tag": USERS[n % 3]}
        served.call(
            "POST",
            "/v0/topics/orders",
            {"records": [{"data": {"amount": n, "at": at}, "meta": {"n": n} if n % 5 else None, **shared, **extra}]},
        )
    served.write("orders-eu", 1)
    served.write("other", 1)
    return served


@pytest.fixture
def job(spark: SparkSession, orders: Served) -> KafkaJob:
    return KafkaJob(spark, orders.url)


def test_the_columns_are_those_of_kafka(job: KafkaJob) -> None:
    assert job.batch().dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    with_headers = job.batch(includeHeaders="true")
    assert with_headers.dtypes[-1] == ("headers", "array<struct<key:string,value:binary>>")
    rows = {row.offset: row for row in with_headers.collect()}
    assert len(rows) == RECORDS
    first, seventh = rows[1], rows[8]
    assert (bytes(first.key), first.topic, first.partition, first.timestampType) == (b"ann", "orders", 0, 1)
    assert json.loads(bytes(seventh.value)) == {"amount": 7, "at": "2026-01-01T00:42:00Z"}
    assert [(h.key, json.loads(bytes(h.value)) if h.key == "meta" else bytes(h.value)) for h in seventh.headers] == [
        ("node", b"n1"),
        ("meta", {"n": 7}),
    ]
    assert rows[3].key is None
    assert [h.key for h in rows[2].headers] == ["node", "meta"]
    assert rows[11].headers is None or [h.key for h in rows[11].headers] == ["meta"]


def test_a_batch_job_moves(job: KafkaJob) -> None:
    expected: dict[str | None, int] = {}
    for n in range(RECORDS):
        expected[USERS[n % 3]] = expected.get(USERS[n % 3], 0) + n
    assert job.totals() == expected


def test_a_streaming_job_with_a_watermark_moves(spark: SparkSession, job: KafkaJob, tmp_path: Path) -> None:
    sizes = job.stream(tmp_path, **limited(25))
    assert sum(sizes) == RECORDS - 10
    if not limited(25):
        return  # all in one batch, behind which no window is closed
    assert max(sizes) <= 25
    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("window").collect()
    hours = {hour: sum(range(10 * hour, 10 * hour + 10)) for hour in range(1, 9)}
    found = {row.window.start.hour: row.amount for row in rows}
    assert found == {hour: amount for hour, amount in hours.items() if hour in found}
    assert len(found) >= 6  # the watermark keeps the last hours open


def test_a_job_that_writes_moves(orders: Served, job: KafkaJob, tmp_path: Path) -> None:
    job.write(tmp_path)
    rows = orders.rows("copies")
    assert sorted((row[4]["AMOUNT"], row[3]) for row in rows) == [(n, USERS[n % 3]) for n in range(RECORDS)]


def test_names_times_and_patterns_of_kafka(job: KafkaJob, orders: Served) -> None:
    assert job.batch(subscribe="orders", startingOffsets='{"orders": {"0": 81}}').count() == 10
    pattern = {"subscribePattern": "orders.*"}
    read = job.spark.read.format("topics").options(url=orders.url, startingOffsets="earliest")
    assert read.options(**pattern).load().select("topic").distinct().count() == 2
    middle = orders.rows("orders")[40][1]
    timed = {"startingOffsetsByTimestamp": json.dumps({"orders": {"0": middle}})}
    later = [row for row in orders.rows("orders") if row[1] >= middle]
    assert job.batch(**timed).count() == len(later)


def test_what_cannot_be_is_told_before_a_task_starts(spark: SparkSession, job: KafkaJob, orders: Served) -> None:
    far = str(4_000_000_000_000)
    for options, sentence in (
        ({"startingOffsets": '{"orders": {"0": 500}}'}, f"is given 500 and its next record will be {RECORDS + 1}"),
        ({"startingTimestamp": far}, "no record of topic 'orders' is as young as 4000000000000 ms"),
        ({"startingOffsetsByTimestamp": f'{{"orders": {far}}}'}, "give startingOffsetsByTimestampStrategy=latest"),
        ({"groupIdPrefix": "g"}, "there are no consumer groups"),
    ):
        with pytest.raises(Exception) as caught:
            job.batch(**options).count()
        assert sentence in message(caught.value)
    assert job.batch(startingTimestamp=far, startingOffsetsByTimestampStrategy="latest").count() == 0
    with pytest.raises(Exception) as caught:
        spark.read.format("topics").options(url=orders.url, subscribePattern="order-*").load().count()
    told = message(caught.value)
    assert "matches the regular expression 'order-*'; for a prefix give subscribePrefix=order-" in told


def test_every_option_is_in_the_contract() -> None:
    text = (Path(__file__).parents[2] / "docs" / "spec" / "pipeline.md").read_text()
    assert [option.name for option in READ_OPTIONS if f"`{option.name}`" not in text] == []
