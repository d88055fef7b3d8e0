"""Losses on their way: how many routers a lost range in a topic has come through.

A lost range in a source becomes one in the destination; in a cycle it would go round for ever. So it has a hop count,
as copies have, kept in memory only: a restart begins anew at 0, and forwarding still ends. Forgotten once every router
of the topic has passed the range."""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple

from topics.core.state import State


class Stretch(NamedTuple):
    """Lost seqs up to `last` that have one hop count."""

    last: int
    hops: int


class Losses:
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

    def stretch(self, topic_id: int, first: int, last: int) -> Stretch:
        """The first part of `first..last` that is of one kind."""
        for lo, hi, hops in self._ranges.get(topic_id, ()):
            if lo <= first <= hi:
                return Stretch(min(hi, last), hops)
            if first < lo <= last:
                return Stretch(lo - 1, 0)
        return Stretch(last, 0)
