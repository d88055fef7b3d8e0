"""Stored records as a table: columns, and an Arrow IPC stream of them (`docs/spec/readers.md#sec-8`).

Texts are copied out of the stored bytes column by column, in native loops that give the GIL away; there is no Python
object per record, and JSON is not parsed. What a JSON answer says beside its records is metadata of the schema.
Called by api on a thread, and by the embedded library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from topics.formats import codec
from topics.formats.arrow_stream import END, Column, ColumnType, Texts, Values, batch_message, schema_message
from topics.formats.buffers import I64, U8, Bools, byte_view, gather_u64
from topics.model.payload import DATA_AT, META_MARK
from topics.model.position import token
from topics.model.results import Tombstone
from topics.model.run import BODY_HEAD_BYTES, HAS_NODE, HAS_TAG, RecordRun

COLUMNS: Final = (
    Column("seq", ColumnType.U64),
    Column("ts", ColumnType.TIME_MS),
    Column("tag", ColumnType.TEXT, nullable=True),
    Column("node", ColumnType.TEXT, nullable=True),
    Column("meta", ColumnType.TEXT, nullable=True),
    Column("data", ColumnType.TEXT),
)
_BY_NAME: Final = {column.name: column for column in COLUMNS}
_SHORT_RUNS: Final = 512
"""Records a run: with fewer on average, putting the runs together costs less than a few numpy calls for each."""


def table_metadata(
    topic: str, *, next_from_seq: int, head_seq: int, earliest_seq: int, tombstone: Tombstone | None, epoch: int
) -> dict[str, str]:
    """What a reader is told beside the records, as JSON texts except for the topic and the position."""
    return {
        "topics.topic": topic,
        "topics.next": token(next_from_seq, epoch),
        "topics.head_seq": str(head_seq),
        "topics.earliest_seq": str(earliest_seq),
        "topics.caught_up": "true" if next_from_seq == head_seq else "false",
        "topics.tombstone": "null" if tombstone is None else msgspec.json.encode(tombstone).decode(),
    }


def table_stream(runs: Sequence[RecordRun], names: Sequence[str] | None, metadata: Mapping[str, str]) -> bytes:
    """All records of the runs in the columns of these names, in this order; None is all columns."""
    columns = table_columns(names)
    pieces: list[bytes | memoryview] = [schema_message(columns, metadata)]
    for values, count in table_batches(runs, columns):
        pieces += batch_message(values, count)
    return b"".join([*pieces, END])


def table_columns(names: Sequence[str] | None) -> Sequence[Column]:
    return COLUMNS if names is None else [_BY_NAME[name] for name in names]


def table_batches(runs: Sequence[RecordRun], columns: Sequence[Column]) -> Iterator[tuple[list[Values], int]]:
    """Columns of the records, and how many these are, run by run; short runs are put together."""
    for run in _joined([run for run in runs if len(run)]):
        bodies = _Bodies(run)
        yield [bodies.column(column) for column in columns], len(bodies)


def _joined(runs: Sequence[RecordRun]) -> Sequence[RecordRun]:
    """The same records in one run, if the runs are short."""
    if len(runs) < 2 or sum(map(len, runs)) >= _SHORT_RUNS * len(runs):
        return runs
    pieces, offs, size = [], [], 0
    for run in runs:
        first = run.body_offs[0]
        piece = run.buf[first : first + run.span_bytes()]
        pieces.append(piece)
        offs.append(np.asarray(run.body_offs, np.int64) + (size - first))
        size += len(piece)
    return [RecordRun(b"".join(pieces), np.concatenate(offs).tolist(), b"".join([run.flags for run in runs]))]


class _Bodies:
    """Where everything lies in the bodies of one run."""

    def __init__(self, run: RecordRun) -> None:
        view = byte_view(run.buf)
        at = np.asarray(run.body_offs, np.int64)
        lengths = gather_u64(view, at + 16).astype(np.int64)
        self._view = view
        self._at = at
        self._flags: U8 = np.frombuffer(run.flags, np.uint8)
        self._node_at: I64 = at + BODY_HEAD_BYTES
        self._tag_at: I64 = self._node_at + (lengths & 0xFFFF)
        self._blob_at: I64 = self._tag_at + (lengths >> 16 & 0xFFFF)
        self._blob_len: I64 = lengths >> 32 & 0xFFFF_FFFF
        self._meta_len: I64 | None = None

    def __len__(self) -> int:
        return len(self._at)

    def column(self, column: Column) -> Values:
        return self._texts(column.name) if column.type is ColumnType.TEXT else self._numbers(column.name)

    def _numbers(self, name: str) -> I64:
        at = self._at if name == "seq" else self._at + 8
        return gather_u64(self._view, at).view(np.int64)

    def _texts(self, name: str) -> Texts:
        if name == "data":
            meta = self._meta()
            extra = np.where(meta < 0, 0, meta + len(META_MARK))
            return self._gather(self._blob_at + DATA_AT, self._blob_len - (DATA_AT + 1) - extra, None)
        if name == "meta":
            size = np.maximum(self._meta(), 0)
            return self._gather(self._blob_at + self._blob_len - 1 - size, size, self._meta() >= 0)
        if name == "node":
            return self._gather(self._node_at, self._tag_at - self._node_at, (self._flags & HAS_NODE) != 0)
        return self._gather(self._tag_at, self._blob_at - self._tag_at, (self._flags & HAS_TAG) != 0)

    def _meta(self) -> I64:
        if self._meta_len is None:
            self._meta_len = codec.segment.meta_lengths(self._view, self._blob_at, self._blob_len)
        return self._meta_len

    def _gather(self, starts: I64, lengths: I64, present: Bools | None) -> Texts:
        if present is not None and not present.any():
            return Texts(np.zeros(len(self) + 1, np.int32), b"", present)
        bounds, data = codec.segment.gather_texts(self._view, starts, lengths)
        return Texts(bounds, data, None if present is None or present.all() else present)
