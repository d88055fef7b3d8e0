"""The request surface under load: `topics serve` driven by wrk, beside it Uvicorn with a bare handler and a bare loop.

HTTP/2 is driven by h2load, where that is installed (Debian: nghttp2-client).

    python bench/bench_http.py [--seconds 4] [--unsaved]

Servers are real processes with default settings, one for each figure; wrk has one processor, the server the other. A
machine is compared with itself: the yardsticks of the same run (Uvicorn answering a constant; uvloop and httptools
answering a constant, which no Python server on them can surpass; `bare_handler.py`, the same work without an engine;
raw `fdatasync`) say what it can do. The goals in requests per second were set on a machine where such a bare handler
made 72,000 to 82,000 writes of one record and about a million records by hundreds; as parts of it they hold anywhere.
Both are measured in turns. Neighbours of a virtual machine only ever take away, so the best turn says what the program
can do and is held against the goal; the median says what the machine had left for it in these minutes. A lone client
and its server wait for each other, so both are put on one processor; with two of them, each request holds two wake-ups
of an idle processor, which in a virtual machine take longer than the request. Processor time per request is the
server's own, and the steadier figure.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from report import Report

HERE = Path(__file__).resolve().parent
RECORD = '{"data":{"order":12345,"state":"paid","amount":"12.50"},"tag":"orders"}'
WIDE = '{"data":{"id":123456,"name":"some name here","v":[1,2,3],"text":"hello world, this is a payload"}}'
MS_PER = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}
BARE_APP = """
BODY = b'{"topic":"t","first_seq":13,"last_seq":13,"seqs":[13],"head_seq":13,"count":1,"created":false,"deduped":false}'
HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode())]

async def app(scope, receive, send):
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})
"""


BARE_LOOP = """
import asyncio, sys, httptools, uvloop
ANSWER = b"HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\nContent-Length: 110\\r\\n\\r\\n" + b"x" * 110

class Bare(asyncio.Protocol):
    def connection_made(self, transport):
        self.write, self.parser = transport.write, httptools.HttpRequestParser(self)
    def data_received(self, data):
        self.parser.feed_data(data)
    def on_message_complete(self):
        self.write(ANSWER)

async def main():
    server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()

uvloop.run(main())
"""


class Outcome(NamedTuple):
    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


SINGLE = f'{{"records":[{RECORD}]}}'
BATCH = f'{{"records":[{",".join([WIDE] * 100)}]}}'
TURNS = 6
SINGLE_PART, BATCH_PART = 45_000 / 77_000, 0.5
"""The goals as parts of the bare handler of the machine they were set on."""


def script_of(body: str) -> str:
    return f"wrk.method = 'POST'\nwrk.headers['Content-Type'] = 'application/json'\nwrk.body = [==[{body}]==]\n"


def drive(url: str, body: str, *, connections: int, seconds: int, pid: int, on: set[int] | None = None) -> Outcome:
    """wrk against the server `pid`, with one body; `on` are the only processors that wrk may use."""
    return drive_script(url, script_of(body), connections=connections, seconds=seconds, pid=pid, on=on)


def drive_script(
    url: str, script: str, *, connections: int, seconds: int, pid: int, on: set[int] | None = None
) -> Outcome:
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as lua:
        lua.write(script)
        lua.flush()
        before_s = cpu_s(pid)
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", lua.name, url]
        placed = None if on is None else partial(os.sched_setaffinity, 0, on)
        output = subprocess.run(command, check=True, capture_output=True, text=True, preexec_fn=placed).stdout
        spent_s = cpu_s(pid) - before_s
    if "Non-2xx" in output or "Socket errors" in output:
        sys.exit(output)
    count = int(found(r"(\d+) requests in", output))
    rate = float(found(r"Requests/sec:\s+([\d.]+)", output))
    return Outcome(rate, wait_ms(output, 50), wait_ms(output, 99), spent_s / count * 1e6)


def drive_lone(url: str, *, seconds: int, pid: int) -> tuple[Outcome, Outcome]:
    """One connection, on the server's processor and on another one."""
    processors = sorted(os.sched_getaffinity(0))
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), processors[:1])
    drive(url, SINGLE, connections=1, seconds=1, pid=pid)  # warm
    near = drive(url, SINGLE, connections=1, seconds=seconds, pid=pid, on={processors[0]})
    return near, drive(url, SINGLE, connections=1, seconds=seconds, pid=pid, on={processors[-1]})


def found(pattern: str, output: str) -> str:
    match = re.search(pattern, output)
    if match is None:
        sys.exit(f"wrk said something else:\n{output}")
    return match[1]


def wait_ms(output: str, percent: int) -> float:
    text = found(rf"\n\s+{percent}%\s+(\S+)", output)
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s|m)", text).groups()  # type: ignore[union-attr]
    return float(number) * MS_PER[unit]


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def running(command: list[str], url: str, *, cwd: Path, **environ: str) -> Iterator[int]:
    process = subprocess.Popen(command, cwd=cwd, env={**os.environ, **environ}, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(url, timeout=1).close()
                break
            time.sleep(0.05)
        else:
            sys.exit(f"{command[0]} did not come up")
        yield process.pid
    finally:
        process.terminate()
        process.wait(30)


def call(method: str, url: str, body: object = None) -> Any:
    headers = {"Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=30) as answer:
        return json.load(answer)


def raw_fdatasync_ms(room: Path) -> float:
    """Median of one small write and its sync, on the same disk."""
    file = os.open(room / "raw", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(file, 0, 1 << 20)
    times = []
    for at in range(400):
        began = time.perf_counter()
        os.pwrite(file, b"x" * 128, at * 128)
        os.fdatasync(file)
        times.append(time.perf_counter() - began)
    os.close(file)
    return statistics.median(times) * 1e3


def bench_yardstick(report: Report, name: str, command: list[str], port: int, *, room: Path, seconds: int) -> None:
    url = f"http://127.0.0.1:{port}/"
    with running([sys.executable, *command], url, cwd=room) as pid:
        busy = drive(url, SINGLE, connections=16, seconds=seconds, pid=pid)
        near, apart = drive_lone(url, seconds=seconds, pid=pid)
    report.figure(f"{name}, constant answer, 16 connections", busy.per_s, "requests/s")
    report.figure("  processor time of each", busy.cpu_us, "us")
    report.figure(f"{name}, constant answer, alone, p50", near.p50_ms, "ms")
    report.figure("  client on another processor", apart.p50_ms, "ms")


def bench_yardsticks(report: Report, room: Path, seconds: int) -> None:
    (room / "bare_app.py").write_text(BARE_APP, encoding="utf-8")
    uvicorn = ["-m", "uvicorn", "bare_app:app", "--port", "24801", "--no-access-log", "--log-level", "critical"]
    bench_yardstick(report, "Uvicorn", uvicorn, 24_801, room=room, seconds=seconds)
    bench_yardstick(report, "Bare loop", ["-c", BARE_LOOP, "24803"], 24_803, room=room, seconds=seconds)


@contextlib.contextmanager
def bare_handler(room: Path) -> Iterator[tuple[str, int]]:
    url = "http://127.0.0.1:24804/"
    command = [sys.executable, str(HERE / "bare_handler.py"), "24804", str(room / "bare.log")]
    with running(command, url, cwd=room) as pid:
        yield url, pid


PORT = 24_802
BASE = f"http://127.0.0.1:{PORT}"
TOPIC = f"{BASE}/v0/topics/t"


@contextlib.contextmanager
def topics_server(room: Path, durability: str) -> Iterator[int]:
    """A server with one topic, and nothing left to do from an earlier figure: a checkpoint of millions of records would
    take its part of the interpreter from whatever is measured next."""
    with tempfile.TemporaryDirectory(dir=room) as data:
        environ = {"TOPICS_DATA_DIR": f"{data}/data", "TOPICS_PORT": str(PORT), "TOPICS_LOG": "error"}
        with running([sys.executable, "-m", "topics.cli", "serve"], f"{BASE}/v0/health", cwd=room, **environ) as pid:
            call("PUT", TOPIC, {"durability": durability})
            yield pid


def drive_alone(room: Path, url: str, body: str, *, durability: str, connections: int, seconds: int) -> Outcome:
    with topics_server(room, durability) as pid:
        drive(url, body, connections=connections, seconds=1, pid=pid)  # warm
        return drive(url, body, connections=connections, seconds=seconds, pid=pid)


class Turns(NamedTuple):
    best: Outcome
    median_per_s: float


def turns_of(outcomes: list[Outcome]) -> Turns:
    return Turns(max(outcomes), statistics.median([outcome.per_s for outcome in outcomes]))


def beside_the_bare_handler(room: Path, url: str, body: str, *, seconds: int) -> tuple[Turns, Turns]:
    """Sixteen connections, the bare handler and we in turns."""
    bare: list[Outcome] = []
    ours: list[Outcome] = []
    for _ in range(TURNS):
        with bare_handler(room) as (bare_url, pid):
            drive(bare_url, body, connections=16, seconds=1, pid=pid)  # warm
            bare.append(drive(bare_url, body, connections=16, seconds=seconds, pid=pid))
        ours.append(drive_alone(room, url, body, durability="disk", connections=16, seconds=seconds))
    return turns_of(bare), turns_of(ours)


def report_bare(report: Report, bare: Turns, ours: Turns, *, scale: int, unit: str, part: float) -> None:
    report.figure("  the bare handler", bare.best.per_s * scale, unit)
    report.figure("  median of its turns", bare.median_per_s * scale, unit)
    report.figure("  our part of it", ours.best.per_s / bare.best.per_s, "", at_least=part)


def bench_writes(report: Report, room: Path, seconds: int) -> None:
    def synced(connections: int) -> Outcome:
        return drive_alone(room, TOPIC, SINGLE, durability="fsync", connections=connections, seconds=seconds)

    bare_turns, turns = beside_the_bare_handler(room, TOPIC, SINGLE, seconds=seconds)
    report.figure("POST of 1 record, disk, 16 connections", turns.best.per_s, "requests/s", at_least=45_000)
    report.figure("  median of the turns", turns.median_per_s, "requests/s")
    report.figure("  processor time of each", turns.best.cpu_us, "us")
    report.figure("  p50", turns.best.p50_ms, "ms", at_most=0.4)
    report.figure("  p99", turns.best.p99_ms, "ms")
    report_bare(report, bare_turns, turns, scale=1, unit="requests/s", part=SINGLE_PART)
    with bare_handler(room) as (url, pid):
        bare, _ = drive_lone(url, seconds=seconds, pid=pid)
    with topics_server(room, "disk") as pid:
        near, apart = drive_lone(TOPIC, seconds=seconds, pid=pid)
    report.figure("POST of 1 record, disk, alone, p50", near.p50_ms, "ms", at_most=0.1)
    report.figure("  client on another processor", apart.p50_ms, "ms")
    report.figure("  the bare handler", bare.p50_ms, "ms")
    bare_turns, turns = beside_the_bare_handler(room, f"{TOPIC}?return_seqs=false", BATCH, seconds=seconds)
    report.figure("POST of 100 records, disk, 16 connections", turns.best.per_s * 100, "records/s", at_least=500_000)
    report.figure("  median of the turns", turns.median_per_s * 100, "records/s")
    report.figure("  processor time of each record", turns.best.cpu_us / 100, "us")
    report_bare(report, bare_turns, turns, scale=100, unit="records/s", part=BATCH_PART)
    done = synced(64)
    report.figure("POST of 1 record, fsync, 64 connections", done.per_s, "requests/s", at_least=20_000)
    report.figure("  processor time of each", done.cpu_us, "us")
    raw_ms = raw_fdatasync_ms(room)
    lone_ms = synced(1).p50_ms
    report.figure("POST of 1 record, fsync, alone, p50", lone_ms, "ms")
    raw_ms = (raw_ms + raw_fdatasync_ms(room)) / 2
    report.figure("  raw pwrite + fdatasync of 128 bytes around it", raw_ms, "ms")
    report.figure("  beyond it", lone_ms - raw_ms, "ms", at_most=0.25)


def bench_diff(report: Report, room: Path, seconds: int) -> None:
    with topics_server(room, "disk") as pid:
        for _ in range(100):
            call("POST", TOPIC, {"records": [json.loads(WIDE)] * 1000})
        head: int = call("GET", TOPIC)["head_seq"]
        page = json.dumps({"from_seq": head - 1000, "limit": 1000})
        done = drive(f"{TOPIC}/diff", page, connections=16, seconds=seconds, pid=pid)
        report.figure("diff of 1000 records, 16 connections", done.per_s * 1000, "records/s", at_least=1_500_000)


def bench_http2(report: Report, room: Path, seconds: int) -> None:
    """What the `h2` library leaves: each request costs it two tables of headers and a state machine, all in Python."""
    if shutil.which("h2load") is None:
        report.line("HTTP/2 left out: h2load is not installed (apt-get install nghttp2-client)")
        return
    body = room / "body.json"
    body.write_text(SINGLE, encoding="ascii")
    for streams in (1, 10):
        with topics_server(room, "disk"):
            load = ["-c16", f"-m{streams}", f"-D{seconds}", "-d", str(body), "-H", "content-type: application/json"]
            output = subprocess.run(["h2load", *load, TOPIC], check=True, capture_output=True, text=True).stdout
        if " 0 failed, 0 errored, 0 timeout" not in output:
            sys.exit(output)
        rate = float(found(r"finished in [\d.]+\w+, ([\d.]+) req/s", output))
        report.figure(f"POST of 1 record over HTTP/2, 16 connections x {streams}", rate, "requests/s")


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--seconds", type=int, default=4)
    options.add_argument("--unsaved", action="store_true", help="only print")
    chosen = options.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("wrk is not installed: apt-get install wrk")
    report = Report("http", "request surface, driven on the same machine by wrk, HTTP/2 by h2load")
    with tempfile.TemporaryDirectory(dir=HERE, prefix=".http-") as where:
        room = Path(where)
        bench_yardsticks(report, room, chosen.seconds)
        report.line()
        bench_writes(report, room, chosen.seconds)
        bench_diff(report, room, chosen.seconds)
        bench_http2(report, room, chosen.seconds)
    if not chosen.unsaved:
        report.save()


if __name__ == "__main__":
    main()
