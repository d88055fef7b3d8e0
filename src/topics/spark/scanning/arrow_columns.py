"""Frames to Arrow: columns of the one decoder become record batches, with no Python object per record.

`topics.formats` says where texts lie in a buffer, and gathers those of a column. Filters on tag and node run before
`data` is gathered.
A bad frame stops everything: corruption is never skipped. Called by `topics.spark.scanning.task_scan` on executors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from topics.errors import Corruption
from topics.formats import codec
from topics.formats.buffers import Buffer
from topics.formats.segments.columns import FrameColumns
from topics.spark.planning.cut import I64, Ancestors, DeadRange, LostSeqs, TagDelete
from topics.spark.scanning.schema import HEADERS, LOSS_COLUMNS

Bools = npt.NDArray[np.bool_]

TS_TYPE: Final = pa.timestamp("us", tz="UTC")
_PIECE_TEXTS: Final = ("node", "tag", "data", "meta")
_KAFKA_TEXTS: Final = {"key": ("tag",), "value": ("data",), "headers": ("node", "meta")}
_KAFKA_NUMBERS: Final = {"partition": 0, "timestampType": 1}  # one partition; the time is that of the append


@dataclass(frozen=True, slots=True)
class TextTest:
    """A condition on `tag` or `node`: the text is one of `values` or starts with one of `prefixes`."""

    column: str
    values: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Origin:
    """What all records of a batch share."""

    topic: str
    epoch: int
    ancestors: Ancestors = ()

    def epochs(self, seqs: I64) -> I64:
        """The epoch that each seq was written under: epoch and seq together name one record for ever."""
        if not self.ancestors:
            return np.full(len(seqs), self.epoch, np.int64)
        heads = np.array([head for _, head in self.ancestors], np.int64)
        epochs = np.array([*(epoch for epoch, _ in self.ancestors), self.epoch], np.int64)
        return epochs[np.searchsorted(heads, seqs)]

    def topic_column(self, rows: I64 | None, count: int) -> pa.StringArray:
        return _constant(self.topic, count)

    def epoch_column(self, seqs: I64, rows: I64 | None) -> pa.Array:
        return _int64(self.epochs(seqs if rows is None else seqs[rows]))


@dataclass(frozen=True, slots=True)
class MixedOrigin:
    """Records of several origins without ancestors; `number` says for each record which one is its own."""

    topics: Sequence[str]
    epochs: Sequence[int]
    number: I64

    def topic_column(self, rows: I64 | None, count: int) -> pa.StringArray:
        chosen = self.number if rows is None else self.number[rows]
        return pa.array(self.topics, pa.string()).take(_int64(chosen))

    def epoch_column(self, seqs: I64, rows: I64 | None) -> pa.Array:
        chosen = self.number if rows is None else self.number[rows]
        return _int64(np.array(self.epochs, np.int64)[chosen])


def wanted_texts(names: Sequence[str], tests: Sequence[TextTest], *, with_tag: bool = False) -> frozenset[str]:
    """Which texts must be decoded to give these columns through these tests."""
    needed = set(_PIECE_TEXTS) & set(names)
    needed.update(text for name in names for text in _KAFKA_TEXTS.get(name, ()))
    needed.update(test.column for test in tests)
    if with_tag:
        needed.add("tag")
    return frozenset(needed)


def refuse_bad(columns: FrameColumns, *, file: str, first_seq: int, base: int = 0) -> None:
    """Raises for the first bad frame, naming file, seq and offset."""
    if columns.bad:
        bad = columns.bad[0]
        seq = first_seq + bad.slot
        raise Corruption(file=file, offset=base + bad.offset, reason=f"{bad.reason}, seq {seq}")


def passing(
    columns: FrameColumns,
    data: Buffer,
    *,
    tests: Sequence[TextTest],
    dead: Sequence[DeadRange],
    tag_deletes: Sequence[TagDelete],
) -> I64 | None:
    """Rows that are live and pass every test; None when all do. `dead` ascends and does not overlap."""
    mask = _not_dead(columns.seq, dead)
    for delete in tag_deletes:
        mask = _both(mask, _not_deleted(columns, data, delete))
    for test in tests:
        mask = _both(mask, _holds(columns, data, test))
    if mask is None or mask.all():
        return None
    return np.flatnonzero(mask)


def _both(mask: Bools | None, other: Bools | None) -> Bools | None:
    if mask is None or other is None:
        return mask if other is None else other
    both: Bools = mask & other
    return both


def _not_dead(seqs: I64, dead: Sequence[DeadRange]) -> Bools | None:
    if not dead or not len(seqs):
        return None
    lows, highs = np.array(dead, np.int64).T
    at = np.searchsorted(lows, seqs, side="right") - 1
    mask: Bools = (at < 0) | (seqs > highs[at])
    return mask


def _not_deleted(columns: FrameColumns, data: Buffer, delete: TagDelete) -> Bools | None:
    below = int(np.searchsorted(columns.seq, delete.below))
    if not below:
        return None
    import pyarrow.compute as pc  # late: a planner rarely compares texts, and it takes a while to load

    tags = strings(columns, data, "tag", None)
    text = delete.value.decode()
    hit = pc.starts_with(tags, text) if delete.is_prefix else pc.equal(tags, text)
    mask: Bools = ~np.asarray(hit.fill_null(False))
    mask[below:] = True
    return mask


def _holds(columns: FrameColumns, data: Buffer, test: TextTest) -> Bools:
    import pyarrow.compute as pc

    texts = strings(columns, data, test.column, None)
    mask: Bools = np.zeros(len(columns), np.bool_)
    if test.values:
        mask |= np.asarray(pc.is_in(texts, value_set=pa.array(test.values, pa.string())))
    for prefix in test.prefixes:
        mask |= np.asarray(pc.starts_with(texts, prefix).fill_null(False))
    return mask


def _has_meta(columns: FrameColumns) -> Bools:
    assert columns.meta_len is not None
    present: Bools = columns.meta_len >= 0
    return present


_PRESENT: Final[dict[str, Callable[[FrameColumns], Bools]]] = {
    "node": lambda columns: columns.has_node,
    "tag": lambda columns: columns.has_tag,
    "meta": _has_meta,
}


# --- arrays ----------------------------------------------------------------------------------------------------------


def strings(columns: FrameColumns, data: Buffer, name: str, rows: I64 | None) -> pa.StringArray:
    """A text column of the given rows, null where a record has none."""
    starts: I64 = getattr(columns, f"{name}_offset")
    lengths: I64 = getattr(columns, f"{name}_len")
    present = None if name == "data" else _PRESENT[name](columns)
    if rows is not None:
        starts, lengths = starts[rows], lengths[rows]
        present = None if present is None else present[rows]
    if present is not None and not present.any():
        return pa.nulls(len(starts), pa.string())
    gathered = _gather(data, starts, np.maximum(lengths, 0) if name == "meta" else lengths)
    return gathered if present is None or present.all() else _with_nulls(gathered, present)


def _gather(data: Buffer, starts: I64, lengths: I64) -> pa.StringArray:
    """The pieces `[start, start + length)` of a buffer, one after the other."""
    bounds, texts = codec.segment.gather_texts(data, starts, lengths)
    return pa.StringArray.from_buffers(len(starts), pa.py_buffer(bounds), pa.py_buffer(texts))


def _with_nulls(array: pa.StringArray, present: Bools) -> pa.StringArray:
    bitmap = pa.py_buffer(np.packbits(present, bitorder="little"))
    _, offsets, data = array.buffers()
    return pa.StringArray.from_buffers(len(array), offsets, data, bitmap, -1, array.offset)


@lru_cache(maxsize=8)
def _repeated(text: str, count: int) -> pa.StringArray:
    raw = text.encode()
    offsets = np.arange(0, (count + 1) * len(raw), len(raw) or 1, dtype=np.int32)[: count + 1]
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(raw * count))


def _constant(text: str, count: int) -> pa.StringArray:
    return _repeated(text, 1 << max(count - 1, 1).bit_length()).slice(0, count)


def _int64(values: I64) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _timestamps(ts_ms: I64) -> pa.Array:
    return pa.Array.from_buffers(TS_TYPE, len(ts_ms), [None, pa.py_buffer(ts_ms * 1000)])


def record_batch(
    columns: FrameColumns, data: Buffer, rows: I64 | None, *, origin: Origin | MixedOrigin, schema: pa.Schema
) -> pa.RecordBatch:
    """The given rows (all when None) as a batch of exactly this schema."""
    count = len(columns) if rows is None else len(rows)
    arrays = [_column(name, columns, data, rows, count, origin) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(
    name: str, columns: FrameColumns, data: Buffer, rows: I64 | None, count: int, origin: Origin | MixedOrigin
) -> pa.Array:
    if name == "topic":
        return origin.topic_column(rows, count)
    if name == "epoch":
        return origin.epoch_column(columns.seq, rows)
    if name in ("seq", "offset"):
        return _int64(columns.seq if rows is None else columns.seq[rows])
    if name in ("ts", "timestamp"):
        return _timestamps(columns.ts if rows is None else columns.ts[rows])
    if name == "kind":
        return _constant("record", count)
    if name in ("key", "value"):
        return strings(columns, data, _KAFKA_TEXTS[name][0], rows).cast(pa.binary())
    if name in _KAFKA_NUMBERS:
        numbers = np.full(count, _KAFKA_NUMBERS[name], np.int32)
        return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(numbers)])
    if name == HEADERS:
        return _headers([strings(columns, data, text, rows) for text in _KAFKA_TEXTS[name]], count)
    if name in LOSS_COLUMNS:
        return pa.nulls(count, pa.string() if name == "reason" else pa.int64())
    return strings(columns, data, name, rows)


def _headers(texts: Sequence[pa.StringArray], count: int) -> pa.ListArray:
    """Of each record a list of what it has among the texts, each as name and bytes; null where it has none."""
    has = np.stack([text.is_valid().to_numpy(zero_copy_only=False) for text in texts], axis=1)
    sizes = has.sum(axis=1)
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    kept = np.flatnonzero(has.ravel())  # record by record, in the order of the names
    kinds, rows = kept % len(texts), kept // len(texts)
    names = pa.array(_KAFKA_TEXTS[HEADERS]).take(pa.array(kinds))
    values = pa.concat_arrays(texts).cast(pa.binary()).take(pa.array(kinds * count + rows))
    pairs = pa.StructArray.from_arrays([names, values], ["key", "value"])
    bitmap = pa.py_buffer(np.packbits(sizes > 0, bitorder="little"))
    kind = pa.list_(pa.field("element", pairs.type))
    return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(offsets)], children=[pairs])


def tombstone_batch(gaps: Sequence[LostSeqs], *, origin: Origin, schema: pa.Schema) -> pa.RecordBatch:
    """One row per gap; what a tombstone has no value for is null."""
    values: dict[str, list[Any]] = {
        "topic": [origin.topic] * len(gaps),
        "epoch": [origin.epoch] * len(gaps),
        "kind": ["tombstone"] * len(gaps),
        "gap_from": [gap.gap_from for gap in gaps],
        "gap_to": [gap.gap_to for gap in gaps],
        "reason": [gap.reason for gap in gaps],
    }
    absent: list[Any] = [None] * len(gaps)
    arrays = [pa.array(values.get(field.name, absent), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
