"""What slow connections cost: memory of the server per connection, and the latency of honest clients beside them.

    PYTHONPATH=src python bench/bench_slow_connections.py [--slow 5000] [--honest 50] [--seconds 8]

The server (toy application) runs in a child process. Slow connections send one byte of a request head every two
seconds; honest clients send whole requests one after another. Idle streams are opened last, for their memory alone.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import signal
import time
from multiprocessing.connection import Connection

import uvloop
from report import Report

from topics.clock import SystemClock
from topics.config.environment import BindAddress
from topics.net.messages import Request, Responder, Response, StreamSink
from topics.server.connections.hub import TransportSettings
from topics.server.listen import bound_address, open_listeners, raise_file_limit
from topics.server.server import Server
from topics.wire.outgoing import sse

FIELDS = b"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
REQUEST = b"POST /v0/topics/t HTTP/1.1\r\n" + FIELDS + b"\r\n{}"
SLOW = b"GET /slow HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"x" * 1000
STREAM = b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n"


class ToyApp:
    def __init__(self) -> None:
        self.streams: list[StreamSink] = []

    def head(self, request: Request) -> Response | None:
        return None

    def handle(self, request: Request, responder: Responder) -> None:
        if request.raw_path == b"/stream":
            self.streams.append(responder.stream(200, sse.STREAM_HEADERS))
        else:
            responder.reply(Response(200, b"{}"))

    def abandon(self, request: Request) -> None: ...

    def shutdown(self) -> None: ...


def serve(port_to: Connection) -> None:
    async def run() -> None:
        raise_file_limit()
        server = Server(ToyApp(), TransportSettings(), clock=SystemClock())
        sockets = open_listeners(BindAddress("127.0.0.1", 0))
        await server.start(sockets)
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        port_to.send(bound_address(sockets[0]).port)
        await stop.wait()
        await server.stop()

    uvloop.run(run())


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * 4096


async def connect(port: int, count: int, first: bytes) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    opened = []
    for start in range(0, count, 200):
        batch = min(200, count - start)
        opened += await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in range(batch)))
    for _, writer in opened:
        writer.write(first)
    return opened


async def trickle(writers: list[asyncio.StreamWriter]) -> None:
    """One byte to each every two seconds, spread evenly."""
    share = max(1, len(writers) // 200)
    for at in range(1, len(SLOW)):
        for start in range(0, len(writers), share):
            for writer in writers[start : start + share]:
                if not writer.is_closing():
                    writer.write(SLOW[at : at + 1])
            await asyncio.sleep(2 / 200)


async def honest(port: int, until_s: float, latencies_s: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.monotonic() < until_s:
        started = time.monotonic()
        writer.write(REQUEST)
        await reader.readuntil(b"{}")
        latencies_s.append(time.monotonic() - started)
        await asyncio.sleep(0.02)
    writer.close()


def show(report: Report, name: str, latencies_s: list[float]) -> None:
    ordered = sorted(latencies_s)
    p50, p99 = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
    report.line(f"{name:40} {len(ordered):7} requests   p50 {p50 * 1000:7.2f} ms   p99 {p99 * 1000:7.2f} ms")


async def measure(report: Report, port: int, pid: int, options: argparse.Namespace) -> None:
    async def run_honest(name: str) -> None:
        latencies_s: list[float] = []
        until_s = time.monotonic() + options.seconds
        await asyncio.gather(*(honest(port, until_s, latencies_s) for _ in range(options.honest)))
        show(report, name, latencies_s)

    await run_honest("honest clients alone")
    before = resident_bytes(pid)
    slow = await connect(port, options.slow, SLOW[:1])
    tricklers = [asyncio.create_task(trickle([writer for _, writer in slow]))]
    await run_honest(f"beside {options.slow} slow connections")
    report.line(f"{'memory per slow connection':40} {(resident_bytes(pid) - before) / options.slow / 1024:7.2f} KiB")
    tricklers.pop().cancel()
    for _, writer in slow:
        writer.transport.abort()
    await asyncio.sleep(1)
    before = resident_bytes(pid)
    streams = await connect(port, options.slow, STREAM)
    await asyncio.gather(*(reader.readuntil(b"\r\n\r\n") for reader, _ in streams))
    await run_honest(f"beside {options.slow} idle streams")
    each_kib = (resident_bytes(pid) - before) / options.slow / 1024
    report.line(f"{'memory per stream, beyond the above':40} {each_kib:7.2f} KiB")
    for _, writer in streams:
        writer.transport.abort()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--slow", type=int, default=5000)
    parser.add_argument("--honest", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=8)
    options = parser.parse_args()
    raise_file_limit()
    report = Report("slow_connections", "Honest clients beside slow connections; goal: their p99 stays below 100 ms")
    report = Report("slow_connections", "Honest clients beside slow connections; goal: their p99 stays below 100 ms")
    port_from, port_to = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(port_to,), daemon=True)
    process.start()
    assert process.pid is not None
    try:
        uvloop.run(measure(report, port_from.recv(), process.pid, options))
        report.save()
    finally:
        process.terminate()
        process.join(15)


if __name__ == "__main__":
    main()
