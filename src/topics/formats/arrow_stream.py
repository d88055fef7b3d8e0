"""The Arrow IPC stream format, written without Arrow: a schema with metadata, record batches, an end mark.

Only what a table of records needs: columns of 64-bit integers, times and UTF-8 texts, uncompressed. So a server
answers with tables whether pyarrow is installed there or not. The metadata of a message is a FlatBuffer. It is written
front to back: offsets in it point forward only, so children follow their parents and are filled in afterwards. Pure.
Called by `topics.wire.outgoing.record_table`.

    message   0xFFFFFFFF | metadata length i32 | metadata, padded to 8 | body: buffers, each padded to 8
    end       0xFFFFFFFF | 0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

Pieces = list[bytes | memoryview]

_CONTINUES: Final = b"\xff\xff\xff\xff"
END: Final = _CONTINUES + b"\0\0\0\0"
_ALIGNED: Final = 8
_VERSION_5: Final = 4  # MetadataVersion.V5
_SCHEMA, _RECORD_BATCH = 1, 3  # MessageHeader
_INT, _UTF8, _TIMESTAMP = 2, 5, 10  # Type
_MILLISECOND: Final = 1

_U32: Final = Struct("<I")
_SCALARS: Final = {1: Struct("<B"), 2: Struct("<h"), 4: Struct("<i"), 8: Struct("<q")}


class ColumnType(IntEnum):
    U64 = 0
    TIME_MS = 1
    """Milliseconds since the epoch, UTC."""
    TEXT = 2


class Column(NamedTuple):
    name: str
    type: ColumnType
    nullable: bool = False


class Texts(NamedTuple):
    """A column of texts: `bounds` has one more entry than there are texts; `present` is None where none is null."""

    bounds: npt.NDArray[np.int32]
    data: bytes
    present: npt.NDArray[np.bool_] | None = None


Values = npt.NDArray[np.int64] | Texts
"""One column of a batch: integers (their 64 bits, whatever their sign), or texts."""


def schema_message(columns: Sequence[Column], metadata: Mapping[str, str]) -> bytes:
    """The head of a stream."""
    fields = [_field(column) for column in columns]
    pairs = [_Table({0: key.encode(), 1: value.encode()}) for key, value in metadata.items()]
    schema = _Table({1: fields, 2: pairs})
    return b"".join(_message(_SCHEMA, schema, 0))


def batch_message(columns: Sequence[Values], count: int) -> Pieces:
    """One batch of `count` rows."""
    body: Pieces = []
    nodes: list[int] = []
    buffers: list[int] = []
    size = 0
    for values in columns:
        nulls = 0
        if isinstance(values, Texts) and values.present is not None:
            nulls = count - int(np.count_nonzero(values.present))
        nodes += (count, nulls)
        for piece in (buffer or b"" for buffer in value_buffers(values)):
            pad = -len(piece) % _ALIGNED
            buffers += (size, len(piece))
            body += (piece, bytes(pad))
            size += len(piece) + pad
    batch = _Table({0: (8, count), 1: _Structs(nodes), 2: _Structs(buffers)})
    return [*_message(_RECORD_BATCH, batch, size), *body]


def value_buffers(values: Values) -> list[bytes | memoryview | None]:
    """Validity, None if nothing is null, then values; texts have bounds between the two."""
    if not isinstance(values, Texts):
        return [None, _bytes_of(values)]
    valid = None if values.present is None else np.packbits(values.present, bitorder="little").tobytes()
    return [valid, _bytes_of(values.bounds), values.data]


def _bytes_of(numbers: npt.NDArray[np.integer[Any]]) -> memoryview:
    return np.ascontiguousarray(numbers).data.cast("B")


def _field(column: Column) -> _Table:
    if column.type is ColumnType.U64:
        code, kind = _INT, _Table({0: (4, 64), 1: (1, 0)})
    elif column.type is ColumnType.TIME_MS:
        code, kind = _TIMESTAMP, _Table({0: (2, _MILLISECOND), 1: b"UTC"})
    else:
        code, kind = _UTF8, _Table({})
    return _Table({0: column.name.encode(), 1: (1, int(column.nullable)), 2: (1, code), 3: kind, 5: []})


def _message(kind: int, header: _Table, body_bytes: int) -> Pieces:
    metadata = _flatbuffer(_Table({0: (2, _VERSION_5), 1: (1, kind), 2: header, 3: (8, body_bytes)}))
    metadata += bytes(-len(metadata) % _ALIGNED)
    return [_CONTINUES, _U32.pack(len(metadata)), metadata]


# --- FlatBuffers -----------------------------------------------------------------------------------------------------


class _Table(NamedTuple):
    """Fields by slot: `(bytes, integer)` is a scalar, everything else is written behind the table."""

    fields: dict[int, Any]


class _Structs(NamedTuple):
    """A vector of structs of two 64-bit integers, flat."""

    numbers: list[int]


def _flatbuffer(root: _Table) -> bytes:
    out = bytearray(4)
    _U32.pack_into(out, 0, _write(out, root))
    return bytes(out)


def _write(out: bytearray, value: Any) -> int:
    """Append a value, and what it refers to; gives its place."""
    if isinstance(value, _Table):
        return _write_table(out, value.fields)
    if isinstance(value, _Structs):
        out += bytes((4 - len(out)) % _ALIGNED)  # the numbers are aligned, not their count
        at = len(out)
        out += _U32.pack(len(value.numbers) // 2) + np.array(value.numbers, "<i8").tobytes()
        return at
    out += bytes(-len(out) % 4)
    at = len(out)
    out += _U32.pack(len(value))
    if isinstance(value, bytes):
        out += value + b"\0"
        return at
    places = range(len(out), len(out) + 4 * len(value), 4)
    out += bytes(4 * len(value))
    for place, item in zip(places, value, strict=True):
        _refer(out, place, item)
    return at


def _write_table(out: bytearray, fields: dict[int, Any]) -> int:
    """The table of field offsets stands in front. Wide fields come first, so that each is aligned."""
    width = {slot: value[0] if type(value) is tuple else 4 for slot, value in fields.items()}
    places: dict[int, int] = {}
    size = 4
    for slot in sorted(fields, key=lambda slot: -width[slot]):
        size += -size % width[slot]
        places[slot] = size
        size += width[slot]
    slots = max(fields, default=-1) + 1
    head = np.array([4 + 2 * slots, size, *(places.get(slot, 0) for slot in range(slots))], "<u2").tobytes()
    out += bytes(-(len(out) + len(head)) % _ALIGNED)
    out += head
    at = len(out)
    out += bytes(size)
    _U32.pack_into(out, at, len(head))
    for slot, value in fields.items():
        if type(value) is tuple:
            _SCALARS[value[0]].pack_into(out, at + places[slot], value[1])
    for slot, value in fields.items():
        if type(value) is not tuple:
            _refer(out, at + places[slot], value)
    return at


def _refer(out: bytearray, place: int, value: Any) -> None:
    _U32.pack_into(out, place, _write(out, value) - place)
