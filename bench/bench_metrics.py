"""What metrics cost: counting on the way of single writes, and a scrape of a server with 10,000 topics.

    PYTHONPATH=src python bench/bench_metrics.py [--topics 10000] [--writes 3000] [--rounds 9]

Counting is measured as processor time of the loop's thread for the same writes with and without it, in turn, the best
of all rounds each: single writes to a topic without a log, the cheapest there are, each alone in its turn. The
difference is smaller than the noise of a busy machine, so the call is also timed alone and set against the write. The
scrape is measured as the longest step of the loop while one is answered.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import tempfile
import threading
import time
import timeit
from collections.abc import Callable
from typing import Any

import uvloop
from report import Report

from topics.api.build import ServerApp
from topics.api.metrics.request_stats import RequestStats
from topics.clock import SystemClock, SystemHost
from topics.config import Settings
from topics.model.config import TopicConfig
from topics.runtime.drivers.aio import AioDriver
from topics.runtime.kernel import Kernel, recover
from topics.server.connections.hub import TransportSettings
from topics.server.server import Server
from topics.storage.osfs import OsFs

BODY = b'{"records":[{"data":{"order":12345,"state":"paid"}}]}'
WRITE = (
    b"POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)
SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Served:
    """A server on a thread of its own."""

    def __init__(self, data_dir: str) -> None:
        self._loop = uvloop.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.settings = Settings.from_kwargs(data_dir=data_dir)
        self.call(self._start)

    def call(self, step: Callable[[], Any]) -> Any:
        async def run() -> Any:
            found = step()
            return await found if asyncio.iscoroutine(found) else found

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(600)

    async def _start(self) -> None:
        clock = SystemClock()
        driver = AioDriver(self._loop, cold_threads=1)
        recovered = recover(OsFs(), settings=self.settings, clock=clock, host=SystemHost())
        self.kernel = Kernel(recovered, settings=self.settings, driver=driver)
        driver.attach(flush=self.kernel.flush, tick=self.kernel.tick)
        app = ServerApp(self.settings, keys=None, clock=clock, host=SystemHost())
        app.attach(self.kernel)
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        listener.setblocking(False)
        transport = TransportSettings(max_body_bytes=1 << 20, gzip_min_bytes=0)
        await Server(app.app, transport, clock=clock).start([listener])


def ask(door: socket.socket, request: bytes) -> int:
    """Send one request and read its answer; its size."""
    door.sendall(request)
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += door.recv(1 << 20)
    head, _, rest = answer.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(rest) < length:
        rest += door.recv(1 << 20)
    return length


def counting(report: Report, served: Served, *, writes: int, rounds: int) -> None:
    real = RequestStats.answered
    door = socket.create_connection(("127.0.0.1", served.port))
    best = {True: float("inf"), False: float("inf")}
    for turn in range(2 * rounds + 2):
        counted = turn % 2 == 0
        RequestStats.answered = real if counted else _nothing  # type: ignore[method-assign]
        before = served.call(time.thread_time)
        for _ in range(writes):
            ask(door, WRITE)
        spent = served.call(time.thread_time) - before
        if turn >= 2:
            best[counted] = min(best[counted], spent)
    RequestStats.answered = real  # type: ignore[method-assign]
    report.figure("a single write, counted", best[True] / writes * 1e6, "us cpu")
    report.figure("a single write, not counted", best[False] / writes * 1e6, "us cpu")
    report.figure("the difference (noise included)", (best[True] / best[False] - 1) * 100, "%")
    stats, calls = RequestStats(), 100_000
    alone_s = min(timeit.repeat(lambda: stats.answered("write", 200, 0.0001, 1), number=calls, repeat=5)) / calls
    report.figure("one call that counts, alone", alone_s * 1e9, "ns")
    report.figure("that call as a share of a write", alone_s / (best[False] / writes) * 100, "%", at_most=1.0)


def _nothing(*_: object) -> None:
    pass


def scraping(report: Report, served: Served, *, topics: int) -> None:
    def create(first: int) -> None:
        for at in range(first, min(first + 500, topics)):
            served.kernel.engine.put_topic(f"topic-{at:05}", TopicConfig(type="queue" if at % 10 == 0 else "log"))

    for first in range(0, topics, 500):
        served.call(lambda first=first: create(first))
    door = socket.create_connection(("127.0.0.1", served.port))
    size = ask(door, SCRAPE)
    best = float("inf")
    for _ in range(5):
        before = served.call(time.thread_time)
        step = StepWatch(served)
        ask(door, SCRAPE)
        best = min(best, step.longest())
        spent = served.call(time.thread_time) - before
    report.figure(f"a scrape of {topics:,} topics, size", size / 1024, "KiB")
    report.figure("a scrape, all steps", spent * 1e3, "ms cpu")
    report.figure("a scrape, longest step", best * 1e3, "ms cpu", at_most=10.0)


class StepWatch:
    """Steps of the loop, by how much processor time passed between two turns of a callback that always runs."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._longest = 0.0
        self._last: float | None = None
        self._on = True
        served.call(self._turn)

    def _turn(self) -> None:
        now = time.thread_time()
        if self._last is not None:
            self._longest = max(self._longest, now - self._last)
        self._last = now
        if self._on:
            self._served.kernel.driver.soon(self._turn)

    def longest(self) -> float:
        self._on = False
        return self._served.call(lambda: self._longest)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--topics", type=int, default=10_000)
    options.add_argument("--writes", type=int, default=3000)
    options.add_argument("--rounds", type=int, default=9)
    given = options.parse_args()
    report = Report("metrics", "What metrics cost")
    with tempfile.TemporaryDirectory() as data_dir:
        served = Served(data_dir)
        served.call(lambda: served.kernel.engine.put_topic("t", TopicConfig(durability="ephemeral", cap_records=1000)))
        counting(report, served, writes=given.writes, rounds=given.rounds)
        scraping(report, served, topics=given.topics)
    report.save()


if __name__ == "__main__":
    main()
