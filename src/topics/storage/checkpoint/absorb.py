"""Checkpoint: moves records from the log into segments, steps C3 to C8 (`docs/spec/storage.md#sec-7`).

Pure file work on one background thread, given what to move as columns. The order is the whole point:

    C3 frames into .data | C4 sync .data | C5 entries into .idx | C6 sync .idx | C7 sync directories | C8 flips

so an entry on disk never names bytes that could vanish, and no mark is ever written for entries that could. C3 to C7
are gone through by portions of the segments, because thousands of files cannot be open at a time. Nothing in memory
changes here: the caller logs the mark (C9), then `commit`s the result and switches locations (C10); when the mark fails
it calls `abandon`. Any failure inside cuts the files back and raises; the log still has everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from topics.formats.buffers import I64, U32, U64, Bools
from topics.formats.segments.frame import DELETED_BYTE, segment_frames_from_wal
from topics.formats.segments.idx import IDX_DELETED, Idx, empty_slots
from topics.storage.checkpoint.segment_writer import SegmentWriter
from topics.storage.disk_spans import read_spans
from topics.storage.fs import NO_DESCRIPTORS, Buffer
from topics.storage.segments.active_segment import ActiveSegment
from topics.storage.segments.flips import DeleteFlags, Flagged
from topics.storage.segments.sealed_segment import SealedSegment
from topics.storage.segments.tags import build_sidecar, write_sidecar
from topics.storage.segments.topic_dir import TopicDir
from topics.storage.wal.wal_files import ReadWal

WAL_EXTRA_BYTES: Final = 8
"""A WAL frame is this much longer than its segment frame."""
SLICE_BYTES_MAX: Final = 8 << 20
"""Converted at a time: large records are few at a time, so that memory stays bounded."""
OPEN_SEGMENTS_MAX: Final = 64
"""Segments of a portion, of two open files each: an embedded process may have no more than a few hundred."""


@dataclass(slots=True)
class CheckpointRecords:
    """Records of contiguous seqs whose WAL frames lie in one place: a WAL file by its index, or memory.

    `dead` records become empty slots; `dead` and `kept` ones are written as flagged frames, because a router still
    needs their bytes. `sizes` are accounted bytes.
    """

    first_seq: int
    source: int | Buffer
    offs: I64
    lens: U32
    ts: U64
    sizes: U32
    dead: Bools | None = None
    kept: Bools | None = None

    def __len__(self) -> int:
        return len(self.offs)

    def part(self, lo: int, hi: int) -> CheckpointRecords:
        """Records `lo..hi-1`."""
        return CheckpointRecords(
            first_seq=self.first_seq + lo,
            source=self.source,
            offs=self.offs[lo:hi],
            lens=self.lens[lo:hi],
            ts=self.ts[lo:hi],
            sizes=self.sizes[lo:hi],
            dead=None if self.dead is None else self.dead[lo:hi],
            kept=None if self.kept is None else self.kept[lo:hi],
        )

    def framed(self) -> Bools:
        """Which records get bytes in `.data`."""
        if self.dead is None:
            return np.ones(len(self), np.bool_)
        return ~self.dead if self.kept is None else ~self.dead | self.kept


@dataclass(slots=True)
class TopicWork:
    """One topic's records after its last checkpointed seq, in seq order; without any, it may still have to seal."""

    place: TopicDir
    active: ActiveSegment | None
    batches: Sequence[CheckpointRecords] = ()


@dataclass(frozen=True, slots=True)
class SealRules:
    """When a segment is full (`docs/spec/storage.md#sec-6-4`)."""

    max_events: int = 10_000
    max_bytes: int = 64 << 20
    max_age_ms: int = 3_600_000

    def is_full(self, count: int, data_len: int) -> bool:
        return count >= self.max_events or data_len >= self.max_bytes

    def is_old(self, first_ts: int, now_ms: int) -> bool:
        return bool(self.max_age_ms) and now_ms - first_ts >= self.max_age_ms


class Throttle(Protocol):
    """How a job shares the interpreter with everybody else."""

    def chunk_records(self) -> int:
        """Records to convert at a time, at least one."""

    def yield_gil(self) -> None:
        """Called between two chunks."""


class _NoThrottle:
    """A fraction of a millisecond of Python at a time, for whoever has nobody to share with."""

    def chunk_records(self) -> int:
        return 256

    def yield_gil(self) -> None:
        return


UNHURRIED: Final[Throttle] = _NoThrottle()


Steps = Iterable[Callable[[], None]]


def one_by_one(steps: Steps) -> None:
    for step in steps:
        step()


@dataclass(slots=True)
class CheckpointJob:
    """`side_by_side` carries out waits for the disk, which may share what they wait for; all are over when it is."""

    topics: Sequence[TopicWork]
    now_ms: int
    rules: SealRules
    read_wal: ReadWal
    flips: DeleteFlags | None = None
    pace: Throttle = UNHURRIED
    side_by_side: Callable[[Steps], None] = one_by_one


@dataclass(slots=True)
class Placed:
    """Where records `first_seq ..` now lie in the active `.data`; length 0 is an empty slot."""

    first_seq: int
    offs: U32
    lens: U32


@dataclass(slots=True)
class TopicResult:
    """What the mark says of a topic, and what the tail must learn: records below `active` left it for `sealed`."""

    place: TopicDir
    active: ActiveSegment | None
    sealed: list[SealedSegment]
    placed: list[Placed]
    seq: int
    """Highest seq in synced segments, 0 if this job touched none."""


@dataclass(slots=True)
class CheckpointResult:
    topics: list[TopicResult]
    flagged: list[Flagged] = field(default_factory=list)
    _writers: list[SegmentWriter] = field(default_factory=list)
    _flips: DeleteFlags | None = None

    def commit(self, topic: TopicResult) -> None:
        """The mark is synced, and the topic's records are to be found in their segments from now on."""
        for sealed in topic.sealed:
            sealed.flips.retired = True
        for segment in (*topic.sealed, topic.active):
            if segment is not None and self._flips is not None:
                self._flips.owner_changed(segment)

    def abandon(self) -> None:
        """The mark could not be logged: as if this checkpoint had not been."""
        for writer in self._writers:
            writer.cut_back()
        self._writers.clear()


def run(job: CheckpointJob) -> CheckpointResult:
    """C3 to C8. Raises OSError or a TopicsError after cutting back what it wrote."""
    runs = [_TopicRun(work, job) for work in job.topics]
    portions = _Portions(job)
    try:
        for topic in runs:
            topic.append_all(portions)
            portions.finish_if_full()
        portions.finish()
        _sync_names(portions.writers)
    except BaseException:
        for writer in portions.writers:
            writer.cut_back()
        raise
    flagged = job.flips.sync() if job.flips is not None else []
    results = [topic.result() for topic in runs]
    for topic in runs:
        topic.write_sidecars()
    return CheckpointResult(results, flagged, portions.writers, job.flips)


class _Portions:
    """All segments that a job writes, and those among them whose files are open."""

    def __init__(self, job: CheckpointJob) -> None:
        self._side_by_side = job.side_by_side
        self.writers: list[SegmentWriter] = []
        self._open: list[SegmentWriter] = []

    def add(self, writer: SegmentWriter) -> None:
        """From now on only this one is written to; where descriptors are used up, the others give theirs back."""
        self.writers.append(writer)
        try:
            writer.open()
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS or not self._open:
                raise
            self.finish()
            writer.open()
        self._open.append(writer)

    def finish_if_full(self) -> None:
        """Only where nobody goes on writing to one of them."""
        if len(self._open) >= OPEN_SEGMENTS_MAX:
            self.finish()

    def finish(self) -> None:
        """C4 to C7, but for the directory above."""
        fresh = {id(writer.place): writer.place for writer in self._open if writer.fresh}
        self._side_by_side(writer.sync_data for writer in self._open)
        for writer in self._open:
            writer.write_idx()
        self._side_by_side(writer.sync_idx for writer in self._open)
        for writer in self._open:
            writer.close()
        self._side_by_side(partial(place.fs.sync_dir, place.path) for place in fresh.values())
        self._open = []


def _sync_names(writers: Sequence[SegmentWriter]) -> None:
    """The rest of C7."""
    unsynced = [writer.place for writer in writers if not writer.place.name_synced]
    if unsynced:
        env = unsynced[0].env
        env.fs.sync_dir(env.topics_dir)
        for place in unsynced:
            place.name_synced = True


class _TopicRun:
    """The state of one topic inside a job."""

    def __init__(self, work: TopicWork, job: CheckpointJob) -> None:
        self.work = work
        self.job = job
        self.active = work.active
        self.writer: SegmentWriter | None = None
        self.closed: list[SealedSegment] = []
        self.full: list[tuple[SegmentWriter | None, ActiveSegment]] = []
        self.placed: list[Placed] = []

    # --- C3 ---

    def append_all(self, portions: _Portions) -> None:
        rules, now_ms = self.job.rules, self.job.now_ms
        self.portions = portions
        # Age is tested once a job: a backlog older than the limit must not become a segment per record.
        if self.active is not None and rules.is_old(self.active.first_ts, now_ms):
            self._seal()
        for batch in self.work.batches:
            for part in self._parts(batch):
                self._append(part)
                self.job.pace.yield_gil()
        if self.active is not None and rules.is_full(*self._extent()):
            self._seal()

    def _extent(self) -> tuple[int, int]:
        assert self.active is not None
        current = self.writer or self.active
        return current.count, current.data_len

    def _parts(self, batch: CheckpointRecords) -> Iterator[CheckpointRecords]:
        """The batch in slices, none of which crosses a seal."""
        lo = 0
        while lo < len(batch):
            self._make_room(batch.first_seq + lo, int(batch.ts[lo]))
            hi = lo + self._room(batch.part(lo, min(lo + self.job.pace.chunk_records(), len(batch))))
            yield batch.part(lo, hi)
            lo = hi

    def _make_room(self, seq: int, ts: int) -> None:
        """Test the triggers before an append; afterwards `writer` is the segment that takes `seq`."""
        if self.active is not None:
            next_seq = (self.writer or self.active).next_seq
            if next_seq != seq or self.job.rules.is_full(*self._extent()):
                self._seal()
        if self.active is None:
            self.work.place.make()
            self.active = ActiveSegment(self.work.place, first_seq=seq, first_ts=ts)
            self.placed = []
            self._write_to(SegmentWriter(self.active, fresh=True))
        elif self.writer is None:
            self._write_to(SegmentWriter(self.active, fresh=False))

    def _write_to(self, writer: SegmentWriter) -> None:
        self.writer = writer
        self.portions.add(writer)

    def _room(self, part: CheckpointRecords) -> int:
        """How many records of the slice fit: the one that reaches a byte limit is still taken."""
        count, data_len = self._extent()
        room = min(len(part), self.job.rules.max_events - count)
        frame_bytes = np.where(part.framed(), part.lens.astype(np.int64) - WAL_EXTRA_BYTES, 0)
        bytes_max = min(self.job.rules.max_bytes - data_len, SLICE_BYTES_MAX)
        reached = np.flatnonzero(np.cumsum(frame_bytes[:room]) >= bytes_max)
        return int(reached[0]) + 1 if len(reached) else room

    def _append(self, part: CheckpointRecords) -> None:
        assert self.writer is not None
        frames, entries = _converted(part, self.job.read_wal, base=self.writer.data_len)
        self.writer.append(frames, entries, part.sizes)
        self.placed.append(Placed(part.first_seq, entries["offset"].copy(), entries["len"].copy()))

    def _seal(self) -> None:
        assert self.active is not None
        self.full.append((self.writer, self.active))
        self.active = self.writer = None
        self.placed = []
        self.portions.finish_if_full()

    # --- afterwards ---

    def result(self) -> TopicResult:
        active = self.active if self.writer is None else self.writer.as_active()
        self.closed = [_sealed(writer, base) for writer, base in self.full]
        ends = [segment.last_seq + 1 for segment in self.closed] + ([active.next_seq] if active else [])
        return TopicResult(self.work.place, active, self.closed, self.placed, max(ends, default=1) - 1)

    def write_sidecars(self) -> None:
        for segment, (writer, base) in zip(self.closed, self.full, strict=True):
            sizes = writer.as_active().sizes if writer is not None else base.sizes
            _write_sidecar(segment, np.frombuffer(sizes, np.uint32))
            self.job.pace.yield_gil()


def _sealed(writer: SegmentWriter | None, base: ActiveSegment) -> SealedSegment:
    return (writer or SegmentWriter(base, fresh=False)).as_sealed()


def _write_sidecar(segment: SealedSegment, sizes: npt.NDArray[np.uint32]) -> None:
    """Built now while the bytes are in the page cache. Whatever goes wrong here is found again at the first look-up."""
    try:
        pair = segment.pair()
        if pair.data is not None and pair.bad is None:
            made = build_sidecar(pair.entries, pair.data, first_seq=segment.first_seq, sizes=sizes)
            write_sidecar(segment.place, segment.first_seq, made)
    except Exception:
        return  # derived data must not fail a checkpoint


def _converted(part: CheckpointRecords, read_wal: ReadWal, *, base: int) -> tuple[Buffer, Idx]:
    """Segment frames and entries of a slice, for offset `base` of `.data`. Frames of a file are verified before they
    get a fresh checksum, and a place that holds another record than it should is a Corruption."""
    framed = np.flatnonzero(part.framed())
    entries = empty_slots(part.ts)
    if not len(framed):
        return b"", entries
    source, offs, lens = part.source, part.offs[framed], part.lens[framed].astype(np.int64)
    is_file = isinstance(source, int)
    if isinstance(source, int):
        file = source
        source, offs = read_spans(lambda at, size: read_wal(file, at, size), offs, lens)
    made = segment_frames_from_wal(source, offs, lens, seqs=part.first_seq + framed, base=base, verify=is_file)
    entries[framed] = made.idx
    if part.dead is None or part.kept is None:
        return made.buffer, entries
    return _flag_kept(made.buffer, entries, np.flatnonzero(part.dead & part.kept), base), entries


def _flag_kept(frames: Buffer, entries: Idx, kept: I64, base: int) -> Buffer:
    flagged = np.frombuffer(bytearray(frames), np.uint8)
    flagged[entries["offset"][kept].astype(np.int64) + entries["len"][kept] - 1 - base] = DELETED_BYTE
    entries["flags"][kept] |= IDX_DELETED
    return flagged.data.cast("B")
