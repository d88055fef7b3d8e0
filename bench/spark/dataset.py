"""A data directory of so many records of 100 to 200 bytes, and the same payloads as lines of text; made once, kept."""

from __future__ import annotations

import random
from pathlib import Path

from topics.formats import file_names as names
from topics.formats.segments import encode_segment_frames
from topics.formats.snapshot import SegmentItem, Snapshot, TopicItem, encode_snapshot
from topics.formats.wal.blob import blobs
from topics.model.config import DEFAULT_CONFIG

SEGMENT = 10_000
LINES_PER_FILE = 500_000
TS = 1_755_000_000_000


def payloads(first: int, count: int) -> list[bytes]:
    """JSON of 100 to 200 bytes, 150 on average; the same for the same seqs."""
    rng = random.Random(first)
    pad = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=200))
    return [
        b'{"id":%d,"user":"u%05d","amount":%d.%02d,"ok":true,"note":"%b"}'
        % (seq, seq % 50_000, seq % 1000, seq % 100, pad[: 40 + seq * 7919 % 100].encode())
        for seq in range(first, first + count)
    ]


def make(folder: Path, records: int) -> Path:
    """`data/` is the directory, `lines/` the text; an existing one of the same size is used again."""
    marker = folder / f"made-{records}"
    if marker.exists():
        return folder
    topic_dir = folder / "data" / names.TOPICS_DIR / names.topic_dir_name(1)
    topic_dir.mkdir(parents=True)
    (folder / "data" / names.META_DIR).mkdir()
    (folder / "lines").mkdir()
    items = []
    for first in range(1, records + 1, SEGMENT):
        count = min(SEGMENT, records + 1 - first)
        texts = payloads(first, count)
        seqs = range(first, first + count)
        made = encode_segment_frames(
            seqs=seqs,
            ts=[TS + seq for seq in seqs],
            datas=blobs(texts),
            tags=[b"tag-%d" % (seq % 16) for seq in seqs],
        )
        (topic_dir / names.segment_name(first, "data")).write_bytes(made.buffer)
        (topic_dir / names.segment_name(first, "idx")).write_bytes(made.idx.tobytes())
        items.append(SegmentItem(first, count, len(made.buffer), True, "hot", count, sum(map(len, texts))))
        with (folder / "lines" / f"{first // LINES_PER_FILE:04d}.txt").open("ab") as out:
            out.write(b"\n".join(texts) + b"\n")
    snapshot = _snapshot(items, records)
    (folder / "data" / names.META_DIR / names.snapshot_name(1)).write_bytes(encode_snapshot(snapshot))
    marker.touch()
    return folder


def _snapshot(items: list[SegmentItem], records: int) -> Snapshot:
    topic = TopicItem(
        id=1,
        name="bench",
        epoch=1,
        config=DEFAULT_CONFIG.to_dict(),
        created_ts=TS,
        last_ts=TS + records,
        head=records,
        ceiling=records,
        ckpt_seq=records,
        base_seq=1,
        earliest_seq=1,
        evict_floor=1,
        cap_lost=0,
        ttl_lost=0,
        trim_lost=0,
        restart_lost=0,
        delete_below=0,
        count=records,
        bytes=sum(item.live_bytes for item in items),
        lost=(),
        dead=(),
        segments=tuple(items),
    )
    return Snapshot(
        id=1,
        instance="b" * 32,
        clock_ms=TS + records,
        ts=TS + records,
        clean=True,
        gen=1,
        shards=1,
        next_topic_id=2,
        next_ckpt=1,
        groups=(),
        topics=(topic,),
        routers=(),
    )
