"""A Python producer with our batching client, redis-py and nats-py, each against its own server on this machine.

    python bench/bench_compare.py [--seconds 3] [--rounds 3] [--unsaved]

Every producer encodes the same small dict for every record (msgspec, which is what our client uses) and waits for every
acknowledgement: ours through `client.producer()`, redis-py through pipelines of XADD (with hiredis), nats-py through
JetStream's `publish_async`; at most about 1000 records are under way in each. Comparable durability: our class `disk`
(the kernel has the bytes when the ack comes, synced within 50 ms), Redis with `appendonly yes, appendfsync everysec`,
JetStream with file storage and its defaults (synced every two minutes). The rows `fsync` are synced before every ack:
our class `fsync`, Redis with `appendfsync always`; this NATS has no such mode. Rounds alternate, so that noise of the
machine meets all alike; medians are shown.

A latency is the time from handing a record over to knowing that it was acknowledged, of every 50th record.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import nats
import redis
from bench_client import VALUE, served
from report import Report

import topics

HERE = Path(__file__).resolve().parent
encode = msgspec.json.Encoder().encode
SAMPLE = 50
UNDER_WAY = 1000  # records per batch of ours and per pipeline, and bound of JetStream publishes without their ack
NATS_AT_ONCE = 200  # publishes that begin together: faster than one by one, and than more
OUR_BUFFER = 256 * 1024  # bytes under way: the batch that is being sent, and the next


class Outcome(NamedTuple):
    per_s: float
    p50_ms: float
    p99_ms: float


def outcome(count: int, took_s: float, spans: list[float]) -> Outcome:
    ordered = sorted(spans)
    p50, p99 = (ordered[len(ordered) * part // 100] * 1000 for part in (50, 99))
    return Outcome(count / took_s, p50, p99)


# --- ours ------------------------------------------------------------------------------------------------------------


def ours_batching(url: str, durability: str, seconds: float) -> Outcome:
    spans: list[float] = []
    with topics.connect(url) as client:
        topic = client.topic("orders")
        topic.drop()
        topic.configure(durability=durability)
        count, start = 0, time.perf_counter()
        with topic.producer(batch_records=UNDER_WAY, buffer_bytes=OUR_BUFFER) as producer:
            while (now := time.perf_counter()) - start < seconds:
                producer.append(VALUE, report=lambda _, at=now: spans.append(time.perf_counter() - at))  # type: ignore[misc]
                for _ in range(SAMPLE - 1):
                    producer.append(VALUE)
                count += SAMPLE
        took_s = time.perf_counter() - start
        assert topic.state().count == count
    return outcome(count, took_s, spans)


def ours_single(url: str, durability: str, seconds: float) -> Outcome:
    with topics.connect(url) as client:
        topic = client.topic("orders")
        topic.drop()
        topic.configure(durability=durability)
        return one_by_one(lambda: topic.append(VALUE), seconds)


def one_by_one(step: Callable[[], object], seconds: float) -> Outcome:
    spans: list[float] = []
    start = now = time.perf_counter()
    while now - start < seconds:
        step()
        spans.append(-now + (now := time.perf_counter()))
    return outcome(len(spans), now - start, spans)


# --- Redis -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def redis_server(directory: Path, *, fsync: str) -> Iterator[int]:
    port = free_port()
    command = ["redis-server", "--port", str(port), "--dir", str(directory), "--save", ""]
    command += ["--appendonly", "yes", "--appendfsync", fsync, "--daemonize", "no", "--loglevel", "warning"]
    command += ["--auto-aof-rewrite-percentage", "0"]
    with running(command, port):
        yield port


def redis_batching(port: int, seconds: float) -> Outcome:
    spans: list[float] = []
    with redis.Redis(port=port) as client:
        client.flushall()
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            with client.pipeline(transaction=False) as pipeline:
                given = []
                for number in range(UNDER_WAY):
                    if number % SAMPLE == 0:
                        given.append(time.perf_counter())
                    pipeline.xadd("orders", {"data": encode(VALUE)})
                pipeline.execute()
            done = time.perf_counter()
            spans += [done - at for at in given]
            count += UNDER_WAY
        took_s = time.perf_counter() - start
        assert client.xlen("orders") == count
    return outcome(count, took_s, spans)


def redis_single(port: int, seconds: float) -> Outcome:
    with redis.Redis(port=port) as client:
        client.flushall()
        return one_by_one(lambda: client.xadd("orders", {"data": encode(VALUE)}), seconds)


# --- NATS ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def nats_server(directory: Path) -> Iterator[int]:
    port = free_port()
    with running(["nats-server", "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(directory)], port):
        yield port


async def fresh_stream(client: Any) -> Any:
    stream = client.jetstream(publish_async_max_pending=UNDER_WAY)
    with contextlib.suppress(nats.js.errors.NotFoundError):
        await stream.delete_stream("orders")
    await stream.add_stream(name="orders", subjects=["orders"], storage="file")
    return stream


async def nats_batching(port: int, seconds: float) -> Outcome:
    spans: list[float] = []
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    stream = await fresh_stream(client)
    count, start = 0, time.perf_counter()
    while (now := time.perf_counter()) - start < seconds:
        given = await asyncio.gather(*(stream.publish_async("orders", encode(VALUE)) for _ in range(NATS_AT_ONCE)))
        for acked in given[::SAMPLE]:
            acked.add_done_callback(lambda _, at=now: spans.append(time.perf_counter() - at))
        count += NATS_AT_ONCE
    await stream.publish_async_completed()
    took_s = time.perf_counter() - start
    assert (await stream.stream_info("orders")).state.messages == count
    await client.close()
    return outcome(count, took_s, spans)


async def nats_single(port: int, seconds: float) -> Outcome:
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    stream = await fresh_stream(client)
    spans: list[float] = []
    start = now = time.perf_counter()
    while now - start < seconds:
        await stream.publish("orders", encode(VALUE), timeout=30)
        spans.append(-now + (now := time.perf_counter()))
    await client.close()
    return outcome(len(spans), now - start, spans)


# --- servers ---------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port, process)
        yield
    finally:
        process.terminate()
        process.wait(30)


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise SystemExit(f"{process.args!r} did not start")


@contextlib.contextmanager
def our_server(directory: Path) -> Iterator[str]:
    process, url = served(str(directory))
    try:
        yield url
    finally:
        process.terminate()
        process.wait(30)


# --- the run ---------------------------------------------------------------------------------------------------------

OURS, REDIS, NATS = "topics", "redis-py", "nats-py"
Contest = dict[str, Callable[[float], Outcome]]


def contests(stack: contextlib.ExitStack, home: Path) -> dict[str, Contest]:
    """Who takes part in which row. A server that is not installed is left out."""

    def place(name: str) -> Path:
        (home / name).mkdir()
        return home / name

    url = stack.enter_context(our_server(place("topics")))
    rows: dict[str, Contest] = {
        "batching": {OURS: lambda s: ours_batching(url, "disk", s)},
        "one at a time": {OURS: lambda s: ours_single(url, "disk", s)},
        "batching, fsync": {OURS: lambda s: ours_batching(url, "fsync", s)},
        "one at a time, fsync": {OURS: lambda s: ours_single(url, "fsync", s)},
    }
    if shutil.which("redis-server"):
        lazy = stack.enter_context(redis_server(place("redis"), fsync="everysec"))
        strict = stack.enter_context(redis_server(place("redis-always"), fsync="always"))
        rows["batching"][REDIS] = lambda s: redis_batching(lazy, s)
        rows["one at a time"][REDIS] = lambda s: redis_single(lazy, s)
        rows["batching, fsync"][REDIS] = lambda s: redis_batching(strict, s)
        rows["one at a time, fsync"][REDIS] = lambda s: redis_single(strict, s)
    if shutil.which("nats-server"):
        port = stack.enter_context(nats_server(place("nats")))
        rows["batching"][NATS] = lambda s: asyncio.run(nats_batching(port, s))
        rows["one at a time"][NATS] = lambda s: asyncio.run(nats_single(port, s))
    return rows


def medians(rounds: list[Outcome]) -> Outcome:
    return Outcome(*(statistics.median(values) for values in zip(*rounds, strict=True)))


def show(report: Report, row: str, results: dict[str, Outcome]) -> None:
    ours = results[OURS].per_s
    for name, result in results.items():
        ratio = f"{ours / result.per_s:>8.2f} x" if name != OURS else ""
        report.line(f"{row:22} {name:10} {result.per_s:>12,.0f} {result.p50_ms:>10.3f} {result.p99_ms:>10.3f} {ratio}")
        row = ""


def versions() -> str:
    told = [f"{name} {version(name)}" for name in ("redis", "hiredis", "nats-py")]
    for command in (["redis-server", "--version"], ["nats-server", "--version"]):
        if shutil.which(command[0]):
            told.append(" ".join(subprocess.run(command, capture_output=True, text=True).stdout.split()[:3]))
    return ", ".join(told)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--unsaved", action="store_true", help="leave bench/results as it is")
    options = parser.parse_args()
    os.environ["PATH"] += ":/usr/sbin"  # where Debian puts nats-server
    subprocess.run([str(HERE.parent / "scripts" / "system-packages.sh"), "redis", "nats"], check=False)
    report = Report(
        "compare", "A Python producer against redis-py and nats-py; medians, latencies from hand-over to ack"
    )
    report.line(versions())
    rounds = f"{options.rounds} rounds of {options.seconds:g} s each"
    report.line(f"{len(encode(VALUE))} bytes a payload; {rounds}; load before the run {os.getloadavg()[0]:.1f}")
    report.line()
    report.line(f"{'':22} {'':10} {'records/s':>12} {'p50 ms':>10} {'p99 ms':>10} {'we / they':>10}")
    with tempfile.TemporaryDirectory() as home, contextlib.ExitStack() as stack:
        for row, contest in contests(stack, Path(home)).items():
            results: dict[str, list[Outcome]] = {name: [] for name in contest}
            for _ in range(options.rounds):
                for name, run in contest.items():
                    results[name].append(run(options.seconds))
            show(report, row, {name: medians(rounds) for name, rounds in results.items()})
    if not options.unsaved:
        report.save()
    return 0


if __name__ == "__main__":
    sys.exit(main())
