"""Stored records as an Arrow table, without a stream in between: a page of a table in the embedded library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from topics.client.arrow_pages import pyarrow
from topics.formats.arrow_stream import ColumnType, Values, value_buffers
from topics.model.run import RecordRun
from topics.wire.outgoing.record_table import table_batches, table_columns

if TYPE_CHECKING:
    import pyarrow as pa


def table_of(runs: Sequence[RecordRun], names: Sequence[str] | None) -> pa.Table:
    """Stored records as a table, their texts copied once."""
    arrow = pyarrow()
    columns = table_columns(names)
    types = {
        ColumnType.U64: arrow.uint64(),
        ColumnType.TIME_MS: arrow.timestamp("ms", tz="UTC"),
        ColumnType.TEXT: arrow.string(),
    }
    schema = arrow.schema([arrow.field(name, types[kind], nullable=nullable) for name, kind, nullable in columns])
    batches = [
        arrow.RecordBatch.from_arrays(
            [_array(arrow, field.type, values, count) for field, values in zip(schema, batch, strict=True)],
            schema=schema,
        )
        for batch, count in table_batches(runs, columns)
    ]
    return arrow.Table.from_batches(batches, schema=schema)


def _array(arrow: Any, kind: pa.DataType, values: Values, count: int) -> pa.Array:
    buffers = [piece if piece is None else arrow.py_buffer(piece) for piece in value_buffers(values)]
    return arrow.Array.from_buffers(kind, count, buffers)
