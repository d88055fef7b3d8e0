"""What is known of a topic's segments before loading, and what loading gives: values between recovery and `load`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from topics.formats.buffers import U8, U32, U64
from topics.formats.snapshot import SegmentItem
from topics.storage.segments.active_segment import ActiveSegment
from topics.storage.segments.findings import Finding
from topics.storage.segments.sealed_segment import SealedSegment
from topics.storage.segments.topic_dir import TopicDir


@dataclass(frozen=True, slots=True)
class Move:
    """The last `tier` mark of a segment."""

    count: int
    tier: Literal["hot", "cold", "gone"]


@dataclass(slots=True)
class ExpectedSegments:
    """What snapshot and marks say of a topic's segments.

    `active` is `(first, count, data_len)` of the newest mark or, without one, of the snapshot. `ckpt_seq` is the
    highest seq in synced segments, `sealed_to` the last seq of the newest sealed one. `unknown`: nothing
    describes the topic any more, and no snapshot says which segments it had.
    """

    segments: Sequence[SegmentItem] = ()
    active: tuple[int, int, int] | None = None
    sealed_to: int = 0
    ckpt_seq: int = 0
    earliest_seq: int = 1
    moves: Mapping[int, Move] = field(default_factory=dict)
    unknown: bool = False

    def marked(self, first_seq: int) -> tuple[int, int]:
        """Count and data length of a segment at the last mark; zeros when it is not the marked active one."""
        if self.active is None or self.active[0] != first_seq:
            return 0, 0
        return self.active[1], self.active[2]

    def gone(self) -> set[int]:
        """First seqs of segments whose removal was logged."""
        return {first for first, move in self.moves.items() if move.tier == "gone"}

    def is_open(self, first_seq: int) -> bool:
        """Whether the segment may hold slots that no synced mark covers."""
        return first_seq > self.ckpt_seq or (self.active is not None and self.active[0] == first_seq)


@dataclass(slots=True)
class LoadedSegment:
    """`counted` is False when the totals are the snapshot's: deletes replayed since may be in the flags already."""

    segment: SealedSegment
    live: int
    live_bytes: int
    counted: bool


@dataclass(slots=True)
class LoadedActive:
    """The active segment and the columns of its slots, for the tail. `flags` are those of an index entry."""

    segment: ActiveSegment
    offs: U32
    lens: U32
    ts: U64
    flags: U8
    sizes: U32
    tags: list[bytes | None]


@dataclass(slots=True)
class LoadedTopic:
    """Segments ascending. `missing` are those recorded segments that lie nowhere; they are in `sealed` too, all bad.
    `cold_garbage` are cold copies that nothing refers to."""

    place: TopicDir
    sealed: list[LoadedSegment] = field(default_factory=list)
    active: LoadedActive | None = None
    missing: list[SealedSegment] = field(default_factory=list)
    cold_garbage: list[int] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    not_found: set[int] = field(default_factory=set)
    """First seqs of the segments that lie nowhere, whether the log could stand in for them or not."""

    @property
    def last_seq(self) -> int:
        """The highest seq with a slot, 0 without any."""
        if self.active is not None:
            return self.active.segment.next_seq - 1
        return self.sealed[-1].segment.last_seq if self.sealed else 0

    @property
    def damaged(self) -> list[SealedSegment]:
        """Segments known to hold unreadable records."""
        return [loaded.segment for loaded in self.sealed if loaded.segment.damaged]
