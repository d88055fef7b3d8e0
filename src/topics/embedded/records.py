"""Records: the records of a page as users see them, made when somebody looks at them.

A read gives runs of stored bytes; a reader that only counts, or only wants the next cursor, pays for no object. The
first look makes all of them, once. Always holds: what was read is kept until then, so a look later shows the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import msgspec

from topics.model.payload import DATA_AT, META_MARK, split_blob
from topics.model.results import Record
from topics.model.run import BODY_HEAD, BODY_HEAD_BYTES, HAS_NODE, HAS_TAG, RecordRun


class Records(Sequence[Record]):
    __slots__ = ("_count", "_made", "_runs")

    def __init__(self, runs: Sequence[RecordRun]) -> None:
        self._runs = runs
        self._count = sum(map(len, runs))
        self._made: list[Record] | None = None

    def _all(self) -> list[Record]:
        made = self._made
        if made is None:
            made = self._made = [record for run in self._runs for record in _views(run)]
            self._runs = ()
        return made

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Record]:
        return iter(self._all())

    @overload
    def __getitem__(self, at: int) -> Record: ...
    @overload
    def __getitem__(self, at: slice) -> list[Record]: ...
    def __getitem__(self, at: int | slice) -> Record | list[Record]:
        return self._all()[at]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Records):
            return self._all() == other._all()
        return self._all() == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._all())


def _views(run: RecordRun) -> Iterator[Record]:
    buf, unpack, raw = run.buf, BODY_HEAD.unpack_from, msgspec.Raw
    for at, flags in zip(run.body_offs, run.flags, strict=True):
        seq, ts, node_len, tag_len, data_len = unpack(buf, at)
        at += BODY_HEAD_BYTES
        node = str(buf[at : at + node_len], "utf-8") if flags & HAS_NODE else None
        at += node_len
        tag = str(buf[at : at + tag_len], "utf-8") if flags & HAS_TAG else None
        at += tag_len
        blob = bytes(buf[at : at + data_len])
        if META_MARK in blob:
            data, meta = split_blob(blob)
            yield Record(seq, ts, node, tag, raw(data), msgspec.UNSET if meta is None else raw(meta))
        else:
            yield Record(seq, ts, node, tag, raw(blob[DATA_AT:-1]))
