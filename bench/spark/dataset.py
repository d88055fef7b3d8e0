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
    (folder / "lines").mkdir(parents=True)
    topic = _topic(folder / "data", 1, "bench", range(1, records + 1, SEGMENT), records, lines=folder / "lines")
    _write_snapshot(folder / "data", [topic])
    marker.touch()
    return folder


def make_many(folder: Path, *, topics: int, segments: int, tiny: int, huge: int) -> Path:
    """`data/` holds one topic of `huge` records and small ones, whose segments have `tiny` records each, so that there
    are so many topics and segments in all. `one/` holds as many records in one topic."""
    marker = folder / f"made-{topics}-{segments}-{tiny}-{huge}"
    if marker.exists():
        return folder
    of_huge = -(-huge // SEGMENT)
    each, more = divmod(segments - of_huge, topics - 1)
    made = [_topic(folder / "data", 1, "huge", range(1, huge + 1, SEGMENT), huge)]
    for topic_id in range(2, topics + 1):
        records = (each + (topic_id - 2 < more)) * tiny
        made.append(_topic(folder / "data", topic_id, f"small-{topic_id:05d}", range(1, records + 1, tiny), records))
    _write_snapshot(folder / "data", made)
    total = sum(topic.head for topic in made)
    _write_snapshot(folder / "one", [_topic(folder / "one", 1, "one", range(1, total + 1, SEGMENT), total)])
    marker.touch()
    return folder


def _topic(data: Path, topic_id: int, name: str, firsts: range, records: int, lines: Path | None = None) -> TopicItem:
    """One topic with a segment from each of `firsts` on; its payloads as lines of text, too, if somebody wants them."""
    topic_dir = data / names.TOPICS_DIR / names.topic_dir_name(topic_id)
    topic_dir.mkdir(parents=True)
    items = []
    for first in firsts:
        count = min(firsts.step, records + 1 - first)
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
        if lines is not None:
            with (lines / f"{first // LINES_PER_FILE:04d}.txt").open("ab") as out:
                out.write(b"\n".join(texts) + b"\n")
    return TopicItem(
        id=topic_id,
        name=name,
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


def _write_snapshot(data: Path, topics: list[TopicItem]) -> None:
    clock_ms = max(topic.last_ts for topic in topics)
    snapshot = Snapshot(
        id=1,
        instance="b" * 32,
        clock_ms=clock_ms,
        ts=clock_ms,
        clean=True,
        gen=1,
        shards=1,
        next_topic_id=len(topics) + 1,
        next_ckpt=1,
        groups=(),
        topics=tuple(topics),
        routers=(),
    )
    (data / names.META_DIR).mkdir()
    (data / names.META_DIR / names.snapshot_name(1)).write_bytes(encode_snapshot(snapshot))
