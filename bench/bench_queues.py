"""Jobs per second through a real server: 8 worker processes that claim 16 at a time and ack them, over HTTP.

    python bench/bench_queues.py [--jobs 100000] [--unsaved]

A job counts when its ack was answered; every ack is fenced. The queue is filled before the clock starts. Claim and ack
times are those a worker saw while all eight were busy; `alone` is one worker with one job at a time. The server's own
processor time per job is the steadier figure. Workers and server share the cores."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from report import Report

HERE = Path(__file__).resolve().parent
WORKERS = 8
CLAIM_MAX = 16
JOB = {"to": "someone@example.org", "template": "welcome", "order": 12345}
CONFIGS = {
    "disk": {"durability": "disk"},
    "fsync": {"durability": "fsync"},
    "disk, leases kept": {"durability": "disk", "leases_durable": True},
}


@contextlib.contextmanager
def served(room: Path) -> Iterator[tuple[str, int]]:
    """A server with default settings: its address and process id."""
    port_file = room / "port"
    environ = {name: text for name, text in os.environ.items() if not name.startswith("TOPICS_")}
    environ |= {"TOPICS_DATA_DIR": str(room / "data"), "TOPICS_PORT": "0", "TOPICS_PORT_FILE": str(port_file)}
    process = subprocess.Popen([sys.executable, "-m", "topics.cli", "serve"], env={**environ, "TOPICS_LOG": "error"})
    try:
        deadline = time.monotonic() + 30
        while not port_file.exists() or not port_file.read_text().strip():
            if time.monotonic() > deadline or process.poll() is not None:
                sys.exit("the server did not start")
            time.sleep(0.02)
        yield port_file.read_text().strip(), process.pid
    finally:
        process.terminate()
        process.wait(60)


def call(method: str, address: str, path: str, body: object) -> Any:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{address}{path}", json.dumps(body).encode(), headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def fill(address: str, topic: str, count: int, **config: Any) -> None:
    call("PUT", address, f"/v0/topics/{topic}", {"type": "queue", **config})
    for at in range(0, count, 1000):
        call("POST", address, f"/v0/topics/{topic}", {"records": [{"data": JOB}] * min(1000, count - at)})


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def work(address: str, topic: str, *, workers: int, claim_max: int) -> tuple[float, list[dict[str, Any]]]:
    """Let workers empty the queue: seconds from the word to the last answer, and what each of them saw."""
    script = str(HERE / "queue_worker.py")
    processes = [
        subprocess.Popen(
            [sys.executable, script, address, topic, f"w{number}", str(claim_max)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(workers)
    ]
    time.sleep(1.0)  # all of them are up and connected
    began = time.time()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    told = [json.loads(process.communicate()[0]) for process in processes]
    return max(one["ended"] for one in told) - began, told


def at_share(times: list[float], share: float) -> float:
    return sorted(times)[int(len(times) * share)] * 1e3


def bench(report: Report, name: str, config: dict[str, Any], count: int) -> None:
    with tempfile.TemporaryDirectory(dir=HERE.parent) as room, served(Path(room)) as (address, pid):
        fill(address, "jobs", count, **config)
        before_s = cpu_s(pid)
        took_s, told = work(address, "jobs", workers=WORKERS, claim_max=CLAIM_MAX)
        spent_s = cpu_s(pid) - before_s
        done = sum(one["jobs"] for one in told)
        assert done == count, f"{done} of {count} jobs were done"
        claims = [took for one in told for took in one["claim_s"]]
        acks = [took for one in told for took in one["ack_s"]]
        report.figure(f"{name}: claim 16 and ack, 8 workers", count / took_s, "jobs/s")
        report.figure("  claim, p50", at_share(claims, 0.5), "ms")
        report.figure("  claim, p99", at_share(claims, 0.99), "ms")
        report.figure("  ack, p50", at_share(acks, 0.5), "ms")
        report.figure("  processor time of the server", spent_s / count * 1e6, "us/job")
        fill(address, "alone", 2_000, **config)
        _, [one] = work(address, "alone", workers=1, claim_max=1)
        report.figure("  alone, one job at a time: claim, p50", at_share(one["claim_s"], 0.5), "ms")
        report.figure("  alone, one job at a time: ack, p50", at_share(one["ack_s"], 0.5), "ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--unsaved", action="store_true", help="leave bench/results as it is")
    chosen = parser.parse_args()
    report = Report("queues", "Queues over HTTP: 8 worker processes, claim 16, fenced ack")
    for name, config in CONFIGS.items():
        bench(report, name, config, chosen.jobs)
    if not chosen.unsaved:
        report.save()
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
