"""Tiers: reading history from a cold folder and from S3 against reading it hot, and how fast segments move.

    PYTHONPATH=src:. python bench/bench_tiers.py [--records 100000] [--bytes 1000] [--dir DIR]

Three engines hold the same records. History is read from the first record to the last through the engine's own read
path, best of seven passes, with a recent cache of one byte, so that every record comes out of a segment; the page cache
is warm. S3 is a SeaweedFS on loopback, so its figure shows our requests and its server, and no network. Last, the time
of single durable writes is taken with and without a cold store that does not answer.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.tiers.s3_server import S3Server

import topics
from topics.core.read import ReadRequest
from topics.embedded.database import Database

SETTINGS: dict[str, Any] = {
    "wal_shards": 1,
    "recent_cache_bytes": 1,
    "cold_cache_bytes": 16 << 20,
    "checkpoint_interval_ms": 50,
    "hot_retain_segments": 0,
}
ROUNDS = 7
WRITES = 400


def fill(db: Database, records: int, size: int) -> None:
    topic = db.topic("t", durability="disk")
    for first in range(0, records, 1000):
        topic.append_many(["x" * size for _ in range(min(1000, records - first))])


def sealed(db: Database) -> list[Any]:
    return list(db._kernel.engine.state.topic("t").sealed)


def wait(condition: Callable[[], bool]) -> float:
    began = time.perf_counter()
    while not condition():
        time.sleep(0.005)
    return time.perf_counter() - began


def read_through(db: Database) -> tuple[float, int, int]:
    """Seconds, records and cold segments of one pass over the sealed history."""
    end = sealed(db)[-1].next_seq - 1
    at = count = cold = 0
    began = time.perf_counter()
    while at < end:
        request = ReadRequest(from_seq=at, limit=1000, budget_bytes=1 << 20, head_limit=end)
        done = db.call(lambda engine, request=request: engine.read("t", request))  # type: ignore[misc]
        at, count, cold = done.outcome.next_from_seq, count + done.outcome.records, cold + done.cold_segments
    return time.perf_counter() - began, count, cold


def history(name: str, db: Database, hot_rate: float | None) -> float:
    passes = [read_through(db) for _ in range(ROUNDS)]
    seconds = min(took for took, _, _ in passes)
    rate = passes[0][1] / seconds
    ratio = "" if hot_rate is None else f"  {rate / hot_rate:6.2f} of hot"
    print(f"history, {name:<12} {rate:12,.0f} records/s{ratio}  ({passes[-1][2]} cold segments a pass)", flush=True)
    return rate


def moving(name: str, db: Database) -> None:
    total = sum(segment.view.data_len for segment in sealed(db))
    seconds = wait(lambda: all(segment.view.tier == "cold" for segment in sealed(db)))
    print(f"move to {name:<12} {total / seconds / 1e6:12,.1f} MB/s  ({len(sealed(db))} segments)", flush=True)


def write_times(db: Database) -> list[float]:
    topic = db.topic("live", durability="fsync")
    times = []
    for n in range(WRITES):
        began = time.perf_counter()
        topic.append(n)
        times.append((time.perf_counter() - began) * 1e3)
    return sorted(times)


def stalled(db: Database, folder: Path) -> None:
    """Single fsync writes while every cold thread hangs in an open that waits for its other end."""
    calm = write_times(db)
    fifos = []
    for path in sorted((folder / "topics").rglob("*.data"))[:8]:
        path.rename(path.with_suffix(".kept"))
        os.mkfifo(path)
        fifos.append(path)
    db._kernel.store.cold_fetcher._cold._blocks.clear()  # type: ignore[union-attr]
    readers = [Thread(target=_read_quietly, args=(db, segment.first_seq)) for segment in sealed(db)[:8]]
    for reader in readers:
        reader.start()
    time.sleep(0.2)
    busy = write_times(db)
    for path in fifos:
        path.rename(path.with_suffix(".fifo"))
        path.with_suffix(".kept").rename(path)
    for path in fifos:
        for _ in range(20):
            try:
                os.close(os.open(path.with_suffix(".fifo"), os.O_WRONLY | os.O_NONBLOCK))
                break
            except OSError:
                time.sleep(0.05)
    for reader in readers:
        reader.join(20)
    for name, times in (("no cold read", calm), ("cold store hangs", busy)):
        p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
        print(f"fsync write, {name:<18} p50 {p50:8.2f} ms   p99 {p99:8.2f} ms", flush=True)


def _read_quietly(db: Database, first_seq: int) -> None:
    try:
        db.call(lambda engine: engine.read("t", ReadRequest(from_seq=first_seq - 1, limit=10)))
    except Exception:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=1000)
    parser.add_argument("--dir")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as name:
        base = Path(name)
        print(f"{args.records:,} records of {args.bytes} bytes, {os.cpu_count()} cores", flush=True)
        with topics.open(str(base / "hot"), **SETTINGS) as db:
            fill(db, args.records, args.bytes)
            wait(lambda: len(sealed(db)) >= args.records // 10_000)
            hot_rate = history("hot", db, None)
        server = S3Server(base / "s3")
        try:
            server.start()
            locations = {"cold folder": str(base / "cold"), "S3": server.uri("bench")}
        except RuntimeError as error:
            print(f"no S3 figures: {error}")
            locations = {"cold folder": str(base / "cold")}
        try:
            for where, location in locations.items():
                folder = str(base / where.replace(" ", "-"))
                with topics.open(folder, relocate_interval_ms=86_400_000, **SETTINGS) as db:
                    fill(db, args.records, args.bytes)
                    wait(lambda: len(sealed(db)) >= args.records // 10_000)
                with topics.open(folder, cold_dir=location, relocate_interval_ms=50, **SETTINGS) as db:
                    moving(where, db)
                    history(where, db, hot_rate)
                    if where == "cold folder":
                        stalled(db, base / "cold")
        finally:
            server.stop()


if __name__ == "__main__":
    main()
