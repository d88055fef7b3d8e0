"""Tasks: ranges of seqs become what Spark tasks read. Cuts go in, frozen and picklable tasks come out.

A task is a run of whole segments, a slice of one large segment, or a part of the unsealed tail of one topic. Every seq
of a range is in exactly one task, or in a gap that was announced. Nothing is opened here. Called by the batch and the
streaming planner, and by an executor that plans a vanished slice anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from topics.errors import Corruption
from topics.spark.planning.cut import Ancestors, Block, DeadRange, LogBlock, LostSeqs, TagDelete, TopicCut

if TYPE_CHECKING:
    from topics.spark.logs.log import Log

STREAM_TASKS: Final = 8
STREAM_TASK_RECORDS_MIN: Final = 10_000
"""Tasks that a batch of a stream is cut into unless it is small, and how small a task may be."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one Spark task reads of one topic: first the tombstones of `gaps`, then the slices in order."""

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


def slices_of(cut: TopicCut, lo: int, hi: int) -> list[Slice]:
    """Slices of all blocks that reach into `[lo, hi)`."""
    cut_up = [Slice(block, max(lo, block.first_seq), min(hi, block.end_seq)) for block in cut.blocks]
    return [_trimmed(piece) for piece in cut_up if piece.lo < piece.hi]


def _trimmed(piece: Slice) -> Slice:
    """A slice of log frames carries only its own frames: their places travel with the task."""
    if isinstance(piece.block, LogBlock):
        return replace(piece, block=piece.block.between(piece.lo, piece.hi))
    return piece


def tasks_of(
    cut: TopicCut,
    wanted: Range,
    *,
    records_max: int,
    target: int,
    gaps: Iterable[LostSeqs] = (),
    limit: int | None = None,
) -> list[Task]:
    """Tasks of at most `records_max` records, and about `target` where segments can be put together."""
    whole = Task(topic=cut.name, epoch=cut.epoch, ancestors=cut.ancestors)
    tasks = [replace(whole, gaps=tuple(gaps))] if gaps else []
    slices = slices_of(cut, wanted.lo, wanted.hi)
    if limit is not None:
        # A limit counts from the front, so one task walks until it is reached.
        return [*tasks, _bounded(whole, slices, cut, limit)] if slices and limit else tasks
    for run in _runs(slices, min(records_max, max(target, 1))):
        tasks.append(_bounded(whole, run, cut, None))
    return tasks


def _bounded(whole: Task, slices: Sequence[Slice], cut: TopicCut, limit: int | None) -> Task:
    """A task that carries no more of the cut's deletes than it needs."""
    lo, hi = slices[0].lo, slices[-1].hi
    return replace(
        whole,
        slices=tuple(slices),
        dead=tuple(dead for dead in cut.dead if dead[0] < hi and dead[1] >= lo),
        tag_deletes=tuple(delete for delete in cut.tag_deletes if delete.below > lo),
        limit=limit,
    )


def _runs(slices: Iterable[Slice], size: int) -> list[list[Slice]]:
    """Neighbours are put together up to `size` records, larger slices are cut, sealed and unsealed are never mixed."""
    runs: list[list[Slice]] = []
    run: list[Slice] = []
    for piece in slices:
        if run and (
            sum(each.count for each in run) + piece.count > size or run[-1].block.is_sealed != piece.block.is_sealed
        ):
            runs.append(run)
            run = []
        if piece.count <= size:
            run.append(piece)
        else:
            parts = even_parts(piece.lo, piece.hi, size)
            runs.extend([_trimmed(replace(piece, lo=lo, hi=hi))] for lo, hi in parts)
    return [*runs, run] if run else runs


def even_parts(lo: int, hi: int, size: int) -> list[tuple[int, int]]:
    """`[lo, hi)` in equal parts of at most `size`; one part where there is nothing."""
    parts = max(-(-(hi - lo) // size), 1)
    return list(pairwise(lo + (hi - lo) * i // parts for i in range(parts + 1)))


def stream_tasks(
    whole: Task, cut: TopicCut | None, wanted: Range, parts: Iterable[tuple[int, int]], *, gaps: Iterable[LostSeqs] = ()
) -> list[Task]:
    """One task for each part, of what is left of it, the tombstones in the first.

    A batch that is repeated after a restart has the same parts, wherever their records have moved meanwhile, even if
    nothing is left of them: sinks know their rows by the number of their task. `cut` None: the topic is gone."""
    tasks = []
    for lo, hi in parts:
        slices = slices_of(cut, max(lo, wanted.lo), min(hi, wanted.hi)) if cut is not None else []
        tasks.append(_bounded(whole, slices, cut, None) if cut is not None and slices else whole)
    return [replace(tasks[0], gaps=tuple(gaps)), *tasks[1:]]


def stream_size(total: int, *, partitions_min: int | None, records_max: int) -> int:
    """Records per task of a stream. It does not depend on the cores of this run: a repeated batch must have the same
    tasks."""
    if partitions_min is not None:
        return target_size(total, partitions_min=partitions_min, records_max=records_max)
    return min(max(-(-total // STREAM_TASKS), STREAM_TASK_RECORDS_MIN), records_max)


def target_size(total: int, *, partitions_min: int, records_max: int) -> int:
    """Records per task, so that there are enough tasks for all cores and none is too large."""
    tasks = max(partitions_min, -(-total // records_max), 1)
    return max(-(-total // tasks), 1)
