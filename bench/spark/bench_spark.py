"""The source against Spark's own: ratios of one run on one machine (`docs/spec/pipeline.md#sec-12`).

    python bench/spark/bench_spark.py [--records 10000000] [--folder DIR] [--unsaved]

Two things that are compared are measured in turns, each after a warm-up, and the best of their times are set against
each other. The data is made once and kept in the folder.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "src"), str(HERE.parent), str(HERE)]

from dataset import make
from processor_time import processor_time
from report import Report

import topics.spark
from topics.spark.jobs.archive import ArchiveOptions, archive
from topics.spark.jobs.job import JobSource

CORES = 2
GOAL_SCAN = 1.0
"""Against `read.text`; below 0.5 it would be a failure."""


class Bench:
    def __init__(self, folder: Path, records: int) -> None:
        self.at(folder)
        self.records = records
        self.spark = topics.spark.session(
            "bench",
            master=f"local[{CORES}]",
            conf={
                "spark.driver.memory": "3g",
                "spark.ui.enabled": "false",
                "spark.sql.shuffle.partitions": str(CORES),
                "spark.sql.session.timeZone": "UTC",
            },
        )
        self.spark.sparkContext.setLogLevel("ERROR")

    def at(self, folder: Path) -> None:
        self.folder, self.data = folder, str(folder / "data")

    def table(self, **options: str) -> Any:
        given = {"path": self.data, "subscribe": "bench", **options}
        return self.spark.read.format("topics").options(**given).load()

    def in_turns(self, *runs: Callable[[], Any], times: int = 3) -> list[float]:
        """Best seconds of each after a warm-up; side by side, so that a slow minute of the machine counts for all."""
        for run in runs:
            run()
        took = [[_seconds(run) for run in runs] for _ in range(times)]
        return [min(column) for column in zip(*took, strict=True)]

    def processors_in_turns(self, *runs: Callable[[], Any], times: int = 3) -> list[float]:
        """Least processor time of each."""
        took = [[processor_time(self.spark, run) for run in runs] for _ in range(times)]
        return [min(column) for column in zip(*took, strict=True)]

    # --- measures -----------------------------------------------------------------------------------------------------

    def text(self) -> None:
        self.spark.read.text(str(self.folder / "lines")).selectExpr("sum(length(value))").collect()

    def all_columns(self) -> None:
        self.table().selectExpr("sum(length(data))").collect()

    def seq_and_ts(self) -> None:
        self.table(columns="seq,ts").selectExpr("max(seq)", "max(ts)").collect()

    def all_for_seq_and_ts(self) -> None:
        self.table().selectExpr("max(seq)", "max(ts)").collect()

    def one_percent(self) -> None:
        lo = self.records // 2
        hi = lo + self.records // 100
        chosen = {"startingOffsets": f'{{"bench":{lo}}}', "endingOffsets": f'{{"bench":{hi}}}'}
        self.table(**chosen).selectExpr("sum(length(data))").collect()

    def batch_to_nothing(self) -> None:
        self.table().write.format("noop").mode("overwrite").save()

    def stream_to_nothing(self) -> None:
        given = {"path": self.data, "subscribe": "bench", "startingOffsets": "earliest"}
        checkpoint = tempfile.mkdtemp(dir=self.folder)
        query = (
            self.spark.readStream.format("topics")
            .options(**given)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        shutil.rmtree(checkpoint)

    def archive(self) -> None:
        target = self.folder / "archive"
        shutil.rmtree(target, ignore_errors=True)
        done = archive(self.spark, ArchiveOptions(source=JobSource(path=self.data, topics="bench"), to=str(target)))
        assert done.records == self.records

    def parquet_to_parquet(self) -> None:
        target = self.folder / "again"
        rows = self.spark.read.parquet(str(self.folder / "archive"))
        rows.write.mode("overwrite").partitionBy("topic", "date").parquet(str(target))


def python_memory(run: Callable[[], None]) -> int:
    """Largest resident size of a Python worker while something runs, in MiB."""
    largest, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            largest[0] = max([largest[0], *(resident_mib(pid) for pid in python_workers())])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        run()
    finally:
        done.set()
        thread.join()
    return largest[0]


def python_workers() -> list[int]:
    """Processes that PySpark's daemon forked."""
    found, parents = [], {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if b"spark.daemon" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except (OSError, ValueError, IndexError):
                continue
    return [pid for pid in found if parents.get(pid) in found]


def resident_mib(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
    except (OSError, ValueError, IndexError):
        return 0


def _seconds(run: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def compare(bench: Bench, report: Report) -> None:
    """The table of the goals: times, and their ratios beside the goals."""

    def rate(name: str, seconds: float) -> None:
        report.figure(name, bench.records / seconds / 1e6, "M records/s")

    text, scan = bench.in_turns(bench.text, bench.all_columns)
    text_cpu, scan_cpu = bench.processors_in_turns(bench.text, bench.all_columns)
    rate("read.text, sum(length)", text)
    rate("scan, all columns verified, sum(length)", scan)
    report.figure("  scan : read.text", text / scan, "x", at_least=GOAL_SCAN)
    report.figure("  read.text, processor time", text_cpu, "s")
    report.figure("  scan, processor time", scan_cpu, "s")
    every, two = bench.in_turns(bench.all_for_seq_and_ts, bench.seq_and_ts)
    rate("scan, all columns, max(seq), max(ts)", every)
    rate("scan, columns=seq,ts, max(seq), max(ts)", two)
    report.figure("  seq,ts : all columns", every / two, "x", at_least=2)
    whole, part = bench.in_turns(bench.all_columns, bench.one_percent)
    report.figure("seq range of 1 %", part, "s")
    report.figure("  full scan : seq range of 1 %", whole / part, "x", at_least=10)
    batch, stream = bench.in_turns(bench.batch_to_nothing, bench.stream_to_nothing)
    rate("batch into a no-op sink", batch)
    rate("stream into a no-op sink, AvailableNow", stream)
    report.figure("  stream : batch", batch / stream, "x", at_least=0.8)
    archived, rewritten = bench.in_turns(bench.archive, bench.parquet_to_parquet, times=2)
    rate("archive to Parquet, with manifest", archived)
    rate("Parquet to Parquet, the same rows", rewritten)
    report.figure("  archive : Parquet to Parquet", rewritten / archived, "x", at_least=0.9)
    archived_cpu, rewritten_cpu = bench.processors_in_turns(bench.archive, bench.parquet_to_parquet, times=1)
    report.figure("  archive, processor time", archived_cpu, "s")
    report.figure("  Parquet to Parquet, processor time", rewritten_cpu, "s")


def memory(bench: Bench, report: Report, small: Path) -> None:
    """The largest Python worker in a scan, for a fifth of the records and for all of them."""
    folder = bench.folder
    bench.at(small)
    fifth = python_memory(bench.all_columns)
    bench.at(folder)
    whole = python_memory(bench.all_columns)
    report.figure("largest Python worker, a fifth of the topic", fifth, "MiB")
    report.figure("largest Python worker, the whole topic", whole, "MiB")
    report.figure("  whole : fifth", whole / fifth, "x", at_most=1.2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--folder")
    parser.add_argument("--unsaved", action="store_true", help="only print")
    given = parser.parse_args()
    folder = Path(given.folder or Path(tempfile.gettempdir()) / f"topics-bench-spark-{given.records}")
    small = folder.with_name(folder.name + "-small")
    make(folder, given.records)
    make(small, given.records // 5)
    title = f"Spark local[{CORES}], {given.records:,} records of 100 to 200 bytes, best of 3 in turns"
    report = Report("spark", title)
    bench = Bench(folder, given.records)
    memory(bench, report, small)
    compare(bench, report)
    bench.spark.stop()
    report.line()
    report.line(f"load average at the end: {os.getloadavg()[0]:.1f}; below 0.5 of read.text a scan is a failure")
    if not given.unsaved:
        report.save()


if __name__ == "__main__":
    main()
