"""The table: which columns a topic has for Spark, and their exact Arrow types (`docs/spec/pipeline.md#sec-2`).

Spark compares the schema of a Python source's first Arrow batch with the declared one and trusts the rest, so a batch
must equal it in type and in nullability. `arrow_schema` follows what the user declared; types may not differ from the
table's. pyspark is imported late: planning and decoding are tested without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Field:
    """One column: its Spark type as `simpleString` gives it, and whether it may be null."""

    name: str
    type: str
    nullable: bool


_TABLE: Final = (
    Field("topic", "string", False),  # topic name
    Field("epoch", "bigint", False),  # instance of that name
    Field("seq", "bigint", False),  # record sequence
    Field("ts", "timestamp", False),  # commit time
    Field("node", "string", True),  # origin node
    Field("tag", "string", True),  # tag
    Field("data", "string", False),  # the JSON text as stored
    Field("meta", "string", True),  # the JSON text of meta
)
_LOSS: Final = (
    Field("kind", "string", False),  # record or tombstone
    Field("gap_from", "bigint", True),  # first lost seq
    Field("gap_to", "bigint", True),  # last lost seq
    Field("reason", "string", True),  # why the records are lost
)
_HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
_KAFKA: Final = (  # as Spark's Kafka source declares them
    Field("key", "binary", True),  # the tag
    Field("value", "binary", True),  # the JSON text as stored
    Field("topic", "string", True),
    Field("partition", "int", True),  # 0: a topic has one
    Field("offset", "bigint", True),  # record sequence
    Field("timestamp", "timestamp", True),  # commit time
    Field("timestampType", "int", True),  # 1: the time of the append
    Field("headers", _HEADERS_TYPE, True),  # node and meta, where a record has them
)
_BY_NAME: Final = {column.name: column for column in (*_KAFKA, *_TABLE, *_LOSS)}

TABLE_COLUMNS: Final = tuple(column.name for column in _TABLE)
LOSS_COLUMNS: Final = tuple(column.name for column in _LOSS)
KNOWN_COLUMNS: Final = (*TABLE_COLUMNS, *LOSS_COLUMNS)
KAFKA_COLUMNS: Final = tuple(column.name for column in _KAFKA)
HEADERS: Final = "headers"

# What a tombstone row has no value for is null, so with loss rows these columns are nullable.
_NULL_IN_TOMBSTONES: Final = frozenset({"seq", "ts", "data"})


def table_fields(names: Sequence[str], *, with_loss: bool) -> tuple[Field, ...]:
    """The declared fields of a read that asks for these columns."""
    columns = [_BY_NAME[name] for name in names]
    return tuple(Field(c.name, c.type, c.nullable or (with_loss and c.name in _NULL_IN_TOMBSTONES)) for c in columns)


def spark_schema(fields: Sequence[Field]) -> StructType:
    """The same as a Spark schema."""
    from pyspark.sql import types as t
    from pyspark.sql.types import StructField, StructType

    header = StructType([StructField("key", t.StringType()), StructField("value", t.BinaryType())])
    types: dict[str, Any] = {
        "string": t.StringType(),
        "bigint": t.LongType(),
        "timestamp": t.TimestampType(),
        "binary": t.BinaryType(),
        "int": t.IntegerType(),
        _HEADERS_TYPE: t.ArrayType(header),
    }
    return StructType([StructField(f.name, types[f.type], f.nullable) for f in fields])


def fields_of(schema: StructType) -> tuple[Field, ...]:
    """Fields of a schema that a user declared, unchecked."""
    return tuple(Field(f.name, f.dataType.simpleString(), f.nullable) for f in schema.fields)


def mismatch(field: Field) -> str | None:
    """Why a declared field cannot be served from the table, or None."""
    column = _BY_NAME[field.name]
    if field.type != column.type:
        return f"column {field.name} is {column.type}, not {field.type}"
    if column.nullable and not field.nullable:
        return f"column {field.name} may be null, declare it nullable"
    return None


def arrow_schema(fields: Sequence[Field]) -> pa.Schema:
    """The schema that every batch of the read has."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "binary": pa.binary(),
        "int": pa.int32(),
        _HEADERS_TYPE: pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    }
    return pa.schema([pa.field(f.name, types[f.type], nullable=f.nullable) for f in fields])
