"""Sealed run: the sealed segments of a topic, oldest first, and what has died in them.

Core reads a segment only through `SegmentView`, which storage implements over mapped files; nothing per record is kept
here, except a byte per slot for segments that hold deletes not yet flagged on disk (`overlay`).

What always holds: segments are disjoint and ascending, gaps between them are lost ranges or dropped segments; `live`
and `live_bytes` count the slots that are neither deleted nor below the topic's `earliest_seq`.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from topics.core.slots import I64, U32, Bools, Slots
from topics.model.match import TagMatch
from topics.model.ops import DELETED

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]

Tier = Literal["hot", "cold"]


class SegmentView(Protocol):
    """A sealed segment as storage shows it. Slot `i` is seq `first_seq + i`. Nothing here may wait for the cold store,
    except `ts`, `flags` and `lens` of a cold segment whose index was never loaded, which raise `ColdUnavailable`."""

    @property
    def first_seq(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def data_len(self) -> int: ...
    @property
    def tier(self) -> Tier: ...
    @property
    def first_ts(self) -> int: ...
    @property
    def last_ts(self) -> int: ...
    @property
    def ts(self) -> U64:
        """Never falls with the slot."""

    @property
    def flags(self) -> U8:
        """Index flags; DELETED as far as it is set on disk. Empty slots have it."""

    @property
    def lens(self) -> U32:
        """Frame lengths; 0 for empty slots."""

    def sizes(self, lo: int, hi: int) -> U32:
        """Accounted bytes of the slots `lo..hi-1`; 0 for empty ones."""

    def tag_slots(self, match: TagMatch) -> I64:
        """Ascending slots whose tag matches, dead ones perhaps among them; cost follows the matches."""

    def checked_ts(self, slot: int) -> int:
        """The timestamp out of the checksummed frame; of the index where the frame cannot be read."""


class Sealed(Slots):
    """One segment and its dead."""

    __slots__ = ("_count", "_sizes", "deleted", "first_seq", "hops", "live", "live_bytes", "overlay", "view")

    def __init__(self, view: SegmentView, *, live: int, live_bytes: int, deleted: int) -> None:
        self.view = view
        self.first_seq = view.first_seq
        self._count = view.count
        self.live = live
        self.live_bytes = live_bytes
        self.deleted = deleted  # slots deleted or empty, on disk or in the overlay
        self.overlay: U8 | None = None
        self.hops: bytes | None = None  # kept only while a router behind may still ask
        self._sizes: U32 | None = None

    @classmethod
    def load(cls, view: SegmentView, *, earliest_seq: int, dead: I64, totals: tuple[int, int] | None) -> "Sealed":
        """A segment found at start. `dead` are slots known to be deleted beyond its flags. `totals` are the live
        records and bytes that a snapshot noted: if the number is still right, so are the bytes, since the dead only
        grow; else all sizes are summed."""
        sealed = cls(view, live=0, live_bytes=0, deleted=int(np.count_nonzero(view.flags & DELETED)))
        if len(dead):
            sealed._overlay()[dead] = 1
            sealed.flagged()
            sealed.deleted += int(np.count_nonzero(sealed.unflagged() >= 0))
        lo = min(max(earliest_seq - view.first_seq, 0), view.count)
        live = view.count - lo if sealed.deleted == 0 else int(np.count_nonzero(~sealed.dead(lo, view.count)))
        if totals is not None and totals[0] == live:
            sealed.live, sealed.live_bytes = totals
        else:
            sealed.live, sealed.live_bytes = sealed.live_totals(lo, view.count)
            sealed.forget_sizes()
        return sealed

    @property
    def count(self) -> int:
        return self._count

    @property
    def next_seq(self) -> int:
        return self.first_seq + self._count

    def dead(self, lo: int, hi: int) -> Bools:
        dead: Bools = (self.view.flags[lo:hi] & DELETED) != 0
        if self.overlay is not None:
            dead |= self.overlay[lo:hi] != 0
        return dead

    def is_dead(self, slot: int) -> bool:
        if self.overlay is not None and self.overlay[slot]:
            return True
        return self.deleted != 0 and bool(self.view.flags[slot] & DELETED)

    def sizes_of(self, lo: int, hi: int) -> U32:
        """A segment that is being eaten from the front is asked often, so its sizes are kept once asked for."""
        if self._sizes is None:
            self._sizes = np.array(self.view.sizes(0, self._count), np.uint32)
        return self._sizes[lo:hi]

    def forget_sizes(self) -> None:
        self._sizes = None

    def expired(self, cutoff_ts: int) -> int:
        if self.view.last_ts < cutoff_ts:
            return self._count
        if self.view.first_ts >= cutoff_ts:
            return 0
        return int(np.searchsorted(self.view.ts, np.uint64(cutoff_ts)))

    def mark_deleted(self, slots: I64) -> None:
        self._overlay()[slots] = 1
        self.deleted += len(slots)

    def took(self, count: int, size: int) -> None:
        self.live -= count
        self.live_bytes -= size

    def _overlay(self) -> U8:
        if self.overlay is None:
            self.overlay = np.zeros(self._count, np.uint8)
        return self.overlay

    def flagged(self) -> None:
        """The flags on disk have caught up: keep only what they do not show."""
        if self.overlay is not None:
            self.overlay[(self.view.flags & DELETED) != 0] = 0
            if not self.overlay.any():
                self.overlay = None

    def unflagged(self) -> I64:
        """Deleted slots whose flag is not in the index yet."""
        if self.overlay is None:
            return np.empty(0, np.int64)
        pending: Any = (self.overlay != 0) & ((self.view.flags & DELETED) == 0)
        return np.flatnonzero(pending)

    def replace(self, view: SegmentView) -> None:
        """Other files, same seqs: a rewrite or a move to another tier."""
        assert view.first_seq == self.first_seq
        assert view.count == self._count
        self.view = view
        self._sizes = None
        self.flagged()


class SealedRun:
    __slots__ = ("_segments",)

    def __init__(self) -> None:
        self._segments: list[Sealed] = []

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Sealed]:
        return iter(self._segments)

    def __getitem__(self, index: int) -> Sealed:
        return self._segments[index]

    def add(self, sealed: Sealed) -> None:
        segments = self._segments
        at = bisect_right(segments, sealed.first_seq, key=_first_seq)
        assert at == 0 or segments[at - 1].next_seq <= sealed.first_seq, "sealed segments overlap"
        assert at == len(segments) or sealed.next_seq <= segments[at].first_seq, "sealed segments overlap"
        segments.insert(at, sealed)

    def find(self, seq: int) -> Sealed | None:
        """The segment with a slot for `seq`."""
        at = bisect_right(self._segments, seq, key=_first_seq)
        if at and seq < self._segments[at - 1].next_seq:
            return self._segments[at - 1]
        return None

    def by_first_seq(self, first_seq: int) -> Sealed | None:
        found = self.find(first_seq)
        return found if found is not None and found.first_seq == first_seq else None

    def from_seq(self, seq: int) -> Iterator[Sealed]:
        """Segments with a slot at or above `seq`, ascending. Do not add or remove meanwhile."""
        segments = self._segments
        start = bisect_right(segments, seq, key=_first_seq)
        if start and segments[start - 1].next_seq > seq:
            start -= 1
        return (segments[at] for at in range(start, len(segments)))

    def remove(self, first_seq: int) -> Sealed | None:
        """Its files are gone."""
        at = bisect_right(self._segments, first_seq, key=_first_seq) - 1
        if at < 0 or self._segments[at].first_seq != first_seq:
            return None
        return self._segments.pop(at)


def _first_seq(sealed: Sealed) -> int:
    return sealed.first_seq
