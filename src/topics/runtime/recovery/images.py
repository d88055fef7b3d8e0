"""Snapshot items to topics and back, as far as that is a matter of names."""

from __future__ import annotations

import msgspec

from topics.core.capture import TopicImage, restore
from topics.core.queue.image import QueueImage, capture_queue, restore_queue
from topics.core.router import RouterProgress
from topics.core.topic import TopicLog
from topics.engine.recovery.decode import router_put
from topics.formats.snapshot import (
    DelayedItem,
    DeliveriesItem,
    LeaseItem,
    NoteItem,
    QueueItem,
    RouterItem,
    TopicItem,
    UniqueKeyItem,
)
from topics.model.config import TopicConfig
from topics.model.cursor import NamedCursor
from topics.model.ops import RouterMark, RouterPut


def topic_from_item(item: TopicItem) -> TopicLog:
    """The topic without its records; segments and log bring those."""
    topic = restore(
        TopicImage(
            id=item.id,
            name=item.name,
            epoch=item.epoch,
            ancestors=tuple((row.epoch, row.head) for row in item.ancestors),
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
            lost=list(item.lost),
            dead=[(dead.first, dead.last) for dead in item.dead],
            segments=[],
            active=(0, 0),
            idem=[(row.key, row.ts, row.first_seq, row.count, row.head) for row in item.idem],
            cursors=[NamedCursor(**msgspec.structs.asdict(row)) for row in item.cursors],
            schedules=list(item.schedules),
        )
    )
    if topic.queue is not None and item.queue is not None:
        topic.queue = restore_queue(_queue_image(item.queue), topic.config, topic.id)
    return topic


def queue_item(topic: TopicLog, *, clean: bool) -> QueueItem | None:
    """What a snapshot keeps of a queue; None for a log topic."""
    if topic.queue is None:
        return None
    image = capture_queue(topic.queue, topic.config, clean=clean)
    return QueueItem(
        next_lease_id=image.next_lease_id,
        dead_lettered=image.dead_lettered,
        leases=tuple(LeaseItem(*row) for row in image.leases),
        deliveries=tuple(DeliveriesItem(*row) for row in image.deliveries),
        reclaim=tuple(image.reclaim),
        delayed=tuple(DelayedItem(*row) for row in image.delayed),
        streamed=tuple(image.streamed),
        notes=tuple(NoteItem(*row) for row in image.notes),
        fields=image.fields if image.fields[0] else None,
        unique=tuple(UniqueKeyItem(*row) for row in image.unique),
    )


def _queue_image(item: QueueItem) -> QueueImage:
    return QueueImage(
        next_lease_id=item.next_lease_id,
        dead_lettered=item.dead_lettered,
        leases=[(row.seq, row.node, row.lease_id, row.deadline, row.deliveries) for row in item.leases],
        deliveries=[(row.seq, row.n) for row in item.deliveries],
        reclaim=list(item.reclaim),
        delayed=[(row.ready_at, row.seq) for row in item.delayed],
        streamed=list(item.streamed),
        notes=[msgspec.structs.astuple(row) for row in item.notes],
        fields=item.fields or (b"", b"", b""),
        unique=[(row.key, row.seq, row.until) for row in item.unique],
    )


def router_item(router: RouterProgress, place: RouterMark) -> RouterItem:
    """A router with its place as of the checkpoint."""
    return RouterItem(
        **msgspec.structs.asdict(router.definition),
        source_id=router.source_id,
        dest_id=router.dest_id,
        initial_cursor=router.initial_cursor,
        initial_dest_base=router.initial_dest_base,
        created_ts=router.created_ts,
        rev=router.rev,
        cursor=place.cursor,
        forwarded_total=place.forwarded_total,
        dest_base=place.dest_base,
        dead=place.dead,
    )


def router_from_item(item: RouterItem) -> tuple[RouterPut, RouterMark]:
    """What made a router, and where it stood."""
    place = RouterMark(
        name=item.name,
        cursor=item.cursor,
        forwarded_total=item.forwarded_total,
        dest_base=item.dest_base,
        dead=item.dead,
    )
    return router_put(item), place
