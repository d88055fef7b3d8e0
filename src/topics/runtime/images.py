"""Snapshot items to topics and back, as far as that is a matter of names."""

from __future__ import annotations

from topics.core.capture import TopicImage, restore
from topics.core.queue_image import QueueImage, capture_queue, restore_queue
from topics.core.topic import TopicState
from topics.formats.snapshot import DelayedItem, DeliveriesItem, LeaseItem, QueueItem, TopicItem
from topics.model.config import TopicConfig


def topic_from_item(item: TopicItem) -> TopicState:
    """The topic without its records; segments and log bring those."""
    topic = restore(
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
    if topic.queue is not None and item.queue is not None:
        topic.queue = restore_queue(_queue_image(item.queue))
    return topic


def queue_item(topic: TopicState, *, clean: bool) -> QueueItem | None:
    """What a snapshot keeps of a queue; None for a log topic."""
    if topic.queue is None:
        return None
    image = capture_queue(topic.queue, topic.config, clean=clean)
    return QueueItem(
        next_lease_id=image.next_lease_id,
        dead_lettered=image.dead_lettered,
        claim_cursor=image.claim_cursor,
        leases=tuple(LeaseItem(*row) for row in image.leases),
        deliveries=tuple(DeliveriesItem(*row) for row in image.deliveries),
        reclaim=tuple(image.reclaim),
        delayed=tuple(DelayedItem(*row) for row in image.delayed),
    )


def _queue_image(item: QueueItem) -> QueueImage:
    return QueueImage(
        next_lease_id=item.next_lease_id,
        dead_lettered=item.dead_lettered,
        claim_cursor=item.claim_cursor,
        leases=[(row.seq, row.node, row.lease_id, row.deadline, row.deliveries) for row in item.leases],
        deliveries=[(row.seq, row.n) for row in item.deliveries],
        reclaim=list(item.reclaim),
        delayed=[(row.ready_at, row.seq) for row in item.delayed],
    )
