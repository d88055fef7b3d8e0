"""Tiers: reading history from a cold folder and from S3 against reading it hot, and how fast segments move.

    PYTHONPATH=src:. python bench/bench_tiers.py [--records 100000] [--bytes 1000] [--dir DIR]

Three engines hold the same records. History is read from the first record to the last through the engine's own read
path, best of seven passes, with a recent cache of one byte, so that every record comes out of a segment; the page cache
is warm. S3 is a SeaweedFS on loopback, so its figure shows our requests and its server, and no network. Last, everyday
calls are timed with and without a cold store that does not answer.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from report import Report
from tests.storage.tiers.s3_server import S3Server

import topics
from topics.core.reading.walk import ReadRequest
from topics.embedded.database import Database

SETTINGS: dict[str, Any] = {
    "wal_shards": 1,
    "recent_cache_bytes": 1,
    "cold_cache_bytes": 16 << 20,
    "checkpoint_interval_ms": 50,
    "hot_retain_segments": 0,
}
ROUNDS = 7
CALLS = 200
TURNS = 25
P99_RATIO_MAX = 1.1


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


def history(report: Report, name: str, db: Database, hot_rate: float | None) -> float:
    passes = [read_through(db) for _ in range(ROUNDS)]
    seconds = min(took for took, _, _ in passes)
    rate = passes[0][1] / seconds
    ratio = "" if hot_rate is None else f"  {rate / hot_rate:6.2f} of hot"
    report.line(f"history, {name:<12} {rate:12,.0f} records/s{ratio}  ({passes[-1][2]} cold segments a pass)")
    return rate


def moving(report: Report, name: str, db: Database) -> None:
    total = sum(segment.view.data_len for segment in sealed(db))
    seconds = wait(lambda: all(segment.view.tier == "cold" for segment in sealed(db)))
    report.line(f"move to {name:<12} {total / seconds / 1e6:12,.1f} MB/s  ({len(sealed(db))} segments)")


def times_ms(step: Callable[[int], object]) -> list[float]:
    times = []
    for n in range(CALLS):
        began = time.perf_counter()
        step(n)
        times.append((time.perf_counter() - began) * 1e3)
    return times


def everyday(db: Database) -> dict[str, list[float]]:
    """What must not notice a cold store: a durable write, a write until its follower has it, a resident read, a job."""
    live, jobs = db.topic("live", durability="fsync"), db.queue("jobs")
    for n in range(CALLS):
        jobs.append(n)
    live.append("first")
    follower = live.follow(live_head(db))

    def deliver(n: int) -> None:
        live.append(n)
        next(follower)

    def work(_: int) -> None:
        jobs.ack(jobs.claim("bench").claimed, node="bench")

    taken = {
        "write until delivered": times_ms(deliver),
        "fsync write": times_ms(live.append),
        "read of 100 resident records": times_ms(lambda _: live.page(live_head(db) - 100, limit=100)),
        "claim and ack of a job": times_ms(work),
    }
    follower.close()
    return taken


def live_head(db: Database) -> int:
    return db._kernel.engine.state.topics["live"].head


def stalled(report: Report, db: Database, folder: Path) -> None:
    """The same calls in turns, with and without every cold thread hanging in an open that waits for its other end. The
    median of the turns' p99 is compared: the worst calls of a run come in bursts, and those are the machine's."""
    everyday(db)
    calm: list[dict[str, list[float]]] = []
    busy: list[dict[str, list[float]]] = []
    for _ in range(TURNS):
        calm.append(everyday(db))
        with hanging(db, folder):
            busy.append(everyday(db))
    report.line()
    report.line(
        f"{TURNS} turns of {CALLS} calls each way, medians of the turns; goal: p99 hanging <= {P99_RATIO_MAX} x calm"
    )
    report.line(f"{'':34} p50, p99 calm        p50, p99 hanging     ratio")
    for name in calm[0]:
        (a50, a99), (b50, b99) = centiles(calm, name), centiles(busy, name)
        met = "ok" if b99 <= a99 * P99_RATIO_MAX else "MISSED"
        report.line(f"{name:34} {a50:8.3f} {a99:8.3f} ms {b50:8.3f} {b99:8.3f} ms   {b99 / a99:6.2f} {met}")


def centiles(turns: list[dict[str, list[float]]], name: str) -> tuple[float, float]:
    ordered = [sorted(turn[name]) for turn in turns]
    return median(times[CALLS // 2] for times in ordered), median(times[int(CALLS * 0.99)] for times in ordered)


@contextmanager
def hanging(db: Database, folder: Path) -> Iterator[None]:
    """Data files are pipes that nobody writes to, and as many readers as there are cold threads stand in front."""
    paths = sorted((folder / "topics").rglob("*.data"))[:8]
    for path in paths:
        path.rename(path.with_suffix(".kept"))
        os.mkfifo(path)
    db._kernel.store.cold_fetcher._cold._blocks.clear()  # type: ignore[union-attr]
    readers = [Thread(target=_read_quietly, args=(db, segment.first_seq)) for segment in sealed(db)[:8]]
    for reader in readers:
        reader.start()
    time.sleep(0.2)
    yield
    for path in paths:
        path.rename(path.with_suffix(".fifo"))
        path.with_suffix(".kept").rename(path)
        release(path.with_suffix(".fifo"))
    for reader in readers:
        reader.join(20)


def release(fifo: Path) -> None:
    """Open the other end, so that whoever hangs goes on; nobody may."""
    for _ in range(20):
        try:
            os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
            break
        except OSError:
            time.sleep(0.02)
    fifo.unlink()


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
        report = Report("tiers", f"Tiers: {args.records:,} records of {args.bytes} bytes, segments of 10,000")
        with topics.open(str(base / "hot"), **SETTINGS) as db:
            fill(db, args.records, args.bytes)
            wait(lambda: len(sealed(db)) >= args.records // 10_000)
            hot_rate = history(report, "hot", db, None)
        server = S3Server(base / "s3")
        try:
            server.start()
            locations = {"cold folder": str(base / "cold"), "S3": server.uri("bench")}
        except RuntimeError as error:
            report.line(f"no S3 figures: {error}")
            locations = {"cold folder": str(base / "cold")}
        try:
            for where, location in locations.items():
                folder = str(base / where.replace(" ", "-"))
                with topics.open(folder, relocate_interval_ms=86_400_000, **SETTINGS) as db:
                    fill(db, args.records, args.bytes)
                    wait(lambda: len(sealed(db)) >= args.records // 10_000)
                with topics.open(folder, cold_dir=location, relocate_interval_ms=50, **SETTINGS) as db:
                    moving(report, where, db)
                    history(report, where, db, hot_rate)
                    if where == "cold folder":
                        stalled(report, db, base / "cold")
        finally:
            server.stop()
        report.save()


if __name__ == "__main__":
    main()
