"""Condition: what is known of the health of one segment's files, and what was told about it.

    checked       the agreement checks of storage.md section 6.3 have passed since the files are these
    lost_frames   slots whose frames a read found damaged, so that the segment is neither moved nor rewritten

A finding is reported once, however often the segment is mapped. The segment's lock guards it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from topics.formats.buffers import Bools
from topics.storage.segments.findings import Finding

if TYPE_CHECKING:
    from topics.storage.segments.sealed import SealedSegment


class SegmentHealth:
    __slots__ = ("_told", "checked", "lost_frames")

    def __init__(self) -> None:
        self.checked = False
        self.lost_frames: frozenset[int] = frozenset()
        self._told: frozenset[str] = frozenset()

    def files_replaced(self) -> None:
        self.checked = False
        self.lost_frames = frozenset()

    def known_bad(self, count: int) -> Bools | None:
        """The damaged ones among so many slots; None if there is none."""
        if not self.lost_frames:
            return None
        bad: Bools = np.zeros(count, np.bool_)
        bad[list(self.lost_frames)] = True
        return bad

    def add_lost(self, slots: Iterable[int]) -> list[int]:
        """Remember damaged slots; those that were not known, ascending."""
        fresh = set(slots) - self.lost_frames
        self.lost_frames |= fresh
        return sorted(fresh)

    def report(self, segment: SealedSegment, what: str, counter: str, *, error: bool = False) -> None:
        if what in self._told:
            return
        self._told |= {what}
        segment.place.env.report(
            Finding(
                topic_id=segment.place.topic_id,
                file=segment.place.file(segment.first_seq, "data"),
                message=f"segment {segment.label} of topic {segment.place.name!r}: {what}",
                counter=counter,
                severity="error" if error else "warning",
            )
        )
