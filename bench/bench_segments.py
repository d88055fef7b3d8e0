"""Segments: what checkpoint, opening, reading, flipping and rewriting cost on the real disk of this machine.

    PYTHONPATH=src python bench/bench_segments.py [--segments 1000] [--dir DIR]

Prints one line per measurement. Opening is measured with a warm page cache: what it shows is our own work per segment.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from topics.formats.blob import blobs
from topics.formats.frame import EncodedAppends, encode_appends
from topics.formats.snapshot import SegmentItem
from topics.model.match import TagMatch
from topics.storage.checkpoint import Batch, CheckpointJob, CheckpointResult, SealRules, TopicWork, run
from topics.storage.fetch import Fetcher, SealedRead, WalRead
from topics.storage.osfs import OsFs
from topics.storage.segments.flips import Flips
from topics.storage.segments.load import load_topic
from topics.storage.segments.loaded import Expected, LoadedTopic
from topics.storage.segments.place import SegmentEnv, TopicDir
from topics.storage.segments.rewrite import rewrite
from topics.storage.segments.sealed import SealedSegment

RECORDS = 10_000
DATA_BYTES = 64


def say(what: str, seconds: float, *, per: float = 1.0, unit: str = "ms", note: str = "") -> None:
    scale = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[unit]
    print(f"{what:<58} {seconds / per * scale:>12.2f} {unit:<3} {note}", flush=True)


def best(action: Callable[[], object], times: int = 20) -> float:
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        action()
        spent.append(time.perf_counter() - start)
    return min(spent)


def frames(first_seq: int, *, tagged: bool) -> EncodedAppends:
    texts = [b'"%0*d"' % (DATA_BYTES - 2, seq) for seq in range(first_seq, first_seq + RECORDS)]
    tags = [b"tag-%d" % (seq % 100) for seq in range(RECORDS)] if tagged else None
    return encode_appends(topic_id=1, first_seq=first_seq, ts=1000, datas=blobs(texts), tags=tags, durable=False)


def batch(first_seq: int, made: EncodedAppends) -> Batch:
    return Batch(
        first_seq=first_seq,
        source=0,
        offs=np.array(made.offsets, np.int64),
        lens=np.array(made.lengths, np.uint32),
        ts=np.full(RECORDS, 1000, np.uint64),
        sizes=np.full(RECORDS, DATA_BYTES, np.uint32),
    )


def checkpoint(place: TopicDir, first_seq: int, *, tagged: bool = False) -> CheckpointResult:
    made = frames(first_seq, tagged=tagged)
    job = CheckpointJob(
        [TopicWork(place, None, [batch(first_seq, made)])],
        now_ms=1000,
        rules=SealRules(max_events=RECORDS),
        read_wal=lambda _, offset, length: made.buffer[offset : offset + length],
    )
    result = run(job)
    result.commit()
    return result


def bench_checkpoint(place: TopicDir) -> list[SealedSegment]:
    sealed: list[SealedSegment] = []
    for tagged in (False, True):
        first = 1 + RECORDS * len(sealed)
        start = time.perf_counter()
        result = checkpoint(place, first, tagged=tagged)
        spent = time.perf_counter() - start
        sealed += result.topics[0].sealed
        say(f"checkpoint and seal of 10,000 records, {'with' if tagged else 'without'} tags", spent)
        say("  per record", spent, per=RECORDS, unit="us")
    return sealed


def bench_reads(sealed: list[SealedSegment]) -> None:
    made = frames(1, tagged=False)
    fetcher = Fetcher(read_wal=lambda _, offset, length: made.buffer[offset : offset + length])
    for segment, what in zip(sealed, ("no tags", "tags"), strict=True):
        fetcher.fetch([SealedRead(segment, range(10))])
        read = SealedRead(segment, range(100, 1100))
        say(f"read 1000 records of a sealed segment, {what}", best(partial(fetcher.fetch, [read])), unit="us")
    one = SealedRead(sealed[0], range(100, 101))
    say("read 1 record of a sealed segment", best(lambda: fetcher.fetch([one])), unit="us")
    wal = WalRead(0, np.arange(101, 1101), made.offsets[100:1100], made.lengths[100:1100])
    say("read 1000 records of the WAL (without the pread)", best(lambda: fetcher.fetch([wal])), unit="us")


def bench_index(segment: SealedSegment) -> None:
    def reopen(checked: bool) -> None:
        segment.unmap()
        segment._checked = checked
        segment.pair()

    say("map a segment", best(lambda: reopen(True)), unit="us")
    say("map a segment for the first time (agreement checks)", best(lambda: reopen(False)), unit="us")
    segment.tag_index()
    say("look up one tag, 100 matches", best(lambda: segment.tag_slots(TagMatch("Eq", "tag-7"))), unit="us")
    slots = np.arange(0, RECORDS, 10)
    flips = Flips(segment.place.env)
    say("flip 1000 records", best(lambda: flips.flip(segment, slots), 3), unit="us")
    start = time.perf_counter()
    flips.sync()
    say("sync 1000 flips (two syncs, 1000 index bits)", time.perf_counter() - start)
    dead = np.zeros(RECORDS, np.bool_)
    dead[: RECORDS // 2] = True
    start = time.perf_counter()
    assert rewrite(segment, dead)
    say("rewrite a half-dead segment of 10,000 records", time.perf_counter() - start)


def bench_open(place: TopicDir, source: SealedSegment, count: int) -> None:
    """`count` segments with the bytes of one: only lengths are looked at, so their seqs do not matter here."""
    path = place.path
    items = []
    for number in range(count):
        first = 1_000_001 + number * RECORDS
        for part in ("data", "idx"):
            os.link(place.file(source.first_seq, part), f"{path}/seg-{first:016d}.{part}")
        items.append(SegmentItem(first, RECORDS, source.data_len, True, "hot", RECORDS, RECORDS * DATA_BYTES))
    expected = Expected(segments=items, sealed_to=items[-1].first + RECORDS - 1, ckpt_seq=items[-1].first + RECORDS - 1)
    env = SegmentEnv(place.fs, place.env.topics_dir)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loaded: list[LoadedTopic] = []
    spent = best(lambda: loaded.append(load_topic(TopicDir(env, place.topic_id), expected)), 3)
    assert len(loaded[0].sealed) >= count
    say(f"open {count} sealed segments, {count * RECORDS:,} records", spent)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / len(loaded)
    print(f"{'  memory per sealed record':<58} {grown / (count * RECORDS):>12.4f} B", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--segments", type=int, default=1000)
    parser.add_argument("--dir", default=None, help="where to write; a temporary directory otherwise")
    options = parser.parse_args()
    root = tempfile.mkdtemp(prefix="bench-segments-", dir=options.dir)
    try:
        fs = OsFs()
        fs.mkdir(f"{root}/topics")
        place = TopicDir(SegmentEnv(fs, f"{root}/topics"), 1)
        sealed = bench_checkpoint(place)
        bench_reads(sealed)
        bench_open(place, sealed[0], options.segments)
        bench_index(sealed[1])
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
