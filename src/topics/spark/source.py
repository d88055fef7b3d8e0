"""The data source `topics` for PySpark's Python Data Source API: batch and streaming, in and out.

Spark makes a source object in one Python process, asks it for readers in others and runs their `read` in yet others, so
nothing is kept in these objects but options. All rules live in the modules this one puts together. Imported by Spark
through `pyspark_topics` in every Python process, so the heavy parts are imported where they are used.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from topics.errors import ConfigError, TopicsError
from topics.spark.options import ReadOptions, check_columns, read_options, write_options
from topics.spark.pyspark_api import (
    HAS_ADMISSION_CONTROL,
    VERSION,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from topics.spark.scanning.schema import Field, fields_of, mismatch, spark_schema, table_fields
from topics.spark.sql_tables import is_of_catalog, keeping, kept_in, without_catalog

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from topics.spark.planning.stream import StreamPlanner
    from topics.spark.writing.sink import TopicsBatchSink, TopicsStreamSink


@contextmanager
def sentence_first() -> Iterator[None]:
    """Makes the sentence of our own errors the first line of what Spark shows: of an error in Python it takes the whole
    traceback, which begins with what an error came from. So the error becomes that, without a traceback of its own."""
    try:
        yield
    except TopicsError as error:
        error.__traceback__ = error.__cause__ = error.__context__ = None
        kind = _with_context(type(error))
        again = kind.__new__(kind, *error.args)
        again.__dict__.update(error.__dict__)
        raise again  # noqa: B904  # its context is the point


def _with_context(kind: type[TopicsError]) -> type[TopicsError]:
    """The same error, which keeps what it came from: where Spark shortens tracebacks, it takes that away (it sets
    `__cause__`, and thereby `__suppress_context__`)."""
    kept = property(lambda _: False, lambda _, __: None)
    fields = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__suppress_context__": kept}
    made: type[TopicsError] = types.new_class(kind.__name__, (kind,), exec_body=lambda body: body.update(fields))
    return made


class TopicsDataSource(DataSource):
    """`spark.read.format("topics")`, `df.write.format("topics")` and their streaming forms."""

    @classmethod
    def name(cls) -> str:
        return "topics"

    @sentence_first()
    def schema(self) -> StructType:
        given = without_catalog(self.options)
        options = read_options(given)
        schema = spark_schema(table_fields(options.table_columns, with_loss=options.on_data_loss == "rows"))
        return keeping(given, schema) if is_of_catalog(self.options) else schema

    @sentence_first()
    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(kept_in(schema, self.options), streaming=False)
        fields = declared_fields(options, schema)
        return BatchReader(options, fields)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            options = read_options(kept_in(schema, self.options), streaming=True)
            fields = declared_fields(options, schema)
            if HAS_ADMISSION_CONTROL:
                return StreamReader(options, fields)
            refuse_limits(options)
            return UnlimitedStreamReader(options, fields)
        except ConfigError as error:
            return RefusedStream(error)

    @sentence_first()
    def writer(self, schema: StructType, overwrite: bool) -> TopicsBatchSink:
        from topics.spark.writing.sink import TopicsBatchSink

        return TopicsBatchSink(write_options(self.options), schema, overwrite=overwrite)

    @sentence_first()
    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicsStreamSink:
        from topics.spark.writing.sink import TopicsStreamSink

        return TopicsStreamSink(write_options(self.options), schema, overwrite=overwrite)


def declared_fields(options: ReadOptions, schema: StructType) -> tuple[Field, ...]:
    """The fields of a read, which a user may have declared; raises for what the table does not have."""
    fields = fields_of(schema)
    check_columns(tuple(field.name for field in fields), options.table_columns, "the schema")
    for field in fields:
        problem = mismatch(field)
        if problem is None and options.on_data_loss == "rows" and not field.nullable:
            is_null_in_tombstones = table_fields((field.name,), with_loss=True)[0].nullable
            problem = f"column {field.name} is null in tombstone rows, declare it nullable" * is_null_in_tombstones
        if problem:
            raise ConfigError(f"the schema does not fit: {problem}")
    return fields


def refuse_limits(options: ReadOptions) -> None:
    """What PySpark cannot do before 4.2 is refused: a batch that is larger than asked for may be too large."""
    for name, value in (
        ("maxOffsetsPerTrigger", options.max_offsets_per_trigger),
        ("minOffsetsPerTrigger", options.min_offsets_per_trigger),
        ("maxBytesPerTrigger", options.max_bytes_per_trigger),
    ):
        if value is not None:
            raise ConfigError(f"option {name} needs PySpark 4.2 or newer: {VERSION} asks Python sources for no limits")


class TaskPartition(InputPartition):
    """A task on its way to an executor; everything it needs rides in it."""


def read_task(
    partition: InputPartition | None, options: ReadOptions, fields: tuple[Field, ...]
) -> Iterator[pa.RecordBatch]:
    """The rows of one task, on an executor."""
    from topics.spark.planning.batch import read_spec
    from topics.spark.scanning.newest_rows import newest_rows
    from topics.spark.scanning.task_scan import scan

    # Spark's stand-in for an empty list of partitions is a partition without a value, or before 4.2 no partition.
    if partition is not None and partition.value is not None:
        with sentence_first():
            rows = newest_rows if options.latest_per_tag else scan
            yield from rows(partition.value, read_spec(options, fields))


# --- batch -----------------------------------------------------------------------------------------------------------


class BatchReader(DataSourceReader):
    """Plans on the driver when Spark asks for partitions: the head is fixed then.

    It takes no filters from Spark (`pushFilters`): Spark keeps one plan and one read function with a loaded table,
    those of the last filter, and gives them to every scan of it, also to scans with other filters or none."""

    def __init__(self, options: ReadOptions, fields: tuple[Field, ...]) -> None:
        self._options = options
        self._fields = fields

    @sentence_first()
    def partitions(self) -> list[InputPartition]:
        from topics.spark.planning.batch import plan_batch

        return [TaskPartition(task) for task in plan_batch(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self._options, self._fields)


# --- streaming -------------------------------------------------------------------------------------------------------


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver's object lives as long as its query; executors get another one, so `read` uses no state."""

    def __init__(self, options: ReadOptions, fields: tuple[Field, ...]) -> None:
        self._options = options
        self._fields = fields
        self._planner: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_fields": self._fields, "_planner": None}

    @property
    def planner(self) -> StreamPlanner:
        if self._planner is None:
            from topics.spark.planning.stream import StreamPlanner

            self._planner = StreamPlanner(self._options)
        return self._planner

    @sentence_first()
    def initialOffset(self) -> dict[str, Any]:
        return self.planner.initial()

    @sentence_first()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self.planner.committed(start)  # Spark has the last batch in its commit log before it asks for the next one
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        if isinstance(limit, ReadMaxRows) and rows == self._options.max_offsets_per_trigger:
            size = self._options.max_bytes_per_trigger  # one limit object cannot name both
        return self.planner.latest(start, rows_max=rows, bytes_max=size, rows_min=self._options.min_offsets_per_trigger)

    @sentence_first()
    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self.planner.report()

    @sentence_first()
    def prepareForTriggerAvailableNow(self) -> None:
        self.planner.fix_target()

    @sentence_first()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [TaskPartition(task) for task in self.planner.tasks(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self._options, self._fields)

    @sentence_first()
    def commit(self, end: dict[str, Any]) -> None:
        if self._options.trim_committed:
            self.planner.trim(end)

    def stop(self) -> None:
        """May never be called: nothing is held but a connection."""
        if self._planner is not None:
            self._planner.close()


class UnlimitedStreamReader(StreamReader):
    """A stream of PySpark 4.0 and 4.1, which do not say where a batch starts when they ask where it ends."""

    _end_planned: dict[str, Any] | None = None

    @sentence_first()
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        if self._end_planned is not None:
            self.planner.committed(self._end_planned)
        return self.planner.ends()

    @sentence_first()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self.planner.committed(start)
        self._end_planned = end
        return [TaskPartition(task) for task in self.planner.tasks(start, end, new_from_first=True)]


class RefusedStream(StreamReader):
    """A stream that cannot be: PySpark hides what `streamReader` raises behind an error of its own."""

    def __init__(self, error: ConfigError) -> None:
        self._error = error

    @property
    def planner(self) -> StreamPlanner:
        raise self._error

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:
        raise self._error

    def stop(self) -> None:
        """Nothing was begun."""
