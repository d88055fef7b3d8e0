"""Requests per second of the transport alone: a toy application behind the real server, driven by wrk.

    PYTHONPATH=src python bench/bench_http_layer.py [--seconds 3] [--profile]

The application answers a POST as an endpoint would at best: it decodes the JSON envelope and replies at once
(`sync`), or at the end of the turn, as a committed write does (`turn`). wrk needs one core, the server has the other;
the figures are for comparing layers in one run, not machines.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import cast

import msgspec
import uvloop

from topics.clock import SystemClock
from topics.config.environment import BindAddress
from topics.net.messages import Request, Responder, Response
from topics.server.connections.hub import TransportSettings
from topics.server.listen import bound_address, open_listeners
from topics.server.server import Server

REPLY = Response(
    200,
    b'{"topic":"bench","first_seq":13,"last_seq":13,"seqs":[13],"head_seq":13,"count":1,"created":false,'
    b'"deduped":false,"performance":{"server_total_ms":0.1,"wal_append_ms":0.01,"fsync_ms":0.0}}',
)
BARE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
    len(REPLY.body),
    REPLY.body,
)
BODY = '{"records":[{"data":{"order":12345,"state":"paid","amount":"12.50"},"tag":"orders"}]}'


class BareProtocol(asyncio.Protocol):
    """The yardstick: a constant answer to every read, nothing parsed. No layer in Python can be faster."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast(asyncio.Transport, transport).write

    def data_received(self, data: bytes) -> None:
        self._write(BARE)


class Record(msgspec.Struct):
    data: msgspec.Raw
    tag: str | None = None


class Write(msgspec.Struct):
    records: list[Record]


class ToyApp:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._decoder = msgspec.json.Decoder(Write)
        self._waiting: list[Responder] = []

    def head(self, request: Request) -> Response | None:
        return None

    def handle(self, request: Request, responder: Responder) -> None:
        if request.method == "POST":
            assert request.body is not None
            self._decoder.decode(request.body)
        if request.raw_path != b"/turn":
            responder.reply(REPLY)
            return
        if not self._waiting:
            self._loop.call_soon(self._end_of_turn)
        self._waiting.append(responder)

    def _end_of_turn(self) -> None:
        waiting, self._waiting = self._waiting, []
        for responder in waiting:
            responder.reply(REPLY)

    def abandon(self, request: Request) -> None: ...

    def shutdown(self) -> None: ...


def wrk(url: str, *, connections: int, seconds: int, script: str | None = None) -> str:
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency"]
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as lua:
        if script is not None:
            lua.write(script)
            lua.flush()
            command += ["-s", lua.name]
        return subprocess.run([*command, url], check=True, capture_output=True, text=True).stdout


POST = f"""
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{BODY}'
"""
PIPELINED = f"""
init = function(args)
  local r = {{}}
  for i = 1, 16 do r[i] = wrk.format("POST", nil, {{["Content-Type"] = "application/json"}}, '{BODY}') end
  req = table.concat(r)
end
request = function() return req end
"""


def measure(name: str, url: str, *, connections: int, seconds: int, script: str | None = None) -> None:
    """The server is this process and wrk a child of it, so our processor time is the server's."""
    before_s = time.process_time()
    output = wrk(url, connections=connections, seconds=seconds, script=script)
    report(name, output, cpu_s=time.process_time() - before_s)


def report(name: str, output: str, *, cpu_s: float) -> None:
    count = re.search(r"(\d+) requests in", output)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", output)
    p50 = re.search(r"50%\s+(\S+)", output)
    p99 = re.search(r"99%\s+(\S+)", output)
    errors = re.search(r"(Socket errors|Non-2xx).*", output)
    if count is None or rate is None or p50 is None or p99 is None:
        sys.exit(output)
    told = f"{name:36} {float(rate[1]):9,.0f}/s   {cpu_s / int(count[1]) * 1e6:6.1f} us of processor each"
    print(f"{told}   p50 {p50[1]:>8}   p99 {p99[1]:>8}   {errors[0] if errors else ''}")


def drive(port: int, bare_port: int, seconds: int, done: Callable[[], object]) -> None:
    url = f"http://127.0.0.1:{port}"
    bare = f"http://127.0.0.1:{bare_port}/"
    measure("yardstick: bare protocol, POST, 16", bare, connections=16, seconds=seconds, script=POST)
    measure("GET, 16 connections", f"{url}/sync", connections=16, seconds=seconds)
    measure("POST, reply at once, 16", f"{url}/sync", connections=16, seconds=seconds, script=POST)
    measure("POST, reply at end of turn, 16", f"{url}/turn", connections=16, seconds=seconds, script=POST)
    measure("POST, reply at end of turn, 1", f"{url}/turn", connections=1, seconds=seconds, script=POST)
    measure("POST, end of turn, pipelined x16", f"{url}/turn", connections=4, seconds=seconds, script=PIPELINED)
    done()


async def run(seconds: int) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    server = Server(ToyApp(loop), TransportSettings(), clock=SystemClock())
    sockets = open_listeners(BindAddress("127.0.0.1", 0))
    await server.start(sockets)
    port = bound_address(sockets[0]).port
    bare = await loop.create_server(BareProtocol, "127.0.0.1", 0)
    bare_port: int = bare.sockets[0].getsockname()[1]
    driver = threading.Thread(
        target=drive, args=(port, bare_port, seconds, lambda: loop.call_soon_threadsafe(stop.set))
    )
    driver.start()
    await stop.wait()
    await server.stop()
    driver.join()
    bare.close()


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--seconds", type=int, default=3)
    options.add_argument("--profile", action="store_true")
    chosen = options.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("wrk is not installed (Debian: apt-get install wrk)")
    if not chosen.profile:
        uvloop.run(run(chosen.seconds))
        return
    profile = cProfile.Profile()
    profile.runcall(uvloop.run, run(chosen.seconds))
    pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
