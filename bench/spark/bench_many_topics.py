"""Many small topics: 10,000 topics with 100,000 segments, most of ten records and one of 2 million, planned and read.

    python bench/spark/bench_many_topics.py [--topics 10000] [--segments 100000] [--folder DIR] [--unsaved]

A plan is made in a process of its own, for its time and memory. The batch read of all topics is set against one of a
topic that has as many records in segments of 10,000. What a small segment costs beyond its bytes is a file to open and
read (its index is left alone as long as no record of it is missing), its place in the plan, and the way of that to the
executors; blocks are decoded together, whatever their topics. The data is made once and kept in the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "src"), str(HERE.parent), str(HERE)]

from dataset import make_many
from processor_time import processor_time
from report import Report

import topics.spark

CORES = 2
TINY, HUGE = 10, 2_000_000
PLAN = """
import json, resource, sys, time
import topics.spark.source
from topics.spark.options import read_options
from topics.spark.planning.batch import plan_batch
idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began, cpu = time.perf_counter(), time.process_time()
tasks = plan_batch(read_options({"path": sys.argv[1], "subscribePattern": ".*"}, streaming=False))
print(json.dumps({
    "seconds": time.perf_counter() - began,
    "cpu": time.process_time() - cpu,
    "tasks": len(tasks),
    "idle": idle / 1024,
    "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
}))
"""


def plan(data: Path) -> dict[str, float]:
    """The best of three plans, each in a new process."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1] / "src")}
    command = [sys.executable, "-c", PLAN, str(data)]
    told = [json.loads(subprocess.check_output(command, env=environment)) for _ in range(3)]
    return min(told, key=lambda each: each["seconds"])


def read(spark: Any, data: Path) -> tuple[float, float]:
    """Seconds on the clock and of the processors."""

    def run() -> None:
        table = spark.read.format("topics").options(path=str(data), subscribePattern=".*").load()
        table.selectExpr("count(*)", "sum(length(data))").collect()

    began = time.perf_counter()
    spent = processor_time(spark, run)
    return time.perf_counter() - began, spent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--segments", type=int, default=100_000)
    parser.add_argument("--folder")
    parser.add_argument("--unsaved", action="store_true", help="only print")
    given = parser.parse_args()
    folder = Path(given.folder or Path(tempfile.gettempdir()) / "topics-bench-many")
    make_many(folder, topics=given.topics, segments=given.segments, tiny=TINY, huge=HUGE)
    title = f"Spark local[{CORES}], {given.topics:,} topics with {given.segments:,} segments, one of {HUGE:,} records"
    report = Report("spark_many_topics", title)
    found = plan(folder / "data")
    report.figure("plan", found["seconds"], "s", at_most=10)
    report.figure("  CPU time of it", found["cpu"], "s")
    report.figure("  tasks", found["tasks"], "")
    report.figure("  memory beyond an idle planner", found["peak"] - found["idle"], "MiB", at_most=200)
    spark = topics.spark.session("bench", master=f"local[{CORES}]", conf={"spark.ui.enabled": "false"})
    spark.sparkContext.setLogLevel("ERROR")
    for data in ("one", "data"):
        read(spark, folder / data)
    turns = [(read(spark, folder / "one"), read(spark, folder / "data")) for _ in range(3)]
    one, many = (min(each[at][0] for each in turns) for at in (0, 1))
    one_cpu, many_cpu = (min(each[at][1] for each in turns) for at in (0, 1))
    spark.stop()
    report.figure("batch read of one topic with as many records, plan included", one, "s")
    report.figure("batch read of all topics, plan included", many, "s")
    report.figure("batch read of all topics, without the plan", many - found["seconds"], "s")
    report.figure("  all topics : one topic, without the plan", (many - found["seconds"]) / one, "x", at_most=2)
    report.figure("processor time of the read of one topic", one_cpu, "s")
    report.figure("processor time of the read of all topics, plan included", many_cpu, "s")
    report.figure("  all topics : one topic, without the plan", (many_cpu - found["cpu"]) / one_cpu, "x", at_most=2)
    report.line()
    report.line(f"load average at the end: {os.getloadavg()[0]:.1f}")
    if not given.unsaved:
        report.save()


if __name__ == "__main__":
    main()
