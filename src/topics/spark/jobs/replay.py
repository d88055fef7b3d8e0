"""Replay: records of an archive, or of any DataFrame source, written back into topics (`docs/spec/pipeline.md#sec-7`).

Records of one topic are written in their old order, by one task at a time; topics run beside each other. Work is cut
into waves, fixed when the job is first started and kept in its ledger, and every request carries a key made of the
job's name, the wave and the place in it. So an interrupted replay goes on with its wave, and what that wave had
written before is recognised by the server and not appended again. The ledger stays when the job is complete, so
another run writes what is new, and nothing twice.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterable, Set
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from topics.errors import ConfigError
from topics.spark.jobs.archive_files import ArchivedFile, committed_by_delta, committed_by_spark, described, manifest
from topics.spark.jobs.job import Ledger, Reporter, ledger_path, place_of
from topics.spark.logs.log import LogAddress
from topics.spark.logs.server_log import ServerLog
from topics.spark.options import write_options
from topics.spark.planning.batch import some_names
from topics.spark.secret import without_secrets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WAVE_RECORDS: Final = 2_000_000
"""Records of one topic in one wave: what a restart may have to send again."""
PARTITIONS: Final = 32
"""Fixed, because the number of a partition is in the idempotency keys: a restart on another cluster sends the same
ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """From where, to where. `into` names one topic for everything; else records go to topics of their old names."""

    source: str
    format: str = "parquet"
    url: str
    api_key: str | None = field(default=None, repr=False)
    api_key_file: str | None = None
    topics: str = "*"
    into: str | None = None
    durability: str | None = None
    read_options: tuple[tuple[str, str], ...] = ()

    def check(self) -> None:
        """Raises ConfigError for what cannot work, before anything is started."""
        if self.format in ("parquet", "delta") and "://" not in self.source and not Path(self.source).is_dir():
            raise ConfigError(f"there is no archive at {self.source}")
        write_options(self.destination)

    @property
    def destination(self) -> dict[str, str]:
        """As options of the sink."""
        given = {
            "url": self.url,
            "topic": self.into,
            "apiKey": self.api_key,
            "apiKeyFile": self.api_key_file,
            "durability": self.durability,
        }
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """`records` and `waves - waves_done_before` are of this run, `records_before` of those before it."""

    records: int
    records_before: int
    waves: int
    waves_done_before: int
    elapsed_s: float


def replay(
    spark: SparkSession,
    options: ReplayOptions,
    *,
    reporter: Reporter | None = None,
    state_dir: str | None = None,
    again: bool = False,
) -> Replayed:
    """Write everything that is wanted and was not written before; returns when it is acknowledged.

    With `again` a complete replay begins anew."""
    begun, tell = time.monotonic(), reporter or Reporter()
    plan = ReplayPlan.of(options, state_dir=state_dir, again=again)
    waves, done_before, records_before = plan.waves, plan.done, plan.records_before
    if done_before:
        tell.note(f"going on: {done_before} of {len(waves)} waves were written before")
    tell.start("replay", len(waves), "waves")
    records = 0
    for number, files in enumerate(waves):
        if not plan.is_written(number):
            rows = _wanted(_load(spark, options, files), options)
            count = _write(rows, options, f"{plan.job}-{number}")
            plan.wrote(number, count)
            records += count
        tell.advance(number + 1, rows=records)
    return Replayed(
        records=records,
        records_before=records_before,
        waves=len(waves),
        waves_done_before=done_before,
        elapsed_s=round(time.monotonic() - begun, 3),
    )


class ReplayPlan:
    """The waves of a replay and which of them are written, in a ledger that stays: what was written once is not
    written again unless somebody says so. Files that an archive got since are new waves behind the old ones."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @classmethod
    def of(cls, options: ReplayOptions, *, state_dir: str | None = None, again: bool = False) -> Self:
        """Raises ConfigError where it cannot be known what was written before."""
        url = options.url.rstrip("/")
        title = json.dumps([place_of(options.source), options.format, url, options.topics, options.into])
        ledger = Ledger(ledger_path("replay", title, folder=state_dir), title)
        plan = cls(ledger)
        if "plan" in ledger:
            written = plan.records_before
            is_gone = written > 0 and written > heads_at(options)
            if again and (is_gone or plan.done == len(plan.waves)):
                ledger.finish()
                ledger = Ledger(ledger_path("replay", title, folder=state_dir), title)
                plan = cls(ledger)
            elif is_gone:
                raise ConfigError(
                    f"{without_secrets(options.url)} has not what a replay of {options.source} wrote there: a topic "
                    "was deleted, or it is another server; --again writes everything once more"
                )
        if "plan" in ledger:
            plan._go_on(options)
        else:
            # One line: waves without the name that their keys are made of would be written under keys of other replays.
            job = hashlib.sha256(f"{title}{time.time_ns()}".encode()).hexdigest()[:24]
            ledger.record("plan", {"job": job, "waves": plan_waves(options)})
        return plan

    def _go_on(self, options: ReplayOptions) -> None:
        planned = [path for wave in self.waves for path in wave]
        if [] in self.waves:  # one wave without names: everything that the source gave
            if self.done == len(self.waves):
                raise ConfigError(
                    f"{self.records_before:,} records of {options.source} were written to "
                    f"{without_secrets(options.url)} before: --again writes them once more"
                )
            return
        now = [path for wave in plan_waves(options) for path in wave]
        if not set(planned) <= set(now):
            raise ConfigError(
                f"{options.source} has lost or changed files since a replay of it began: nobody can tell what of it is "
                "written; another --state writes all of it once more"
            )
        new = plan_waves(options, without=set(planned))
        if new:
            self._ledger.record("plan", {"job": self.job, "waves": [*self.waves, *new]})

    @property
    def job(self) -> str:
        return str(self._ledger.get("plan")["job"])

    @property
    def waves(self) -> list[list[str]]:
        waves: list[list[str]] = self._ledger.get("plan")["waves"]
        return waves

    @property
    def done(self) -> int:
        return sum(map(self.is_written, range(len(self.waves))))

    @property
    def records_before(self) -> int:
        return sum(self._ledger.get(f"wave {number}") or 0 for number in range(len(self.waves)))

    def is_written(self, number: int) -> bool:
        return f"wave {number}" in self._ledger

    def wrote(self, number: int, records: int) -> None:
        self._ledger.record(f"wave {number}", records)


def heads_at(options: ReplayOptions) -> int:
    """The sum of the heads of the topics to be written to. Heads only grow; a sum below what was written before means
    that these are other topics. A key that may not list topics cannot be checked, so the sum is taken to be large
    enough."""
    wanted = write_options(options.destination)
    try:
        with closing(ServerLog(LogAddress(url=wanted.url, api_key=wanted.api_key))) as log:
            heads = log.heads()
    except ConfigError:
        return sys.maxsize
    if options.into is not None:
        return heads.get(options.into, 0)
    return sum(head for topic, head in heads.items() if _matches(topic, options.topics))


def plan_waves(options: ReplayOptions, *, without: Set[str] = frozenset()) -> list[list[str]]:
    """Files of each wave; one wave without names is everything that the source gives."""
    files = _archived(options) if options.format in ("parquet", "delta") else []
    if not files:
        if options.format == "delta":
            new = sorted(set(committed_by_delta(Path(options.source))) - without)
            return [new] if new or not without else []
        return [[]]
    _check_topics(options.topics, {file.topic for file in files})
    wanted = [file for file in files if _matches(file.topic, options.topics) and file.path not in without]
    by_topic: dict[str, list[ArchivedFile]] = {}
    for file in sorted(wanted, key=lambda f: (f.topic, f.first_epoch, f.first_seq)):
        by_topic.setdefault(file.topic, []).append(file)
    if options.into is not None:
        # One destination has one order: topics go one after the other.
        return [[f.path for f in group] for files in by_topic.values() for group in _groups(files)]
    queues = [list(_groups(files)) for files in by_topic.values()]
    depth = max((len(queue) for queue in queues), default=0)
    return [[f.path for queue in queues if at < len(queue) for f in queue[at]] for at in range(depth)]


def _archived(options: ReplayOptions) -> list[ArchivedFile]:
    """Files of the archive, as its log of commits names them. After a killed run the log has files that the manifest
    does not have yet; after a Delta table was compacted it has others.

    Empty where there is no manifest: the table is no archive, or has no file yet."""
    folder = Path(options.source).resolve()
    known = manifest(folder)
    if not known:
        return []
    committed = committed_by_delta(folder) if options.format == "delta" else committed_by_spark(folder)
    return [known.get(path) or described(folder, path) for path in committed or known]


def _check_topics(wanted: str, known: set[str]) -> None:
    """Raises ConfigError where nothing would be written of what was asked for."""
    for topic in [wanted] if wanted.endswith("*") else wanted.split(","):
        if not any(_matches(name, topic) for name in known):
            raise ConfigError(f"the archive has nothing of topic {topic!r}; {some_names(sorted(known))}")


def _groups(files: Iterable[ArchivedFile]) -> Iterable[list[ArchivedFile]]:
    """Neighbours up to WAVE_RECORDS. Files whose seqs overlap stay together, because a wave is sorted as a whole."""
    group: list[ArchivedFile] = []
    last = (-1, -1)
    for file in files:
        overlaps = (file.first_epoch, file.first_seq) <= last
        if group and not overlaps and sum(f.records for f in group) + file.records > WAVE_RECORDS:
            yield group
            group = []
        group.append(file)
        last = max(last, (file.last_epoch, file.last_seq))
    if group:
        yield group


def _matches(topic: str, wanted: str) -> bool:
    return topic.startswith(wanted[:-1]) if wanted.endswith("*") else topic in wanted.split(",")


def _load(spark: SparkSession, options: ReplayOptions, files: list[str]) -> DataFrame:
    from pyspark.sql.types import StringType, StructField, StructType

    reader = spark.read.options(**dict(options.read_options))
    if options.format not in ("parquet", "delta"):
        return reader.format(options.format).load(options.source or None)
    folder = Path(options.source).resolve()
    if not folder.is_dir():
        raise ConfigError(f"there is no archive at {options.source}")
    # Named files do not go through Spark's file log, and the base path keeps topic and date as columns.
    paths = [str(folder / path) for path in files] or [str(folder)]
    reader = reader.option("basePath", str(folder))
    rows = reader.parquet(*paths)
    if not any(folder.glob("topic=*")):
        return rows
    # Spark takes folders like topic=007 for numbers, unless a schema says that they are names.
    fields = [StructField("topic", StringType()) if field.name == "topic" else field for field in rows.schema]
    return reader.schema(StructType(fields)).parquet(*paths)


def _wanted(rows: DataFrame, options: ReplayOptions) -> DataFrame:
    """The columns and topics to write, each topic in one partition and in its old order."""
    from pyspark.sql import functions as f

    names = rows.columns
    if "data" not in names:
        raise ConfigError(f"the source has no column data; it has {', '.join(names)}")
    if "topic" in names:
        rows = rows.withColumn("topic", f.col("topic").cast("string"))
        if options.topics.endswith("*"):
            rows = rows.where(f.col("topic").startswith(options.topics[:-1]))
        else:
            rows = rows.where(f.col("topic").isin(options.topics.split(",")))
    elif options.into is None:
        raise ConfigError("the source has no column topic: name the topic to write to")
    order = [name for name in ("topic", "epoch", "seq") if name in names]
    kept: list[str] = [name for name in ("topic", "data", "tag", "node", "meta") if name in names]
    if options.into is not None:
        placed = rows.repartition(1)
    else:
        placed = rows.repartition(PARTITIONS, "topic")
    return (placed.sortWithinPartitions(*order) if order else placed).select(*kept, *_keys(names, kept))


def _keys(names: list[str], kept: list[str]) -> list[str]:
    """Columns that sorting needs; the sink ignores them."""
    return [name for name in ("epoch", "seq") if name in names and name not in kept]


def _write(rows: DataFrame, options: ReplayOptions, job_id: str) -> int:
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    counted = Observation()
    observed = rows.observe(counted, f.count(f.lit(1)).alias("records"))
    if options.into is not None and "topic" in observed.columns:
        observed = observed.drop("topic")
    chosen = options.destination | {"jobId": job_id}
    observed.write.format("topics").mode("append").options(**chosen).save()
    return int(counted.get["records"])
