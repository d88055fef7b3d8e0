"""Snapshot items to topics: the inverse of what the snapshotter writes."""

from __future__ import annotations

from topics.core.capture import TopicImage, restore
from topics.core.topic import TopicState
from topics.formats.snapshot import TopicItem
from topics.model.config import TopicConfig


def topic_from_item(item: TopicItem) -> TopicState:
    """The topic without its records; segments and log bring those."""
    return restore(
        TopicImage(
            id=item.id,
            name=item.name,
            epoch=item.epoch,
            config=TopicConfig.from_stored(item.config),
            created_ts=item.created_ts,
            last_ts=item.last_ts,
            head=item.head,
            ceiling=item.ceiling,
            ckpt_seq=item.ckpt_seq,
            base_seq=item.base_seq,
            earliest_seq=item.earliest_seq,
            evict_floor=item.evict_floor,
            cap_lost=item.cap_lost,
            ttl_lost=item.ttl_lost,
            trim_lost=item.trim_lost,
            restart_lost=item.restart_lost,
            delete_below=item.delete_below,
            count=item.count,
            bytes=item.bytes,
            lost=[(lost.first, lost.last, lost.reason) for lost in item.lost],
            dead=[(dead.first, dead.last) for dead in item.dead],
            segments=[],
            active=(0, 0),
            idem=[(row.key, row.ts, row.first_seq, row.count, row.head) for row in item.idem],
        )
    )
