"""What a router costs: the time a hop adds until a watcher has the record, and log appends under a fan-out of 100.

    python bench/bench_routers.py [--writes 2000] [--unsaved]

One watcher each on the source and on the destinations of a chain of three routers, on raw sockets. A latency runs from
handing the POST to the kernel until the bytes of the stream are read; a hop is the difference between two watchers of
the same write. Writes are paced and alone. Appends are counted from `topics_wal_frames_total` and
`topics_wal_bytes_written_total`, with a hundred routers and without any."""

from __future__ import annotations

import argparse
import json
import select
import socket
import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from bench_queues import call, served
from report import Report

HERE = Path(__file__).resolve().parent
HOPS = 3
FAN_OUT = 100
HOP_MS_MAX = 1.0
PACE_S = 0.002
RECORD = {"data": {"order": 12345, "state": "paid", "amount": "12.50"}, "tag": "orders"}


class Watcher:
    """A watch stream of one topic. `wait` gives the time at which the next record frame was read."""

    def __init__(self, address: str, topic: str) -> None:
        session = call("POST", address, "/v0/watch", {"topics": {topic: {"tail": True}}})
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.sendall(f"GET {session['stream_url']} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        self._seen = b""
        while b"caught-up" not in self._seen:
            self._seen += self.socket.recv(1 << 16)
        self._seen = b""

    def read(self) -> bool:
        """Whether a record has come with what was read now."""
        self._seen += self.socket.recv(1 << 16)
        has_record = b"event: record" in self._seen
        if has_record:
            self._seen = b""
        return has_record


def post(connection: socket.socket, path: str, body: bytes) -> None:
    fields = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    head = f"POST {path} HTTP/1.1\r\n{fields}\r\n"
    connection.sendall(head.encode() + body)


def one_write(writer: socket.socket, watchers: list[Watcher], body: bytes) -> list[float]:
    """Seconds until each watcher had the record."""
    waiting = {watcher.socket.fileno(): at for at, watcher in enumerate(watchers)}
    poll = select.epoll()
    for fd in [*waiting, writer.fileno()]:
        poll.register(fd, select.EPOLLIN)
    took = [0.0] * len(watchers)
    began = time.perf_counter()
    post(writer, "/v0/topics/hop-0", body)
    answered = False
    while waiting or not answered:
        for fd, _ in poll.poll(10):
            now = time.perf_counter()
            if fd == writer.fileno():
                answered = writer.recv(1 << 16).endswith(b"}")
            elif watchers[waiting.get(fd, 0)].read() and fd in waiting:
                took[waiting.pop(fd)] = now - began
    poll.close()
    return took


def bench_hops(report: Report, address: str, writes: int) -> None:
    call("PUT", address, "/v0/topics/hop-0", {})
    for hop in range(HOPS):
        call("PUT", address, f"/v0/routers/r-{hop}", {"source": f"hop-{hop}", "dest": f"hop-{hop + 1}"})
    watchers = [Watcher(address, f"hop-{hop}") for hop in range(HOPS + 1)]
    host, _, port = address.rpartition(":")
    writer = socket.create_connection((host, int(port)))
    body = json.dumps({"records": [RECORD]}).encode()
    rows = []
    for number in range(writes + 50):
        took = one_write(writer, watchers, body)
        if number >= 50:  # warm
            rows.append(took)
        time.sleep(PACE_S)
    columns = list(zip(*rows, strict=True))
    report.figure("a watcher of the source has the record, p50", statistics.median(columns[0]) * 1e3, "ms")
    first = [row[1] - row[0] for row in rows]
    report.figure("the first hop adds, p50", statistics.median(first) * 1e3, "ms", at_most=HOP_MS_MAX)
    report.figure("the first hop adds, p99", sorted(first)[int(len(first) * 0.99)] * 1e3, "ms")
    report.figure("three hops add, p50", statistics.median(row[3] - row[0] for row in rows) * 1e3, "ms")


def metrics(address: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{address}/v0/metrics", timeout=60) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#") and "{" not in line]
    return {name: float(value) for name, _, value in (line.partition(" ") for line in lines)}


def appends(address: str, topic: str, writes: int) -> tuple[float, float]:
    """Log frames and bytes for each of so many single-record writes."""
    before = metrics(address)
    for _ in range(writes):
        call("POST", address, f"/v0/topics/{topic}", {"records": [RECORD]})
    while call_state(address, topic)["head_seq"] < writes:
        time.sleep(0.01)
    after = metrics(address)
    frames, size = "topics_wal_frames_total", "topics_wal_bytes_written_total"
    return (after[frames] - before[frames]) / writes, (after[size] - before[size]) / writes


def call_state(address: str, topic: str) -> Any:
    with urllib.request.urlopen(f"http://{address}/v0/topics/{topic}", timeout=60) as answer:
        return json.load(answer)


def bench_fan_out(report: Report, address: str, writes: int) -> None:
    for topic in ("plain", "fan"):
        call("PUT", address, f"/v0/topics/{topic}", {})
    for number in range(FAN_OUT):
        call("PUT", address, f"/v0/routers/fan-{number}", {"source": "fan", "dest": f"fan-{number}"})
    plain_frames, plain_bytes = appends(address, "plain", writes)
    began = time.perf_counter()
    frames, size = appends(address, "fan", writes)
    for number in range(FAN_OUT):  # a read of a destination brings it up to date
        head = call_state(address, f"fan-{number}")["head_seq"]
        assert head == writes, f"fan-{number} has {head} of {writes} copies"
    took_s = time.perf_counter() - began
    report.figure("log appends for a write, no router", plain_frames, "frames")
    report.figure("log appends for a write, 100 destinations", frames, "frames", at_most=1.0)
    report.figure("log bytes for a write, no router", plain_bytes, "B")
    report.figure("log bytes for a write, 100 destinations", size, "B")
    report.figure("copies, 100 destinations, one writer", writes * FAN_OUT / took_s, "copies/s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writes", type=int, default=2_000)
    parser.add_argument("--unsaved", action="store_true", help="leave bench/results as it is")
    chosen = parser.parse_args()
    report = Report("routers", "Routers: a hop's latency, a fan-out's appends")
    with tempfile.TemporaryDirectory(dir=HERE.parent) as room, served(Path(room)) as (address, _):
        bench_hops(report, address, chosen.writes)
        bench_fan_out(report, address, chosen.writes)
    if not chosen.unsaved:
        report.save()
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
