"""Reads of old history: diffs of one record and of a page, out of sealed segments that lie in the page cache.

    python bench/bench_reads.py [--seconds 3] [--turns 3] [--unsaved]

One server, as users start it. The topic is filled, the server is stopped and started again, so nothing of the topic is
in the recent cache: every diff goes to the segment files, at a random place. Single writes to another topic are the
yardstick. Writes and reads are driven in turns by wrk over 8 connections, and the best turn of each counts: neighbours
of a virtual machine only ever take away.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from bench_http import BASE, PORT, SINGLE, TOPIC, WIDE, Outcome, call, drive, drive_script, running, script_of, turns_of
from report import Report

HERE = Path(__file__).resolve().parent
RECORDS = 300_000
SEGMENT_RECORDS = 50_000
CONNECTIONS = 8
WRITES = f"{BASE}/v0/topics/w"


def random_page(limit: int) -> str:
    """A wrk script: each request is a diff at another place of the sealed segments."""
    last = RECORDS // SEGMENT_RECORDS * SEGMENT_RECORDS - limit
    return (
        script_of("")
        + f"""
request = function()
  local body = string.format('{{"from_seq":%d,"limit":{limit}}}', math.random(0, {last}))
  return wrk.format(nil, nil, nil, body)
end
"""
    )


def fill(url: str) -> None:
    batch = {"records": [{"data": {"id": 1, "text": WIDE[:60]}}] * 1000}
    for _ in range(RECORDS // 1000):
        call("POST", url, batch)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--seconds", type=int, default=3)
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--unsaved", action="store_true", help="only print")
    chosen = options.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("wrk is not installed: apt-get install wrk")
    report = Report("reads", "reads of old history over HTTP, sealed segments in the page cache, 8 connections, by wrk")
    serve = [sys.executable, "-m", "topics.cli", "serve"]
    with tempfile.TemporaryDirectory(dir=HERE, prefix=".reads-") as where:
        environ = {
            "TOPICS_DATA_DIR": f"{where}/data",
            "TOPICS_PORT": str(PORT),
            "TOPICS_LOG": "error",
            "TOPICS_SEGMENT_MAX_EVENTS": str(SEGMENT_RECORDS),
        }
        health, room = f"{BASE}/v0/health", Path(where)
        with running(serve, health, cwd=room, **environ):
            fill(TOPIC)
        writes: list[Outcome] = []
        ones: list[Outcome] = []
        pages: list[Outcome] = []
        with running(serve, health, cwd=room, **environ) as pid:
            how = {"connections": CONNECTIONS, "seconds": chosen.seconds, "pid": pid}
            call("POST", WRITES, {"records": [{"data": 1}]})
            call("POST", f"{TOPIC}/diff", {"from_seq": 0, "limit": 1})
            for _ in range(chosen.turns):
                writes.append(drive(WRITES, SINGLE, **how))
                ones.append(drive_script(f"{TOPIC}/diff", random_page(1), **how))
                pages.append(drive_script(f"{TOPIC}/diff", random_page(1000), **how))
    write, one, page = (turns_of(each) for each in (writes, ones, pages))
    report.figure("POST of 1 record, disk", write.best.per_s, "requests/s")
    report.figure("  median of the turns", write.median_per_s, "requests/s")
    report.figure("diff of 1 record", one.best.per_s, "requests/s")
    report.figure("  median of the turns", one.median_per_s, "requests/s")
    report.figure("  processor time of each", one.best.cpu_us, "us")
    report.figure("  p99", one.best.p99_ms, "ms")
    report.figure("  part of the rate of writes", one.best.per_s / write.best.per_s, "", at_least=0.4)
    report.figure("diff of 1000 records", page.best.per_s * 1000, "records/s", at_least=1_500_000)
    report.figure("  median of the turns", page.median_per_s * 1000, "records/s")
    report.figure("  processor time of each record", page.best.cpu_us / 1000, "us")
    if not chosen.unsaved:
        report.save()


if __name__ == "__main__":
    main()
