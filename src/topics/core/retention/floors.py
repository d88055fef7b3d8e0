"""Floors: how far a topic's front has been lost, by cause, and how far it has been deleted
(`docs/spec/semantics.md#sec-6`).

Each `*_lost` is the highest seq that was live when its cause took it, so `evict_floor` moves for nothing else. No value
ever decreases. `earliest_seq` is kept here but computed by `core.front`: it needs the slots. While recovery replays, it
may run ahead of the head; afterwards it never does."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from topics.model.ops import Evict, Lost, LostReason

SEQ_BASE = 1


class Floors:
    __slots__ = ("cap_lost", "delete_below", "earliest_seq", "restart_lost", "trim_lost", "ttl_lost")

    def __init__(self) -> None:
        self.cap_lost = 0
        self.ttl_lost = 0
        self.trim_lost = 0
        self.restart_lost = 0
        self.delete_below = 0
        self.earliest_seq = SEQ_BASE

    @property
    def lost(self) -> int:
        """The highest seq lost by any cause; everything at or below it is dead."""
        return max(self.cap_lost, self.ttl_lost, self.trim_lost, self.restart_lost)

    def evict_floor(self, head: int) -> int:
        return min(max(self.lost + 1, SEQ_BASE), head + 1)

    def raise_to(self, op: Evict) -> None:
        self.cap_lost = max(self.cap_lost, op.cap_lost)
        self.ttl_lost = max(self.ttl_lost, op.ttl_lost)
        self.trim_lost = max(self.trim_lost, op.trim_lost)
        self.restart_lost = max(self.restart_lost, op.restart_lost)

    def absorb(self, hi: int, reason: LostReason) -> None:
        """A lost range that ends at `hi` has become part of the lost front."""
        if reason == "restart":
            self.restart_lost = max(self.restart_lost, hi)
        elif reason == "source_trim":
            self.trim_lost = max(self.trim_lost, hi)
        else:
            self.cap_lost = max(self.cap_lost, hi)

    def reason_since(self, gap_from: int) -> str:
        """Why a reader at `gap_from` finds the front missing; more than one contributing cause is `mixed`."""
        causes = [
            name
            for name, lost in (
                ("cap", self.cap_lost),
                ("ttl", self.ttl_lost),
                ("source_trim", self.trim_lost),
                ("restart", self.restart_lost),
            )
            if lost >= gap_from
        ]
        return causes[0] if len(causes) == 1 else "mixed"


class LostRange(NamedTuple):
    lo: int
    hi: int
    reason: LostReason


class LostRanges:
    """Involuntary gaps above `evict_floor`, in the middle of a log.

    What always holds: ranges are disjoint, ascending, inclusive at both ends; adjacent ones with one reason are one. A
    range leaves only through `absorb`, when the floor has reached its start. Owned by a topic's state; few, so a
    list."""

    __slots__ = ("_ranges",)

    def __init__(self, ranges: Iterable[Lost] = ()) -> None:
        self._ranges: list[LostRange] = []
        for lo, hi, reason in ranges:
            self.add(lo, hi, reason)

    def __len__(self) -> int:
        return len(self._ranges)

    def __iter__(self) -> Iterator[LostRange]:
        return iter(self._ranges)

    def add(self, lo: int, hi: int, reason: LostReason) -> list[tuple[int, int]]:
        """Add what is not lost already, merged with its neighbours; the new pieces are returned."""
        pieces = self._uncovered(lo, hi)
        if pieces:
            fresh = [LostRange(a, b, reason) for a, b in pieces]
            self._ranges = _merged(sorted([*self._ranges, *fresh]))
        return pieces

    def _uncovered(self, lo: int, hi: int) -> list[tuple[int, int]]:
        pieces: list[tuple[int, int]] = []
        for known in self._ranges:
            if known.lo > hi:
                break
            if known.hi < lo:
                continue
            if known.lo > lo:
                pieces.append((lo, known.lo - 1))
            lo = known.hi + 1
        if lo <= hi:
            pieces.append((lo, hi))
        return pieces

    def absorb(self, evict_floor: int) -> list[LostRange]:
        """Take out the leading ranges that start at or below the floor; each of them raises it further."""
        taken: list[LostRange] = []
        while self._ranges and self._ranges[0].lo <= evict_floor:
            first = self._ranges.pop(0)
            taken.append(first)
            evict_floor = max(evict_floor, first.hi + 1)
        return taken

    def find(self, seq: int) -> LostRange | None:
        """The range that holds `seq`."""
        at = bisect_right(self._ranges, seq, key=_lo)
        if at and self._ranges[at - 1].hi >= seq:
            return self._ranges[at - 1]
        return None

    def next_lo(self, seq: int) -> int | None:
        """Where the first range at or above `seq` starts."""
        at = bisect_right(self._ranges, seq - 1, key=_lo)
        return self._ranges[at].lo if at < len(self._ranges) else None


def _lo(lost: LostRange) -> int:
    return lost.lo


def _merged(ranges: list[LostRange]) -> list[LostRange]:
    merged: list[LostRange] = []
    for lost in ranges:
        if merged and merged[-1].hi + 1 == lost.lo and merged[-1].reason == lost.reason:
            merged[-1] = LostRange(merged[-1].lo, lost.hi, lost.reason)
        else:
            merged.append(lost)
    return merged
