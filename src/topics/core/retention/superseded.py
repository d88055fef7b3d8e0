"""Superseded: what `compact: "tag"` may take (`docs/spec/readers.md#sec-7`).

Superseded is not lost: these removals are deletes by seqs, no floor moves and no reader gets a tombstone. What always
holds: a record goes only if a newer one of its tag has been published for the grace time, or if it says itself, by a
payload of null, that its tag is gone; and the removal is logged behind everything that is a reason for it."""

from __future__ import annotations

from topics.core.delete import decide_delete_seqs
from topics.core.reading.seek import seq_before_time
from topics.core.slots.sealed_slots import Sealed
from topics.core.topic import TopicLog
from topics.model.ops import Delete

TAIL_RECORDS = 65_536  # of the tail that one pass goes beyond the last: what a step may find of one tag


def is_due(topic: TopicLog) -> bool:
    """May there be something to take?"""
    return topic.config.compact is not None and topic.compacted_to < topic.head


def settled_to(topic: TopicLog, *, now: int, fed: bool) -> int | Sealed:
    """The last record that has been published for the grace time and that no crash can take back once a frame behind
    it is synced. Or the segment whose times have to be loaded first."""
    bound = seq_before_time(topic, max(now - topic.config.compact_grace_ms, 0) + 1)
    if isinstance(bound, Sealed):
        return bound
    if (fed or topic.resident.bytes) and not topic.config.is_ephemeral:
        bound = min(bound, topic.ckpt_seq)  # copies of a router have no frames: a checkpoint makes them safe
    sealed = topic.sealed
    sealed_to = sealed[len(sealed) - 1].next_seq - 1 if len(sealed) else 0
    return min(bound, max(sealed_to, topic.compacted_to + TAIL_RECORDS))


def decide_compact(topic: TopicLog, seqs: list[int]) -> Delete:
    """Take these superseded records, or those that removed their tags."""
    return decide_delete_seqs(topic, tuple(seqs), reason="compact")


def removes_tag(blob: bytes) -> bool:
    """Is the data of this payload null?"""
    return blob.startswith(b'{"d":null')  # no other JSON text begins so
