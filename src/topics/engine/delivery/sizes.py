"""Sizes: how many bytes were published behind a seq. Asked while pushes are held: a full batch ends a hold."""

from __future__ import annotations

from topics.core.front import blocks_from
from topics.core.topic import TopicState


def bytes_since(topic: TopicState, seq: int) -> int:
    """Accounted bytes of the slots above `seq`; these are recent, so they lie in the tail."""
    total = 0
    for block in blocks_from(topic, seq + 1):
        lo = max(seq + 1 - block.first_seq, 0)
        total += int(block.sizes_of(lo, block.next_seq - block.first_seq).sum())
    return total
