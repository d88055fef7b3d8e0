"""What a start costs: records that only the log has, and history that is sealed; and how fast `topics verify` is.

    python bench/bench_recovery.py [--logged 1000000] [--sealed 10000000] [--unsaved]

The log is that of a process which was killed: no checkpoint ran, so every record is replayed, and each start has a log
of its own, as its writer left it. The sealed store is written by the engine itself and closed; it is opened after a
kill as well as after that clean stop. Each start is a process of its own and times `topics.open` alone, with the page
cache as warm as the writer left it; the best of five counts. The goals are for a machine that does nothing else: where
the clock is far above the processor time, the start waited for others."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import Report

import topics

HERE = Path(__file__).resolve().parent
VALUE = "x" * 62
BATCH = 1000
STARTS = 5

FILL = """
import os, sys, topics
path, records, settings = sys.argv[1], int(sys.argv[2]), {}
if sys.argv[3] == "log":
    settings = dict(wal_file_bytes=1 << 30)
database = topics.open(path, **settings)
if settings:
    database._kernel.scheduler.stop()  # a file that is full would ask for a checkpoint, whatever the settings
topic = database.topic("t", durability="disk")
for _ in range(records // 1000):
    topic.append_many(["x" * 62] * 1000)
if sys.argv[3] == "log":
    os._exit(0)
database.close()
"""
START = """
import sys, time, topics
start = topics.open  # which imports what it needs: that is the price of the process, not of the store
began, worked = time.perf_counter(), time.process_time()
database = start(sys.argv[1])
took, worked = time.perf_counter() - began, time.process_time() - worked
state = database.topic("t").state()
print(took, worked, state.count, database._kernel.recovered.replayed_frames, flush=True)
if sys.argv[2] == "kill":
    import os
    os._exit(0)
database.close()
"""


VERIFY = """
import sys, time
from topics.spark.jobs.verify import verify
began = time.process_time()
report = verify(None, path=sys.argv[1], state_dir=sys.argv[2])
assert report.ok, report.findings
print(report.bytes / (time.process_time() - began))
"""


def python(script: str, *words: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", script, *words], check=True, stdout=subprocess.PIPE, text=True, timeout=170
    ).stdout


def start(path: str, *, count: int, end: str) -> tuple[float, float, int]:
    """Seconds, processor time and replayed frames of one start, which must find all records."""
    took, worked, found, replayed = python(START, path, end).split()
    assert int(found) == count, f"{found} of {count} records are there"
    return float(took), float(worked), int(replayed)


def bench_logged(report: Report, room: Path, count: int) -> None:
    path = str(room / "logged")
    starts = []
    for _ in range(STARTS):
        python(FILL, path, str(count), "log")
        assert not any(Path(path, "topics").glob("*/*.data")), "a checkpoint ran"
        starts.append(start(path, count=count, end="kill"))
        shutil.rmtree(path)
    took, _, replayed = min(starts)
    assert replayed >= count
    report.figure(f"start with {count / 1e6:.1f} M records only in the log", took, "s", at_most=0.4)
    report.figure("  processor time", min(worked for _, worked, _ in starts), "s")
    report.figure("  replayed", count / took, "records/s")


def bench_sealed(report: Report, room: Path, count: int) -> None:
    path = str(room / "sealed")
    began = time.perf_counter()
    python(FILL, path, str(count), "segments")
    took = time.perf_counter() - began
    segments = len([name for name in os.listdir(f"{path}/topics/00000001") if name.endswith(".data")])
    report.line(f"{count:,} records in {segments} segments, written in {took:.0f} s")
    clean = min(start(path, count=count, end="close")[0] for _ in range(STARTS))
    report.figure(f"start with {count / 1e6:.0f} M sealed records, stopped cleanly", clean, "s", at_most=0.5)
    start(path, count=count, end="kill")
    killed = min(start(path, count=count, end="kill")[0] for _ in range(STARTS))
    report.figure(f"start with {count / 1e6:.0f} M sealed records, killed", killed, "s", at_most=0.5)
    lock = Path(path, ".topics.lock")
    lock.write_text(lock.read_text(encoding="ascii").replace("boot=", "boot=0"), encoding="ascii")
    rebooted = start(path, count=count, end="kill")[0]
    report.figure(f"start with {count / 1e6:.0f} M sealed records, rebooted, cache warm", rebooted, "s")


def bench_verify(report: Report, room: Path) -> None:
    """Over all processor time of the job, from page cache; it uses a thread for each core."""
    rates = [float(python(VERIFY, str(room / "sealed"), str(room / "jobs"))) for _ in range(STARTS)]
    report.figure("verify of it, a core", max(rates) / 1e9, "GB/s", at_least=1.0)


def bench_empty(report: Report, room: Path) -> None:
    open_it = topics.open
    began = time.perf_counter()
    open_it(str(room / "empty")).close()
    report.figure("a new directory, opened and closed", time.perf_counter() - began, "s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logged", type=int, default=1_000_000)
    parser.add_argument("--sealed", type=int, default=10_000_000)
    parser.add_argument("--unsaved", action="store_true", help="leave bench/results as it is")
    chosen = parser.parse_args()
    report = Report("recovery", "Starts: topics.open(path) of what a killed or stopped process left; verify")
    report.line(f"load of the machine at the start {os.getloadavg()[0]:.1f}; best of {STARTS} starts")
    room = Path(tempfile.mkdtemp(prefix="bench-recovery-", dir=HERE))
    try:
        bench_empty(report, room)
        bench_logged(report, room, chosen.logged)
        bench_sealed(report, room, chosen.sealed)
        bench_verify(report, room)
    finally:
        shutil.rmtree(room)
    if not chosen.unsaved:
        report.save()
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
