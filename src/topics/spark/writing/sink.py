"""The sink: rows into topics through a server, each at most once (`docs/spec/pipeline.md#sec-5`).

Every request carries an idempotency key made of what identifies its rows: the streaming query (or the name of a batch
write), the micro-batch, the partition and the chunk's place among the rows of its topic. A task that is retried, runs
twice at the same time or is repeated after a restart sends the same keys, so inside the topic's idempotency window
nothing is appended twice. A chunk may have been shorter the first time: when the part of a query before the sink fails,
Spark ends the sink's input as if it were complete. So the answer to a repeated key says how many rows it stands for,
and the rest goes out under the key of its own place. Topics that the sink creates get a window of a day. Beyond the
window, and for input that is not the same when it is computed again, a repeat may append again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from topics.errors import ConfigError, InvalidRequest, TopicsError, Unauthorized
from topics.spark.logs.bulk_client import PLANNING_RETRIES, Remote, ServerGone, key_refused, topic_path
from topics.spark.logs.log import LogAddress
from topics.spark.options import WriteOptions
from topics.spark.pyspark_api import StreamWriter, arrow_batches
from topics.spark.writing.rows import RowReader, SinkRecord, SinkRow, rows_of, shape_of
from topics.wire.outgoing.replies import error_from_wire

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

IDEMPOTENCY_WINDOW_MS: Final = 24 * 3600 * 1000
_DEAD_TEXT_CHARS_MAX: Final = 64 * 1024
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What one task did; `deduped` requests had been done before."""

    records: int
    requests: int
    deduped: int
    dead_letters: int


class _Sink:
    """What batch and streaming writes share."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError("a topic can only be appended to: use mode('append'), for a stream outputMode('append')")
        self._options = options
        self._schema = schema
        self._shape = shape_of(schema, options.topic)
        self._job_id = options.job_id or uuid.uuid4().hex
        check_server(options)

    def _write(self, batches: Iterable[pa.RecordBatch], job: str) -> Written:
        task = TaskWriter(self._options, self._shape, f"{job}:{_partition_id()}")
        try:
            for batch in batches:
                task.add(rows_of(batch, self._shape))
            return task.finish()
        finally:
            task.close()


class TopicsBatchSink(_Sink, DataSourceArrowWriter):
    """`df.write.format("topics").mode("append")`."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator, self._job_id)


class TopicsStreamSink(_Sink, StreamWriter):
    """`df.writeStream.format("topics")`; query and batch are known only inside a task."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY_ID) if context is not None else None
        batch = context.getLocalProperty(_BATCH_ID) if context is not None else None
        if query is None or batch is None:
            raise InvalidRequest("Spark told the sink neither its query nor its batch: nothing can be written safely")
        return self._write(arrow_batches(iterator, self._schema), f"{query}:{batch}")


def check_server(options: WriteOptions) -> None:
    """A server that is not there, or does not know the key, is told before any task starts."""
    address = LogAddress(url=options.url, api_key=options.api_key)
    remote = Remote(address, retries=min(options.max_retries, PLANNING_RETRIES))
    try:
        remote.get("/v0/topics", {"page_size": 1})
    except Unauthorized as error:
        raise key_refused(address, error, scope="write") from None
    except ServerGone:
        raise
    except TopicsError:
        pass  # a key that may write may be one that must not list
    finally:
        remote.close()


def _partition_id() -> int:
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


class TaskWriter:
    """One attempt of one task: chunks per topic, sent when they are full, in an order that follows from the rows."""

    def __init__(self, options: WriteOptions, shape: RowReader, key: str, remote: Remote | None = None) -> None:
        self._options = options
        self._shape = shape
        self._key = key
        address = LogAddress(url=options.url, api_key=options.api_key)
        self._remote = remote or Remote(address, retries=options.max_retries)
        self._chunks: dict[str, _Chunk] = {}
        self._records = self._requests = self._deduped = self._dead = 0

    def add(self, rows: Iterable[SinkRow]) -> None:
        for row in rows:
            if row.problem:
                self._bury(row)
            else:
                self._put(row.topic, row.record, row.size)

    def _put(self, topic: str, record: SinkRecord, size: int) -> None:
        chunk = self._chunks.get(topic)
        if chunk is None:
            chunk = self._chunks[topic] = _Chunk()
        full = len(chunk.records) >= self._options.batch_records or chunk.bytes + size > self._options.batch_bytes
        if chunk.records and full:
            self._send(topic, chunk)
        if chunk.stored_ahead:
            chunk.stored_ahead -= 1
            self._records += 1
        else:
            chunk.records.append(record)
            chunk.bytes += size

    def _bury(self, row: SinkRow) -> None:
        """A row that no server takes goes to the dead-letter topic with the reason, or fails the task."""
        target = self._options.dead_letter_topic
        if target is None:
            raise InvalidRequest(f"a row for topic {row.topic!r} cannot be written: {row.problem}")
        text = bytes(row.record.data).decode("utf-8", "replace")
        letter: dict[str, Any] = {"topic": row.topic, "reason": row.problem, "data": text[:_DEAD_TEXT_CHARS_MAX]}
        if len(text) > _DEAD_TEXT_CHARS_MAX:
            letter["truncated_from_chars"] = len(text)
        data = msgspec.json.encode(letter)
        self._dead += 1
        self._put(target, SinkRecord(msgspec.Raw(data), tag="dead-letter"), len(data))

    def _send(self, topic: str, chunk: _Chunk) -> None:
        """Until every record of the chunk is stored, by this attempt or by an earlier one."""
        while chunk.records:
            body: dict[str, Any] = {
                "records": chunk.records,
                "idempotency_key": f"{self._key}:{chunk.place}",
                "create": self._options.create,
            }
            if self._options.create:
                body["config"] = self._config()
            answer = self._post(topic, msgspec.json.encode(body))
            self._requests += 1
            self._deduped += bool(answer["deduped"])
            self._records += chunk.stored(max(int(answer["count"]), 1))

    def _post(self, topic: str, body: bytes) -> Any:
        """Of an error in a task Spark keeps the text alone, so the code must be in it."""
        try:
            return self._remote.post(f"{topic_path(topic)}?return_seqs=false", body).json()
        except ServerGone:
            raise
        except TopicsError as error:
            told = f"a write to topic {topic!r} was refused ({error.code}): {error.message}"
            raise error_from_wire(code=error.code, status=error.status, message=told, detail=error.detail) from None

    def _config(self) -> dict[str, Any]:
        config: dict[str, Any] = {"idempotency_window_ms": IDEMPOTENCY_WINDOW_MS}
        if self._options.durability is not None:
            config["durability"] = self._options.durability
        return config

    def finish(self) -> Written:
        """Send what is left and tell what was done."""
        for topic, chunk in sorted(self._chunks.items()):
            if chunk.records:
                self._send(topic, chunk)
        return Written(self._records, self._requests, self._deduped, self._dead)

    def close(self) -> None:
        self._remote.close()


@dataclass(slots=True)
class _Chunk:
    """Records of one topic that wait to be sent; `place` is that of the first among all rows of the topic."""

    records: list[SinkRecord] = field(default_factory=list)
    bytes: int = 0
    place: int = 0
    stored_ahead: int = 0
    """Rows to come that an earlier attempt has stored: it had larger chunks."""

    def stored(self, count: int) -> int:
        """So many rows from `place` on are stored; tells how many of them waited here."""
        known = min(count, len(self.records))
        self.place += count
        self.stored_ahead = count - known
        self.records, self.bytes = self.records[known:], 0
        return known
