"""Rows: what a DataFrame gives to the sink, turned into records, each checked as the server would check it.

A row that no server would take (no JSON, too large, no topic) must not fail a request with a thousand good ones, so it
is found here. Columns of the table that the server assigns (`epoch`, `seq`, `ts`) are ignored: a table that was read
can be written as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from topics import limits
from topics.errors import ConfigError, RequestRefused
from topics.model.names import is_topic_name
from topics.model.record import RecordIn, build_batch
from topics.spark.writing.json_text import ToPlain, converter, texts
from topics.wire.incoming.json import is_too_deep

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

INPUT_COLUMNS: Final = ("topic", "data", "tag", "node", "meta")
IGNORED_COLUMNS: Final = ("epoch", "seq", "ts")
_LEVELS_AROUND_DATA: Final = 3  # the body object, its array of records, the record

_decode_raw: Final = msgspec.json.Decoder(msgspec.Raw).decode


class SinkRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One record of a write request; texts go into the body as they are."""

    data: msgspec.Raw
    tag: str | None = None
    node: str | None = None
    meta: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, slots=True)
class SinkRow:
    """A row with the topic it goes to; `problem` says why no server would take it."""

    topic: str
    record: SinkRecord
    size: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class RowReader:
    """How the columns of a DataFrame are read; checked once, on the driver."""

    topic: str | None
    columns: tuple[str, ...]
    plain: dict[str, ToPlain | None]
    """For data and meta: None means JSON text, else how values become JSON."""


def shape_of(schema: StructType, topic: str | None) -> RowReader:
    """Raises ConfigError for a DataFrame that cannot be written."""
    names = schema.fieldNames()
    for name in names:
        if name not in INPUT_COLUMNS and name not in IGNORED_COLUMNS:
            raise ConfigError(f"a topic takes no column {name!r}; the columns are {', '.join(INPUT_COLUMNS)}")
    if "data" not in names:
        raise ConfigError(f"there is no column data to write; the columns are {', '.join(INPUT_COLUMNS)}")
    if "topic" not in names and topic is None:
        raise ConfigError("name the topic: with option topic, or with a column topic")
    for name in ("topic", "tag", "node"):
        if name in names and schema[name].dataType.typeName() not in ("string", "void", "varchar", "char"):
            raise ConfigError(f"column {name} is a string, not {schema[name].dataType.simpleString()}")
    plain: dict[str, ToPlain | None] = {name: _to_plain(schema, name) for name in ("data", "meta") if name in names}
    return RowReader(topic, tuple(name for name in names if name in INPUT_COLUMNS), plain)


def _to_plain(schema: StructType, name: str) -> ToPlain | None:
    kind = schema[name].dataType
    if kind.typeName() in ("string", "void", "varchar", "char"):
        return None
    try:
        return converter(kind)
    except TypeError as error:
        raise ConfigError(f"column {name} has type {error}, which has no JSON form; convert it first") from None


def rows_of(batch: pa.RecordBatch, shape: RowReader) -> Iterator[SinkRow]:
    """The rows of a batch in order."""
    columns = {name: _values(batch, name, shape) for name in shape.columns}
    count = batch.num_rows
    absent: list[Any] = [None] * count
    routed = columns.get("topic", absent)
    tags, nodes, metas = (columns.get(name, absent) for name in ("tag", "node", "meta"))
    for topic, data, tag, node, meta in zip(routed, columns["data"], tags, nodes, metas, strict=True):
        yield _row(topic if topic is not None else shape.topic, data, tag, node, meta)


def _values(batch: pa.RecordBatch, name: str, shape: RowReader) -> Sequence[Any]:
    array = batch.column(name)
    if name not in shape.plain:
        values: list[Any] = array.to_pylist()
        return values
    to_plain = shape.plain[name]
    if to_plain is not None:
        return texts(array, to_plain)
    return [None if value is None else value.encode() for value in array.to_pylist()]


def _row(topic: str | None, data: bytes | None, tag: str | None, node: str | None, meta: bytes | None) -> SinkRow:
    raw_meta = msgspec.UNSET if meta is None else msgspec.Raw(meta)
    record = SinkRecord(msgspec.Raw(data or b""), tag, node, raw_meta)
    size = len(data or b"") + len(meta or b"")
    return SinkRow(topic or "", record, size, _problem(topic, data, record, size))


def _problem(topic: str | None, data: bytes | None, record: SinkRecord, size: int) -> str:
    if topic is None:
        return "column topic is null, and option topic is not given"
    if not is_topic_name(topic):
        return f"{topic!r} is not a topic name"
    if data is None:
        return "data is null"
    if size > limits.RECORD_BYTES_MAX:
        return f"data and meta have {size} bytes, more than {limits.RECORD_BYTES_MAX}"
    if not is_json(data):
        return "data is not valid JSON"
    if isinstance(record.meta, msgspec.Raw) and not is_json(bytes(record.meta)):
        return "meta is not valid JSON"
    if record.tag is None and record.node is None and record.meta is msgspec.UNSET:
        return ""
    try:
        build_batch([RecordIn(record.data, tag=record.tag, node=record.node, meta=record.meta)])
    except RequestRefused as error:
        return error.message.removeprefix("records[0]: ")  # of the batch of one, not of the user's rows
    return ""


def is_json(text: bytes) -> bool:
    """Whether the server would take this text as a value of a record."""
    try:
        _decode_raw(text)
    except (msgspec.DecodeError, RecursionError):
        if not _is_json_but_for_surrogates(text):
            return False
    around = b"[" * _LEVELS_AROUND_DATA + text + b"]" * _LEVELS_AROUND_DATA
    return not is_too_deep(around)


def _is_json_but_for_surrogates(text: bytes) -> bool:
    """msgspec refuses an escape of a lone surrogate, which the server carries as the escape it is."""
    try:
        json.loads(text.decode(), parse_constant=_refuse_constant)  # of bytes it would drop a byte order mark
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
