"""The oracle of a power-cut run: it knows what clients were told, and what the server shows after each start.

Written apart from the engine. A record's payload is a token that no other record has, so a record that comes back says
which one it is. `Violation` carries one sentence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.powercut.topics_under_load import TOPICS, Kind, tag_of


class Violation(AssertionError):
    pass


@dataclass
class Shown:
    """What a full read of a topic and its state give."""

    records: dict[int, str]
    gaps: list[tuple[int, int, str]]
    head: int
    earliest: int
    count: int

    def announced(self, seq: int) -> bool:
        return any(lo <= seq <= hi for lo, hi, _ in self.gaps)


@dataclass
class Told:
    """What was heard of one topic."""

    known: dict[int, str] = field(default_factory=dict)  # acked or read, for ever
    acked: dict[int, str] = field(default_factory=dict)
    tried: set[str] = field(default_factory=set)
    deleting: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    undecided: list[dict[str, Any]] = field(default_factory=list)  # deletes without an answer, since the last start
    lost: set[int] = field(default_factory=set)  # announced by a start, as gone for good
    earliest: int = 1
    gaps: list[tuple[int, int, str]] = field(default_factory=list)


class Oracle:
    def __init__(self) -> None:
        self.told = {name: Told() for name in TOPICS}
        self.heard = 0
        self.lost = 0
        self.refused: list[str] = []

    # --- listening ----------------------------------------------------------------------------------------------------

    def hear(self, event: list[Any], *, late: bool) -> None:
        """`late`: the shutdown had begun. It is not one moment, as a power cut is: ext4 may return from a sync that was
        under way, and has not written what it covers. Such an answer is no answer."""
        what, name, *rest = event
        self.heard += 1
        if late and what in ("ack", "read", "deleted"):
            return
        told = self.told[name]
        if what == "try":
            told.tried.update(rest[0])
        elif what == "ack":
            self._acked(name, told, *rest)
        elif what == "read":
            self._read(name, told, dict(rest[0]), rest[1])
        elif what == "deleting":
            told.deleting |= self._selected(told, rest[0])
            told.undecided.append(rest[0])
        elif what == "deleted":
            told.deleted |= self._selected(told, rest[0])
            told.undecided.pop()
        else:
            self.refused.append(f"{name}: {rest[0]}")

    def _acked(self, name: str, told: Told, first_seq: int, tokens: list[str]) -> None:
        for seq, token in enumerate(tokens, first_seq):
            self._same(name, told, seq, token)
            told.acked[seq] = token

    def _read(self, name: str, told: Told, records: dict[int, str], earliest: int) -> None:
        for seq, token in records.items():
            self._same(name, told, seq, token)
        told.earliest = max(told.earliest, earliest)

    def _same(self, name: str, told: Told, seq: int, token: str) -> None:
        if told.known.setdefault(seq, token) != token:
            raise Violation(f"{name}: seq {seq} was {told.known[seq]!r} and is {token!r} now")
        if seq in told.lost:
            raise Violation(f"{name}: seq {seq} was announced as lost and holds {token!r} now")

    @staticmethod
    def _selected(told: Told, by: dict[str, Any]) -> set[int]:
        if "seqs" in by:
            return set(by["seqs"])
        if "match" in by:
            return {seq for seq, token in told.known.items() if tag_of(token) == by["match"]}
        return {seq for seq in told.known if seq < by["before_seq"]}

    # --- judging ------------------------------------------------------------------------------------------------------

    def judge(self, shown: dict[str, Shown], *, killed_only: bool) -> None:
        for name, kind in TOPICS.items():
            self._judge_topic(name, kind, self.told[name], shown[name], killed_only=killed_only)
        for name, kind in TOPICS.items():
            if kind.fed_by:
                self._judge_copies(name, shown[name], shown[kind.fed_by])
        for name, found in shown.items():
            told = self.told[name]
            told.lost |= {seq for lo, hi, why in found.gaps if why == "restart" for seq in range(lo, hi + 1)}
            told.gaps = found.gaps
            told.undecided.clear()
        self.lost += sum(hi - lo + 1 for found in shown.values() for lo, hi, why in found.gaps if why == "restart")

    def _judge_topic(self, name: str, kind: Kind, told: Told, found: Shown, *, killed_only: bool) -> None:
        floor_may_fall = self._floor_may_fall(kind, told)
        if found.earliest < told.earliest and not floor_may_fall:
            raise Violation(f"{name}: earliest_seq fell from {told.earliest} to {found.earliest}")
        if found.head < max(told.known, default=0):
            raise Violation(f"{name}: head {found.head} lies below seq {max(told.known)}, which was seen")
        self._judge_records(name, kind, told, found)
        self._judge_missing(name, kind, told, found)
        if "ttl_ms" not in kind.config:  # those go while they are counted
            if found.count != len(found.records):
                raise Violation(f"{name}: count {found.count}, but {len(found.records)} can be read")
            if found.earliest != min(found.records, default=found.head + 1):
                raise Violation(f"{name}: earliest_seq {found.earliest}, first record {min(found.records, default=0)}")
        if killed_only and not kind.limited and not kind.fed_by and found.gaps != told.gaps:
            raise Violation(f"{name}: a kill opened a gap: {told.gaps[-2:]} before, {found.gaps[-2:]} now")
        self._read(name, told, found.records, 1 if floor_may_fall else found.earliest)

    def _floor_may_fall(self, kind: Kind, told: Told) -> bool:
        """Deletes of `memory` are kept as its records are; and a delete that nobody answered may have moved it."""
        return not kind.deletes_last

    def _judge_records(self, name: str, kind: Kind, told: Told, found: Shown) -> None:
        by_token: dict[str, int] = {}
        tried = self.told[kind.fed_by].tried if kind.fed_by else told.tried
        for seq, token in found.records.items():
            if seq in told.deleted and kind.deletes_last:  # not while clients run: a read may be older than it is told
                raise Violation(f"{name}: seq {seq} was deleted and is there again")
            if token not in tried:
                raise Violation(f"{name}: seq {seq} holds {token!r}, which nobody wrote")
            if by_token.setdefault(token, seq) != seq and not kind.fed_by:
                raise Violation(f"{name}: {token!r} is there twice, as {by_token[token]} and {seq}")
            if found.announced(seq):
                raise Violation(f"{name}: seq {seq} is there and announced as gone")

    def _judge_missing(self, name: str, kind: Kind, told: Told, found: Shown) -> None:
        expected = told.known if kind.fed_by or kind.limited else told.acked | told.known
        for seq in expected:
            if seq in found.records or seq in told.deleting:
                continue
            if not found.announced(seq):
                raise Violation(f"{name}: seq {seq} is missing in silence")
            if kind.keeps and (not kind.limited or seq > found.head - kind.cap):
                raise Violation(f"{name}: seq {seq} is lost: {[gap for gap in found.gaps if gap[0] <= seq <= gap[1]]}")

    def _judge_copies(self, name: str, found: Shown, source: Shown) -> None:
        there = set(found.records.values())
        missing = [token for token in source.records.values() if token not in there]
        if missing:
            raise Violation(f"{name}: {len(missing)} records of its source have no copy: {missing[:3]}")
        if TOPICS[name].keeps is False and name == "copies" and len(there) != len(found.records):
            raise Violation(f"{name}: {len(found.records) - len(there)} copies are there twice")
