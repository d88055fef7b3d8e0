"""Checkpoints under writes: how far the log runs ahead of the segments, and what the writes lose by them.

    python bench/bench_checkpoints.py [--seconds 11] [--rounds 4] [--against SRC]

`topics serve` takes writes of 100 records from 16 connections (wrk, on the same processors). In turns: with default
settings (a checkpoint every five seconds and when a log file is full), with none at all, which no setting gives, and,
with `--against`, the first with the server of another source tree. The machine may be shared: only figures of one round
are held against each other, and the median of the rounds counts. "Ahead" is the most that was sampled of log written
less log frames absorbed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

from report import Report

SRC = Path(__file__).resolve().parents[1] / "src"
RECORD = '{"data":{"order":12345,"state":"paid","amount":"12.50"},"tag":"orders"}'
BODY = json.dumps({"records": [json.loads(RECORD)] * 100})
LUA = f"wrk.method = 'POST'\nwrk.headers['Content-Type'] = 'application/json'\nwrk.body = [==[{BODY}]==]\n"
SERVE = ["-m", "topics", "serve"]
NEVER = """
import runpy, sys
from topics.runtime.background.scheduler import Scheduler
Scheduler._checkpoint_if_due = Scheduler._snapshot_if_due = lambda *_: None
sys.argv = ["topics", "serve"]
runpy.run_module("topics", run_name="__main__")
"""
EXTRA_BYTES = 8
"""A log frame is so much longer than its segment frame."""


class Outcome(NamedTuple):
    requests_s: float
    ahead_mb: float
    absorbed_mb: float


def bytes_of(directory: Path, pattern: str) -> int:
    total = 0
    for path in directory.glob(pattern):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            pass
    return total


def absorbed_bytes(data: Path) -> int:
    """Log bytes that lie in segments by now."""
    return bytes_of(data, "topics/*/*.data") + EXTRA_BYTES * bytes_of(data, "topics/*/*.idx") // 20


class Watch(threading.Thread):
    """Samples how far the log is ahead."""

    def __init__(self, data: Path, url: str) -> None:
        super().__init__(daemon=True)
        self.data, self.url, self.most, self.over = data, url, 0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.25):
            absorbed = absorbed_bytes(self.data)
            with urllib.request.urlopen(f"{self.url}/v0/metrics", timeout=10) as answer:
                found = re.search(rb"^topics_wal_bytes_written_total (\d+)", answer.read(), re.M)
            assert found is not None
            self.most = max(self.most, int(found[1]) - absorbed)


def measure(src: Path, room: Path, seconds: int, words: list[str]) -> Outcome:
    data, port_file = room / "data", room / "port"
    environ = os.environ | {"PYTHONPATH": str(src), "TOPICS_DATA_DIR": str(data), "TOPICS_PORT": "0"}
    environ |= {"TOPICS_PORT_FILE": str(port_file)}
    server = subprocess.Popen([sys.executable, *words], env=environ, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while not port_file.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        url = f"http://{port_file.read_text().strip()}"
        (room / "post.lua").write_text(LUA)
        watch = Watch(data, url)
        watch.start()
        command = ["wrk", "-t1", "-c16", f"-d{seconds}s", "-s", str(room / "post.lua"), f"{url}/v0/topics/load"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        watch.over.set()
        watch.join()
        rate = re.search(r"Requests/sec:\s+([\d.]+)", said)
        assert rate is not None, said
        assert "Non-2xx" not in said, said
        return Outcome(float(rate[1]), watch.most / 1e6, absorbed_bytes(data) / 1e6)
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=11)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--against", type=Path)
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("wrk is not installed: apt-get install wrk")
    report = Report("checkpoints", "checkpoints under writes of 100 records from 16 connections")
    kinds = {"checkpoints": (SRC, SERVE), "no checkpoints": (SRC, ["-c", NEVER])}
    if options.against is not None:
        kinds["other tree"] = options.against, SERVE
    found: dict[str, list[Outcome]] = {kind: [] for kind in kinds}
    for turn in range(options.rounds):
        for kind in list(kinds)[turn % len(kinds) :] + list(kinds)[: turn % len(kinds)]:
            with tempfile.TemporaryDirectory(prefix="topics-bench-") as room:
                src, words = kinds[kind]
                found[kind].append(measure(src, Path(room), options.seconds, words))
                one = found[kind][-1]
                report.line(
                    f"{kind:16} {one.requests_s:8,.0f} requests/s, log ahead at most {one.ahead_mb:6.0f} MB, "
                    f"absorbed {one.absorbed_mb:6.0f} MB"
                )
    report.line()
    pairs = zip(found["checkpoints"], found["no checkpoints"], strict=True)
    kept = statistics.median(a.requests_s / b.requests_s for a, b in pairs)
    report.figure("writes, of those without checkpoints", kept, "", at_least=0.9)
    if options.against is not None:
        ahead = zip(found["checkpoints"], found["other tree"], strict=True)
        report.figure(
            "log ahead, of the other tree's",
            statistics.median(a.ahead_mb / b.ahead_mb for a, b in ahead),
            "",
            at_most=1.0,
        )
    report.save()
    return int(report.missed > 0)


if __name__ == "__main__":
    sys.exit(main())
