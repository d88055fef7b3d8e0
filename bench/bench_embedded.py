"""The embedded library as users call it: `topics.open(path)`, default settings, a real disk.

    python bench/bench_embedded.py [--records 1000000] [--sealed 5000000] [--unsaved]

Rates are of the best of several rounds, because other processes share the processors; the median stands beside them,
and the rate per second of processor time, which they disturb least. Records of a page are objects only once they are
looked at, so pages are measured both ways. A lone `fsync` append is measured in turns with a raw `fdatasync` of the
same disk. The goals are those of the storage and engine issues."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

from report import Report

import topics
from topics.embedded import Database

HERE = Path(__file__).resolve().parent
VALUE = "x" * 62  # 64 bytes of JSON
BATCH = 1000
ROUNDS = 7


@contextlib.contextmanager
def opened(**settings: object) -> Iterator[Database]:
    room = tempfile.mkdtemp(prefix="bench-embedded-", dir=HERE)
    try:
        with topics.open(f"{room}/data", **settings) as database:
            yield database
    finally:
        shutil.rmtree(room)


def show_rates(report: Report, name: str, action: Callable[[], int], *, at_least: float = 0.0) -> None:
    """Records per second: of the best round, of the middle one, and of processor time, all threads of the process."""
    walls, cpus = [], []
    for _ in range(ROUNDS):
        gc.collect()
        began, spent = time.perf_counter(), time.process_time()
        count = action()
        walls.append(count / (time.perf_counter() - began))
        cpus.append(count / (time.process_time() - spent))
    report.figure(name, max(walls), "records/s", at_least=at_least)
    report.figure("  median of the rounds", statistics.median(walls), "records/s")
    report.figure("  per second of processor time", max(cpus), "records/s")


def bench_appends(report: Report, records: int) -> None:
    values = [VALUE] * BATCH
    batches = max(records // ROUNDS // BATCH, 1)

    def append(database: Database) -> int:
        topic = database.topic("t", durability="disk")
        for _ in range(batches):
            topic.append_many(values)
        return batches * BATCH

    with opened() as database:
        database.topic("t", durability="disk").append(VALUE)
        show_rates(report, "append disk, 1000 x 64 B", lambda: append(database), at_least=2_500_000)
    events = [topics.Event(VALUE, tag=f"tag-{at % 100}") for at in range(BATCH)]
    values[:] = events  # type: ignore[assignment]
    with opened() as database:
        database.topic("t", durability="disk").append(VALUE)
        show_rates(report, "append disk, 1000 x 64 B with tags", lambda: append(database))


def bench_sustained(report: Report, records: int) -> None:
    """Until the checkpoint, which shares the interpreter, has to keep up."""
    values = [VALUE] * BATCH
    with opened() as database:
        topic = database.topic("t", durability="disk")
        began = time.perf_counter()
        for _ in range(records // BATCH):
            topic.append_many(values)
        rate = records / (time.perf_counter() - began)
        report.figure(f"append disk, {records / 1e6:.0f} M in a row", rate, "records/s", at_least=1_500_000)


def bench_lone(report: Report, times: int = 300) -> None:
    """Raw and ours in turns, so that a drifting disk hits both."""
    raw_path = tempfile.mkstemp(prefix="bench-raw-", dir=HERE)[1]
    fd = os.open(raw_path, os.O_RDWR)
    raw: list[float] = []
    ours: list[float] = []
    weak: list[float] = []
    try:
        os.posix_fallocate(fd, 0, 64 << 20)
        os.fsync(fd)
        with opened() as database:
            strong, soft = database.topic("f", durability="fsync"), database.topic("d", durability="disk")
            strong.append(VALUE)
            soft.append(VALUE)
            for at in range(times):
                began = time.perf_counter()
                os.pwrite(fd, b"x" * 118, at * 118)
                os.fdatasync(fd)
                then = time.perf_counter()
                strong.append(VALUE)
                last = time.perf_counter()
                soft.append(VALUE)
                weak.append(time.perf_counter() - last)
                raw.append(then - began)
                ours.append(last - then)
    finally:
        os.close(fd)
        os.unlink(raw_path)
    raw_ms, ours_ms = statistics.median(raw) * 1e3, statistics.median(ours) * 1e3
    report.figure("pwrite and fdatasync, raw, p50", raw_ms, "ms")
    report.figure("lone fsync append, p50", ours_ms, "ms")
    report.figure("  beyond the raw one", ours_ms - raw_ms, "ms", at_most=0.25)
    report.figure("lone disk append, p50", statistics.median(weak) * 1e6, "us")


def bench_pages(report: Report) -> None:
    with opened() as database:
        topic = database.topic("t", durability="disk")
        for _ in range(100):
            topic.append_many([VALUE] * BATCH)
        head = topic.state().head_seq

        def pages() -> int:
            return sum(len(topic.page(head - BATCH, limit=BATCH).records) for _ in range(200))

        def values() -> int:
            return sum(
                len([record.data for record in topic.page(head - BATCH, limit=BATCH).records]) for _ in range(50)
            )

        show_rates(report, "page of 1000 from the tail, not looked at", pages, at_least=3_000_000)
        show_rates(report, "page of 1000, every record looked at", values)


def bench_deletes(report: Report) -> None:
    """One record by its exact tag, out of 10,000 and out of 1 M; in turns."""
    sizes = (10_000, 1_000_000)
    with opened() as database:
        for size in sizes:
            topic = database.topic(f"of-{size}", durability="disk")
            for first in range(0, size, BATCH):
                topic.append_many([topics.Event(1, tag=f"tag-{at}") for at in range(first, first + BATCH)])
        wait_until_sealed(database)
        took: dict[int, list[float]] = {size: [] for size in sizes}
        for at in range(200):
            for size in sizes:
                topic = database.topic(f"of-{size}")
                tag = f"tag-{(at * 7919) % size}"
                began = time.perf_counter()
                assert topic.delete(match=tag).deleted == 1
                took[size].append(time.perf_counter() - began)
    small, large = (statistics.median(took[size]) * 1e3 for size in sizes)
    report.figure("delete by exact tag among 10,000, p50", small, "ms")
    report.figure("delete by exact tag among 1 M, p50", large, "ms")
    report.figure("  ratio", large / small, "x", at_most=2.0)


def wait_until_sealed(database: Database) -> None:
    """Everything written lies in segments."""
    checkpointer = database._kernel.checkpointer
    database._driver.call(checkpointer.run)


def resident_bytes() -> int:
    """Memory of this process that is its own; mappings of files are the kernel's to take back."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("no RssAnon in /proc/self/status")


def bench_memory(report: Report, sealed: int) -> None:
    """The same directory opened with a tenth of the records and with all of them, each in a process of its own."""
    room = tempfile.mkdtemp(prefix="bench-memory-", dir=HERE)
    try:
        held = []
        for count in (sealed // 10, sealed):
            with topics.open(f"{room}/data") as database:
                topic = database.topic("t", durability="disk")
                have = topic.state().head_seq if list(database.topics()) else 0
                for first in range(have, count, BATCH):
                    topic.append_many(
                        [topics.Event(VALUE, tag=f"tag-{at % 1000}") for at in range(first, first + BATCH)]
                    )
                wait_until_sealed(database)
            held.append(measure_open(f"{room}/data"))
    finally:
        shutil.rmtree(room)
    (few, few_heap), (many, many_heap) = held
    report.figure(f"own memory with {sealed // 10 / 1e6:.1f} M sealed tagged records", few / 1e6, "MB")
    report.figure(f"own memory with {sealed / 1e6:.1f} M sealed tagged records", many / 1e6, "MB")
    report.figure("  heap per sealed record", (many_heap - few_heap) / (sealed - sealed // 10), "bytes", at_most=1.0)


def measure_open(path: str) -> tuple[int, int]:
    """In fresh processes: what is resident, and what tracemalloc finds on the heap."""
    return _measured(path, traced=False), _measured(path, traced=True)


def _measured(path: str, *, traced: bool) -> int:
    told = subprocess.run(
        [sys.executable, __file__, "--held", path, "heap" if traced else "resident"],
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return int(told.stdout)


def tell_held(path: str, what: str) -> None:
    """Open, read old and new, look a tag up in every segment by a delete; what is held then."""
    open_it = topics.open
    if what == "heap":
        tracemalloc.start()
    with open_it(path) as database:
        topic = database.topic("t")
        topic.page(0, limit=BATCH)
        topic.page(topic.state().head_seq - BATCH, limit=BATCH)
        topic.delete(match="no-such-tag")
        gc.collect()
        print(tracemalloc.get_traced_memory()[0] if what == "heap" else resident_bytes(), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_400_000)
    parser.add_argument("--sealed", type=int, default=5_000_000)
    parser.add_argument("--unsaved", action="store_true", help="leave bench/results as it is")
    parser.add_argument("--held", nargs=2, metavar=("DIR", "WHAT"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.held:
        tell_held(*chosen.held)
        return 0
    report = Report("embedded", "The embedded library, topics.open(path), defaults")
    report.line(f"load of the machine at the start {os.getloadavg()[0]:.1f}; best of {ROUNDS} rounds")
    bench_appends(report, chosen.records)
    bench_sustained(report, 2_000_000)
    bench_lone(report)
    bench_pages(report)
    bench_deletes(report)
    bench_memory(report, chosen.sealed)
    if not chosen.unsaved:
        report.save()
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
