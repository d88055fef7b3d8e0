"""Copies: what a router's step makes of source records, and what the steps of several routers share.

copies_op   copies as an op: encoded like records of the log, but in memory until a checkpoint has them in segments
SharedRead  what the routers of one source read in one turn
LossHops    how many routers a lost range has come through
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from typing import NamedTuple

from topics.core.append import Reservation
from topics.core.reading.walk import ReadOutcome
from topics.core.router import RouterProgress
from topics.core.router_copy import Copy, batch_of
from topics.core.state import State
from topics.core.topic import TopicLog
from topics.engine.writing.encode import encode_append
from topics.model.ops import HOPS_SHIFT, RESIDENT, Append


def copies_op(dest: TopicLog, reservation: Reservation, copies: Sequence[Copy]) -> Append:
    """The op of copies that have their seqs and one time."""
    op = encode_append(dest, batch_of(copies), reservation, durable=False)
    op.file = RESIDENT
    op.hops = max([copy.hops for copy in copies])
    flags = op.flags
    for at, copy in enumerate(copies):
        flags[at] |= copy.hops << HOPS_SHIFT
    return op


class LossRun(NamedTuple):
    """Lost seqs up to `last` that have one hop count."""

    last: int
    hops: int


class LossHops:
    """How many routers a lost range in a topic has come through.

    A lost range in a source becomes one in the destination; in a cycle it would go round for ever. So it has a hop
    count, as copies have, kept in memory only: a restart begins again at 0, and forwarding still ends. Forgotten once
    every router of the topic has passed the range."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._ranges: dict[int, list[tuple[int, int, int]]] = {}

    def note(self, topic_id: int, first: int, last: int, *, hops: int) -> None:
        """A topic that is itself a source takes a range from a router."""
        routers = self._state.routers.from_source(topic_id)
        if not routers:
            return
        passed = min(router.cursor for router in routers)
        kept = [known for known in self._ranges.get(topic_id, ()) if known[1] > passed and known[0] != first]
        insort(kept, (first, last, hops))
        self._ranges[topic_id] = kept

    def first_run(self, topic_id: int, first: int, last: int) -> LossRun:
        """The first part of `first..last` that has one hop count."""
        for lo, hi, hops in self._ranges.get(topic_id, ()):
            if lo <= first <= hi:
                return LossRun(min(hi, last), hops)
            if first < lo <= last:
                return LossRun(lo - 1, 0)
        return LossRun(last, 0)


class SharedRead:
    """What the routers of one source read in one turn: the newest read, and the copies that were made of it.

    Under a fan-out most routers stand at the same cursor and want the same copies, so the source is read once and its
    records are decoded once. Only for steps that begin in the same turn. The key of a read is the router's cursor and
    the numbers that a change of the source would change."""

    def __init__(self) -> None:
        self._key: tuple[int, ...] = ()
        self._outcome: ReadOutcome | None = None
        self._copies: dict[tuple[object, ...], list[Copy]] = {}

    def outcome(self, key: tuple[int, ...]) -> ReadOutcome | None:
        return self._outcome if self._key == key else None

    def keep(self, key: tuple[int, ...], outcome: ReadOutcome) -> None:
        self._key, self._outcome = key, outcome
        self._copies.clear()

    def copies(self, router: RouterProgress, choose: Callable[[], list[Copy]]) -> list[Copy]:
        """A copy of an `exactly_once` router carries the router's name, so it cannot be shared."""
        wanted = router.definition
        if wanted.guarantee == "exactly_once":
            return choose()
        key = (wanted.filter, wanted.preserve_node, wanted.preserve_tag)
        found = self._copies.get(key)
        if found is None:
            found = self._copies[key] = choose()
        return found
