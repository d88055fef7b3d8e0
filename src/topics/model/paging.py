"""Spans: a topic's records as ranges of seqs that lie in one place each, as a manifest lists them.

Paging: a cursor moved through a log, page by page, and the gaps met on the way. The same through every door.

A gap is never passed in silence: it raises `DataLoss`, or comes as a `Gap` among the records if `gaps="yield"`. One
exception: a reader who starts at 0 asks for what is retained, so a front that was gone when it came is no loss to it;
what goes while it is there is. Pure; used by the embedded library and by the clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Literal

import msgspec

from topics.errors import DataLoss, Internal, InvalidRequest
from topics.model.names import TopicName
from topics.model.position import START, Position, checked_position, parse_token, token
from topics.model.results import AppendResult, ReadResult, Record

Span = tuple[int, int]
"""First and last seq, both included."""


def refuse_overlap(topic: str, spans: Iterable[Span]) -> None:
    """Raise unless every span begins behind the one before it: whoever reads them would get records twice."""
    listed = [(0, 0), *spans]
    for before, span in pairwise(listed):
        if not before[1] < span[0] <= span[1]:
            where = f"{span[0]}..{span[1]} after {before[0]}..{before[1]}"
            raise Internal(f"the blocks of topic {topic!r} are not in order: {where}; nothing was read")


class RecordResult(msgspec.Struct, frozen=True):
    """What a call for one record answers: the record, and where a reader stands that has seen it."""

    topic: TopicName
    record: Record
    position: str


Gaps = Literal["raise", "yield"]


def node_names(exclude_nodes: Iterable[str]) -> tuple[str, ...]:
    """One node's name or several: a string is a name, not a list of its letters."""
    names = (exclude_nodes,) if isinstance(exclude_nodes, str) else tuple(exclude_nodes)
    for name in names:
        try:
            str.encode(name)
        except (TypeError, UnicodeEncodeError):
            raise InvalidRequest(f"exclude_nodes is the name of a node, or several, not {name!r}") from None
    return names


class Gap(msgspec.Struct, frozen=True, eq=False):
    """Seqs that were lost without a request, first and last included, and why. `position` is behind the gap: where to
    go on is no part of what was lost, so gaps are equal without it."""

    topic: str
    gap_from: int
    gap_to: int
    reason: str
    position: int | str | None = msgspec.field(name="next", default=None)

    def _lost(self) -> tuple[str, int, int, str]:
        return self.topic, self.gap_from, self.gap_to, self.reason

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gap) and self._lost() == other._lost()

    def __hash__(self) -> int:
        return hash(self._lost())

    def as_error(self) -> DataLoss:
        """What a reader with `gaps="raise"` gets instead."""
        return DataLoss(
            topic=self.topic,
            gap_from=self.gap_from,
            gap_to=self.gap_to,
            reason=self.reason,
            position=self.position,
        )


After = int | str | Record | ReadResult | AppendResult | Gap | Position
"""Where a reader begins: behind a position that was handed out, or what has one; behind a bare seq; 0 is the start."""


class Walk:
    """A reader on its way: where it stands, how many records it still wants, what it does about gaps."""

    __slots__ = ("_gaps", "_head", "_head_seen", "_left", "_topic", "is_new", "position")

    def __init__(self, topic: str, after: After, *, gaps: Gaps, limit: int | None = None) -> None:
        if gaps not in ("raise", "yield"):
            raise InvalidRequest(f'gaps is "raise" or "yield", not {gaps!r}')
        if limit is not None and (not isinstance(limit, int) or limit < 0):
            raise InvalidRequest(f"limit is a number of records, or None for all, not {limit!r}")
        self._topic = topic
        self._gaps = gaps
        self._left = limit
        self._head: int | None = None
        self._head_seen = 0
        self.position = checked_position(after)
        self.is_new = self.position == START
        """It starts at 0 and was told nothing yet: what is gone went before it came."""

    @property
    def cursor(self) -> int:
        return self.position.seq

    @property
    def is_full(self) -> bool:
        """The wanted number of records was handed out."""
        return self._left is not None and self._left <= 0

    def page_limit(self, most: int) -> int:
        return most if self._left is None else max(1, min(most, self._left))

    def take(self, page: ReadResult) -> Iterator[Record | Gap]:
        """The items of one page. The cursor moves past it first, so a reader that stops at a gap stops behind it."""
        gaps, count = self.enter(page, len(page.records))
        yield from gaps
        yield from page.records if count == len(page.records) else page.records[:count]

    def enter(self, page: ReadResult, records: int) -> tuple[list[Gap], int]:
        """Move past a page that has so many records: its gaps, and how many of its records are wanted."""
        if page.tombstone is None and page.head_seq < self._head_seen:  # no topic gets shorter: this is another one
            return list(self.restart(head_seq=page.head_seq)), 0
        self.position, self._head_seen = end_of(page), page.head_seq
        if self._head is None or (page.tombstone is not None and page.tombstone.reason == "recreated"):
            self._head = page.head_seq
        gaps = [] if page.tombstone is None else list(self.meet(self._gap_of(page)))
        self.arrive()
        if self._left is None:
            return gaps, records
        count = min(records, self._left)
        self._left -= count
        return gaps, count

    def meet(self, gap: Gap) -> Iterator[Gap]:
        if self._gaps == "yield":
            yield gap
        elif not self.is_new or gap.gap_from > 1:
            raise gap.as_error()

    def restart(self, *, head_seq: int) -> Iterator[Gap]:
        """The topic was made anew, with so many records by now: all of them are still to come."""
        self.position, self._head, self._head_seen = START, head_seq, head_seq
        yield from self.meet(Gap(self._topic, 1, head_seq, "recreated"))
        self.arrive()

    def arrive(self) -> None:
        """An answer came: from here on the reader has a place in the log, be it before its first record."""
        self.is_new = False

    def has_more(self, page: ReadResult) -> bool:
        """Up to the head that the first page saw: a log that grows meanwhile does not make a read endless."""
        assert self._head is not None
        is_behind = not page.caught_up or self.cursor < page.next_from_seq
        return not self.is_full and is_behind and self.cursor < self._head

    def _gap_of(self, page: ReadResult) -> Gap:
        gap = page.tombstone
        assert gap is not None
        behind = gap.earliest_seq - 1 if gap.reason == "recreated" else gap.gap_to
        epoch = self.position.epoch
        position = behind if epoch is None else token(behind, epoch)
        return Gap(self._topic, gap.gap_from, gap.gap_to, gap.reason, position)


def end_of(page: ReadResult) -> Position:
    """Where a page leaves its reader."""
    return Position(page.next_from_seq) if page.next is None else parse_token(page.next)
