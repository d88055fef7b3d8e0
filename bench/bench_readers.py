"""Readers: records of one tag, and records from a time on, among few and among many; what commits of cursors cost.

    python bench/bench_readers.py [--records 10000000] [--unsaved]

Reads go through the embedded library over sealed segments that are mapped. A tag that 100 records have is read, and 100
records from the time of the middle on, out of a topic of 100,000 records and out of the large one; the best of many
turns counts. The cost of commits is the processor time that a server takes to commit 1,000 cursors in one call, once a
second, as a share of the processor that writes have for themselves otherwise.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench_http import BASE, PORT, call, running
from report import Report

import topics
from topics import Event

FEW = 100_000
MATCHES = 100
BATCH = 10_000
TURNS = 50
CURSORS = 1000


def fill(where: str, records: int) -> None:
    """Of every `records / MATCHES` records one has the tag that is looked for; all others have some of 997 tags."""
    batch = [Event({"id": at}, tag=f"tag:{at % 997}") for at in range(BATCH)]
    needle = Event({"id": "needle"}, tag="needle")
    apart, written = records // MATCHES, 0
    with topics.open(where) as db:
        topic = db.topic("t")
        while written < records:
            sent = batch[: min(BATCH, records - written)]
            for at in range(-written % apart, len(sent), apart):
                sent = [*sent[:at], needle, *sent[at + 1 :]]
            topic.append_many(sent)
            written += len(sent)
        db.checkpoint()


def best_ms(step: Callable[[], int]) -> float:
    assert step() == MATCHES
    found = float("inf")
    for _ in range(TURNS):
        began = time.perf_counter()
        step()
        found = min(found, time.perf_counter() - began)
    return found * 1000


def read_times(records: int) -> tuple[float, float]:
    """Milliseconds for the records of the tag, and for those from a time on."""
    with tempfile.TemporaryDirectory(prefix="readers-") as where:
        fill(where, records)
        with topics.open(where) as db:
            topic = db.topic("t")
            middle = topic.get(records // 2).ts
            by_tag = best_ms(lambda: sum(1 for _ in topic.read(tag="needle")))
            return by_tag, best_ms(lambda: len(list(topic.page(from_ts=middle, limit=MATCHES).records)))


def processor_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def commits_s(pid: int) -> float:
    """Processor seconds of the server for one commit of every cursor."""
    record = {"records": [{"data": {"id": 1}}]}
    url = f"{BASE}/v0/topics/c"
    for _ in range(3000):
        call("POST", url, record)
    rounds, began = 50, processor_s(pid)
    for position in range(1, rounds + 1):
        commits = [{"topic": "c", "cursor": f"c{at}", "position": position * 10} for at in range(CURSORS)]
        call("POST", f"{BASE}/v0/cursors", {"commits": commits})
    return (processor_s(pid) - began) / rounds


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--records", type=int, default=10_000_000)
    options.add_argument("--unsaved", action="store_true", help="only print")
    chosen = options.parse_args()
    report = Report("readers", "reads by tag and by time, sealed segments mapped; commits of named cursors")
    few, many = read_times(FEW), read_times(chosen.records)
    for name, at in (("of one tag", 0), ("from a time on", 1)):
        report.figure(f"{MATCHES} records {name} among {FEW:,}", few[at], "ms")
        report.figure(f"{MATCHES} records {name} among {chosen.records:,}", many[at], "ms", at_most=10)
        report.figure("  against the smaller topic", many[at] / few[at], "x", at_most=2)
    with tempfile.TemporaryDirectory(prefix="readers-") as where:
        serve = [sys.executable, "-m", "topics.cli", "serve"]
        environ = {"TOPICS_DATA_DIR": where, "TOPICS_PORT": str(PORT)}
        with running(serve, f"{BASE}/v0/ready", cwd=Path(where), **environ) as pid:
            spent = commits_s(pid)
    report.figure(f"{CURSORS:,} cursors, a commit a second each", spent * 100, "% of a core", at_most=3)
    if not chosen.unsaved:
        report.save()
    sys.exit(1 if report.missed else 0)


if __name__ == "__main__":
    main()
