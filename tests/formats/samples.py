"""One fixed value of everything that has bytes on disk, and the golden file each one must give.

`python -m tests.formats.samples` writes the golden files anew; a change there is a change of the format, so it comes
with a new version and a new page in docs/formats.
"""

import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from topics.formats.segments import DELETED_BYTE, empty_slots, encode_segment_frames
from topics.formats.segments.sidecar import encode_sidecar
from topics.formats.snapshot import (
    AncestorItem,
    DeadRange,
    DelayedItem,
    DeliveriesItem,
    GroupPosition,
    IdemItem,
    LeaseItem,
    QueueItem,
    RouterItem,
    SegmentItem,
    Snapshot,
    TopicItem,
    encode_snapshot,
)
from topics.formats.wal import bodies as b
from topics.formats.wal.frame import HEAD_BYTES, FrameType, blob, encode_appends, encode_frame
from topics.model import ops
from topics.model.names import TagMatch
from topics.model.schedules.schedule import ScheduleRule, StoredSchedule

GOLDEN = Path(__file__).parent / "golden"
TS = 1700000000001

CONFIG: dict[str, Any] = {
    "type": "log",
    "ttl_ms": 0,
    "cap_records": 0,
    "cap_bytes": 0,
    "discard": "old",
    "durable": False,
    "durability": "disk",
    "priority": None,
    "auto_priority": True,
    "auto_create": True,
    "idempotency_window_ms": 120000,
    "dedupe_node": True,
    "lease_ms": 30000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "leases_durable": False,
}
EPOCH = (1_700_000_000_000 << 11) | 5
FLOORS: Any = {
    "evict_floor": 5,
    "cap_lost": 4,
    "ttl_lost": 3,
    "trim_lost": 2,
    "restart_lost": 1,
    "earliest_seq": 6,
}
ROUTER: dict[str, Any] = {
    "name": "orders->audit",
    "source": "orders",
    "dest": "audit",
    "source_id": 10,
    "dest_id": 11,
    "preserve_node": True,
    "preserve_tag": False,
    "create_dest": True,
    "allow_cycle": False,
    "guarantee": "exactly_once",
    "filter": TagMatch("Glob", "tenant42:"),
    "initial_cursor": 7,
    "initial_dest_base": 8,
    "created_ts": TS,
    "rev": 2,
}
ROUTED = ops.RouterMark(name="orders->audit", cursor=9, forwarded_total=70000, dest_base=3)
LAGGING = ops.RouterMark(
    name="orders->audit", cursor=9, forwarded_total=70000, dest_base=3, dead=((11, 11), (300, 70000))
)

# By name: the frame type, the topic id, the seq and the body.
BODIES: dict[str, tuple[FrameType, int, int, b.Body]] = {
    "topic-create": (
        FrameType.TOPIC_CREATE,
        10,
        0,
        b.TopicCreateBody(name="orders", epoch=1, config=CONFIG, created_ts=TS),
    ),
    "topic-delete": (FrameType.TOPIC_DELETE, 10, 0, ops.TopicDelete(name="orders", epoch=1)),
    "router-create": (FrameType.ROUTER_CREATE, 0, 0, b.RouterCreate(**ROUTER)),
    "router-delete": (FrameType.ROUTER_DELETE, 0, 0, ops.RouterDelete(name="orders->audit")),
    "delete-selector": (
        FrameType.DELETE,
        10,
        0,
        ops.Delete(before_seq=100, match=TagMatch("Eq", "order-7"), bound_head=51, reason="api", routed=(ROUTED,)),
    ),
    "delete-seqs": (FrameType.DELETE, 10, 0, ops.Delete(seqs=(1, 300, 70000), reason="ack")),
    "evict-watermark": (FrameType.EVICT_WATERMARK, 10, 0, ops.Evict(**FLOORS, routed=(ROUTED,))),
    "mark-open": (FrameType.CHECKPOINT_MARK, 0, 0, b.OpenMark(gen=1, shards=2, first=1024, group="shard-00")),
    "mark-ckpt": (
        FrameType.CHECKPOINT_MARK,
        0,
        0,
        b.CkptMark(
            n=7,
            file=1024,
            off=65536,
            topics=(
                b.TopicMark(
                    id=10,
                    seq=50,
                    ceiling=306,
                    **FLOORS,
                    delete_below=0,
                    active=b.ActiveSegmentItem(41, 10, 760),
                    sealed_to=40,
                ),
                b.TopicMark(id=11, seq=0, ceiling=0, **FLOORS, delete_below=0, active=None, sealed_to=0),
            ),
            routers=(ROUTED,),
        ),
    ),
    "mark-ckpt-lag": (
        FrameType.CHECKPOINT_MARK,
        0,
        0,
        b.CkptMark(n=8, file=1024, off=70000, topics=(), routers=(LAGGING,)),
    ),
    "mark-tier": (
        FrameType.CHECKPOINT_MARK,
        0,
        0,
        b.TierMark(moves=(b.TierMove(id=10, first=1, count=40, tier="cold"),)),
    ),
    "config-update": (FrameType.CONFIG_UPDATE, 10, 0, b.ConfigUpdateBody(name="orders", config=CONFIG)),
    "lease": (
        FrameType.LEASE,
        10,
        42,
        ops.LeaseEvent(event=1, node="w1", lease_id=9, deadline=TS + 30000, deliveries=2, ready_at=TS + 500),
    ),
    "jobs-added": (
        FrameType.JOBS_ADDED,
        10,
        0,
        ops.JobsAdded(first_seq=42, ready_at=(TS + 500, 0), priority=(0, -9), unique=(None, ("order-7", TS + 60000))),
    ),
    "head-watermark": (FrameType.HEAD_WATERMARK, 10, 0, ops.HeadMark(ceiling=256)),
    "head-watermark-full": (
        FrameType.HEAD_WATERMARK,
        11,
        0,
        ops.HeadMark(
            ceiling=512,
            resume_at=513,
            lost=((257, 512, "restart"),),
            pin=ops.Pin(router="orders->audit", cursor=9, forwarded_total=70000, dest_base=3),
        ),
    ),
    "head-watermark-fork": (
        FrameType.HEAD_WATERMARK,
        10,
        0,
        ops.HeadMark(ceiling=306, fork=ops.Fork(EPOCH, 50)),
    ),
    "cursor-commit": (FrameType.CURSOR, 10, 0, ops.CursorChange(name="billing", event=0, seq=42)),
    "cursor-put": (
        FrameType.CURSOR,
        10,
        0,
        ops.CursorChange(
            name="billing",
            event=1,
            seq=7,
            fence=3,
            owner="host-1",
            meta=b'{"v":1}',
            hold=(1000, 70000),
        ),
    ),
    "schedule-put": (
        FrameType.SCHEDULE,
        10,
        0,
        ops.ScheduleChange(
            name="nightly",
            event=0,
            schedule=StoredSchedule(
                name="nightly",
                rule=ScheduleRule(
                    cron="0 3 * * *",
                    timezone="Europe/Berlin",
                    data=b'{"kind":"daily"}',
                    meta=b'{"k":1}',
                    tag="report",
                    node="n1",
                    priority=-3,
                    missed="all",
                ),
                created_ts=TS,
                cursor=TS + 500,
                last_tick=TS + 500,
                ticks=2,
            ),
        ),
    ),
    "schedule-tick": (
        FrameType.SCHEDULE,
        10,
        0,
        ops.ScheduleChange(name="nightly", event=1, at=TS + 86_400_000, ticks=3),
    ),
}

SNAPSHOT = Snapshot(
    id=7,
    instance="00112233445566778899aabbccddeeff",
    clock_ms=TS,
    ts=TS + 1,
    clean=False,
    gen=1,
    shards=2,
    next_topic_id=12,
    next_ckpt=8,
    groups=(GroupPosition(key="", file=1, off=4096), GroupPosition(key="shard-00", file=1024, off=65536)),
    topics=(
        TopicItem(
            id=10,
            name="orders",
            epoch=1,
            config=CONFIG,
            created_ts=TS,
            last_ts=TS,
            head=50,
            ceiling=306,
            ckpt_seq=50,
            base_seq=1,
            **FLOORS,
            delete_below=0,
            count=40,
            bytes=4000,
            lost=((2, 4, "cap"),),
            dead=(DeadRange(7, 8),),
            segments=(
                SegmentItem(1, 40, 3040, True, "cold", 30, 3000),
                SegmentItem(41, 10, 760, False, "hot", 10, 1000),
            ),
            queue=QueueItem(
                next_lease_id=10,
                dead_lettered=1,
                claim_cursor=42,
                leases=(LeaseItem(42, "w1", 9, TS + 30000, 2),),
                deliveries=(DeliveriesItem(43, 1),),
                reclaim=(41,),
                delayed=(DelayedItem(TS + 500, 44),),
            ),
            idem=(IdemItem("key-1", TS, 50, 1, 50),),
        ),
    ),
    routers=(RouterItem(**ROUTER, cursor=9, forwarded_total=70000, dest_base=3),),
)
LAGGING_SNAPSHOT = msgspec.structs.replace(
    SNAPSHOT,
    topics=(),
    routers=(RouterItem(**ROUTER, cursor=9, forwarded_total=70000, dest_base=3, dead=LAGGING.dead),),
)

FORKED = msgspec.structs.replace(
    SNAPSHOT,
    topics=(
        msgspec.structs.replace(
            SNAPSHOT.topics[0], epoch=EPOCH + 1, ancestors=(AncestorItem(1, 50), AncestorItem(EPOCH, 60))
        ),
    ),
    last_epoch=EPOCH + 1,
)
"""Of a data directory that is a copy of a copy."""

EXAMPLE_BLOB = blob(b'{"qty":1}', b'{"k":"v"}')
"""The record of the worked examples."""


def append_run() -> bytes:
    """One submission: all four ways to have or not have a node and a tag, empty texts included."""
    return encode_appends(
        topic_id=10,
        first_seq=1,
        ts=TS,
        datas=[EXAMPLE_BLOB, blob(b"1"), blob(b'"\xc3\xa9"'), blob(b"[]"), blob(b"null", b"{}")],
        nodes=[b"n1", None, b"", b"n\xc3\xa9", None],
        tags=[b"order-7", b"", None, b"t", None],
        durable=True,
    ).buffer


def control_frame(name: str) -> bytes:
    kind, topic_id, seq, body = BODIES[name]
    return encode_frame(kind, ts=TS, data=b.encode_body(body), topic_id=topic_id, seq=seq, durable=True)


def segment_pair() -> tuple[bytes, bytes]:
    """Three frames, the second deleted, and an empty slot behind the first."""
    frames = encode_segment_frames(
        seqs=[1, 3, 4],
        ts=[TS, TS + 1, TS + 1],
        datas=[EXAMPLE_BLOB, blob(b"3"), blob(b"4")],
        nodes=[b"n1", None, b""],
        tags=[b"order-7", None, b"t"],
    )
    data = bytearray(frames.buffer)
    data[int(frames.idx["offset"][1]) + int(frames.idx["len"][1]) - 1] = DELETED_BYTE
    frames.idx["flags"][1] |= 4
    idx = np.concatenate((frames.idx[:1], empty_slots([TS]), frames.idx[1:]))
    return bytes(data), idx.tobytes()


def hostile_headers(size: int) -> bytes:
    """Plausible headers every 38 bytes, each claiming everything up to the end: the worst case for checksums."""
    headers = bytearray()
    for at in range(0, size - HEAD_BYTES - 8, HEAD_BYTES):
        inner = size - at - HEAD_BYTES - 8
        headers += struct.pack("<IBBQQQHHI", inner + 42, 1, 0, 1, 1, 1, 0, 0, inner)
    return bytes(headers.ljust(size, b"}"))


def golden_bytes() -> dict[str, bytes]:
    """Every golden file's content by its name."""
    data, idx = segment_pair()
    return {
        "append": append_run(),
        **{name: control_frame(name) for name in BODIES},
        "segment-data": data,
        "segment-idx": idx,
        "snapshot": encode_snapshot(SNAPSHOT),
        "snapshot-forked": encode_snapshot(FORKED),
        "snapshot-lag": encode_snapshot(LAGGING_SNAPSHOT),
        "sidecar": encode_sidecar(tags=[b"b", None, b"a:1", b"b"], sizes=[9, 0, 1, 1], data_len=len(data)),
    }


def read_golden(name: str) -> bytes:
    return bytes.fromhex((GOLDEN / f"{name}.hex").read_text())


def write_golden() -> None:
    for name, content in golden_bytes().items():
        lines = [content[at : at + 16].hex(" ") for at in range(0, len(content), 16)]
        (GOLDEN / f"{name}.hex").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write_golden()
