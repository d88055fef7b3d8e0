"""Tasks: ranges of seqs become what Spark tasks read. Cuts go in, frozen and picklable tasks come out.

A task has parts of one or more topics; a part is a run of whole segments, a slice of a large one, or a piece of the
unsealed tail, in the order of the topic. Every seq of a range is in exactly one part, or in a gap that was announced.
Tasks of a batch read are filled by weight: bytes to read, and what a file costs to open. Nothing is opened here. Called
by the batch and the streaming planner, and by an executor that plans a vanished slice anew.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from topics.errors import Corruption
from topics.spark.planning.cut import Ancestors, Block, DeadRange, LogBlock, LostSeqs, TagDelete, TopicCut

if TYPE_CHECKING:
    from topics.spark.logs.log import Log

STREAM_TASKS: Final = 8
STREAM_TASK_RECORDS_MIN: Final = 10_000
"""Tasks that a batch of a stream is cut into unless it is small, and how small a task may be."""
OPEN_BYTES: Final = 32 << 10
"""Weight of a block beyond its bytes: about so many could be decoded in the time that its files take to open."""


@dataclass(frozen=True, slots=True)
class Range:
    """Seqs `[lo, hi)` of a topic to be read, and the gaps that were met on the way to them."""

    lo: int
    hi: int
    gaps: tuple[LostSeqs, ...] = ()


@dataclass(frozen=True, slots=True)
class Slice:
    """The seqs `[lo, hi)` of a block."""

    block: Block
    lo: int
    hi: int

    @property
    def count(self) -> int:
        return self.hi - self.lo

    @property
    def weight(self) -> int:
        return (self.block.bytes + OPEN_BYTES) * self.count // max(self.block.count, 1)

    def __reduce__(self) -> tuple[Any, ...]:
        return Slice, (self.block, self.lo, self.hi)  # as quick as it can be: see `SegmentBlock`


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPart:
    """What one task reads of one topic: first the tombstones of `gaps`, then the slices in order."""

    topic: str
    epoch: int
    slices: tuple[Slice, ...] = ()
    gaps: tuple[LostSeqs, ...] = ()
    dead: tuple[DeadRange, ...] = ()
    tag_deletes: tuple[TagDelete, ...] = ()
    limit: int | None = None
    ancestors: Ancestors = ()

    @property
    def count(self) -> int:
        return sum(piece.count for piece in self.slices)


Task: TypeAlias = tuple[TopicPart, ...]
"""What one Spark task reads, part by part."""


def resolve(cut: TopicCut, lo: int, hi: int, *, first_live: int | None = None) -> Range:
    """The part of `[lo, hi)` that is there, and the gaps in it (`docs/spec/semantics.md#sec-8-1`).

    A `lo` beyond the end of the topic means that the topic is not the one it was: everything is a gap, and reading
    starts over. `first_live` is the smallest live seq, where it is known better than the cut's floor.
    """
    earliest = cut.earliest_seq if first_live is None else first_live
    gaps: list[LostSeqs] = []
    if lo > cut.end_seq:
        gaps.append(LostSeqs(1, cut.head_seq, "recreated"))
        lo, hi = earliest, cut.end_seq
    elif lo < min(cut.evict_floor, hi):
        gaps.append(LostSeqs(lo, min(earliest, hi) - 1, cut.prefix_reason(lo)))
        lo = min(earliest, hi)
    hi = min(hi, cut.end_seq)
    for lost in cut.lost:
        low, high = max(lost.gap_from, lo), min(lost.gap_to, hi - 1)
        if low <= high:
            gaps.append(LostSeqs(low, high, lost.reason))
    return Range(max(lo, min(earliest, hi)), hi, tuple(gaps))


def resolve_in(log: Log, cut: TopicCut, lo: int, hi: int) -> Range:
    """What of `[lo, hi)` is there; the log is asked for the exact end of a prefix gap."""
    for first, end in cut.missing:
        if first < hi and end > max(lo, cut.earliest_seq):
            raise Corruption(file=f"segment {first} of topic {cut.name!r}", offset=0, reason="file missing")
    first_live = log.first_live(cut, cut.earliest_seq) if lo < cut.evict_floor else None
    return resolve(cut, lo, hi, first_live=first_live)


def slices_of(cut: TopicCut, wanted: Range) -> list[Slice]:
    """Slices of all blocks that reach into a range."""
    lo, hi = wanted.lo, wanted.hi
    found = [
        _trimmed(Slice(block, max(lo, block.first_seq), min(hi, block.end_seq)))
        for block in cut.blocks
        if block.first_seq < hi and block.end_seq > lo and lo < hi
    ]
    return [piece for piece in found if piece.block.count]  # deleted records are no frames of the log to read


def _trimmed(piece: Slice) -> Slice:
    """A slice of log frames carries only its own frames: their places travel with the task."""
    if isinstance(piece.block, LogBlock):
        return replace(piece, block=piece.block.between(piece.lo, piece.hi))
    return piece


@dataclass(frozen=True, slots=True)
class TopicRead:
    """What a batch read takes of one topic; `gaps` are those that become rows."""

    cut: TopicCut
    range: Range
    gaps: Sequence[LostSeqs] = ()


Placed: TypeAlias = tuple[int, Slice]
"""The place of a topic among the reads, and a slice of it."""


def batch_tasks(reads: Sequence[TopicRead], *, partitions_min: int, records_max: int, limit: int | None) -> list[Task]:
    """Tasks of about equal weight and at most `records_max` records, over all topics; tombstones in front."""
    rows = tuple(_whole(read.cut, gaps=tuple(read.gaps)) for read in reads if read.gaps)
    first = [rows] if rows else []
    if limit is not None:
        return [*first, *(_limited(reads, limit, partitions_min) if limit else ())]
    pieces = [(at, piece) for at, read in enumerate(reads) for piece in slices_of(read.cut, read.range)]
    total, records = sum(piece.weight for _, piece in pieces), sum(piece.count for _, piece in pieces)
    target = max(-(-total // max(partitions_min, -(-records // records_max))), 1)
    return [*first, *(_task(reads, run) for run in _filled(pieces, target, records_max))]


def _filled(pieces: Iterable[Placed], target: int, records_max: int) -> Iterator[list[Placed]]:
    """Runs of neighbours that weigh about `target` each. A slice that is more than a quarter of it is cut where a run
    is full; a smaller one goes where the larger part of it would."""
    run: list[Placed] = []
    room, records = target, records_max
    for at, whole in pieces:
        piece: Slice | None = whole
        while piece is not None:
            weight, count = piece.weight, piece.count
            fits = 2 * room >= weight if 4 * weight <= target else room >= weight
            taken = count if fits else 0 if 4 * weight <= target else max(count * room // weight, 0 if run else 1)
            taken = min(taken, records)
            if taken:
                part = piece if taken == count else _trimmed(replace(piece, hi=piece.lo + taken))
                run += [(at, part)] if part.block.count else []
                room, records = room - weight * taken // count, records - taken
            piece = _trimmed(replace(piece, lo=piece.lo + taken)) if taken < count else None
            if piece is not None or room <= 0:
                if run:
                    yield run
                # What a run has too much or too little, the next one gets less or more.
                run, room, records = [], max(room + target, target // 2), records_max
    if run:
        yield run


def _task(reads: Sequence[TopicRead], run: Iterable[Placed]) -> Task:
    return tuple(
        _bounded(_whole(reads[at].cut), [piece for _, piece in placed], reads[at].cut)
        for at, placed in groupby(run, key=itemgetter(0))
    )


def _limited(reads: Sequence[TopicRead], limit: int, partitions_min: int) -> list[Task]:
    """A limit counts from the front of a topic, so a topic is one part, which is read until the limit is reached."""
    found = [(read.cut, slices) for read in reads if (slices := slices_of(read.cut, read.range))]
    parts = [replace(_bounded(_whole(cut), slices, cut), limit=limit) for cut, slices in found]
    bounds = [len(parts) * i // partitions_min for i in range(partitions_min + 1)]
    return [tuple(parts[lo:hi]) for lo, hi in pairwise(bounds) if lo < hi]


def _whole(cut: TopicCut, gaps: tuple[LostSeqs, ...] = ()) -> TopicPart:
    return TopicPart(topic=cut.name, epoch=cut.epoch, ancestors=cut.ancestors, gaps=gaps)


def _bounded(whole: TopicPart, slices: Sequence[Slice], cut: TopicCut) -> TopicPart:
    """A part that carries no more of the cut's deletes than it needs."""
    lo, hi = slices[0].lo, slices[-1].hi
    first = bisect_left(cut.dead, lo, key=itemgetter(1)) if cut.dead else 0
    last = bisect_left(cut.dead, hi, key=itemgetter(0)) if cut.dead else 0
    return replace(
        whole,
        slices=tuple(slices),
        dead=cut.dead[first:last],
        tag_deletes=tuple(delete for delete in cut.tag_deletes if delete.below > lo),
    )


def even_parts(lo: int, hi: int, size: int) -> list[tuple[int, int]]:
    """`[lo, hi)` in equal parts of at most `size`; one part where there is nothing."""
    parts = max(-(-(hi - lo) // size), 1)
    return list(pairwise(lo + (hi - lo) * i // parts for i in range(parts + 1)))


def stream_parts(
    whole: TopicPart, cut: TopicCut | None, wanted: Range, ranges: Iterable[tuple[int, int]], gaps: Iterable[LostSeqs]
) -> list[TopicPart]:
    """One part for each range, of what is left of it, the tombstones in the first. `cut` None: the topic is gone."""
    parts = []
    for lo, hi in ranges:
        left = Range(max(lo, wanted.lo), min(hi, wanted.hi))
        slices = slices_of(cut, left) if cut is not None else []
        parts.append(_bounded(whole, slices, cut) if cut is not None and slices else whole)
    return [replace(parts[0], gaps=tuple(gaps)), *parts[1:]]


def stream_tasks(parts: Iterable[tuple[int, TopicPart]], size: int) -> list[Task]:
    """Parts that had so many seqs when their batch was planned first, put together up to `size` seqs.

    A batch that is repeated after a restart has the same tasks, wherever its records have moved meanwhile, even if
    nothing is left of them: sinks know their rows by the number of their task."""
    tasks: list[list[TopicPart]] = []
    room = 0
    for count, part in parts:
        if not tasks or count > room:
            tasks.append([])
            room = size
        tasks[-1].append(part)
        room -= count
    return [tuple(task) for task in tasks]


def stream_size(total: int, *, partitions_min: int | None, records_max: int) -> int:
    """Records per task of a stream. It does not depend on the cores of this run: a repeated batch must have the same
    tasks."""
    if partitions_min is not None:
        return min(max(-(-total // partitions_min), 1), records_max)
    return min(max(-(-total // STREAM_TASKS), STREAM_TASK_RECORDS_MIN), records_max)
