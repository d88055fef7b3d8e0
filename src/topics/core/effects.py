"""Effects: what applying an op did, as small values. The engine turns them into wake-ups, jobs and replies.

`removal` is None where nothing was removed, which is nearly always so for appends."""

from __future__ import annotations

from enum import Enum

import msgspec

from topics.core.retention.removal import Removal


class OpResult(Enum):
    """What became of an op."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"
    """Reflected already; nothing changed."""
    AHEAD = "ahead"
    """Seqs before it are missing; nothing changed. Hold it, and apply it again when they have come or are lost."""
    FILLED = "filled"
    """Records below the head that had no slot: nothing new is published."""
    IGNORED = "ignored"
    """Of a topic that is not there, or that keeps no such thing."""


class Effect(msgspec.Struct, eq=False):
    """`first_seq .. last_seq` was published; empty (`last_seq < first_seq`) for every op but an Append or HeadMark."""

    fate: OpResult
    topic_id: int
    first_seq: int = 1
    last_seq: int = 0
    removal: Removal | None = None

    def join(self, later: Effect) -> None:
        """Together with what the rest of the same op did."""
        if later.fate is OpResult.APPLIED:
            if self.fate is not OpResult.APPLIED:
                self.first_seq = later.first_seq
            self.last_seq = later.last_seq
        if later.fate is not OpResult.DUPLICATE:
            self.fate = later.fate
        if self.removal is None:
            self.removal = later.removal
        else:
            self.removal.add(later.removal)

    @property
    def removed_count(self) -> int:
        return 0 if self.removal is None else self.removal.count

    @property
    def freed_bytes(self) -> int:
        return 0 if self.removal is None else self.removal.bytes
