"""Scan: a task to Arrow batches, on an executor. Stateless: the same task gives the same rows, however often it runs.

Memory is bounded by one chunk of a segment, whatever the size of the topic. Where a file has vanished since planning,
`replan` asks the log again (`docs/spec/pipeline.md#sec-10`): its records may have moved to another tier, from the WAL
into a segment, or be gone, which is a gap like any other. A bad frame stops the task.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from topics.errors import Corruption
from topics.formats.buffers import Buffer
from topics.formats.segments import scan_segment, segment_frames_from_wal
from topics.formats.segments.columns import FrameColumns, decode_columns, decode_frames
from topics.spark.logs import server_log
from topics.spark.logs.log import Log, LogAddress, open_log
from topics.spark.logs.read_files import CHUNK_BYTES, CHUNK_RECORDS, Files, chunks, open_files, open_pair
from topics.spark.option_values import TopicChoice
from topics.spark.options import OnLoss
from topics.spark.planning.cut import (
    I64,
    DeadRange,
    LogBlock,
    LostSeqs,
    SegmentBlock,
    ServerBlock,
    life_over,
    report_gaps,
)
from topics.spark.planning.tasks import Slice, Task, TopicPart, resolve_in, slices_of
from topics.spark.scanning.arrow_columns import (
    Origin,
    TextTest,
    passing,
    record_batch,
    refuse_bad,
    tombstone_batch,
    wanted_texts,
)
from topics.spark.scanning.schema import Field, arrow_schema
from topics.spark.scanning.small_blocks import SMALL_BYTES, SmallBlock, is_small, merged_batch, read_small
from topics.storage.fs import read_full

REPLANS: Final = 10
"""How often a slice is looked for again whose files have moved."""


def replan(log: Log, task: TopicPart, lo: int, hi: int, *, now_ms: int) -> TopicPart:
    """A part for the seqs `[lo, hi)` of the same topic instance, with what is lost of them as gaps."""
    cut = log.cuts(TopicChoice((task.topic,)), now_ms=now_ms).get(task.topic)
    if cut is None or cut.epoch != task.epoch:
        return TopicPart(topic=task.topic, epoch=task.epoch, gaps=(life_over(cut, lo, hi),))
    found = resolve_in(log, cut, lo, hi)
    return TopicPart(
        topic=task.topic,
        epoch=task.epoch,
        slices=tuple(slices_of(cut, found)),
        gaps=found.gaps,
        dead=cut.dead,
        tag_deletes=cut.tag_deletes,
        ancestors=cut.ancestors,
    )


@dataclass(frozen=True)
class ReadSpec:
    """How tasks of one read are carried out; pickled once per read, not per task."""

    address: LogAddress
    fields: tuple[Field, ...]
    tests: tuple[TextTest, ...] = ()
    verify: bool = True
    on_loss: OnLoss = "fail"

    @cached_property
    def schema(self) -> pa.Schema:
        return arrow_schema(self.fields)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "schema"}


def scan(task: Task, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
    """Every batch of a task, part by part; small blocks that are neighbours share a batch."""
    merge = _Merge(spec)
    for part in task:
        scan = _Scan(part, spec)
        if part.gaps:
            yield from merge.flush()
            yield from scan.tombstones(part.gaps)
        for piece in part.slices:
            if merge.takes(part, piece):
                yield from merge.flush_if_full()
            elif scan.left != 0:
                yield from merge.flush()
                yield from scan.slice(piece)
    yield from merge.flush()


class _Merge:
    """Small blocks that wait to be decoded together."""

    def __init__(self, spec: ReadSpec) -> None:
        self._spec = spec
        self._want = wanted_texts(spec.names, spec.tests)
        self._blocks: list[SmallBlock] = []
        self._bytes = self._records = 0

    def takes(self, part: TopicPart, piece: Slice) -> bool:
        """Reads the slice if it is a small block whose files are there; else somebody else has to."""
        block = piece.block
        if isinstance(block, ServerBlock):
            if block.dead or block.bytes > SMALL_BYTES or block.file is None:
                return False
            file = server_log.reachable_file(block, self._spec.address.cold_path)
            if file is None:
                return False
            block = file
        if part.ancestors or not is_small(part, piece, block):
            return False
        try:
            found = read_small(_files(block.root), part, piece, block)
        except FileNotFoundError:
            return False
        self._blocks.append(found)
        self._bytes += len(found.data)
        self._records += piece.count
        return True

    def flush_if_full(self) -> Iterator[pa.RecordBatch]:
        if self._bytes >= CHUNK_BYTES or self._records >= CHUNK_RECORDS:
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        blocks, self._blocks, self._bytes, self._records = self._blocks, [], 0, 0
        if not blocks:
            return
        spec = self._spec
        batch = merged_batch(blocks, schema=spec.schema, want=self._want, tests=spec.tests, verify=spec.verify)
        if batch is None:
            for block in blocks:
                yield from _Scan(block.part, spec).slice(block.piece)
        elif batch.num_rows:
            yield batch


class _Scan:
    """One run of `scan`. `done` is the first seq of the present slice that is not given yet."""

    def __init__(self, task: TopicPart, spec: ReadSpec) -> None:
        self.task = task
        self.spec = spec
        self.origin = Origin(task.topic, task.epoch, task.ancestors)
        self.left = task.limit
        self.done = 0
        self.want = wanted_texts(spec.names, spec.tests, with_tag=bool(task.tag_deletes))

    def slice(self, piece: Slice) -> Iterator[pa.RecordBatch]:
        """One slice; where its file has vanished, what has taken its place, from the first seq not given yet."""
        self.done = piece.lo
        pieces: Sequence[Slice] = (piece,)
        for attempt in range(REPLANS + 1):
            try:
                for each in pieces:
                    self.done = max(self.done, each.lo)
                    yield from self._read(each)
                return
            except FileNotFoundError:
                if attempt == REPLANS:
                    raise
            with closing(open_log(self.spec.address)) as log:
                found = replan(log, self.task, self.done, piece.hi, now_ms=time.time_ns() // 1_000_000)
            gaps = [gap for gap in found.gaps if gap not in self.task.gaps]
            yield from self.tombstones(report_gaps(self.task.topic, gaps, self.spec.on_loss))
            self.task = replace(found, gaps=(*self.task.gaps, *gaps))
            self.want = wanted_texts(self.spec.names, self.spec.tests, with_tag=bool(found.tag_deletes))
            pieces = found.slices

    def _read(self, piece: Slice) -> Iterator[pa.RecordBatch]:
        block = piece.block
        if isinstance(block, SegmentBlock):
            return self._from_segment(block, piece.lo, piece.hi)
        if isinstance(block, LogBlock):
            return self._from_log(block)
        return self._from_server(block, piece.lo, piece.hi)

    def tombstones(self, gaps: Sequence[LostSeqs]) -> Iterator[pa.RecordBatch]:
        if gaps:
            yield tombstone_batch(gaps, origin=self.origin, schema=self.spec.schema)

    def _emit(
        self, columns: FrameColumns, data: Buffer, *, end: int, dead: Sequence[DeadRange] = ()
    ) -> Iterator[pa.RecordBatch]:
        """The batch of a chunk, if any of its records pass; the slice is done up to `end` then."""
        task = self.task
        rows = passing(columns, data, tests=self.spec.tests, dead=dead or task.dead, tag_deletes=task.tag_deletes)
        count = len(columns) if rows is None else len(rows)
        if self.left is not None and count > self.left:
            rows, count = (np.arange(count) if rows is None else rows)[: self.left], self.left
        if count:
            yield record_batch(columns, data, rows, origin=self.origin, schema=self.spec.schema)
        self.done = end
        if self.left is not None:
            self.left -= count

    # --- where frames come from ---------------------------------------------------------------------------------------

    def _from_segment(
        self, block: SegmentBlock, lo: int, hi: int, *, dead: Sequence[DeadRange] = ()
    ) -> Iterator[pa.RecordBatch]:
        pair = open_pair(_files(block.root), block)
        try:
            # Only flag bytes are looked at: mapping the file reads no more than the pages that hold them.
            whole = pair.data.mmap() if block.is_sealed and not self.want else None
            for a, b, start, size in chunks(pair.idx, lo - block.first_seq, hi - block.first_seq):
                if self.left == 0:
                    return
                base = start if whole is None else 0
                data: Buffer = read_full(pair.data, start, size) if whole is None else whole
                seq = block.first_seq + a
                columns = decode_columns(
                    data,
                    pair.idx[a:b],
                    first_seq=seq,
                    want=self.want,
                    verify=self.spec.verify or not block.is_sealed,
                    base=base,
                )
                if columns.bad and pair.replaced():
                    raise FileNotFoundError(pair.name)  # an index of one time and frames of another
                refuse_bad(columns, file=pair.name, first_seq=seq, base=base)
                yield from self._emit(columns, data, end=block.first_seq + b, dead=dead)
        finally:
            pair.close()

    def _from_log(self, block: LogBlock) -> Iterator[pa.RecordBatch]:
        seqs, offsets, lengths = block.seq_array, block.offset_array, block.length_array
        file = _files(block.root).open(block.path)
        try:
            for low, high in _log_chunks(offsets, lengths):
                if self.left == 0:
                    return
                base, end = int(offsets[low]), int(offsets[high - 1] + lengths[high - 1])
                raw = read_full(file, base, end - base)
                if len(raw) < end - base:
                    raise FileNotFoundError(block.path)
                frames = segment_frames_from_wal(raw, offsets[low:high] - base, lengths[low:high], file=block.path)
                columns = decode_frames(
                    frames.buffer, frames.idx["offset"], frames.idx["len"], want=self.want, verify=False
                )
                if not np.array_equal(columns.seq, seqs[low:high]):
                    raise FileNotFoundError(block.path)  # a file of another life has this name now
                yield from self._emit(columns, frames.buffer, end=int(seqs[high - 1]) + 1)
        finally:
            file.close()

    def _from_server(self, block: ServerBlock, lo: int, hi: int) -> Iterator[pa.RecordBatch]:
        file = server_log.reachable_file(block, self.spec.address.cold_path)
        if file is not None:
            try:
                yield from self._from_segment(file, lo, hi, dead=block.dead)
                return
            except FileNotFoundError:
                pass  # moved to another tier meanwhile: the server knows where it is
        for answer in server_log.frames_between(self.spec.address, self.task, self.done, hi):
            yield from self.tombstones(report_gaps(self.task.topic, answer.gaps, self.spec.on_loss))
            if self.left == 0:
                return
            yield from self._emit(self._decoded(answer.body, answer.end_seq), answer.body, end=answer.end_seq)

    def _decoded(self, body: bytes, end_seq: int) -> FrameColumns:
        """The frames of an answer, which goes on where the one before it ended."""
        frames = scan_segment(body, verify=self.spec.verify)
        if frames.reason:
            raise Corruption(file=f"answer of {self.spec.address.shown}", offset=frames.end, reason=frames.reason)
        seqs = np.concatenate(([self.done - 1], frames.seq.astype(np.int64), [end_seq]))
        if not (np.diff(seqs) > 0).all():
            raise Corruption(file=f"answer of {self.spec.address.shown}", offset=0, reason="its seqs are not in order")
        return decode_frames(body, frames.offset, frames.length, want=self.want, verify=False)


@lru_cache(maxsize=8)
def _files(root: str) -> Files:
    return open_files(root)


def _log_chunks(offsets: I64, lengths: I64) -> Iterator[tuple[int, int]]:
    """Frames `[a, b)` whose bytes, with what lies between them, make no more than a chunk."""
    a, ends = 0, offsets + lengths
    while a < len(offsets):
        b = int(np.searchsorted(ends, int(offsets[a]) + CHUNK_BYTES, side="right"))
        b = min(max(b, a + 1), a + CHUNK_RECORDS)
        yield a, b
        a = b
