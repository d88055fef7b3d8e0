"""Offsets of streams: `{topic: {"epoch": e, "seq": s}}`, `s` is the next seq to read (`docs/spec/pipeline.md#sec-4`).

Cuts and offsets in, offsets and ranges out; only `trim_before` does anything. A topic enters an offset at its earliest
record before anything of it is read, so that a batch always has both ends of its ranges on record and gives the same
rows when it is repeated. Used by streams and by the archive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from topics.model.position import Position
from topics.spark.logs.bulk_client import Remote, topic_path
from topics.spark.planning.cut import TopicCut


@dataclass(frozen=True, slots=True)
class NextSeq:
    """The next seq to read of one topic instance."""

    epoch: int
    seq: int

    @property
    def position(self) -> Position:
        """Where a reader stands that has read everything before it."""
        return Position(max(self.seq - 1, 0), self.epoch)


Points: TypeAlias = dict[str, NextSeq]


def to_json(points: Points) -> dict[str, Any]:
    return {name: {"epoch": point.epoch, "seq": point.seq} for name, point in sorted(points.items())}


def from_json(offset: Mapping[str, Any]) -> Points:
    return {name: NextSeq(int(point["epoch"]), int(point["seq"])) for name, point in offset.items()}


def lifted(points: Points, cuts: Mapping[str, TopicCut]) -> Points:
    """The same points; those of an ancestor that the cut still has are given the present epoch, others stay foreign."""
    moved = dict(points)
    for name, point in points.items():
        cut = cuts.get(name)
        if cut is not None and cut.ancestors and cut.has(point.position):
            moved[name] = NextSeq(cut.epoch, point.seq)
    return moved


def heads(cuts: Mapping[str, TopicCut]) -> Points:
    """The end of every topic."""
    return {name: NextSeq(cut.epoch, cut.end_seq) for name, cut in cuts.items()}


def resumed(known: Points, cuts: Mapping[str, TopicCut]) -> Points:
    """Where a stream resumes that was at `known`; a topic that is new, or of another epoch, starts at its earliest."""
    begun = {name: NextSeq(cut.epoch, cut.earliest_seq) for name, cut in cuts.items()}
    known = lifted(known, cuts)
    still = {name: known[name] for name in begun if name in known and known[name].epoch == cuts[name].epoch}
    return begun | {name: point for name, point in still.items() if point.seq <= cuts[name].end_seq}


def passed(start: Points, now: Points) -> int:
    """Seqs between two places of the same topics, whether a record is left there or not."""
    common = (name for name in start.keys() & now.keys() if start[name].epoch == now[name].epoch)
    return sum(max(now[name].seq - start[name].seq, 0) for name in common)


def advance(start: Points, ends: Points, cuts: Mapping[str, TopicCut]) -> Points:
    """Where a batch without a limit ends: `ends` where it is ahead of `start`, and new topics at their earliest.

    `ends` may lie behind the cuts (a fixed target), and a topic may be gone: what was reached stays. A topic that ends
    before what was reached is not the one it was (another server's, or out of a backup): it starts over."""
    reached = dict(start)
    for name, cut in cuts.items():
        end = ends.get(name)
        if end is None or end.epoch != cut.epoch:
            continue  # it appeared, or was made anew, after the target was fixed
        before = start.get(name)
        if before is None:
            reached[name] = NextSeq(cut.epoch, min(cut.earliest_seq, end.seq))
        elif before.epoch != cut.epoch or before.seq <= end.seq or before.seq > cut.end_seq:
            reached[name] = end
    return reached


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Seqs `[lo, hi)` of one topic between two offsets. `was` is the epoch of the first, if the topic was made anew;
    `is_new` where the first does not have the topic."""

    name: str
    epoch: int
    lo: int
    hi: int
    was: int | None = None
    is_new: bool = False


def between(
    start: Points, end: Points, cuts: Mapping[str, TopicCut], *, new_from_first: bool = False
) -> Iterator[OffsetRange]:
    """What a batch from `start` to `end` has to read. After a recreation that is the new instance from its earliest."""
    for name, point in sorted(end.items()):
        before = start.get(name)
        if before is None and new_from_first:
            yield OffsetRange(name, point.epoch, 1, point.seq, is_new=True)
        if before is None or before == point:
            continue
        if _goes_on(before, point):
            yield OffsetRange(name, point.epoch, before.seq, point.seq)
        else:
            cut = cuts.get(name)
            lo = cut.earliest_seq if cut is not None and cut.epoch == point.epoch else 1
            yield OffsetRange(name, point.epoch, min(lo, point.seq), point.seq, was=before.epoch)


def waiting(start: Points, end: Points) -> int:
    """Seqs that a batch between two offsets would have."""
    return sum(_waiting(start, end, name) for name in end)


def limit_rows(start: Points, end: Points, rows_max: int) -> Points:
    """At most so many seqs in all, spread over the topics by how much each has waiting."""
    waiting = {name: _waiting(start, end, name) for name in end}
    total = sum(waiting.values())
    if total <= rows_max:
        return end
    limited = dict(end)
    left = rows_max
    ordered = sorted((name for name, count in waiting.items() if count), key=lambda name: waiting[name])
    for name in ordered:
        share = max(min(waiting[name] * rows_max // total, left), 1 if left else 0)
        limited[name] = _stopped(start, end, name, share)
        left -= min(share, waiting[name])
    return limited


def limit_bytes(start: Points, end: Points, bytes_max: int, *, bytes_end: Callable[[str, int, int], int]) -> Points:
    """At most so many bytes in all, but at least one record. `bytes_end(name, lo, bytes)` is the end of a run."""
    waiting = [name for name in sorted(end) if _waiting(start, end, name)]
    limited, share = dict(end), max(bytes_max // max(len(waiting), 1), 1)
    for name in waiting:
        lo = _first(start, end, name)
        limited[name] = NextSeq(end[name].epoch, min(bytes_end(name, lo, share), end[name].seq))
    return limited


def _waiting(start: Points, end: Points, name: str) -> int:
    return max(end[name].seq - _first(start, end, name), 0)


def _first(start: Points, end: Points, name: str) -> int:
    before = start.get(name)
    if before is None:
        return end[name].seq
    return before.seq if _goes_on(before, end[name]) else 1


def _goes_on(before: NextSeq, point: NextSeq) -> bool:
    """Whether both are of one instance, whose offsets never go back."""
    return before.epoch == point.epoch and before.seq <= point.seq


def _stopped(start: Points, end: Points, name: str, count: int) -> NextSeq:
    """The point `count` seqs after the start; a recreated topic enters its new epoch even if nothing is read."""
    return NextSeq(end[name].epoch, min(_first(start, end, name) + count, end[name].seq))


def trim_before(remote: Remote, points: Points, cuts: Mapping[str, TopicCut]) -> None:
    """Delete from their topics the records before each point, of the same instance only: they are safely elsewhere."""
    try:
        for name, point in points.items():
            cut = cuts.get(name)
            if cut is not None and cut.epoch == point.epoch and cut.earliest_seq < point.seq:
                remote.post(topic_path(name, "delete"), msgspec.json.encode({"before_seq": point.seq}))
    finally:
        remote.close()
