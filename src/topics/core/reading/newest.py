"""Newest: the newest live record, of all or of a tag (`docs/spec/readers.md#sec-4`, `docs/spec/readers.md#sec-6`).

Asks the tag indexes from the newest block on and ends at the first match. A segment that is not loaded is given back,
for the engine to load it and ask again: the owner's thread reads no file."""

from __future__ import annotations

from topics.core.retention.removal import alive_of
from topics.core.slots.sealed_slots import Sealed
from topics.core.topic import TopicLog
from topics.model.names import TagMatch


def newest(topic: TopicLog, match: TagMatch | None) -> int | Sealed:
    """The seq of the newest live record that matches, 0 if there is none; or the segment to load first."""
    found = _newest_in_tail(topic, match)
    earliest = topic.earliest_seq
    for sealed in reversed(list(topic.sealed.from_seq(earliest))):
        if sealed.next_seq <= found:
            break
        if not sealed.live:
            continue
        if not sealed.view.loaded or sealed.first_seq in topic.awaiting:
            return sealed
        lo = max(earliest - sealed.first_seq, 0)
        if match is None:
            slot = sealed.last_live(lo, sealed.count)
        else:
            slots = sealed.view.tag_slots(match)
            slots = alive_of(sealed, slots[slots >= lo])
            slot = int(slots[-1]) if len(slots) else -1
        if slot >= lo:
            return max(found, sealed.first_seq + slot)
    return found


def _newest_in_tail(topic: TopicLog, match: TagMatch | None) -> int:
    earliest = topic.earliest_seq
    if match is not None:
        return topic.tags.newest(match, earliest, topic.head + 1, topic.live)
    for run in reversed(topic.tail.runs):
        lo = max(earliest - run.first_seq, 0)
        if lo < run.count and (slot := run.last_live(lo, run.count)) >= lo:
            return run.first_seq + slot
    return 0
