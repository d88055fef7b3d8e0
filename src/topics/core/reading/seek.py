"""Seek: the seq from which a read by time begins (`docs/spec/readers.md#sec-2`).

Times never fall as seqs grow, so the begin is found by bisection: over blocks first, then within one."""

from __future__ import annotations

from topics.core.retention.removal import awaited, blocks_from
from topics.core.topic import TopicLog


def seq_before_time(topic: TopicLog, ts: int) -> int:
    """The last seq before the first record of this time or later; the head if there is none. Raises ColdUnavailable
    where the index of a cold segment has to be loaded first; the segment is on the topic's waiting list then."""
    before = topic.earliest_seq - 1
    for block in blocks_from(topic, topic.earliest_seq):
        with awaited(topic, block):
            earlier = block.expired(ts)
        if earlier:
            before = max(before, block.first_seq + earlier - 1)
        if earlier < block.count:
            return before
    return topic.head
