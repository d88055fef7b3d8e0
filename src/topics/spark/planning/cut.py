"""Cut: what a topic holds at one moment, as the planner sees it. Frozen values, made by a log, divided by the plan.

Seqs of ranges in code are half-open; gaps, lost ranges and dead ranges are on the wire and on disk with both ends, and
stay so here. A block is a range of seqs that lies in one place: a segment's files, frames of a WAL file, or a server.

`report_gaps` is the one place where a reader decides what lost records do to a read: stop it, warn, or become rows
(`docs/spec/pipeline.md#sec-10`).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from topics.errors import DataLoss
from topics.model.paging import refuse_overlap
from topics.model.position import Position
from topics.spark.options import OnLoss

I64: TypeAlias = npt.NDArray[np.int64]
DeadRange: TypeAlias = tuple[int, int]
"""Deleted seqs, both ends included."""


@dataclass(frozen=True, slots=True)
class LostSeqs:
    """Seqs `gap_from..gap_to`, both included, that are lost."""

    gap_from: int
    gap_to: int
    reason: str


@dataclass(frozen=True, slots=True)
class TagDelete:
    """A delete by tag of the seqs below `below` that flag bytes may not show yet."""

    value: bytes
    is_prefix: bool
    below: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentBlock:
    """A segment's pair of files: `<root>/<stem>.data` and `.idx`, of which the first `count` slots count."""

    root: str
    stem: str
    first_seq: int
    count: int
    bytes: int
    is_sealed: bool
    tier: str = "hot"
    live: int | None = None
    """Live records at the time of a snapshot, if known."""

    @property
    def end_seq(self) -> int:
        return self.first_seq + self.count

    def __reduce__(self) -> tuple[Any, ...]:
        # What `dataclass` does by itself takes ten times as long, and a task may have a hundred thousand blocks.
        fields = (self.first_seq, self.count, self.bytes, self.is_sealed, self.tier, self.live)
        return _segment_block, (self.root, self.stem, *fields)


def _segment_block(
    root: str, stem: str, first_seq: int, count: int, bytes: int, is_sealed: bool, tier: str, live: int | None
) -> SegmentBlock:
    return SegmentBlock(
        root=root,
        stem=stem,
        first_seq=first_seq,
        count=count,
        bytes=bytes,
        is_sealed=is_sealed,
        tier=tier,
        live=live,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBlock:
    """Append frames of one topic in one WAL file, by ascending seq. Arrays are raw int64 bytes, so that it pickles."""

    root: str
    path: str
    seqs: bytes
    offsets: bytes
    lengths: bytes
    ts: bytes

    @property
    def seq_array(self) -> I64:
        return np.frombuffer(self.seqs, np.int64)

    @property
    def offset_array(self) -> I64:
        return np.frombuffer(self.offsets, np.int64)

    @property
    def length_array(self) -> I64:
        return np.frombuffer(self.lengths, np.int64)

    @property
    def ts_array(self) -> I64:
        return np.frombuffer(self.ts, np.int64)

    @property
    def bytes(self) -> int:
        return int(self.length_array.sum())

    @property
    def is_sealed(self) -> bool:
        return False

    @property
    def first_seq(self) -> int:
        return int(self.seq_array[0])

    @property
    def count(self) -> int:
        return len(self.seqs) // 8

    @property
    def end_seq(self) -> int:
        return int(self.seq_array[-1]) + 1

    def between(self, lo: int, hi: int) -> LogBlock:
        """The part with seqs in `[lo, hi)`."""
        a, b = (int(at) for at in np.searchsorted(self.seq_array, (lo, hi)))
        rows = slice(8 * a, 8 * b)
        return LogBlock(
            root=self.root,
            path=self.path,
            seqs=self.seqs[rows],
            offsets=self.offsets[rows],
            lengths=self.lengths[rows],
            ts=self.ts[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerBlock:
    """Seqs that a server gives; `file` is where a reader on its machine, or with its cold store, may look instead."""

    first_seq: int
    count: int
    bytes: int
    is_sealed: bool
    min_ts: int | None
    max_ts: int | None
    """None where the server does not know: the index of a cold segment that cannot be had."""
    live: int
    file: SegmentBlock | None = None
    instance: tuple[str, str] = ("", "")
    """Instance id and boot id that prove the file to be the server's."""
    dead: tuple[DeadRange, ...] = ()

    @property
    def end_seq(self) -> int:
        return self.first_seq + self.count


Ancestors: TypeAlias = tuple[tuple[int, int], ...]
"""Earlier epochs of a topic whose directory was copied, each with the head up to which it is valid; oldest first."""
Block: TypeAlias = SegmentBlock | LogBlock | ServerBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCut:
    """One topic at one moment. Live seqs are in `[earliest_seq, head_seq]`; `lost` lies above `evict_floor`; blocks are
    disjoint and ascending, and a cut of others is refused: a record would be read twice."""

    name: str
    topic_id: int
    epoch: int
    head_seq: int
    earliest_seq: int
    evict_floor: int
    causes: tuple[tuple[str, int], ...] = ()
    """Highest seq lost to each cause."""
    lost: tuple[LostSeqs, ...] = ()
    blocks: tuple[Block, ...] = ()
    dead: tuple[DeadRange, ...] = ()
    tag_deletes: tuple[TagDelete, ...] = ()
    missing: tuple[tuple[int, int], ...] = ()
    """Half-open ranges whose segment is not where the metadata says."""
    instance: str = ""
    """The data directory that it is of, as that calls itself; empty where nobody tells."""
    ancestors: Ancestors = ()

    def __post_init__(self) -> None:
        refuse_overlap(self.name, ((block.first_seq, block.end_seq - 1) for block in self.blocks))

    @property
    def end_seq(self) -> int:
        return self.head_seq + 1

    def has(self, position: Position) -> bool:
        """Is this a position of the topic, as `core.lineage` decides it? An end that was lost is another matter."""
        epoch, seq = position.epoch, position.seq
        if epoch is None or epoch == self.epoch:
            return True
        return any(epoch == ancestor and seq <= head for ancestor, head in self.ancestors)

    def prefix_reason(self, gap_from: int) -> str:
        """Reason of a prefix gap that begins at `gap_from` (`docs/spec/semantics.md#sec-8-3`)."""
        reasons = {reason for reason, seq in self.causes if seq >= gap_from}
        return reasons.pop() if len(reasons) == 1 else "mixed"


def life_over(now: TopicCut | None, lo: int, hi: int) -> LostSeqs:
    """Why nothing is left of `[lo, hi)` of a topic's life: it was deleted, or made anew since, which `now` is then.

    A `recreated` gap is what the new one holds, as everywhere (`docs/spec/semantics.md#sec-8-1`)."""
    return LostSeqs(lo, hi - 1, "deleted") if now is None else LostSeqs(1, now.head_seq, "recreated")


log = logging.getLogger("topics.spark")


class LossWarning(UserWarning):
    """Records in a range that was read are lost."""


def report_gaps(topic: str, gaps: Iterable[LostSeqs], on_loss: OnLoss) -> Sequence[LostSeqs]:
    """The gaps that must appear as rows; raises DataLoss where a gap is to stop the read."""
    found = tuple(gaps)
    if not found:
        return ()
    if on_loss == "fail":
        gap = found[0]
        raise DataLoss(topic=topic, gap_from=gap.gap_from, gap_to=gap.gap_to, reason=gap.reason)
    if on_loss == "rows":
        return found
    for gap in found:
        text = f"records {gap.gap_from}..{gap.gap_to} of topic {topic!r} are lost ({gap.reason}); reading goes on"
        log.warning(text)
        warnings.warn(text, LossWarning, stacklevel=2)
    return ()
