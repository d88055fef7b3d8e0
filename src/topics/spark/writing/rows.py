"""Rows: what a DataFrame gives to the sink, turned into records, each checked as the server would check it.

A row that no server would take (no JSON, too large, no topic) must not fail a request with a thousand good ones, so it
is found here. Columns of the table that the server assigns (`epoch`, `seq`, `ts`) are ignored: a table that was read
can be written as it is.

Columns that are not text become JSON as Spark's own `to_json` spells it. A Python sink gets rows after Spark has
planned the write, so it cannot put `to_json` in front; the same texts are built here from the same values: null fields
of structs are left out, times are ISO 8601, bytes base64, and keys of maps are what Spark has inside (days,
microseconds, Java's spelling of a number). Types that `to_json` takes and this module does not are refused at planning.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from topics import limits
from topics.errors import ConfigError, InvalidRequest, RequestRefused
from topics.model.names import is_topic_name
from topics.model.record import RecordIn, build_batch
from topics.wire.incoming.json import is_too_deep

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, MapType, StructType

ToPlain = Callable[[Any], Any]
"""From a value as Arrow gives it to one that msgspec writes as wanted."""

ToKey = Callable[[Any], str]
"""From a key of a map to the name that it has in the JSON object."""

_encode: Final = msgspec.json.Encoder(decimal_format="number").encode


def texts(array: pa.Array, to_plain: ToPlain) -> list[bytes | None]:
    """The JSON text of every value; None for null."""
    try:
        values = array.to_pylist()
    except (OverflowError, ValueError):  # years that Python's dates do not have
        raise InvalidRequest("a date before year 1 or after year 9999 cannot be written; convert it first") from None
    return [None if value is None else _encode(to_plain(value)) for value in values]


def converter(kind: DataType) -> ToPlain:
    """How values of a Spark type become plain ones; raises TypeError for a type without a JSON form."""
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType):
        return _struct({field.name: converter(field.dataType) for field in kind.fields})
    if isinstance(kind, t.ArrayType):
        return _array(converter(kind.elementType))
    if isinstance(kind, t.MapType):
        return _map(_key_converter(kind), converter(kind.valueType))
    if isinstance(kind, t.VariantType):
        return _variant
    if isinstance(kind, t.DayTimeIntervalType):
        return _interval(kind.startField, kind.endField)
    made = _SIMPLE.get(kind.typeName())
    if made is None:
        raise TypeError(kind.simpleString())
    return made


def _struct(fields: dict[str, ToPlain]) -> ToPlain:
    def plain(value: dict[str, Any]) -> dict[str, Any]:
        return {name: to(value[name]) for name, to in fields.items() if value[name] is not None}

    return plain


def _array(item: ToPlain) -> ToPlain:
    return lambda value: [None if each is None else item(each) for each in value]


def _map(name: ToKey, item: ToPlain) -> ToPlain:
    return lambda value: {name(key): None if each is None else item(each) for key, each in value}


def _key_converter(kind: MapType) -> ToKey:
    made = _KEYS.get(kind.keyType.typeName())
    if made is None:
        raise TypeError(kind.simpleString())
    return made


def _variant(value: dict[str, bytes]) -> Any:
    from pyspark.sql.types import VariantVal

    return msgspec.Raw(VariantVal(value["value"], value["metadata"]).toJson().encode())


def _same(value: Any) -> Any:
    return value


def _float(value: float) -> Any:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _float32(value: float) -> Any:
    """The shortest text that means the same number of 32 bits."""
    return _float(float(str(np.float32(value))))


def _decimal(value: Decimal) -> Any:
    return msgspec.Raw(str(value).encode())  # which is how Java spells it, too


def _date(value: date) -> str:
    return value.isoformat()


def _timestamp(value: datetime) -> str:
    zone = value.strftime("%z")
    if zone in ("+0000", ""):
        return _local(value) + "Z"
    seconds = f":{zone[5:7]}" if zone[5:7].strip("0") else ""  # before there were time zones
    return f"{_local(value)}{zone[:3]}:{zone[3:5]}{seconds}"


def _local(value: datetime) -> str:
    return value.replace(tzinfo=None).isoformat(timespec="milliseconds")  # four digits of every year


def _time(value: time) -> str:
    text = value.isoformat()
    return text.rstrip("0") if value.microsecond else text


def _interval(first: int, last: int) -> ToPlain:
    """Spelled as SQL spells a literal of this type; fields are 0 (days) to 3 (seconds)."""
    names = ("DAY", "HOUR", "MINUTE", "SECOND")
    unit = names[first] if first == last else f"{names[first]} TO {names[last]}"

    def plain(value: timedelta) -> str:
        rest, shown = abs(_micros(value)), []
        for micros in _FIELD_MICROS[first : last + 1]:
            shown.append(rest // micros)
            rest %= micros
        texts = [f"{number:02d}" if at or first else str(number) for at, number in enumerate(shown)]
        fraction = f".{rest:06d}".rstrip("0") if last == len(names) - 1 and rest else ""
        days = f"{texts.pop(0)} " if first == 0 < last else ""
        return f"INTERVAL '{'-' if value < timedelta() else ''}{days}{':'.join(texts)}{fraction}' {unit}"

    return plain


_FIELD_MICROS: Final = (86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000)


def _binary(value: bytes) -> str:
    return base64.b64encode(value).decode()


# --- keys of maps ----------------------------------------------------------------------------------------------------

_EPOCH: Final = datetime(1970, 1, 1)


def _micros(value: timedelta) -> int:
    return value // timedelta(microseconds=1)


def _java_number(value: float, digits: str) -> str:
    """`digits` is the shortest text of the number; Java turns to exponents sooner than Python."""
    if not math.isfinite(value):
        return str(_float(value))
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return digits if "e" not in digits else str(value)
    sign, number, exponent = Decimal(digits).as_tuple()
    shown = "".join(map(str, number)).rstrip("0")
    power = len(number) - 1 + int(exponent)
    return f"{'-' if sign else ''}{shown[0]}.{shown[1:] or '0'}E{power}"


def _float32_key(value: float) -> str:
    return _java_number(value, str(np.float32(value)))


def _boolean_key(value: bool) -> str:
    return "true" if value else "false"


def _date_key(value: date) -> str:
    return str((value - _EPOCH.date()).days)


def _timestamp_key(value: datetime) -> str:
    return str(_micros(value.astimezone(UTC).replace(tzinfo=None) - _EPOCH))


def _ntz_key(value: datetime) -> str:
    return str(_micros(value - _EPOCH))


def _time_key(value: time) -> str:
    return str(_micros(datetime.combine(_EPOCH.date(), value) - _EPOCH) * 1000)


_KEYS: Final[dict[str, ToKey]] = {
    **dict.fromkeys(("string", "char", "varchar", "byte", "short", "integer", "long", "decimal"), str),
    "boolean": _boolean_key,
    "float": _float32_key,
    "double": lambda value: _java_number(value, repr(value)),
    "date": _date_key,
    "timestamp": _timestamp_key,
    "timestamp_ntz": _ntz_key,
    "time": _time_key,
    "daytimeinterval": lambda value: str(_micros(value)),
}

_SIMPLE: Final[dict[str, ToPlain]] = {
    **dict.fromkeys(("void", "string", "char", "varchar", "boolean"), _same),
    **dict.fromkeys(("byte", "tinyint", "short", "smallint", "integer", "int", "long", "bigint"), _same),
    "float": _float32,
    "double": _float,
    "decimal": _decimal,
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _local,
    "time": _time,
    "binary": _binary,
}


INPUT_COLUMNS: Final = ("topic", "data", "tag", "node", "meta")
IGNORED_COLUMNS: Final = ("epoch", "seq", "ts")
KAFKA_NAMES: Final = {"value": "data", "key": "tag"}
"""What columns of a DataFrame for Kafka are here; bytes are taken as text."""
KAFKA_IGNORED: Final = ("partition", "offset", "timestamp", "timestampType")
_TEXTS: Final = ("string", "void", "varchar", "char")
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
    columns: dict[str, str]
    """By what they are in a record, the names that they have in the DataFrame."""
    plain: dict[str, ToPlain | None]
    """For data and meta: None means JSON text, else how values become JSON."""


def shape_of(schema: StructType, topic: str | None) -> RowReader:
    """Raises ConfigError for a DataFrame that cannot be written."""
    names = schema.fieldNames()
    is_kafka = "value" in names and "data" not in names
    known = ("topic", *KAFKA_NAMES) if is_kafka else INPUT_COLUMNS
    ignored = KAFKA_IGNORED if is_kafka else IGNORED_COLUMNS
    for name in names:
        if name not in known and name not in ignored:
            raise ConfigError(f"a topic takes no column {name!r}; the columns are {', '.join(known)}")
    columns = {KAFKA_NAMES.get(name, name) if is_kafka else name: name for name in names if name in known}
    if "data" not in columns:
        raise ConfigError(f"there is no column data to write; the columns are {', '.join(INPUT_COLUMNS)}")
    if "topic" not in columns and topic is None:
        raise ConfigError("name the topic: with option topic, or with a column topic")
    as_text = (*_TEXTS, "binary") if is_kafka else _TEXTS
    for name in ("topic", "tag", "node"):
        if name in columns and schema[columns[name]].dataType.typeName() not in as_text:
            raise ConfigError(
                f"column {columns[name]} is a string, not {schema[columns[name]].dataType.simpleString()}"
            )
    payload: tuple[str, ...] = ("data", "meta")
    plain = {name: _to_plain(schema, columns[name], as_text) for name in payload if name in columns}
    return RowReader(topic, columns, plain)


def _to_plain(schema: StructType, name: str, as_text: Sequence[str]) -> ToPlain | None:
    kind = schema[name].dataType
    if kind.typeName() in as_text:
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
    array = batch.column(shape.columns[name])
    if name not in shape.plain:
        return _strings(array, shape.columns[name])
    to_plain = shape.plain[name]
    if to_plain is not None:
        return texts(array, to_plain)
    return [value.encode() if isinstance(value, str) else value for value in array.to_pylist()]


def _strings(array: pa.Array, name: str) -> list[str | None]:
    values = array.to_pylist()
    try:
        return [value.decode() if isinstance(value, bytes) else value for value in values]
    except UnicodeDecodeError:
        raise InvalidRequest(f"column {name} holds bytes that are no text: they cannot be a name or a tag") from None


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
