"""A million delayed jobs beside a queue that is worked on: heap, claims and restarts, against a million plain jobs.

    python bench/bench_delayed.py [--jobs 1000000] [--unsaved]

Everything in one process over the embedded library, each kind of backlog in a process of its own. A delayed job costs
what it takes beyond a plain one, which is a record alone. Claims are of one job at a time, of a small queue's worth of
ready jobs: delayed ones lie in front of them."""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from report import Report

import topics

BATCH = 10_000
CLAIMS = 3000
DAY_S = 86_400


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def claim_p50_us(queue: Any) -> float:
    took = []
    for number in range(CLAIMS):
        queue.append(number)
        began = time.perf_counter()
        (job,) = queue.claim("w").claimed
        took.append(time.perf_counter() - began)
        queue.ack([job], node="w")
    return sorted(took)[CLAIMS // 2] * 1e6


def child(kind: str, room: str, count: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    with topics.open(room, wal_shards=1) as db:
        queue = db.queue("jobs", max_deliveries=0, dead_letter=None)
        claim_p50_us(queue)  # warm
        figures["empty_us"] = claim_p50_us(queue)
        before = resident_bytes()
        for _ in range(count // BATCH):
            delay = DAY_S if kind == "delayed" else None
            queue.append_many([topics.Event(1, delay=delay) for _ in range(BATCH)])
        figures["bytes_per_job"] = (resident_bytes() - before) / count
        if kind == "delayed":
            figures["full_us"] = claim_p50_us(queue)
    began = time.perf_counter()
    with topics.open(room, wal_shards=1) as db:
        figures["start_s"] = time.perf_counter() - began
        assert db.queue("jobs").state().count == count
    return figures


def measured(kind: str, count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=Path(__file__).resolve().parent.parent) as room:
        command = [sys.executable, __file__, "--child", kind, "--room", room, "--jobs", str(count)]
        told: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--child", default="")
    parser.add_argument("--room", default="")
    parser.add_argument("--unsaved", action="store_true", help="leave bench/results as it is")
    chosen = parser.parse_args()
    if chosen.child:
        print(json.dumps(child(chosen.child, chosen.room, chosen.jobs)))
        return 0
    report = Report("delayed", f"{chosen.jobs:,} delayed jobs, against as many plain ones")
    plain, delayed = measured("plain", chosen.jobs), measured("delayed", chosen.jobs)
    report.figure("a plain job, resident", plain["bytes_per_job"], "bytes")
    report.figure("a delayed job, resident beyond that", delayed["bytes_per_job"] - plain["bytes_per_job"], "bytes")
    report.figure("claim of an empty queue, p50", delayed["empty_us"], "us")
    report.figure("claim beside delayed jobs, p50", delayed["full_us"], "us")
    report.figure("  more than of an empty queue", (delayed["full_us"] / delayed["empty_us"] - 1) * 100, "%")
    report.figure("start with plain jobs", plain["start_s"], "s")
    report.figure("start with delayed jobs, beyond that", delayed["start_s"] - plain["start_s"], "s")
    report.line()
    report.line("Targets: 64 bytes of heap for each delayed job, 10 % at a claim, 2 s at a start.")
    if not chosen.unsaved:
        report.save()
    return 0


if __name__ == "__main__":
    sys.exit(main())
