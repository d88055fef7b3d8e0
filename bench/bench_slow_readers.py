"""What clients that never read cost: the server's memory beside a thousand of them, and the latency of honest clients.

    PYTHONPATH=src python bench/bench_slow_readers.py [--readers 1000] [--honest 10] [--seconds 12] [--rest 60]
                                                      [--only sse,websocket,h2,diff,work]

A real `topics serve` runs in a child process. Each reader asks for as much as the protocol allows (frames of 8 MiB, 16
pipelined pages of 8 MiB, 100 jobs) and takes none of it; its own receive buffer is 4 KiB. Honest clients write, read a
small page, and follow a topic live, before and beside them, so each ratio is of one run. At the end all have left, and
the memory that stays is looked at after `--rest` seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes
from report import Report

from topics.limits import KIB, MIB
from topics.server.listen import raise_file_limit

MEMORY_GOAL_BYTES = 512 * MIB
RATIO_GOAL = 1.2
FRAME_BYTES = 8 * MIB
RECORD_BYTES = 256 * KIB
LARGE_RECORDS = 160  # five frames
JOBS = 2000
JOB_BYTES = 128 * KIB
PIPELINED = 16
RECEIVE_BUFFER_BYTES = 4 * KIB
HONEST_PAUSE_S = 0.02


# --- the server -------------------------------------------------------------------------------------------------------


class Child:
    def __init__(self, folder: Path) -> None:
        port_file = folder / "port"
        settings = {
            "TOPICS_DATA_DIR": str(folder / "data"),
            "TOPICS_PORT": "0",
            "TOPICS_PORT_FILE": str(port_file),
            "TOPICS_LOG": "error",
            "TOPICS_MAX_SSE_CONNECTIONS": "0",
            "TOPICS_MAX_WATCH_SESSIONS": "100000",
        }
        self._process = subprocess.Popen([sys.executable, "-m", "topics", "serve"], env=os.environ | settings)
        until_s = time.monotonic() + 30
        while not port_file.exists():
            assert time.monotonic() < until_s, "the server does not start"
            time.sleep(0.05)
        self.port = int(port_file.read_text().rpartition(":")[2])
        self.peak_bytes = 0

    def resident_bytes(self) -> int:
        """Without the pages of mapped segments, which belong to the page cache."""
        with open(f"/proc/{self._process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("RssAnon:")) * KIB

    async def watch_memory(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, self.resident_bytes())
            await asyncio.sleep(0.05)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)


def request(method: str, path: str, body: object = None, *, more: str = "") -> bytes:
    text = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{more}"
    return f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text


class Client:
    """An honest client: one request after the other on one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=32 * MIB))

    async def ask(self, method: str, path: str, body: object = None) -> bytes:
        self.writer.write(request(method, path, body))
        head = await self.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 2"), head
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        return await self.reader.readexactly(length)


async def fill(port: int) -> None:
    client = await Client.open(port)
    data = "x" * RECORD_BYTES
    for _ in range(LARGE_RECORDS // 32):
        await client.ask("POST", "/v0/topics/large", {"records": [{"data": data}] * 32})
    await client.ask("PUT", "/v0/topics/jobs", {"type": "queue"})
    job = "j" * JOB_BYTES
    for _ in range(JOBS // 50):
        await client.ask("POST", "/v0/topics/jobs", {"records": [{"data": job}] * 50})
    await client.ask("POST", "/v0/topics/small", {"records": [{"data": "y" * 200}] * 10})
    client.writer.close()


# --- readers that never read ------------------------------------------------------------------------------------------


def connect(port: int) -> socket.socket:
    door = socket.socket()
    door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    door.connect(("127.0.0.1", port))
    return door


async def session_of(client: Client) -> str:
    asked = {"topics": {"large": {"from_seq": 0}}, "max_batch_bytes": FRAME_BYTES, "limit": 1000}
    url: str = json.loads(await client.ask("POST", "/v0/watch", asked))["stream_url"]
    return url


async def stream_bytes(client: Client) -> bytes:
    return request("GET", await session_of(client), more="Accept: text/event-stream\r\n")


async def socket_bytes(client: Client) -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    more = f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
    head = f"GET /v0/ws HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode()
    command = {"op": "subscribe", "topics": {"large": {"from_seq": 0}}, "max_batch_bytes": FRAME_BYTES, "limit": 1000}
    payload = json.dumps(command).encode()
    size = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + len(payload).to_bytes(2, "big")
    return head + b"\x81" + size + b"\0\0\0\0" + payload


async def h2_bytes(client: Client) -> bytes:
    connection = H2Connection(H2Configuration(client_side=True))
    connection.local_settings[SettingCodes.INITIAL_WINDOW_SIZE] = 2**31 - 1
    connection.initiate_connection()
    connection.increment_flow_control_window(2**31 - 1 - 65535)
    fields = [(":method", "GET"), (":scheme", "http"), (":authority", "localhost"), (":path", await session_of(client))]
    connection.send_headers(1, [*fields, ("accept", "text/event-stream")], end_stream=True)
    return connection.data_to_send()


async def diff_bytes(client: Client) -> bytes:
    asked = {"from_seq": 0, "limit": 1000, "max_batch_bytes": FRAME_BYTES}
    return request("POST", "/v0/topics/large/diff", asked) * PIPELINED


async def work_bytes(client: Client) -> bytes:
    return request("GET", "/v0/topics/jobs/work?node=n&max=100", more="Accept: text/event-stream\r\n")


READERS: dict[str, Callable[[Client], Awaitable[bytes]]] = {
    "sse": stream_bytes,
    "websocket": socket_bytes,
    "h2": h2_bytes,
    "diff": diff_bytes,
    "work": work_bytes,
}


# --- honest clients ---------------------------------------------------------------------------------------------------


class Latencies:
    def __init__(self) -> None:
        self.by_kind: dict[str, list[float]] = {"write": [], "diff": [], "live": []}

    def p99_ms(self, kind: str) -> float:
        ordered = sorted(self.by_kind[kind])
        return ordered[len(ordered) * 99 // 100] * 1000

    def p50_ms(self, kind: str) -> float:
        ordered = sorted(self.by_kind[kind])
        return ordered[len(ordered) // 2] * 1000


async def honest(port: int, number: int, until_s: float, seen: Latencies) -> None:
    client = await Client.open(port)
    topic = f"/v0/topics/honest{number}"
    while time.monotonic() < until_s:
        started_s = time.monotonic()
        await client.ask("POST", topic, {"records": [{"data": "z" * 200}]})
        seen.by_kind["write"].append(time.monotonic() - started_s)
        started_s = time.monotonic()
        await client.ask("POST", "/v0/topics/small/diff", {"from_seq": 0, "limit": 10})
        seen.by_kind["diff"].append(time.monotonic() - started_s)
        await asyncio.sleep(HONEST_PAUSE_S)
    client.writer.close()


async def follow(port: int, until_s: float, seen: Latencies) -> None:
    """From a write to its frame at a live stream, one after the other."""
    writer, follower = await Client.open(port), await Client.open(port)
    await writer.ask("POST", "/v0/topics/live", {"records": [{"data": 0}]})
    asked = {"topics": {"live": {"tail": True}}}
    url = json.loads(await writer.ask("POST", "/v0/watch", asked))["stream_url"]
    follower.writer.write(request("GET", url, more="Accept: text/event-stream\r\n"))
    await follower.reader.readuntil(b"caught-up")
    while time.monotonic() < until_s:
        started_s = time.monotonic()
        writer.writer.write(request("POST", "/v0/topics/live", {"records": [{"data": 1}]}))
        await follower.reader.readuntil(b"event: record")
        seen.by_kind["live"].append(time.monotonic() - started_s)
        await writer.reader.readuntil(b"}")
        await follower.reader.readuntil(b"caught-up")
        await asyncio.sleep(HONEST_PAUSE_S)
    writer.writer.close()
    follower.writer.close()


async def run_honest(port: int, options: argparse.Namespace) -> Latencies:
    seen = Latencies()
    until_s = time.monotonic() + options.seconds
    each = [honest(port, number, until_s, seen) for number in range(options.honest)]
    await asyncio.gather(*each, follow(port, until_s, seen))
    return seen


# --- the measurement --------------------------------------------------------------------------------------------------


async def beside(report: Report, child: Child, name: str, options: argparse.Namespace) -> None:
    alone = await run_honest(child.port, options)
    client = await Client.open(child.port)
    watching = asyncio.create_task(child.watch_memory())
    child.peak_bytes = 0
    readers: list[socket.socket] = []
    for _ in range(options.readers):
        first = await READERS[name](client)
        door = await asyncio.to_thread(connect, child.port)
        door.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(door, first)
        readers.append(door)
    together = await run_honest(child.port, options)
    watching.cancel()
    report.figure(
        f"{options.readers} x {name}: memory of the server",
        child.peak_bytes / MIB,
        "MiB",
        at_most=MEMORY_GOAL_BYTES / MIB,
    )
    for kind in alone.by_kind:
        before_ms, after_ms = alone.p99_ms(kind), together.p99_ms(kind)
        name_of_ratio = f"{'':4}{kind}: p99 {before_ms:.2f} -> {after_ms:.2f} ms"
        report.figure(name_of_ratio, after_ms / before_ms, "times", at_most=RATIO_GOAL)
        report.line(f"{'':4}{kind}: p50 {alone.p50_ms(kind):.2f} -> {together.p50_ms(kind):.2f} ms")
    for door in readers:
        door.close()
    client.writer.close()
    await asyncio.sleep(2)


async def measure(report: Report, child: Child, options: argparse.Namespace) -> None:
    await fill(child.port)
    await run_honest(child.port, options)
    idle_bytes = child.resident_bytes()
    report.figure("idle, with caches warm", idle_bytes / MIB, "MiB")
    for name in options.only.split(","):
        await beside(report, child, name, options)
    await asyncio.sleep(options.rest)
    left = child.resident_bytes()
    report.figure(f"{options.rest} s after all have left, of idle", left / idle_bytes, "times", at_most=2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--readers", type=int, default=1000)
    parser.add_argument("--honest", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=12)
    parser.add_argument("--rest", type=int, default=60)
    parser.add_argument("--only", default=",".join(READERS))
    options = parser.parse_args()
    raise_file_limit()
    report = Report("slow_readers", "Honest clients beside clients that never read, and what those cost in memory")
    with tempfile.TemporaryDirectory() as folder:
        child = Child(Path(folder))
        try:
            uvloop.run(measure(report, child, options))
            report.save()
        finally:
            child.stop()


if __name__ == "__main__":
    main()
