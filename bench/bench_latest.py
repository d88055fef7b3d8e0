"""The newest record of each tag: what reading the table costs, and what compaction costs the writers.

    python bench/bench_latest.py [--tags 100000] [--records 300000] [--seconds 8] [--unsaved]

The table is read page by page through the embedded library, from the tail and from sealed segments. Writers are
measured on a topic that is compacted while they write and on one that is not, in turns; the ratio is of the best round
of each, and of processor time, which other processes on the machine disturb least."""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from report import Report

import topics
from topics.embedded import Database

HERE = Path(__file__).resolve().parent
BATCH = 500
ROUNDS = 3


@contextlib.contextmanager
def opened(**settings: object) -> Iterator[Database]:
    room = tempfile.mkdtemp(prefix="bench-latest-", dir=HERE)
    try:
        with topics.open(f"{room}/data", **settings) as database:
            yield database
    finally:
        shutil.rmtree(room)


def events(rng: random.Random, tags: int, count: int = BATCH) -> list[topics.Event]:
    return [topics.Event({"n": at, "text": "x" * 40}, tag=f"key:{rng.randrange(tags):08}") for at in range(count)]


def read_table(report: Report, name: str, database: Database, tags: int) -> None:
    walls, spent = [], []
    for _ in range(ROUNDS):
        began, cpu = time.perf_counter(), time.process_time()
        count = sum(1 for _ in database.topic("t").latest())
        walls.append(time.perf_counter() - began)
        spent.append(time.process_time() - cpu)
    assert count <= tags
    report.figure(f"{name}: {count:,} tags, first time", walls[0], "s")
    report.figure("  best of the rounds", min(walls), "s")
    report.figure("  tags per second of processor time", count / min(spent), "tags/s")
    began = time.perf_counter()
    database.topic("t").latest_page("key:0000", limit=1000)
    report.figure("  one page of 1,000", (time.perf_counter() - began) * 1e3, "ms")


def tables(report: Report, tags: int, records: int) -> None:
    rng = random.Random(1)
    with opened() as database:
        for _ in range(records // BATCH):
            database.topic("t").append_many(events(rng, tags))
        read_table(report, f"tail, {records:,} records", database, tags)
    with opened(segment_max_events=50_000, checkpoint_interval_ms=500) as database:
        for _ in range(records // BATCH):
            database.topic("t").append_many(events(rng, tags))
        while database.topic("t").state().count and database.topic("t").state().head_seq != records:
            time.sleep(0.1)
        time.sleep(3)
        read_table(report, f"segments of 50,000, {records:,} records", database, tags)


def write_for(database: Database, name: str, batches: list[list[topics.Event]], seconds: float) -> tuple[float, float]:
    """Records per second of the clock and of the processor."""
    topic, count = database.topic(name), 0
    began, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        topic.append_many(batches[count % len(batches)])
        count += 1
    return count * BATCH / (time.perf_counter() - began), count * BATCH / (time.process_time() - cpu)


def writers(report: Report, tags: int, seconds: float) -> None:
    rng = random.Random(2)
    batches = [events(rng, tags) for _ in range(200)]
    walls: dict[bool, list[float]] = {False: [], True: []}
    spent: dict[bool, list[float]] = {False: [], True: []}
    removed = written = 0
    for _ in range(ROUNDS):
        for is_compacted in (False, True):
            with opened(checkpoint_interval_ms=1000) as database:
                config = {"compact": "tag", "compact_grace_ms": 0} if is_compacted else {}
                database.topic("t").configure(**config)  # type: ignore[arg-type]
                wall, cpu = write_for(database, "t", batches, seconds)
                walls[is_compacted].append(wall)
                spent[is_compacted].append(cpu)
                state = database.topic("t").state()
                if is_compacted:
                    removed, written = state.head_seq - state.count, state.head_seq
    report.figure(f"batches of {BATCH}, {tags:,} tags, not compacted", max(walls[False]), "records/s")
    report.figure("  compacted meanwhile", max(walls[True]), "records/s")
    report.figure("  of the rate without", max(walls[True]) / max(walls[False]), "")
    report.figure("  of the rate per second of processor time", max(spent[True]) / max(spent[False]), "")
    report.figure("  share of the records that was taken by the end", removed / written, "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tags", type=int, default=100_000)
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--unsaved", action="store_true")
    given = parser.parse_args()
    report = Report("latest", "Latest per tag: reading the table, and compaction beside writers")
    tables(report, given.tags, given.records)
    report.line()
    writers(report, 1_000, given.seconds)
    report.line()
    writers(report, given.tags, given.seconds)
    if not given.unsaved:
        report.save()


if __name__ == "__main__":
    main()
