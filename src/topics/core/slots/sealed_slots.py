"""Sealed run: the sealed segments of a topic, oldest first, and what has died in them.

Core reads a segment only through `SegmentView`, which storage implements over mapped files; nothing per record is kept
here, except a byte per slot for segments that hold deletes not yet flagged on disk (`overlay`).

What always holds: segments are disjoint and ascending, gaps between them are lost ranges or dropped segments; `live`
and `live_bytes` count the slots that are neither deleted nor below the topic's `earliest_seq`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from topics.core.slots.slot_range import I64, U32, Bools, Slots
from topics.errors import ColdUnavailable, StorageIo
from topics.model.names import TagMatch
from topics.model.ops import DELETED
from topics.model.run import RecordRun

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]

Tier = Literal["hot", "cold"]

PENDING, PROVEN = 1, 2
"""In an overlay: the files do not show the delete yet; the cold files do."""


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

    def lacks(self, tag: bytes) -> bool:
        """Is it known, without reading a file, that no slot has this tag? False: perhaps one has."""

    def tags_after(self, after: bytes | None, prefix: bytes, limit: int) -> list[tuple[bytes, I64]]:
        """Up to so many tags with this prefix behind `after` (None: from the first on) in byte order, each with its
        slots, ascending, dead ones perhaps among them."""

    @property
    def loaded(self) -> bool:
        """Can all of this be had without reading a file? If not, an INDEX extent has it loaded."""

    def resident_run(self, slots: range | I64) -> RecordRun | None:
        """The records of these slots, live and ascending, if that takes no wait for the disk. None: fetch them."""

    def checked_ts(self, slot: int) -> int:
        """The timestamp out of the checksummed frame; of the index where the frame cannot be read."""


class Sealed(Slots):
    """One segment and its dead.

    `overlay_complete` says that the overlay alone tells what was deleted: the flags on disk need not be asked, which a
    cold segment's index could not answer without waiting, and a clean one's need not be mapped for."""

    __slots__ = (
        "_count",
        "_first_ts",
        "_last_ts",
        "deleted",
        "first_seq",
        "hops",
        "live",
        "live_bytes",
        "overlay",
        "overlay_complete",
        "tier",
        "view",
    )

    def __init__(self, view: SegmentView, *, live: int, live_bytes: int, deleted: int) -> None:
        self.view = view
        self.first_seq = view.first_seq
        self._count = view.count
        self.live = live
        self.live_bytes = live_bytes
        self.deleted = deleted  # slots deleted or empty, on disk or in the overlay; -1: not counted yet
        self.overlay: U8 | None = None  # PENDING or PROVEN for deleted slots
        self.overlay_complete = deleted == 0
        self.tier: Tier = view.tier  # as the log has it: a snapshot must not say otherwise
        self.hops: bytes | None = None  # kept only while a router behind may still ask
        self._first_ts: int | None = None
        self._last_ts: int | None = None

    @classmethod
    def trusted(cls, view: SegmentView, *, live: int, live_bytes: int, dead: I64) -> Sealed:
        """A segment as a snapshot noted it; its files are not looked at. `dead` are deleted slots its flags lack."""
        sealed = cls(view, live=live, live_bytes=live_bytes, deleted=0 if live == view.count else -1)
        if len(dead):
            sealed.deleted = -1
            sealed.overlay_complete = False
            sealed._overlay()[dead] = 1
        return sealed

    @classmethod
    def counted(cls, view: SegmentView, *, earliest_seq: int, dead: I64) -> Sealed:
        """A segment found at start of which nothing is known, or nothing is believed."""
        sealed = cls(view, live=0, live_bytes=0, deleted=-1)
        if len(dead):
            sealed._overlay()[dead] = 1
        sealed.recount(earliest_seq)
        return sealed

    def recount(self, earliest_seq: int) -> tuple[int, int]:
        """Count the live anew; returns by how much the totals changed."""
        before = self.live, self.live_bytes
        self.sizes_of(0, 0)  # fails, if it does, before anything has changed
        self.deleted = int(np.count_nonzero(self.dead(0, self._count)))
        self.overlay_complete = self.overlay_complete or self.deleted == 0
        lo = min(max(earliest_seq - self.first_seq, 0), self._count)
        self.live, self.live_bytes = self.live_totals(lo, self._count)
        return self.live - before[0], self.live_bytes - before[1]

    def doubt(self) -> None:
        """The totals are as noted, but flags may tell otherwise: they are asked before anyone relies on them."""
        self.deleted = -1
        self.overlay_complete = False

    # --- slots ---------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        return self._count

    @property
    def next_seq(self) -> int:
        return self.first_seq + self._count

    @property
    def first_ts(self) -> int:
        if self._first_ts is None:
            self._first_ts = self.view.first_ts
        return self._first_ts

    @property
    def last_ts(self) -> int:
        if self._last_ts is None:
            self._last_ts = self.view.last_ts
        return self._last_ts

    def check_times(self) -> None:
        """ColdUnavailable, if it cannot be told what has expired; once it could, it always can."""
        if self._first_ts is None or self._last_ts is None:
            self._first_ts, self._last_ts = self.view.first_ts, self.view.last_ts

    @property
    def times_known(self) -> bool:
        """Can it be told, without waiting for the cold store, what has expired?"""
        try:
            if self.view.tier == "cold":
                self.check_times()
        except ColdUnavailable:
            return False
        return True

    def dead(self, lo: int, hi: int) -> Bools:
        if not self.overlay_complete:
            dead: Bools = (self.view.flags[lo:hi] & DELETED) != 0
            if self.overlay is not None:
                dead |= self.overlay[lo:hi] != 0
            return dead
        if self.overlay is None:
            return np.zeros(hi - lo, np.bool_)
        marked: Bools = self.overlay[lo:hi] != 0
        return marked

    def is_dead(self, slot: int) -> bool:
        if self.overlay is not None and self.overlay[slot]:
            return True
        return not self.overlay_complete and bool(self.view.flags[slot] & DELETED)

    def sizes_of(self, lo: int, hi: int) -> U32:
        return self.view.sizes(lo, hi)

    def expired(self, cutoff_ts: int) -> int:
        if self.last_ts < cutoff_ts:
            return self._count
        if self.first_ts >= cutoff_ts:
            return 0
        return int(np.searchsorted(self.view.ts, np.uint64(cutoff_ts)))

    def mark_deleted(self, slots: I64) -> None:
        self._overlay()[slots] = PENDING
        if self.deleted >= 0:
            self.deleted += len(slots)

    def took(self, count: int, size: int) -> None:
        self.live -= count
        self.live_bytes -= size

    def _overlay(self) -> U8:
        if self.overlay is None:
            self.overlay = np.zeros(self._count, np.uint8)
        return self.overlay

    # --- flags on disk -------------------------------------------------------------------------------------------

    def flagged(self) -> None:
        """The flags on disk have caught up: keep only what they do not show."""
        if self.overlay is None or self.view.tier == "cold":
            return
        shown = self._shown()
        if shown.any():
            self.overlay[shown] = 0
            self.overlay_complete = False
        if not self.overlay.any():
            self.overlay = None

    def proven(self, slots: I64) -> None:
        """The cold files show these deletes now."""
        if self.overlay is not None and self.view.tier == "cold":
            marked = slots[self.overlay[slots] != 0]
            self.overlay[marked] = PROVEN

    def unflagged(self) -> I64:
        """Deleted slots whose flag is not in the index, as far as that is known."""
        if self.overlay is None:
            return np.empty(0, np.int64)
        if self.view.tier == "cold":
            return np.flatnonzero(self.overlay == PENDING)
        return np.flatnonzero((self.overlay != 0) & ~self._shown())

    def _shown(self) -> Bools:
        """What the flags of a hot segment show; nothing while they cannot be read, which costs a flag set twice."""
        try:
            shown: Bools = (self.view.flags & DELETED) != 0
        except StorageIo:
            return np.zeros(self._count, np.bool_)
        return shown

    def replace(self, view: SegmentView) -> None:
        """Other files, same seqs: a rewrite or a move to another tier. What a cold index could not answer without
        waiting is taken from it while it is at hand."""
        assert view.first_seq == self.first_seq
        assert view.count == self._count
        if view.tier == "cold":
            self._keep_what_is_at_hand()
        self.view = view
        self.flagged()

    def _keep_what_is_at_hand(self) -> None:
        try:
            self.keep_index()
        except ColdUnavailable:  # closed for lack of room already: asked for again when somebody needs it
            self.overlay_complete = self.overlay_complete and self.overlay is None and self.deleted == 0

    def keep_index(self) -> None:
        """Take from an index that is at hand what is asked of it most: it may be closed again at any time, and whoever
        needs several at once must not wait for all of them to be there together."""
        self._first_ts, self._last_ts = self.first_ts, self.last_ts
        shown: Bools = (self.view.flags & DELETED) != 0
        if shown.any() or self.overlay is not None:
            self._overlay()[shown] = PROVEN
        self.overlay_complete = True


class SealedRun:
    __slots__ = ("_firsts", "_segments")

    def __init__(self) -> None:
        self._segments: list[Sealed] = []
        self._firsts: list[int] = []  # their first seqs

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Sealed]:
        return iter(self._segments)

    def __getitem__(self, index: int) -> Sealed:
        return self._segments[index]

    def add(self, sealed: Sealed) -> None:
        segments = self._segments
        at = bisect_right(self._firsts, sealed.first_seq)
        assert at == 0 or segments[at - 1].next_seq <= sealed.first_seq, "sealed segments overlap"
        assert at == len(segments) or sealed.next_seq <= segments[at].first_seq, "sealed segments overlap"
        segments.insert(at, sealed)
        self._firsts.insert(at, sealed.first_seq)

    def find(self, seq: int) -> Sealed | None:
        """The segment with a slot for `seq`."""
        at = bisect_right(self._firsts, seq)
        if at and seq < self._segments[at - 1].next_seq:
            return self._segments[at - 1]
        return None

    def last_below(self, seq: int) -> Sealed | None:
        """The last segment that begins below `seq`."""
        at = bisect_left(self._firsts, seq)
        return self._segments[at - 1] if at else None

    def by_first_seq(self, first_seq: int) -> Sealed | None:
        found = self.find(first_seq)
        return found if found is not None and found.first_seq == first_seq else None

    def from_seq(self, seq: int) -> Iterator[Sealed]:
        """Segments with a slot at or above `seq`, ascending. Do not add or remove meanwhile."""
        segments = self._segments
        start = bisect_right(self._firsts, seq)
        if start and segments[start - 1].next_seq > seq:
            start -= 1
        return (segments[at] for at in range(start, len(segments)))

    def pass_lacking(self, first_seq: int, tag: bytes, *, stop: int, steps: int, ages: bool) -> tuple[int, int]:
        """Over how many segments to go, from the one that begins at `first_seq` on, because they are known to lack the
        tag and follow each other without a gap; and the seq behind them. At most so many steps, none that begins at
        or behind `stop`. Where records age, one is only passed if it is known what has expired in it."""
        segments, at, behind = self._segments, bisect_left(self._firsts, first_seq), first_seq
        passed = 0
        for sealed in islice(segments, at, at + steps):
            if sealed.first_seq != behind or behind >= stop or not sealed.view.lacks(tag):
                break
            if ages and not sealed.times_known:
                break
            behind += sealed.count
            passed += 1
        return behind, passed

    def remove(self, first_seq: int) -> Sealed | None:
        """Its files are gone."""
        at = bisect_right(self._firsts, first_seq) - 1
        if at < 0 or self._firsts[at] != first_seq:
            return None
        del self._firsts[at]
        return self._segments.pop(at)
