"""Fresh jobs: live records behind the claim cursor, found by whole stretches of slots.

Retention at `now` has run, so nothing below the front is looked at and nothing expired is found. A cold segment whose
index is not loaded stops the walk in front of it: the caller has it loaded and asks again.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from topics.core.extent import Extent, index_of
from topics.core.front import blocks_from, index_needed
from topics.core.sealed import Sealed
from topics.core.slots import Slots
from topics.core.topic import TopicState
from topics.errors import ColdUnavailable


class Fresh(NamedTuple):
    """`cursor` is the highest seq dealt with: everything live at or below it is known or among `seqs`."""

    seqs: list[int]
    cursor: int
    index_extent: Extent | None


def fresh_seqs(topic: TopicState, *, after: int, wanted: int, known: Container[int]) -> Fresh:
    """Up to `wanted` live seqs above `after` that are not known, ascending."""
    seqs: list[int] = []
    cursor = max(after, topic.floors.earliest_seq - 1)
    if wanted <= 0 or cursor >= topic.head:
        return Fresh(seqs, max(after, min(cursor, topic.head)), None)
    for block in blocks_from(topic, cursor + 1):
        if block.first_seq > topic.head:
            break
        needed = index_needed(topic, block)
        try:
            if needed is None:
                cursor = _take(topic, block, cursor, wanted, known, seqs)
        except ColdUnavailable:
            assert isinstance(block, Sealed)
            needed = block
        if needed is not None:
            return Fresh(seqs, cursor, index_of(needed, max(cursor + 1, needed.first_seq)))
        if len(seqs) == wanted:
            return Fresh(seqs, cursor, None)
    return Fresh(seqs, topic.head, None)


def _take(topic: TopicState, block: Slots, cursor: int, wanted: int, known: Container[int], seqs: list[int]) -> int:
    """Take from one block; returns how far it was looked through."""
    lo = max(cursor + 1 - block.first_seq, 0)
    hi = min(block.next_seq, topic.head + 1) - block.first_seq
    while lo < hi:
        stop = min(hi, lo + 2 * (wanted - len(seqs)) + 64)
        for slot in block.live_slots(lo, stop).tolist():
            seq = block.first_seq + slot
            if seq not in known:
                seqs.append(seq)
                if len(seqs) == wanted:
                    return int(seq)
        lo = stop
    return block.first_seq + hi - 1
