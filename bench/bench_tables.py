"""A million records as a table: from a directory, from a server, and from Redis with redis-py, into a pandas DataFrame.

    python bench/bench_tables.py [records]

Also: how fast `topics verify` checks the same directory. Best of several runs; processor time beside wall time, because
other work on the machine costs the latter. Over HTTP the processor time is that of the client and the server together.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import topics

RUNS = 3
BATCH = 10_000


def order(at: int) -> dict[str, object]:
    return {"id": at, "total": at * 1.5, "customer": f"c{at % 1000}", "status": "paid"}


def cpu_s(pid: int | None) -> float:
    mine = resource.getrusage(resource.RUSAGE_SELF)
    total = mine.ru_utime + mine.ru_stime
    if pid is not None:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def measure(what: str, count: int, unit: str, work: Callable[[], object], *, server: int | None = None) -> None:
    best_wall = best_cpu = float("inf")
    for _ in range(RUNS):
        cpu, wall = cpu_s(server), time.perf_counter()
        work()
        best_wall = min(best_wall, time.perf_counter() - wall)
        best_cpu = min(best_cpu, max(cpu_s(server) - cpu, 1e-9))
    print(
        f"{what:<44} {count / best_wall / 1e6:9.2f} M {unit}/s  {count / best_cpu / 1e6:9.2f} M {unit}/s of processor"
    )


def fill(path: str, count: int) -> None:
    with topics.open(path) as db:
        topic = db.topic("orders")
        for first in range(0, count, BATCH):
            topic.append_many([topics.Event(order(at), tag=f"c{at % 1000}") for at in range(first, first + BATCH)])
        db.checkpoint()


def from_directory(path: str, count: int) -> None:
    with topics.open(path) as db:
        topic = db.topic("orders")
        measure("directory: to_arrow", count, "records", topic.to_arrow)
        measure("directory: to_arrow, seq and data", count, "records", lambda: topic.to_arrow(columns=["seq", "data"]))
        measure("directory: to_pandas", count, "records", topic.to_pandas)


def from_server(path: str, count: int) -> None:
    settings = {**os.environ, "TOPICS_HOST": "127.0.0.1:4799", "TOPICS_DATA_DIR": path}
    server = subprocess.Popen([sys.executable, "-m", "topics", "serve"], env=settings, stderr=subprocess.DEVNULL)
    try:
        with topics.connect("http://127.0.0.1:4799", retry_s=30) as client:
            topic = client.topic("orders")
            assert topic.state().count == count
            measure("server: to_arrow", count, "records", topic.to_arrow, server=server.pid)
            measure("server: to_pandas", count, "records", topic.to_pandas, server=server.pid)
    finally:
        server.terminate()
        server.wait(30)


def from_redis(count: int) -> None:
    import pandas as pd
    import redis

    if shutil.which("redis-server") is None:
        print("redis: not installed")
        return
    folder = tempfile.mkdtemp()
    server = subprocess.Popen(
        ["redis-server", "--port", "4798", "--dir", folder, "--save", "", "--appendonly", "no"],
        stdout=subprocess.DEVNULL,
    )
    try:
        client = redis.Redis(port=4798)
        while True:
            try:
                client.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.05)
        for first in range(0, count, BATCH):
            pipe = client.pipeline(transaction=False)
            for at in range(first, first + BATCH):
                pipe.xadd("orders", {"data": json.dumps(order(at)), "tag": f"c{at % 1000}"})
            pipe.execute()

        def read() -> object:
            rows, last = [], b"-"
            while True:
                page = client.xrange("orders", min=last, count=BATCH)
                if not page:
                    break
                rows += [(entry, fields[b"tag"], fields[b"data"]) for entry, fields in page]
                last = b"(" + page[-1][0]
            frame = pd.DataFrame(rows, columns=["id", "tag", "data"])
            assert len(frame) == count
            return frame

        measure("redis-py: XRANGE into a DataFrame", count, "records", read, server=server.pid)
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def verified(path: str) -> None:
    from topics.spark.jobs.verify import verify

    with tempfile.TemporaryDirectory() as state:
        size = verify(None, path=path, state_dir=state).bytes
        measure("verify, from the page cache", size, "bytes", lambda: verify(None, path=path, state_dir=state))


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    path = tempfile.mkdtemp()
    try:
        load = os.getloadavg()[0]
        print(f"{count:,} records of about 65 bytes and a tag; best of {RUNS}; load average {load:.1f} at the start")
        fill(path, count)
        from_directory(path, count)
        verified(path)
        from_server(path, count)
        from_redis(count)
    finally:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
