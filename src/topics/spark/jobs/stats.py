"""Stats: records, bytes and rates by topic, tag prefix and time bucket (`docs/spec/pipeline.md#sec-7`).

An aggregate over the table; only times, tags and sizes travel. Without Spark the same tasks are scanned in this
process, batch by batch. Topics are taken in groups, and a group that is done is remembered with its rows, so that an
interrupted run resumes.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from topics.errors import ConfigError
from topics.spark.jobs.job import JobSource, Ledger, Reporter, ledger_path, place_of, run_all
from topics.spark.options import read_options
from topics.spark.planning.cut import TopicCut
from topics.spark.planning.tasks import Task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

TOPICS_PER_GROUP: Final = 32
_COLUMNS: Final = "topic,seq,ts,tag,data,meta"
_KEYS: Final = ("topic", "bucket_ms", "tag_prefix")
_AGGREGATES: Final = {"seq_count": "records", "bytes_sum": "bytes", "seq_min": "first_seq", "seq_max": "last_seq"}
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class StatsRow:
    """One line of the answer; `bucket_ms` is where its time bucket begins, `per_s` its mean rate."""

    topic: str
    tag_prefix: str | None
    bucket_ms: int
    records: int
    bytes: int
    first_seq: int
    last_seq: int
    per_s: float


def bucket_seconds(text: str) -> int:
    """`15m` is 900."""
    found = re.fullmatch(r"(\d+)([smhd])", text.strip())
    if found is None or not int(found[1]):
        raise ConfigError(f"a time bucket is a number and s, m, h or d, such as 15m, not {text!r}")
    return int(found[1]) * _UNITS_S[found[2]]


def stats(
    spark: SparkSession | None,
    source: JobSource,
    *,
    bucket: str = "1h",
    tag_delimiter: str = ":",
    reporter: Reporter | None = None,
    state_dir: str | None = None,
) -> list[StatsRow]:
    """Rows by topic, bucket and tag prefix; in this process if there is no session."""
    seconds, tell = bucket_seconds(bucket), reporter or Reporter()
    cuts = source.cuts()
    title = f"{place_of(source.path or source.shown)} {source.topics} {seconds} {tag_delimiter}"
    ledger = Ledger(ledger_path("stats", title, folder=state_dir), title)
    ends = {name: state_of(cut) for name, cut in cuts.items()}
    rows: list[StatsRow] = []
    todo: list[str] = []
    for name in cuts:
        known = ledger.get(name)
        if known is not None and still_holds(known, ends[name]):
            rows += [StatsRow(**row) for row in known["rows"]]
        else:
            todo.append(name)
    tell.start("stats", len(cuts), "topics")
    for at in range(0, len(todo), TOPICS_PER_GROUP):
        group = todo[at : at + TOPICS_PER_GROUP]
        chosen = replace(source, topics=",".join(group))
        options = chosen.options(columns=_COLUMNS, onDataLoss="warn")
        if spark is None:
            found = _aggregate_here(options, seconds, tag_delimiter)
        else:
            found = _aggregate(spark, options, seconds, tag_delimiter)
        ledger.record_all(
            {name: {**ends[name], "rows": [asdict(row) for row in found if row.topic == name]} for name in group}
        )
        rows += found
        tell.advance(len(cuts) - len(todo) + at + len(group), rows=sum(row.records for row in rows))
    ledger.finish()
    return sorted(rows, key=lambda row: (row.topic, row.bucket_ms, row.tag_prefix or ""))


def state_of(cut: TopicCut) -> dict[str, int]:
    """The part of a topic's state that must be unchanged for rows of an interrupted run to be used again."""
    return {"epoch": cut.epoch, "earliest": cut.earliest_seq, "end": cut.end_seq}


def still_holds(known: dict[str, Any], state: dict[str, int]) -> bool:
    return all(known.get(name) == value for name, value in state.items())


def _aggregate(spark: SparkSession, options: dict[str, str], seconds: int, delimiter: str) -> list[StatsRow]:
    from pyspark.sql import functions as f

    size = f.octet_length("data") + f.coalesce(f.octet_length("meta"), f.lit(0))
    bucket = (f.floor(f.unix_millis("ts") / f.lit(seconds * 1000)) * f.lit(seconds * 1000)).alias("bucket_ms")
    prefix = f.substring_index("tag", delimiter, 1).alias("tag_prefix") if delimiter else f.col("tag")
    grouped = (
        spark.read.format("topics")
        .options(**options)
        .load()
        .groupBy("topic", bucket, prefix)
        .agg(
            f.count("*").alias("records"),
            f.sum(size).alias("bytes"),
            f.min("seq").alias("first_seq"),
            f.max("seq").alias("last_seq"),
        )
    )
    return [_row(row.asDict(), seconds) for row in grouped.collect()]


def _aggregate_here(options: dict[str, str], seconds: int, delimiter: str) -> list[StatsRow]:
    from topics.spark.planning.batch import plan_batch, read_spec
    from topics.spark.scanning.schema import table_fields
    from topics.spark.scanning.task_scan import scan

    chosen = read_options(options)
    spec = read_spec(chosen, table_fields(chosen.table_columns, with_loss=False))

    def counted(task: Task) -> list[dict[str, Any]]:
        return [row for batch in scan(task, spec) for row in _counted(batch, seconds, delimiter)]

    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in (row for part in run_all(None, counted, plan_batch(chosen)) for row in part):
        known = rows.setdefault(tuple(row[name] for name in _KEYS), row)
        if known is not row:
            known["records"] += row["records"]
            known["bytes"] += row["bytes"]
            known["first_seq"] = min(known["first_seq"], row["first_seq"])
            known["last_seq"] = max(known["last_seq"], row["last_seq"])
    return [_row(row, seconds) for row in rows.values()]


def _counted(batch: pa.RecordBatch, seconds: int, delimiter: str) -> list[dict[str, Any]]:
    """What the groups of one batch add up to."""
    import pyarrow as pa
    import pyarrow.compute as pc

    width_ms = seconds * 1000
    times_ms = pc.divide(batch.column("ts").cast(pa.int64()), 1000)  # no time lies before the epoch
    tags = batch.column("tag")
    if delimiter:
        tags = pc.list_element(pc.split_pattern(tags, pattern=delimiter, max_splits=1), 0)
    meta = pc.fill_null(pc.binary_length(batch.column("meta")), 0)
    size = pc.add(pc.binary_length(batch.column("data")), meta).cast(pa.int64())
    seq = batch.column("seq")
    columns = [batch.column("topic"), pc.multiply(pc.divide(times_ms, width_ms), width_ms), tags, size, seq]
    table = pa.table(columns, names=[*_KEYS, "bytes", "seq"])
    groups = table.group_by(list(_KEYS)).aggregate([("seq", "count"), ("bytes", "sum"), ("seq", "min"), ("seq", "max")])
    named = groups.rename_columns([_AGGREGATES.get(name, name) for name in groups.column_names])
    found: list[dict[str, Any]] = named.to_pylist()
    return found


def _row(found: dict[str, Any], seconds: int) -> StatsRow:
    return StatsRow(
        topic=found["topic"],
        tag_prefix=found["tag_prefix"],
        bucket_ms=int(found["bucket_ms"]),
        records=found["records"],
        bytes=found["bytes"],
        first_seq=found["first_seq"],
        last_seq=found["last_seq"],
        per_s=round(found["records"] / seconds, 6),
    )
