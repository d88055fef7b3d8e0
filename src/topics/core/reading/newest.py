"""Newest: the newest live record, of all or of a tag (`docs/spec/readers.md#sec-4`, `docs/spec/readers.md#sec-6`).

    search = NewestSearch(match)
    while isinstance(found := search.seq(topic), Sealed):
        ...                                 # load its index, then ask again: the owner's thread reads no file

Asks the tag indexes from the newest block on and ends at the first match. A search remembers which segments have no
live match, and these are not asked again: no record comes back to life, and what is sealed meanwhile was in the tail
before, or is new. So only one segment has to be loaded at a time, and a topic may have more than are kept mapped."""

from __future__ import annotations

from topics.core.retention.removal import alive_of
from topics.core.slots.sealed_slots import Sealed
from topics.core.topic import TopicLog
from topics.model.names import TagMatch


class NewestSearch:
    def __init__(self, match: TagMatch | None) -> None:
        self._match = match
        self._passed: list[_Passed] = []

    def seq(self, topic: TopicLog) -> int | Sealed:
        """The seq of the newest live record that matches now, 0 if there is none; or the segment to load first."""
        found = _newest_in_tail(topic, self._match)
        bound = max(found + 1, topic.earliest_seq)
        current: _Passed | None = None
        block = topic.sealed.last_below(topic.head + 1)
        while block is not None and block.next_seq > bound:
            known = self._passed_with(block)
            if known is not None:
                current = known if current is None else self._join(current, known)
            elif block.live and (not block.view.loaded or block.first_seq in topic.awaiting):
                return block
            elif (slot := self._newest_in(topic, block)) >= 0:
                return max(found, block.first_seq + slot)
            elif current is None:
                current = _Passed(block.first_seq, block.next_seq)
                self._passed.append(current)
            else:
                current.first_seq = block.first_seq
            block = topic.sealed.last_below(current.first_seq)
        return found

    def _newest_in(self, topic: TopicLog, block: Sealed) -> int:
        """The slot of the newest live record that matches; -1 if there is none."""
        if not block.live:
            return -1
        lo = max(topic.earliest_seq - block.first_seq, 0)
        if self._match is None:
            slot = block.last_live(lo, block.count)
            return slot if slot >= lo else -1
        slots = block.view.tag_slots(self._match)
        slots = alive_of(block, slots[slots >= lo])
        return int(slots[-1]) if len(slots) else -1

    def _passed_with(self, block: Sealed) -> _Passed | None:
        for passed in self._passed:
            if passed.first_seq <= block.first_seq and block.next_seq <= passed.next_seq:
                return passed
        return None

    def _join(self, upper: _Passed, lower: _Passed) -> _Passed:
        upper.first_seq = lower.first_seq
        self._passed.remove(lower)
        return upper


class _Passed:
    """Seqs from the first to before the next: no sealed segment among them has a live match. There are several ranges
    only while segments that were sealed during the search have not been asked yet."""

    __slots__ = ("first_seq", "next_seq")

    def __init__(self, first_seq: int, next_seq: int) -> None:
        self.first_seq = first_seq
        self.next_seq = next_seq


def _newest_in_tail(topic: TopicLog, match: TagMatch | None) -> int:
    earliest = topic.earliest_seq
    if match is not None:
        return topic.tags.newest(match, earliest, topic.head + 1, topic.live)
    for run in reversed(topic.tail.runs):
        lo = max(earliest - run.first_seq, 0)
        if lo < run.count and (slot := run.last_live(lo, run.count)) >= lo:
            return run.first_seq + slot
    return 0
