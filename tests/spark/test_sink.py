"""Attempts of one task, without Spark: however many there are and wherever they end, each row is stored once."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pyarrow as pa
import pytest
from tests.spark.served import Served

from topics.errors import ConfigError, InvalidRequest, TopicNotFound
from topics.spark.options import write_options
from topics.spark.writing.rows import RowReader, SinkRecord, SinkRow, is_json, rows_of, shape_of
from topics.spark.writing.sink import TaskWriter, Written

SHAPE = RowReader("t", {"data": "data"}, {"data": None})


def rows(count: int, *topics: str) -> list[SinkRow]:
    texts = [b'{"n":%d}' % n for n in range(count)]
    return [SinkRow(topics[n % len(topics)], SinkRecord(msgspec.Raw(text)), len(text)) for n, text in enumerate(texts)]


def attempt(served: Served, given: list[SinkRow], key: str, **options: str) -> Written:
    task = TaskWriter(write_options({"url": served.url, **options}), SHAPE, key)
    try:
        task.add(given)
        return task.finish()
    finally:
        task.close()


def numbers(served: Served, topic: str) -> list[int]:
    return [row[4]["n"] for row in served.rows(topic)]


def test_a_map_whose_keys_have_no_text_of_their_own_is_refused_at_planning() -> None:
    t = pytest.importorskip("pyspark.sql.types")
    for key in (t.BinaryType(), t.ArrayType(t.LongType()), t.StructType().add("a", "long")):
        schema = t.StructType().add("data", t.MapType(key, t.LongType()))
        with pytest.raises(ConfigError, match="which has no JSON form; convert it first"):
            shape_of(schema, "t")


def test_a_date_that_python_does_not_have_is_told_in_one_sentence() -> None:
    batch = pa.record_batch({"data": pa.array([3_000_000], pa.date32())})
    shape = shape_of(pytest.importorskip("pyspark.sql.types").StructType().add("data", "date"), "t")
    with pytest.raises(InvalidRequest, match="after year 9999"):
        list(rows_of(batch, shape))


@pytest.mark.parametrize("seed", range(8))
def test_attempts_that_end_early_leave_nothing_out_and_nothing_twice(served: Served, seed: int) -> None:
    """Spark ends the input of a sink early, without an error, when what comes before the sink fails."""
    rng, topics = random.Random(seed), (f"early-{seed}-a", f"early-{seed}-b")
    given = rows(300, *topics)
    for _ in range(6):
        attempt(served, given[: rng.randint(0, 299)], f"job-{seed}", batchRecords=str(rng.choice((7, 7, 20, 64))))
    done = attempt(served, given, f"job-{seed}", batchRecords=str(rng.choice((7, 50))))
    assert done.records == 300
    for at, topic in enumerate(topics):
        assert numbers(served, topic) == list(range(at, 300, 2))


def test_attempts_at_the_same_time_append_once(served: Served) -> None:
    given = rows(400, "at-once")
    with ThreadPoolExecutor(6) as pool:
        ends = [400, 150, 400, 333, 400, 7]
        list(pool.map(lambda end: attempt(served, given[:end], "spec", batchRecords="11"), ends))
    assert numbers(served, "at-once") == list(range(400))


def test_other_partitions_batches_and_jobs_are_other_writes(served: Served) -> None:
    for key in ("q:1:0", "q:1:1", "q:2:0", "p:1:0"):
        attempt(served, rows(5, "others"), key)
    assert numbers(served, "others") == [0, 1, 2, 3, 4] * 4


def test_a_request_has_no_more_records_and_bytes_than_it_may(served: Served) -> None:
    assert attempt(served, rows(100, "counted"), "k", batchRecords="30").requests == 4
    assert attempt(served, rows(10, "sized"), "k", batchBytes="20").requests == 5


def test_topics_that_the_sink_creates_remember_keys_for_a_day(served: Served) -> None:
    attempt(served, rows(1, "made"), "k", durability="fsync")
    config = served.call("GET", "/v0/topics/made")["config"]
    assert config["idempotency_window_ms"] >= 24 * 3600 * 1000
    assert config["durability"] == "fsync"


def test_a_write_that_the_server_refuses_fails_with_its_code_and_message(served: Served) -> None:
    sentence = "a write to topic 'unmade' was refused \\(topic_not_found\\): topic 'unmade' does not exist"
    with pytest.raises(TopicNotFound, match=sentence):
        attempt(served, rows(1, "unmade"), "k", create="false")


def test_a_row_that_no_server_takes_names_its_problem(served: Served) -> None:
    bad = SinkRow("made", SinkRecord(msgspec.Raw(b"{")), 1, "data is not valid JSON")
    with pytest.raises(InvalidRequest, match="a row for topic 'made' cannot be written: data is not valid JSON"):
        attempt(served, [bad], "k")
    assert attempt(served, [bad], "k", deadLetterTopic="letters").dead_letters == 1
    assert served.rows("letters")[0][4] == {"topic": "made", "reason": "data is not valid JSON", "data": "{"}


def test_texts_are_json_if_the_server_takes_them() -> None:
    assert all(is_json(text) for text in (b' {"a":1,"a":[]} ', b'"\\ud800"', b"1e400", '"\ufeff"'.encode()))
    assert not any(is_json(text) for text in (b"", b"NaN", b"\xef\xbb\xbf1", b"01", b'"\t"', b"[" * 126 + b"]" * 126))


def test_a_row_without_a_topic_says_so() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    schema = types.StructType().add("data", "string").add("topic", "string")
    batch = pa.RecordBatch.from_pydict({"data": ["1"], "topic": pa.array([None], pa.string())})
    assert [row.problem for row in rows_of(batch, shape_of(schema, None))] == [
        "column topic is null, and option topic is not given"
    ]
    assert [(row.topic, row.problem) for row in rows_of(batch, shape_of(schema, "given"))] == [("given", "")]
