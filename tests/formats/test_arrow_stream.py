"""The Arrow stream that we write, read by Arrow itself."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.formats.arrow_stream import END, Column, ColumnType, Texts, Values, batch_message, schema_message

_U64 = st.integers(0, 2**64 - 1)
_TIME = st.integers(0, 2**53)
_TEXT = st.text(max_size=12)
_NAMES = st.text(min_size=1, max_size=8)


def _numbers(values: list[int]) -> Values:
    return np.array(values, np.uint64).view(np.int64)


def _texts(values: list[str | None]) -> Values:
    encoded = [(value or "").encode() for value in values]
    bounds = np.cumsum([0, *map(len, encoded)]).astype(np.int32)
    present = np.array([value is not None for value in values], np.bool_)
    return Texts(bounds, b"".join(encoded), None if present.all() else present)


@given(
    rows=st.lists(st.lists(st.tuples(_U64, _TIME, _TEXT, st.none() | _TEXT), max_size=20), max_size=4),
    names=st.lists(_NAMES, min_size=4, max_size=4, unique=True),
    metadata=st.dictionaries(_NAMES, _TEXT, max_size=4),
)
def test_arrow_reads_the_rows_names_and_metadata_that_were_written(
    rows: list[list[tuple[int, int, str, str | None]]], names: list[str], metadata: dict[str, str]
) -> None:
    columns = [
        Column(names[0], ColumnType.U64),
        Column(names[1], ColumnType.TIME_MS),
        Column(names[2], ColumnType.TEXT),
        Column(names[3], ColumnType.TEXT, nullable=True),
    ]
    stream = [schema_message(columns, metadata)]
    for batch in rows:
        seqs, times, texts, maybe = ([row[at] for row in batch] for at in range(4))
        values = [_numbers(seqs), _numbers(times), _texts(texts), _texts(maybe)]  # type: ignore[arg-type]
        stream += map(bytes, batch_message(values, len(batch)))
    table = pa.ipc.open_stream(b"".join([*stream, END])).read_all()
    table.validate(full=True)
    assert (table.schema.metadata or {}) == {k.encode(): v.encode() for k, v in metadata.items()}
    assert table.schema.remove_metadata() == pa.schema(
        [
            pa.field(names[0], pa.uint64(), nullable=False),
            pa.field(names[1], pa.timestamp("ms", tz="UTC"), nullable=False),
            pa.field(names[2], pa.string(), nullable=False),
            pa.field(names[3], pa.string()),
        ]
    )
    table = table.set_column(1, names[1], table.column(1).cast(pa.int64()))
    assert [tuple(row.values()) for row in table.to_pylist()] == [row for batch in rows for row in batch]


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 64, 65])
def test_every_buffer_lies_on_eight_bytes_whatever_the_number_of_rows(rows: int) -> None:
    columns = [Column("seq", ColumnType.U64), Column("tag", ColumnType.TEXT, nullable=True)]
    values = [_numbers(list(range(rows))), _texts([None if at % 3 else "x" * at for at in range(rows)])]
    pieces = [schema_message(columns, {"k": "v"}), *map(bytes, batch_message(values, rows)), END]
    stream = b"".join(pieces)
    assert all(len(stream) % 8 == 0 for stream in (pieces[0], b"".join(pieces)))
    table = pa.ipc.open_stream(stream).read_all()
    assert table.column("seq").to_pylist() == list(range(rows))
    assert table.column("tag").null_count == sum(1 for at in range(rows) if at % 3)
