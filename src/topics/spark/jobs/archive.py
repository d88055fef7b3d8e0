"""Archive: topics into a table by topic and date, incrementally and exactly once (`docs/spec/pipeline.md#sec-7`).

A stream from the source into Spark's own Parquet sink (its checkpoint and file log make it exactly once), or into Delta
through `topics.spark.jobs.archive_files`. Behind it a manifest is kept: each committed file is read back, hashed and
described. With `trim`, what is committed, described and on the disk is deleted from its topic, and nothing else is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote

from topics.errors import ConfigError
from topics.spark.jobs.archive_files import (
    CHECKPOINT_DIR,
    DELTA_LOG_DIR,
    SPARK_LOG_DIR,
    ArchivedFile,
    add_to_manifest,
    check_folder,
    check_installed,
    check_instance,
    committed_by_delta,
    committed_by_spark,
    committed_offset,
    committer,
    described,
    locked,
    manifest,
    note_instance,
    orphans,
    size_of,
    sync_logs,
)
from topics.spark.jobs.job import JobSource, Reporter
from topics.spark.logs.bulk_client import Remote
from topics.spark.logs.read_files import local_path
from topics.spark.options import read_options
from topics.spark.planning.batch import address_of
from topics.spark.planning.cut import TopicCut
from topics.spark.planning.offsets import Points, from_json, heads, lifted, passed, resumed, trim_before
from topics.spark.secret import without_secrets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Format = Literal["parquet", "delta"]
RECORDS_PER_TASK_MAX: Final = 4_000_000
"""Few large files: a task writes one per topic and date."""
FOLDER_NAME_MAX: Final = 255
APP_ID: Final = "topics-archive"
STARTS_MAX: Final = 3
TOO_SLOW: Final = "Python worker failed to connect back"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    """What goes where. `every` is the pause between batches of a continuous run, as Spark spells it."""

    source: JobSource = field(repr=False)
    to: str
    format: Format = "parquet"
    available_now: bool = True
    every: str = "60 seconds"
    trim: bool = False
    on_loss: Literal["fail", "warn"] = "fail"
    batch_records: int | None = None

    def check(self) -> None:
        """Raises ConfigError for what cannot work, before anything is started."""
        if self.trim and self.source.url is None:
            raise ConfigError("--trim deletes through a server: it needs --url, not --path")
        if self.format == "delta":
            check_installed()
        if "://" in self.to and not self.to.startswith("file:"):
            raise ConfigError(f"--to is a folder that this machine has mounted, not {without_secrets(self.to)}")
        check_folder(self.folder, DELTA_LOG_DIR if self.format == "delta" else SPARK_LOG_DIR)
        cuts = self.source.cuts()
        check_instance(self.folder, instance_of(cuts))
        for topic in cuts:
            if len(f"topic={quote(topic, safe='')}") > FOLDER_NAME_MAX:
                raise ConfigError(f"the name of topic {topic!r} is too long for a folder: it cannot be archived")

    @property
    def folder(self) -> Path:
        return Path(local_path(self.to)).resolve()


def instance_of(cuts: Mapping[str, TopicCut]) -> str:
    """The name of the data directory that these topics are in; empty where the source does not tell."""
    return next((cut.instance for cut in cuts.values()), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """What a run added."""

    files: int
    records: int
    bytes: int
    batches: int
    trimmed: bool
    elapsed_s: float


def archive(
    spark: SparkSession,
    options: ArchiveOptions,
    *,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Archived:
    """Run until everything is archived, or until told to stop."""
    return _Archive(spark, options, reporter or Reporter()).run(should_stop)


class _Archive:
    def __init__(self, spark: SparkSession, options: ArchiveOptions, reporter: Reporter) -> None:
        options.check()
        self._spark = spark
        self._options = options
        self._tell = reporter
        self._folder = options.folder
        self._known: dict[str, ArchivedFile] = {}
        self._begin: Points = {}
        self._waiting = 0

    def run(self, should_stop: Callable[[], bool]) -> Archived:
        self._folder.mkdir(parents=True, exist_ok=True)
        with locked(self._folder):
            return self._run(should_stop)

    def _run(self, should_stop: Callable[[], bool]) -> Archived:
        begun = time.monotonic()
        self._known = manifest(self._folder)
        before = set(self._known)
        cuts = self._options.source.cuts()
        self._begin = resumed(from_json(committed_offset(self._folder) or {}), cuts)
        self._waiting = passed(self._begin, heads(cuts))
        note_instance(self._folder, instance_of(cuts))
        self._tidy()
        self._describe_new()
        self._tell.start("archive", self._waiting, "records")
        batches = self._stream(should_stop)
        self._describe_new()
        trimmed = self._trim() if self._options.trim else False
        added = [file for path, file in self._known.items() if path not in before]
        return Archived(
            files=len(added),
            records=sum(file.records for file in added),
            bytes=sum(file.bytes for file in added),
            batches=batches,
            trimmed=trimmed,
            elapsed_s=round(time.monotonic() - begun, 3),
        )

    # --- the stream ---------------------------------------------------------------------------------------------------

    def _stream(self, should_stop: Callable[[], bool]) -> int:
        """Runs the stream. Spark gives the planner's process ten seconds to start; on a busy machine that may fail, so
        retry."""
        from pyspark.errors import StreamingQueryException

        for _ in range(STARTS_MAX - 1):
            try:
                return self._follow(self._start(), should_stop)
            except StreamingQueryException as error:
                if TOO_SLOW not in str(error):
                    raise
        return self._follow(self._start(), should_stop)

    def _start(self) -> StreamingQuery:
        from pyspark.sql import functions as f

        more = {"startingOffsets": "earliest", "maxRecordsPerPartition": str(RECORDS_PER_TASK_MAX)}
        more["minPartitions"] = str(max(self._spark.sparkContext.defaultParallelism, 1))
        more["onDataLoss"] = self._options.on_loss
        if self._options.batch_records is not None:
            more["maxOffsetsPerTrigger"] = str(self._options.batch_records)
        rows = self._spark.readStream.format("topics").options(**self._options.source.options(**more)).load()
        dated = rows.withColumn("date", f.date_format("ts", "yyyy-MM-dd"))
        writer = self._sink(dated).option("checkpointLocation", str(self._folder / CHECKPOINT_DIR))
        trigger = {"availableNow": True} if self._options.available_now else {"processingTime": self._options.every}
        query: StreamingQuery = writer.trigger(**trigger).start()
        return query

    def _sink(self, rows: DataFrame) -> Any:
        if self._options.format == "delta":
            return rows.writeStream.foreachBatch(committer(self._folder, APP_ID))
        return rows.writeStream.format("parquet").option("path", str(self._folder)).partitionBy("topic", "date")

    def _follow(self, query: StreamingQuery, should_stop: Callable[[], bool]) -> int:
        """Wait for the stream, tell how far it is, and describe files as they are committed."""
        seen, rows = -1, 0
        try:
            while not self._is_over(query, should_stop):
                for progress in query.recentProgress:
                    if progress["batchId"] > seen:
                        seen = progress["batchId"]
                        rows += progress["numInputRows"]
                        self._tell_place(progress, rows)
                        if self._options.trim and not self._options.available_now:
                            self._trim()
                        else:
                            self._describe_new()
            # The query has ended; its last progress report may not have been seen.
            rows = max(rows, sum(progress["numInputRows"] for progress in query.recentProgress))
            if query.lastProgress is not None:
                self._tell_place(query.lastProgress, rows)
            return len({progress["batchId"] for progress in query.recentProgress if progress["numInputRows"]})
        except BaseException:
            query.stop()
            raise

    def _tell_place(self, progress: Any, rows: int) -> None:
        """Reports progress in seqs, because the backlog is counted in seqs: deleted records give no row."""
        told = progress["sources"][0]["endOffset"]
        offset = json.loads(told) if isinstance(told, str) else told
        done = passed(self._begin, from_json(offset or {}))
        self._tell.advance(done, rows=rows, total=max(self._waiting, done))

    @staticmethod
    def _is_over(query: StreamingQuery, should_stop: Callable[[], bool]) -> bool:
        """Waits up to a second for the end. A query that is told to stop may end with an error of what it was doing."""
        from pyspark.errors import StreamingQueryException

        if should_stop():
            query.stop()
        try:
            return query.awaitTermination(1) is True
        except StreamingQueryException:
            if should_stop():
                return True
            raise

    # --- what is committed --------------------------------------------------------------------------------------------

    def _committed(self) -> list[str]:
        return committed_by_delta(self._folder) if self._options.format == "delta" else committed_by_spark(self._folder)

    def _tidy(self) -> None:
        """Removes the files of an interrupted batch: no commit names them, and its repetition writes them anew."""
        for path in orphans(self._folder, [*self._committed(), *self._known]):
            path.unlink(missing_ok=True)

    def _describe_new(self) -> None:
        new = [path for path in self._committed() if path not in self._known]
        if not new:
            return
        folder, context = self._folder, self._spark.sparkContext
        tasks = min(len(new), max(context.defaultParallelism * 4, 1))
        found = context.parallelize(new, tasks).map(lambda path: described(folder, path)).collect()
        add_to_manifest(folder, found)
        self._known.update((file.path, file) for file in found)

    def _trim(self) -> bool:
        """Delete from the topics what the archive holds: committed, in the manifest, and there with its full size.

        The offset is read first: a stream that goes on may commit files that are described only the next time."""
        offset = committed_offset(self._folder)
        if offset is None:
            return False
        self._describe_new()
        for file in filter(None, map(self._known.get, self._committed())):
            if size_of(self._folder / file.path) != file.bytes:
                raise ConfigError(f"archived file {file.path} is not what the manifest says; nothing was trimmed")
        sync_logs(self._folder)
        options = read_options(self._options.source.options())
        cuts = self._options.source.cuts()
        trim_before(Remote(address_of(options)), lifted(from_json(offset), cuts), cuts)
        return True
