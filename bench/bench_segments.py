"""Segments: what checkpoint, opening, reading, flipping and rewriting cost on the real disk of this machine.

    python bench/bench_segments.py [--segments 1000] [--dir DIR] [--unsaved]

Opening is measured with a warm page cache: what it shows is our own work per segment. The goals are those of the
storage issue: a store of 10 M sealed records opens in half a second, with less than a byte of heap for each."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from functools import partial

import numpy as np
from report import Report

from topics.formats.snapshot import SegmentItem
from topics.formats.wal.blob import blobs
from topics.formats.wal.frame import EncodedAppends, encode_appends
from topics.model.names import TagMatch
from topics.storage.checkpoint.absorb import (
    CheckpointJob,
    CheckpointRecords,
    CheckpointResult,
    SealRules,
    TopicWork,
    run,
)
from topics.storage.fetch import Fetcher, SealedRead, WalRead
from topics.storage.osfs import OsFs
from topics.storage.segments.flips import DeleteFlags
from topics.storage.segments.loading.load import load_topic
from topics.storage.segments.loading.loaded import ExpectedSegments, LoadedTopic
from topics.storage.segments.rewrite import rewrite
from topics.storage.segments.sealed_segment import SealedSegment
from topics.storage.segments.topic_dir import SegmentEnv, TopicDir

RECORDS = 10_000
DATA_BYTES = 64


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


def batch(first_seq: int, made: EncodedAppends) -> CheckpointRecords:
    return CheckpointRecords(
        first_seq=first_seq,
        source=0,
        offs=np.array(made.offsets, np.int64),
        lens=np.array(made.lengths, np.uint32),
        ts=np.full(RECORDS, 1000, np.uint64),
        sizes=np.full(RECORDS, DATA_BYTES, np.uint32),
    )


def checkpoint(place: TopicDir, first_seq: int, made: EncodedAppends) -> CheckpointResult:
    job = CheckpointJob(
        [TopicWork(place, None, [batch(first_seq, made)])],
        now_ms=1000,
        rules=SealRules(max_events=RECORDS),
        read_wal=lambda _, offset, length: made.buffer[offset : offset + length],
    )
    result = run(job)
    result.commit()
    return result


def bench_checkpoint(report: Report, place: TopicDir) -> list[SealedSegment]:
    sealed: list[SealedSegment] = []
    for tagged in (False, True):
        first = 1 + RECORDS * len(sealed)
        made = frames(first, tagged=tagged)
        start = time.perf_counter()
        result = checkpoint(place, first, made)
        spent = time.perf_counter() - start
        sealed += result.topics[0].sealed
        report.figure(f"checkpoint and seal 10,000 records, {'with' if tagged else 'no'} tags", spent * 1e3, "ms")
        report.figure("  rate", RECORDS / spent, "records/s")
    return sealed


def bench_reads(report: Report, sealed: list[SealedSegment]) -> None:
    made = frames(1, tagged=False)
    fetcher = Fetcher(read_wal=lambda _, offset, length: made.buffer[offset : offset + length])
    for segment, what in zip(sealed, ("no tags", "tags"), strict=True):
        fetcher.fetch([SealedRead(segment, range(10))])
        read = SealedRead(segment, range(100, 1100))
        report.figure(f"read 1000 sealed records, {what}", 1000 / best(partial(fetcher.fetch, [read])), "records/s")
    one = SealedRead(sealed[0], range(100, 101))
    report.figure("read 1 sealed record", best(lambda: fetcher.fetch([one])) * 1e6, "us")
    wal = WalRead(0, np.arange(101, 1101), made.offsets[100:1100], made.lengths[100:1100])
    report.figure("read 1000 records of the log, no pread", 1000 / best(lambda: fetcher.fetch([wal])), "records/s")


def bench_index(report: Report, segment: SealedSegment) -> None:
    def reopen(checked: bool) -> None:
        segment.unmap()
        segment.condition.checked = checked
        segment.pair()

    report.figure("map a segment", best(lambda: reopen(True)) * 1e6, "us")
    report.figure("map a segment for the first time, checked", best(lambda: reopen(False)) * 1e6, "us")
    segment.tag_index()
    report.figure("look up one tag, 100 matches", best(lambda: segment.tag_slots(TagMatch("Eq", "tag-7"))) * 1e6, "us")
    slots = np.arange(0, RECORDS, 10)
    flips = DeleteFlags(segment.place.env)
    report.figure("flip 1000 records", best(lambda: flips.flip(segment, slots), 3) * 1e3, "ms")
    start = time.perf_counter()
    flips.sync()
    report.figure("sync 1000 flips: two syncs, 1000 index bits", (time.perf_counter() - start) * 1e3, "ms")
    dead = np.zeros(RECORDS, np.bool_)
    dead[: RECORDS // 2] = True
    start = time.perf_counter()
    assert rewrite(segment, dead)
    report.figure("rewrite a half-dead segment", (time.perf_counter() - start) * 1e3, "ms")


def bench_open(report: Report, place: TopicDir, source: SealedSegment, count: int) -> None:
    """`count` segments with the bytes of one: only lengths are looked at, so their seqs do not matter here."""
    path = place.path
    items = []
    for number in range(count):
        first = 1_000_001 + number * RECORDS
        for part in ("data", "idx"):
            os.link(place.file(source.first_seq, part), f"{path}/seg-{first:016d}.{part}")
        items.append(SegmentItem(first, RECORDS, source.data_len, True, "hot", RECORDS, RECORDS * DATA_BYTES))
    expected = ExpectedSegments(
        segments=items, sealed_to=items[-1].first + RECORDS - 1, ckpt_seq=items[-1].first + RECORDS - 1
    )
    env = SegmentEnv(place.fs, place.env.topics_dir)
    spent = best(lambda: load_topic(TopicDir(env, place.topic_id), expected), 3)
    report.figure(f"open {count * RECORDS / 1e6:.0f} M sealed records", spent, "s", at_most=0.5)
    tracemalloc.start()
    loaded: LoadedTopic = load_topic(TopicDir(env, place.topic_id), expected)
    assert len(loaded.sealed) >= count
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    report.figure("  heap per sealed record", held / (count * RECORDS), "bytes", at_most=1.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=1000)
    parser.add_argument("--dir", default=os.path.dirname(os.path.abspath(__file__)), help="where to write")
    parser.add_argument("--unsaved", action="store_true", help="leave bench/results as it is")
    options = parser.parse_args()
    report = Report("segments", "Segments of 10,000 records of 64 B on a real disk, page cache warm")
    report.line(f"load of the machine at the start {os.getloadavg()[0]:.1f}")
    root = tempfile.mkdtemp(prefix="bench-segments-", dir=options.dir)
    try:
        fs = OsFs()
        fs.mkdir(f"{root}/topics")
        env = SegmentEnv(fs, f"{root}/topics")
        env.allow_writes(fs)
        place = TopicDir(env, 1)
        sealed = bench_checkpoint(report, place)
        bench_reads(report, sealed)
        bench_open(report, place, sealed[0], options.segments)
        bench_index(report, sealed[1])
    finally:
        shutil.rmtree(root)
    if not options.unsaved:
        report.save()
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
