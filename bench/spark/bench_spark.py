"""The source against Spark's own: ratios of one run on one machine (pipeline.md section 12).

    python bench/spark/bench_spark.py [--records 5000000] [--folder DIR]

Every measure is the best of three after a warm-up, on `local[2]`. The data is made once and kept in the folder.
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

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "src"), str(Path(__file__).resolve().parent)]

from dataset import make

import topics.spark
from topics.spark.jobs.archive import ArchiveOptions, archive
from topics.spark.jobs.source import JobSource

CORES = 2


class Bench:
    def __init__(self, folder: Path, records: int) -> None:
        self.folder = folder
        self.records = records
        self.data = str(folder / "data")
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
        self.found: dict[str, float] = {}
        self.turn = 0

    def table(self, **options: str) -> Any:
        given = {"path": self.data, "subscribe": "bench", **options}
        return self.spark.read.format("topics").options(**given).load()

    def measure(self, name: str, run: Callable[[], Any], *, times: int = 3) -> float:
        run()
        took = []
        for _ in range(times):
            begun = time.perf_counter()
            run()
            took.append(time.perf_counter() - begun)
        self.found[name] = min(took)
        print(f"{min(took):9.2f} s  {self.records / min(took) / 1e6:7.2f} M records/s  {name}", flush=True)
        return min(took)

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
        self.table(pushdown="true").where(f"seq >= {lo} AND seq < {hi}").selectExpr("sum(length(data))").collect()

    def batch_to_nothing(self) -> None:
        self.table().write.format("noop").mode("overwrite").save()

    def stream_to_nothing(self) -> None:
        self.turn += 1
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--folder")
    given = parser.parse_args()
    folder = Path(given.folder or Path(tempfile.gettempdir()) / f"topics-bench-spark-{given.records}")
    small = folder.with_name(folder.name + "-small")
    print(f"{given.records:,} records of 100 to 200 bytes, local[{CORES}], load {os.getloadavg()[0]:.1f}", flush=True)
    make(folder, given.records)
    make(small, given.records // 5)
    bench = Bench(folder, given.records)
    memory_small = python_memory(lambda: Bench.all_columns(_at(bench, small)))
    memory = python_memory(lambda: Bench.all_columns(_at(bench, folder)))
    bench = _at(bench, folder)
    text = bench.measure("Spark's read.text, sum(length)", bench.text)
    scan = bench.measure("scan, all columns, verified, sum(length(data))", bench.all_columns)
    every = bench.measure("scan, all columns, max(seq), max(ts)", bench.all_for_seq_and_ts)
    two = bench.measure("scan, columns=seq,ts, max(seq), max(ts)", bench.seq_and_ts)
    range_ = bench.measure("1 % of the seqs", bench.one_percent)
    batch = bench.measure("batch into a no-op sink", bench.batch_to_nothing)
    stream = bench.measure("stream into a no-op sink, AvailableNow", bench.stream_to_nothing)
    archived = bench.measure("archive to Parquet", bench.archive, times=2)
    rewritten = bench.measure("Parquet to Parquet, the same rows", bench.parquet_to_parquet, times=2)
    print(f"\nload {os.getloadavg()[0]:.1f}\n\n ratio    goal")
    for what, ratio, goal in (
        ("full scan against read.text", text / scan, "1.0, not below 0.5"),
        ("seq and ts against all columns", every / two, "at least 2"),
        ("1 % range against full scan", scan / range_, "at least 10"),
        ("stream against batch", batch / stream, "at least 0.8"),
        ("archive against Parquet to Parquet", rewritten / archived, "at least 0.5"),
    ):
        print(f"{ratio:6.2f}    {what} ({goal})")
    print(f"\nPython worker: {memory_small} MiB for {given.records // 5:,} records, {memory} MiB for {given.records:,}")
    bench.spark.stop()


def _at(bench: Bench, folder: Path) -> Bench:
    bench.folder, bench.data = folder, str(folder / "data")
    return bench


if __name__ == "__main__":
    main()
