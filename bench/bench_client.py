"""Records per second of the Python client against a real server process on this machine.

    PYTHONPATH=src python bench/bench_client.py [--seconds 3] [--durability disk]

`raw` is what the exchange layer alone can push (prebuilt bodies of 1000 records, one connection, no producer), so the
producer's own cost is the distance to it. Latencies are those of single appends. Server and client share the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from report import Report

import topics
from topics.client.blocking_handles import run
from topics.client.client import Client
from topics.client.routes import append_call, piece_of

VALUE = {"order": 12345, "state": "paid", "amount": "12.50", "customer": "c-0042", "lines": [1, 2, 3]}


def served(directory: str) -> tuple[subprocess.Popen[bytes], str]:
    port_file = Path(directory) / "port"
    environ = {name: text for name, text in os.environ.items() if not name.startswith("TOPICS_")}
    environ |= {
        "TOPICS_DATA_DIR": f"{directory}/data",
        "TOPICS_PORT": "0",
        "TOPICS_PORT_FILE": str(port_file),
        "TOPICS_LOG": "warn",
    }
    process = subprocess.Popen([sys.executable, "-m", "topics.cli", "serve"], env=environ)
    deadline = time.monotonic() + 30
    while not port_file.exists():
        if time.monotonic() > deadline or process.poll() is not None:
            raise SystemExit("the server did not start")
        time.sleep(0.02)
    return process, f"http://{port_file.read_text().strip()}"


def rate(seconds: float, step: Callable[[], int]) -> float:
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        count += step()
    return count / spent


def raw(client: Client, durability: str, seconds: float) -> float:
    client.topic("raw").configure(durability=durability)
    pieces = [piece_of(VALUE)] * 1000
    numbers = iter(range(10**9))

    def step() -> int:
        return run(client._transport.run(append_call("raw", pieces, key=f"raw-{next(numbers)}"))).count

    return rate(seconds, step)


def batching(client: Client, durability: str, seconds: float) -> float:
    client.topic("batching").configure(durability=durability)
    start = time.perf_counter()
    with client.topic("batching").producer() as producer:

        def step() -> int:
            for _ in range(1000):
                producer.append(VALUE)
            return 1000

        count = rate(seconds, step) * seconds
    return count / (time.perf_counter() - start)


def batching_lists(client: Client, durability: str, seconds: float) -> float:
    client.topic("lists").configure(durability=durability)
    values = [VALUE] * 1000
    start = time.perf_counter()
    with client.topic("lists").producer() as producer:

        def step() -> int:
            producer.append_many(values)
            return 1000

        count = rate(seconds, step) * seconds
    return count / (time.perf_counter() - start)


def reported(client: Client, durability: str, seconds: float) -> float:
    client.topic("reported").configure(durability=durability)
    seen: list[int] = []
    start = time.perf_counter()
    with client.topic("reported").producer() as producer:

        def step() -> int:
            for _ in range(1000):
                producer.append(VALUE, report=lambda delivery: seen.append(delivery.seq))
            return 1000

        rate(seconds, step)
    return len(seen) / (time.perf_counter() - start)


def batching_async(url: str, durability: str, seconds: float) -> float:
    async def run() -> float:
        async with topics.aconnect(url) as client:
            await client.topic("asyncio").configure(durability=durability)
            count, start = 0, time.perf_counter()
            async with client.topic("asyncio").producer() as producer:
                while time.perf_counter() - start < seconds:
                    for _ in range(1000):
                        await producer.append(VALUE)
                    count += 1000
            return count / (time.perf_counter() - start)

    return asyncio.run(run())


def single(client: Client, durability: str, seconds: float) -> tuple[float, float, float]:
    topic = client.topic("single")
    topic.configure(durability=durability)
    spans: list[float] = []

    def step() -> int:
        at = time.perf_counter()
        topic.append(VALUE)
        spans.append(time.perf_counter() - at)
        return 1

    per_second = rate(seconds, step)
    spans.sort()
    return per_second, spans[len(spans) // 2] * 1e6, spans[len(spans) * 99 // 100] * 1e6


def reading(client: Client) -> float:
    start = time.perf_counter()
    count = sum(1 for _ in client.topic("raw").read(limit=200_000))
    return count / (time.perf_counter() - start)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--durability", default="disk")
    parser.add_argument("--unsaved", action="store_true", help="leave bench/results as it is")
    options = parser.parse_args()
    report = Report("client", f"The Python client against a server process, class {options.durability}")
    with tempfile.TemporaryDirectory() as directory:
        process, url = served(directory)
        try:
            with topics.connect(url) as client:
                args = (client, options.durability, options.seconds)
                report.line(f"{len(piece_of(VALUE))} bytes a record; load before the run {os.getloadavg()[0]:.1f}")
                report.figure("raw, 1000 a write", raw(*args), "records/s")
                report.figure("producer, append", batching(*args), "records/s")
                report.figure("producer, append_many", batching_lists(*args), "records/s")
                report.figure("producer, report each", reported(*args), "records/s")
                report.figure("producer, asyncio", batching_async(url, *args[1:]), "records/s")
                per_second, p50, p99 = single(*args)
                report.figure("single appends", per_second, "records/s")
                report.figure("single appends, p50", p50, "us")
                report.figure("single appends, p99", p99, "us")
                report.figure("read", reading(client), "records/s")
        finally:
            process.terminate()
            process.wait(30)
    if not options.unsaved:
        report.save()
    return 0


if __name__ == "__main__":
    sys.exit(main())
