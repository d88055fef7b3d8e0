"""From a write to its watchers' sockets: latency, idle streams, stuck and cold readers, a room of a hundred speakers.

    PYTHONPATH=src python bench/bench_delivery.py [latency] [idle] [stuck] [room] [--writes 200] [--turns 30]

The server is the real process; this one is its clients, on raw sockets with epoll, so that a thousand of them cost less
than what is measured. For latencies both have processors of their own: a client that the scheduler puts on the
server's processor would wait until all the others were sent to. A latency runs from handing the POST to the kernel
until a stream's bytes are read, so it holds the request, the commit, the delivery and both socket calls.

One writer waits until everybody has its record before it writes the next, at once (`in a row`) or after a rest. A rest
lets both processors fall asleep and their caches go cold, which costs more than the work: so each figure stands beside
its yardstick, a loop that does nothing but send, read by the same code. `anywhere` is the one with rests where the
scheduler chooses the processors. The results of one run are kept in `bench/results/delivery.txt`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

from report import Report

GOALS_MS = {1: 0.3, 100: 1.5, 1000: 6.0}
IDLE_STREAMS = 10_000
IDLE_KIB_MAX = 25.0
STUCK_TURNS = 30
STUCK_S = 2.5
REPOSE_S = 0.8
SPEAKERS = 100
RECORD = b"event: record"
PACKETS_PER_S = 50


# --- processors -------------------------------------------------------------------------------------------------------

PROCESSORS = sorted(os.sched_getaffinity(0))


def anywhere() -> None:
    os.sched_setaffinity(0, PROCESSORS)


def beside_the_clients() -> None:
    """In a process that is just being started."""
    os.sched_setaffinity(0, PROCESSORS[:-1] or PROCESSORS)


@contextmanager
def processor_of_their_own() -> Iterator[None]:
    """For the clients, which are this process."""
    os.sched_setaffinity(0, PROCESSORS[-1:])
    try:
        yield
    finally:
        anywhere()


# --- server and plain requests ----------------------------------------------------------------------------------------


class Server:
    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self.pid = pid
        self._socket = self.connect()

    def connect(self) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def rss_kib(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def let_go(self) -> None:
        """It may run on any processor from now on."""
        for thread in os.listdir(f"/proc/{self.pid}/task"):
            os.sched_setaffinity(int(thread), PROCESSORS)

    def call(self, method: str, path: str, body: object = None) -> dict[str, object]:
        self._socket.sendall(request(method, path, body))
        answer: dict[str, object] = json.loads(read_answer(self._socket))
        assert "error" not in answer, answer
        return answer

    def pressure(self) -> float:
        self._socket.sendall(b"GET /v0/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        text = read_answer(self._socket).decode()
        return float(
            next(line for line in text.splitlines() if line.startswith("topics_delivery_pressure ")).split()[1]
        )


def request(method: str, path: str, body: object = None) -> bytes:
    text = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    )
    return head.encode() + text


def read_answer(sock: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += sock.recv(65_536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(
        next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")).split(b":")[1]
    )
    while len(body) < length:
        body += sock.recv(65_536)
    return body


@contextmanager
def server(*, placed: Callable[[], None] = anywhere, **settings: object) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder) / "port"
        env = {
            **os.environ,
            "TOPICS_DATA_DIR": f"{folder}/data",
            "TOPICS_PORT": "0",
            "TOPICS_PORT_FILE": str(port_file),
            "TOPICS_LOG": "error",
            "TOPICS_MAX_SSE_CONNECTIONS": "0",
            "TOPICS_MAX_WATCH_SESSIONS": "0",
            **{f"TOPICS_{name.upper()}": str(value) for name, value in settings.items()},
        }
        command = [sys.executable, "-m", "topics.cli", "serve"]
        process = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL, preexec_fn=placed)
        try:
            while not port_file.exists():
                assert process.poll() is None, "the server did not start"
                time.sleep(0.02)
            yield Server(int(port_file.read_text().rsplit(":", 1)[1]), process.pid)
        finally:
            process.terminate()
            process.wait(20)


# --- streams ----------------------------------------------------------------------------------------------------------


def open_stream(server: Server, topics: dict[str, object], **fields: object) -> socket.socket:
    made = server.call("POST", "/v0/watch", {"topics": topics, "heartbeat_ms": 60_000, **fields})
    stream = server.connect()
    stream.sendall(f"GET {made['stream_url']} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return stream


def open_level_stream(server: Server, topics: dict[str, object], **fields: object) -> socket.socket:
    """A stream that has seen everything."""
    stream = open_stream(server, topics, **fields)
    seen = b""
    while b"caught-up" not in seen:
        seen += stream.recv(65_536)
    stream.setblocking(False)
    return stream


class Ears:
    """Sockets that listen for a record, and when each of them heard it."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._by_number = {sock.fileno(): sock for sock in sockets}
        self._epoll = select.epoll()
        self._room = bytearray(1 << 16)
        for sock in sockets:
            self.listen(sock)

    def listen(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def hear(self, began: float, answers: socket.socket | None = None) -> list[float]:
        """Milliseconds since `began` until each had the record; returns when `answers` was answered, too."""
        now, room, by_number = time.perf_counter, self._room, self._by_number
        taken: list[float] = []
        left, answered = set(by_number), answers is None
        while left or not answered:
            for number, _ in self._epoll.poll(5.0):
                sock = by_number.get(number)
                if sock is None:
                    assert answers is not None
                    answered = b"seqs" in answers.recv(65_536)
                elif room.find(RECORD, 0, sock.recv_into(room)) >= 0 and number in left:
                    left.discard(number)
                    taken.append((now() - began) * 1e3)
        return taken

    def close(self) -> None:
        self._epoll.close()
        for sock in self._by_number.values():
            sock.close()


class Watchers:
    """Level streams of one topic, and when each of them got a record."""

    def __init__(self, server: Server, topic: str, count: int) -> None:
        self._writer = server.connect()
        self._ears = Ears([open_level_stream(server, {topic: {"tail": True}}) for _ in range(count)])
        self._ears.listen(self._writer)
        self._post = request("POST", f"/v0/topics/{topic}", {"records": [{"data": {"order": 12345, "state": "paid"}}]})

    def write(self) -> list[float]:
        """One write; milliseconds until each stream had it."""
        began = time.perf_counter()
        self._writer.send(self._post)
        return self._ears.hear(began, self._writer)

    def close(self) -> None:
        self._ears.close()
        self._writer.close()


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def paced(watchers: Watchers, *, writes: int, pause_s: float) -> list[float]:
    for _ in range(5):
        watchers.write()
    taken: list[float] = []
    for _ in range(writes):
        if pause_s:
            time.sleep(pause_s)
        taken += watchers.write()
    return taken


# --- the benchmarks ---------------------------------------------------------------------------------------------------


BARE_FAN_OUT = """
import asyncio, uvloop
class Fan(asyncio.Protocol):
    writes = []
    def connection_made(self, transport): self.writes.append(transport.write)
    def data_received(self, data):
        for write in self.writes: write(data)
async def main():
    server = await asyncio.get_running_loop().create_server(Fan, "127.0.0.1", 0, backlog=2000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
uvloop.run(main())
"""


def bare_fan_out_ms(count: int, *, writes: int, pause_s: float) -> float:
    """The yardstick: a loop that does nothing but send what comes to `count` sockets. What it takes is the kernel's."""
    command = [sys.executable, "-c", BARE_FAN_OUT]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=beside_the_clients)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    streams = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    streams[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    ears = Ears(streams)
    time.sleep(0.5)  # until the loop has accepted them all; whoever is missing would be waited for
    taken: list[float] = []
    for _ in range(writes):
        if pause_s:
            time.sleep(pause_s)
        began = time.perf_counter()
        streams[0].send(RECORD.ljust(400))
        taken += ears.hear(began)
    ears.close()
    process.kill()
    process.wait()
    return statistics.median(taken)


def latency(options: argparse.Namespace) -> None:
    options.report.line("write -> server-sent event, ms, from POST sent to bytes read, server and clients apart")
    options.report.line("  bare: p50 of a loop that only sends")
    for count, goal_ms in GOALS_MS.items():
        with processor_of_their_own():
            latency_of(count, goal_ms, options)


def latency_of(count: int, goal_ms: float, options: argparse.Namespace) -> None:
    writes = max(options.writes if count < 1000 else options.writes // 4, 10)
    in_a_row = writes * (10 if count == 1 else 2)
    rest_s = 0.02 if count < 1000 else 0.1
    bare_ms = (
        bare_fan_out_ms(count, writes=in_a_row, pause_s=0.0),
        bare_fan_out_ms(count, writes=writes, pause_s=rest_s),
    )
    with server(placed=beside_the_clients) as live:
        live.call("PUT", "/v0/topics/t", {})
        watchers = Watchers(live, "t", count)
        row = paced(watchers, writes=in_a_row, pause_s=0.0)
        cpu_s = live.cpu_s()
        rested = paced(watchers, writes=writes, pause_s=rest_s)
        cpu_us = (live.cpu_s() - cpu_s) / (writes + 5) / count * 1e6
        pressure = live.pressure()
        live.let_go()
        anywhere()
        time.sleep(0.5)
        free_ms = statistics.median(paced(watchers, writes=writes, pause_s=rest_s))
        watchers.close()
    options.report.line(f"  {count} watchers, goal p50 < {goal_ms}")
    options.report.line(f"    in a row                {summary(row, goal_ms)}   bare {bare_ms[0]:6.3f}")
    options.report.line(
        f"    after {rest_s * 1e3:3.0f} ms of rest    {summary(rested, goal_ms)}   bare {bare_ms[1]:6.3f}"
        f"   anywhere {free_ms:6.3f}   server {cpu_us:5.1f} us per frame   pressure {pressure:.2f}"
    )


def summary(taken: list[float], goal_ms: float) -> str:
    p50, p99 = statistics.median(taken), percentile(taken, 0.99)
    return f"p50 {p50:7.3f} {'met   ' if p50 < goal_ms else 'MISSED'}   p99 {p99:7.3f}"


def idle(options: argparse.Namespace) -> None:
    with server() as live:
        live.call("PUT", "/v0/topics/t", {})
        first = open_level_stream(live, {"t": {"tail": True}})
        before = live.rss_kib()
        streams = [open_level_stream(live, {"t": {"tail": True}}) for _ in range(options.idle)]
        each = (live.rss_kib() - before) / options.idle
        met = "met" if each < IDLE_KIB_MAX else "MISSED"
        options.report.line(
            f"{options.idle} idle streams: {each:.1f} KiB each of the server's memory   goal < {IDLE_KIB_MAX} {met}"
        )
        cpu_s, began = live.cpu_s(), time.monotonic()
        time.sleep(5)
        share = (live.cpu_s() - cpu_s) / (time.monotonic() - began)
        options.report.line(f"  and {share * 100:.1f} % of a core while nothing happens")
        for stream in [first, *streams]:
            stream.close()


def stuck(options: argparse.Namespace) -> None:
    """One reader that never reads, and one that reads all of history, beside a hundred level ones: in short turns that
    follow each other in random order, so that a busy minute of the machine falls on all alike. `alone again` is the
    same as `alone`: what it differs by is what a difference means here. `elsewhere` is the reader of history at another
    server: what it costs this machine, and not what it costs us."""
    options.report.line("100 level watchers, ms, against alone: with a stuck reader, with one in old history")
    options.report.line("  undisturbed: without writes during which the hypervisor gave a processor to others")
    chance = random.Random(1)
    with server_with_history() as live, server_with_history() as other:
        reader, stranger = HistoryReader(live), HistoryReader(other)
        turns: dict[str, Callable[[Server], AbstractContextManager[None]]] = {
            "alone": nobody,
            "alone again": nobody,
            "stuck": stuck_reader,
            "elsewhere": stranger.reading,
            "history": reader.reading,
        }
        found: dict[str, list[Write]] = {name: [] for name in turns}
        time.sleep(1)
        watchers = Watchers(live, "t", 100)
        for _ in range(options.turns):
            for name in chance.sample(list(turns), len(turns)):
                with turns[name](live):
                    found[name] += turn(watchers, writes=max(options.writes // 2, 10), chance=chance)
        for part in (watchers, reader, stranger):
            part.close()
    for label, kept in (("all", found), ("undisturbed", {name: undisturbed(of) for name, of in found.items()})):
        alone = latencies(kept["alone"])
        for name, writes in kept.items():
            taken = latencies(writes)
            figures = [
                f"p{share * 100:.0f} {percentile(taken, share):7.3f}"
                f" {(percentile(taken, share) / percentile(alone, share) - 1) * 100:+6.1f} %"
                for share in (0.5, 0.95, 0.99)
            ]
            options.report.line(f"  {label:11} {name:11} {len(writes):6} writes   {'   '.join(figures)}")


class Write(NamedTuple):
    """What each watcher waited, and the ticks that were taken from this machine meanwhile."""

    taken_ms: list[float]
    stolen: int


def turn(watchers: Watchers, *, writes: int, chance: random.Random) -> list[Write]:
    """Writes at random times: ones in step with a reader's would always meet it, or never."""
    for _ in range(5):
        watchers.write()
    made = []
    for _ in range(writes):
        time.sleep(chance.uniform(0.003, 0.009))
        before = stolen_ticks()
        taken = watchers.write()
        made.append(Write(taken, stolen_ticks() - before))
    return made


def stolen_ticks() -> int:
    with open("/proc/stat") as file:
        return int(file.readline().split()[8])


def undisturbed(writes: list[Write]) -> list[Write]:
    return [write for write in writes if not write.stolen]


def latencies(writes: list[Write]) -> list[float]:
    return [taken for write in writes for taken in write.taken_ms]


@contextmanager
def nobody(_: Server) -> Iterator[None]:
    time.sleep(REPOSE_S)
    yield


@contextmanager
def stuck_reader(live: Server) -> Iterator[None]:
    """It is stuck once all buffers are full; until then it is a reader of history."""
    blocked = open_stream(live, {"t": {}}, max_batch_bytes=1 << 20)
    time.sleep(STUCK_S)
    try:
        yield
    finally:
        blocked.close()


@contextmanager
def server_with_history() -> Iterator[Server]:
    """A hundred thousand records, of which a small part is in memory."""
    with server(recent_cache_bytes=1 << 20, segment_max_events=2000, checkpoint_interval_ms=200) as live:
        live.call("PUT", "/v0/topics/t", {})
        batch = {"records": [{"data": {"pad": "x" * 400}}] * 1000}
        for _ in range(100):
            live.call("POST", "/v0/topics/t?return_seqs=false", batch)
        yield live


READER = """
import os, select, sys, time; sys.path.insert(0, "bench")
from bench_delivery import Server, open_stream
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
live = Server(int(sys.argv[1]), int(sys.argv[2]))
for _ in sys.stdin:  # a line to begin, a line to end
    stream, taken, wrote_s = open_stream(live, {"t": {}}), 0, 0.0
    while sys.stdin not in select.select([sys.stdin, stream], [], [])[0]:
        taken += len(stream.recv(1 << 16))
        if taken > 40_000_000:
            stream.close()
            stream, taken = open_stream(live, {"t": {}}), 0
        if time.monotonic() > wrote_s + 0.1:
            wrote_s = time.monotonic()
            live.call("POST", "/v0/topics/u", {"records": [{"data": 1}]})
    stream.close()
    sys.stdin.readline()
"""


class HistoryReader:
    """Another process, which reads the topic from its start, as fast as it gets it, again and again. It has only the
    time that nobody else wants: on a machine of its own it would take none of ours. It writes a little to another
    topic, so that a server paces it which nobody else writes to."""

    def __init__(self, live: Server) -> None:
        command = [sys.executable, "-u", "-c", READER, str(live.port), str(live.pid)]
        folder = Path(__file__).resolve().parent.parent
        self._process = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, bufsize=0)

    def _say(self, word: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word)

    @contextmanager
    def reading(self, _: Server) -> Iterator[None]:
        self._say(b"begin\n")
        time.sleep(REPOSE_S)
        try:
            yield
        finally:
            self._say(b"end\n")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def room(options: argparse.Namespace) -> None:
    """Everyone speaks fifty times a second and hears all the others, not themselves."""
    with server() as live:
        live.call("PUT", "/v0/topics/room", {"durability": "ephemeral", "cap_records": 100_000})
        ears = [
            open_level_stream(live, {"room": {"tail": True}}, node=f"n{number}", limit=1000)
            for number in range(SPEAKERS)
        ]
        mouths = [live.connect() for _ in range(SPEAKERS)]
        packets = [
            request("POST", "/v0/topics/room?return_seqs=false", {"node": f"n{at}", "records": [{"data": "x" * 80}]})
            for at in range(SPEAKERS)
        ]
        heard = {ear.fileno(): 0 for ear in ears}
        by_number = {sock.fileno(): sock for sock in [*ears, *mouths]}
        epoll = select.epoll()
        for sock in [*ears, *mouths]:
            sock.setblocking(False)
            epoll.register(sock.fileno(), select.EPOLLIN)
        said, refused, lag_s = 0, 0, 0.0
        cpu_s, began = live.cpu_s(), time.perf_counter()
        period_s = 1 / (SPEAKERS * PACKETS_PER_S)
        total = int(options.seconds * SPEAKERS * PACKETS_PER_S)
        tail: dict[int, bytes] = {}
        while said < total or min(heard.values()) < total - total // SPEAKERS:
            now = time.perf_counter()
            if now - began > options.seconds * 4 + 10:
                break
            while said < total and began + said * period_s <= now:
                lag_s = max(lag_s, now - began - said * period_s)
                mouths[said % SPEAKERS].sendall(packets[said % SPEAKERS])
                said += 1
            for number, _ in epoll.poll(0.001):
                data = by_number[number].recv(1 << 20)
                if number in heard:
                    joined = tail.get(number, b"") + data
                    heard[number] += joined.count(b'{"$seq"') - tail.get(number, b"").count(b'{"$seq"')
                    tail[number] = joined[-6:]
                else:
                    refused += data.count(b'"error"')
        took = time.perf_counter() - began
        share = (live.cpu_s() - cpu_s) / took
        expected = total - total // SPEAKERS
        lost = sum(expected - count for count in heard.values())
        options.report.line(
            f"room of {SPEAKERS}: {said} packets in {took:.1f} s ({said / took:,.0f}/s), {sum(heard.values()):,} heard "
            f"({sum(heard.values()) / took:,.0f}/s), lost {lost}, refused {refused}"
        )
        late = f"clients late by {lag_s * 1e3:.0f} ms at most"
        options.report.line(f"  server {share * 100:.0f} % of a core, pressure {live.pressure():.2f}, {late}")
        for sock in [*ears, *mouths]:
            sock.close()


BENCHMARKS = {"latency": latency, "idle": idle, "stuck": stuck, "room": room}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], default=[])
    parser.add_argument("--writes", type=int, default=200)
    parser.add_argument("--turns", type=int, default=STUCK_TURNS)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--idle", type=int, default=IDLE_STREAMS)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    options.idle = min(options.idle, hard - 100)
    options.report = Report("delivery", "Live delivery over HTTP/1.1, clients on the same machine")
    for name, run in BENCHMARKS.items():
        if not options.names or name in options.names:
            run(options)
            options.report.line()
    if not options.names:
        options.report.save()


if __name__ == "__main__":
    main()
