"""Records: the records of a page as users see them, made when somebody looks at them.

A read gives runs of stored bytes; a reader that only counts, or only wants the next cursor, pays for no object. The
first look makes all of them, once. Always holds: what was read is kept until then, so a look later shows the same.

Stored records as the values that library users see.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import overload

import msgspec

from topics.engine.queues.claim_pass import ClaimedJob
from topics.engine.reading.latest import LatestPage
from topics.engine.reading.reads import ReadDone
from topics.model.payload import split_blob
from topics.model.position import token
from topics.model.results import Job, LatestResult, ReadResult, Record, lease_text
from topics.model.run import RecordRun, StoredRecord
from topics.wire.outgoing.records import take_columns


class Records(Sequence[Record]):
    __slots__ = ("_count", "_epoch", "_made", "_runs")

    def __init__(self, runs: Sequence[RecordRun], epoch: int) -> None:
        self._runs = runs
        self._epoch = epoch
        self._count = sum(map(len, runs))
        self._made: list[Record] | None = None

    def _all(self) -> list[Record]:
        made = self._made
        if made is None:
            made = self._made = [record for run in self._runs for record in _views(run, self._epoch)]
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


def _views(run: RecordRun, epoch: int) -> Iterable[Record]:
    """By columns, so that no line of Python runs for a plain record."""
    columns = take_columns(run, None)
    if columns is None:
        return ()
    nodes = map(_text, columns.nodes()) if columns.has_nodes else repeat(None)
    tags = map(_text, columns.tags()) if columns.has_tags else repeat(None)
    if columns.may_have_meta():
        return map(_with_meta, columns.seqs, columns.ts, nodes, tags, columns.blobs(), repeat(epoch))
    datas = map(msgspec.Raw, columns.datas())
    return map(Record, columns.seqs, columns.ts, nodes, tags, datas, repeat(msgspec.UNSET), repeat(epoch))


def _text(given: bytes | None) -> str | None:
    return None if given is None else given.decode()


def _with_meta(seq: int, ts: int, node: str | None, tag: str | None, blob: bytes, epoch: int) -> Record:
    data, meta = split_blob(blob)
    return Record(seq, ts, node, tag, msgspec.Raw(data), msgspec.UNSET if meta is None else msgspec.Raw(meta), epoch)


def record_view(stored: StoredRecord) -> Record:
    data, meta = split_blob(stored.blob)
    return Record(
        seq=stored.seq,
        ts=stored.ts,
        node=None if stored.node is None else stored.node.decode(),
        tag=None if stored.tag is None else stored.tag.decode(),
        data=msgspec.Raw(data),
        meta=msgspec.UNSET if meta is None else msgspec.Raw(meta),
    )


def job_view(job: ClaimedJob) -> Job:
    record = record_view(job.run.record(job.at))
    assert isinstance(record.data, msgspec.Raw)
    return Job(
        seq=job.seq,
        lease_id=lease_text(job.lease_id),
        deadline=job.deadline,
        ts=record.ts,
        deliveries=job.deliveries,
        data=record.data,
        tag=record.tag,
        meta=record.meta,
    )


def read_view(topic: str, done: ReadDone) -> ReadResult:
    outcome = done.outcome
    return ReadResult(
        topic=topic,
        records=Records(outcome.runs, outcome.epoch),
        next_from_seq=outcome.next_from_seq,
        head_seq=outcome.head_seq,
        earliest_seq=outcome.earliest_seq,
        caught_up=outcome.caught_up,
        tombstone=outcome.tombstone,
        lag=outcome.lag,
        next=token(outcome.next_from_seq, outcome.epoch),
    )


def latest_view(topic: str, page: LatestPage) -> LatestResult:
    return LatestResult(
        topic=topic,
        records=Records(page.runs, page.epoch),
        next=page.next,
        head_seq=page.head_seq,
        position=token(page.head_seq, page.epoch),
    )
