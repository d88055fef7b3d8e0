"""Random connections to a server without sockets, judged by what the engine published.

Requests are pipelined and cut anywhere; peers half-close, go, and stop reading; time, syncs, faults and changes of the
topics come in between. Whatever way a write took: it is answered once, after it was published, with the seqs it
has, and in order; who is refused has left nothing; in the end nothing is left on its way."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
from itertools import accumulate
from random import Random
from typing import Any

import pytest
from tests.server.bare_transport import BareTransport

from topics.api.build import ServerApp
from topics.core.topic import TopicLog
from topics.engine.writing.writes import Writes
from topics.model.ops import Append
from topics.server.connections.h1_connection import H1Connection
from topics.server.connections.hub import Hub, TransportSettings
from topics.testing.clock import SimClock, SimHost
from topics.testing.driver import SimKernel
from topics.testing.faultfs import FaultFs
from topics.testing.simfs import SimFs
from topics.wire.access.keys import parse_keys

SEEDS = int(os.environ.get("EXPRESS_SEEDS", "40"))
FIRST = int(os.environ.get("EXPRESS_FIRST", "0"))
STEPS = 250
PEERS = 6
NAMES = "tttuuv"
CONFIGS: list[dict[str, Any]] = [
    {},
    {},
    {"durability": "fsync"},
    {"durability": "memory"},
    {"durability": "ephemeral"},
    {"cap_records": 5},
    {"cap_records": 4, "ttl_ms": 5},
    {"cap_records": 6, "discard": "reject"},
    {"cap_bytes": 120},
    {"cap_bytes": 300, "discard": "reject"},
    {"ttl_ms": 3, "discard": "reject", "cap_records": 8},
    {"idempotency_window_ms": 0},
    {"type": "queue"},
]
ODD_BODIES = [b"", b"{", b"[]", b'{"records":[]}', b'{"records":[{}]}', b'{"records":[{"data":"\xff"}]}']


class Asked:
    """One request, and what became of it."""

    def __init__(self, raw: bytes, verb: str, name: str = "", ids: list[int] | None = None) -> None:
        self.raw = raw
        self.verb = verb
        self.name = name
        self.ids = ids or []
        self.status = 0
        self.answer: dict[str, Any] = {}


class Peer(BareTransport):
    """A client and its transport: what it has yet to send, and what it was sent."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.connection = H1Connection(world.hub)
        self.to_send = b""
        self.favourite = world.rng.choice(NAMES)
        self.asked: list[Asked] = []
        self.answered = 0
        self.sent_bytes = 0
        self.received = b""
        self.is_closed = self.is_ended = self.is_gone = self.is_paused = self.is_half_closed = False
        self.connection.connection_made(self)  # type: ignore[arg-type]

    # --- a transport ---

    def write(self, data: bytes) -> None:
        assert not self.is_ended, "nothing is said behind the last word"
        if self.is_gone or self.is_closed:
            return
        self.received += data
        while (whole := _whole_answer(self.received)) is not None:
            status, body, self.received = whole
            if status == 100:
                continue
            assert self.answered < len(self.asked), "an answer that nobody asked for"
            asked = self.asked[self.answered]
            self.answered += 1
            asked.status, asked.answer = status, json.loads(body)
            try:
                self.world.judge(asked)
            except AssertionError as error:
                self.world.failures.append(error)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_ended = True

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    # --- a client ---

    @property
    def is_open(self) -> bool:
        return not (self.is_gone or self.is_closed or self.is_ended or self.is_half_closed)

    def ask(self, asked: Asked) -> None:
        self.asked.append(asked)
        self.to_send += asked.raw

    def send(self, size: int) -> None:
        if self.is_gone or self.is_closed or self.is_paused:
            return
        data, self.to_send = self.to_send[:size], self.to_send[size:]
        self.sent_bytes += len(data)
        if data:
            self.connection.data_received(data)

    @property
    def sent_whole(self) -> int:
        """Requests that the server has had as a whole."""
        ends = accumulate(len(asked.raw) for asked in self.asked)
        return sum(end <= self.sent_bytes for end in ends)

    def half_close(self) -> None:
        if self.is_open and not self.is_paused:
            self.is_half_closed = True
            self.to_send = b""
            if not self.connection.eof_received():
                self.close()

    def go(self) -> None:
        if not self.is_gone:
            self.is_gone = True
            self.connection.connection_lost(None)

    def check_order(self) -> None:
        """Writes of one topic that was never recreated have rising seqs; a delete takes what was written before it."""
        last: dict[str, int] = {}
        for asked in self.asked[: self.answered]:
            name = asked.name
            if asked.verb == "drop":
                last.clear()
            if asked.status != 200 or name in self.world.dropped:
                continue
            if asked.verb == "write" and b"Idempotency-Key" not in asked.raw:
                assert asked.answer["first_seq"] > last.get(name, 0), "order on one connection"
                last[name] = asked.answer["last_seq"]
            elif asked.verb == "delete":
                assert asked.answer["earliest_seq"] > last.get(name, 0), "a delete takes what was there before"


def _whole_answer(raw: bytes) -> tuple[int, bytes, bytes] | None:
    head, end, rest = raw.partition(b"\r\n\r\n")
    if not end:
        return None
    status = int(head.split(b" ")[1])
    length = re.search(rb"Content-Length: (\d+)", head)
    size = 0 if length is None else int(length[1])
    return None if len(rest) < size else (status, rest[:size], rest[size:])


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, rng: Random) -> None:
        self.rng = rng
        self.clock = SimClock()
        self.disk = FaultFs(SimFs())
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self._failed)
        self.failures: list[Any] = []
        self.sim = SimKernel.open(
            self.disk,
            clock=self.clock,
            wal_shards=rng.choice([1, 1, 2]),
            wal_queue=rng.choice([3, 8, 4096, 4096]),
            seq_reserve=rng.choice([1, 4, 16, 256]),
            max_total_bytes=rng.choice([0, 0, 0, 1500]),
            max_inflight_per_key=rng.choice([0, 2, 5]),
        )
        kernel = self.sim.kernel
        self.fields = rng.choice(["", "Authorization: Bearer secret\r\n"])
        keys = parse_keys("secret" if self.fields else None)
        app = ServerApp(kernel.settings, keys=keys, clock=self.clock, host=SimHost())
        app.attach(kernel)
        self.app = app.app
        transport = TransportSettings(max_body_bytes=rng.choice([kernel.settings.max_body_bytes] * 5 + [200]))
        self.hub = Hub(self.app, transport, clock=self.clock, loop=self.loop)
        self.heads: dict[int, tuple[int, int]] = {}
        self.ids: dict[int, list[tuple[str, int]]] = {}
        self.dropped: set[str] = set()
        self.has_routers = False
        self.is_faulty = rng.random() < 0.3
        self.next_id = 100
        publish = Writes._publish

        def noting(writes: Writes, topic: TopicLog, op: Append) -> None:
            try:
                self._note(topic, op)
            except AssertionError as error:
                self.failures.append(error)  # the engine would only log it
            publish(writes, topic, op)

        monkeypatch.setattr(Writes, "_publish", noting)
        self.peers = [Peer(self) for _ in range(PEERS)]
        self.old: list[Peer] = []

    def _failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(context)

    def _note(self, topic: TopicLog, op: Append) -> None:
        """Seqs are dense, times do not fall. Who waited while the topic was dropped goes with it."""
        is_gone = topic.id not in self.sim.engine.state.by_id
        head, last_ts = self.heads.get(topic.id, (op.first_seq - 1, 0))
        assert op.first_seq == topic.head + 1 or is_gone, "seqs are dense"
        assert op.first_seq == head + 1 or self.has_routers, "only copies that are made again may leave seqs out"
        assert list(op.ts) == sorted(op.ts), "times do not fall within a batch"
        assert op.ts[0] >= last_ts, "times do not fall"
        self.heads[topic.id] = (op.last_seq, op.ts[-1])
        frames = op.frames
        assert frames is not None
        for at in range(op.count):
            found = re.search(rb'"id":(\d+)', frames[op.offs[at] : op.offs[at] + op.lens[at]])
            if found is not None:
                self.ids.setdefault(int(found[1]), []).append((topic.name, op.first_seq + at))

    def places(self, record_id: int, name: str) -> list[int]:
        return [seq for at, seq in self.ids.get(record_id, []) if at == name]

    def judge(self, asked: Asked) -> None:
        """Called when an answer leaves."""
        if asked.verb == "write":
            self.judge_write(asked)
        elif asked.verb == "drop" and asked.status == 200:
            self.dropped.add(asked.name)

    def judge_write(self, asked: Asked) -> None:
        answer = asked.answer
        if asked.status not in (200, 201):
            assert all(not self.places(one, asked.name) for one in asked.ids), (asked.status, answer)
            return
        if answer["deduped"]:
            return
        seqs = [*range(answer["first_seq"], answer["last_seq"] + 1)]
        assert len(seqs) == answer["count"] == len(asked.ids)
        assert answer.get("seqs", seqs) == seqs
        assert [self.places(one, asked.name) for one in asked.ids] == [[seq] for seq in seqs], "published, and so"

    # --- requests ---

    def write(self, peer: Peer) -> Asked:
        rng = self.rng
        name = rng.choice(NAMES) if rng.random() < 0.1 else peer.favourite
        count = rng.choice([1, 1, 1, 1, 2, 3, 7])
        ids = [*range(self.next_id, self.next_id + count)]
        self.next_id += count
        records = []
        for one in ids:
            record: dict[str, Any] = {"data": {"id": one, "pad": "x" * rng.choice([0, 0, 1, 30])}}
            more: list[dict[str, Any]] = [
                {},
                {},
                {"tag": "a"},
                {"node": "n"},
                {"tag": None, "meta": {"k": 1}},
                {"node": ""},
            ]
            records.append(record | rng.choice(more))
        body: dict[str, Any] = {"records": records}
        wishes: list[dict[str, Any]] = [{"node": "m"}, {"create": False}, {"disable_backpressure": True}]
        if rng.random() < 0.2:
            body |= rng.choice(wishes)
        text = json.dumps(body, separators=(",", ":")).encode()
        fields, query = "", ""
        if rng.random() < 0.05:
            fields = f"Idempotency-Key: k{rng.randrange(3)}\r\n"
        if rng.random() < 0.1:
            query = rng.choice(["?return_seqs=false", "?return_seqs=1"])
        if rng.random() < 0.04:
            text, ids = rng.choice(ODD_BODIES), []
        raw = self.request("POST", f"/v0/topics/{name}{query}", text, fields, chunked=rng.random() < 0.03)
        return Asked(raw, "write", name, ids)

    def request(self, method: str, path: str, body: bytes, fields: str = "", *, chunked: bool = False) -> bytes:
        lines = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{self.fields}{fields}"
        )
        blank = b"\r\n" if self.rng.random() < 0.02 else b""
        if chunked:
            return (
                blank
                + lines.encode()
                + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
                % (
                    len(body),
                    body,
                )
                if body
                else blank + lines.encode() + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            )
        return blank + f"{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def put(self, name: str) -> Asked:
        config = self.rng.choice(CONFIGS)
        return Asked(self.request("PUT", f"/v0/topics/{name}", json.dumps(config).encode()), "put", name)

    def other(self) -> Asked:
        rng, name = self.rng, self.rng.choice(NAMES)
        path = f"/v0/topics/{name}"
        match rng.randrange(10):
            case 0:
                self.dropped.add(name)
                return Asked(self.request("DELETE", path, b""), "drop", name)
            case 1 | 2 | 3:
                return self.put(name)
            case 4 | 5 | 6:
                body = rng.choice([b'{"before_seq":1000000}', b'{"before_seq":1000000}', b'{"match":"a"}'])
                verb = "delete" if b"before" in body else "delete_some"
                return Asked(self.request("POST", path + "/delete", body), verb, name)
            case 7:
                return Asked(self.request("GET", path, b""), "get", name)
            case 8:
                return Asked(self.request("POST", path + "/diff", b'{"from_seq":0}'), "diff", name)
            case _:
                self.has_routers = True
                body = json.dumps({"source": rng.choice("tu"), "dest": rng.choice("uv")}).encode()
                return Asked(self.request("PUT", f"/v0/routers/r{rng.randrange(2)}", body), "router")

    # --- steps ---

    def step(self) -> None:
        rng, peer = self.rng, self.rng.choice(self.peers)
        dice = rng.random()
        if dice < 0.42:
            if peer.is_open:
                peer.ask(self.write(peer) if rng.random() < 0.94 else self.other())
                if rng.random() < 0.85:
                    peer.send(len(peer.to_send))
        elif dice < 0.58:
            peer.send(rng.choice([1, 2, 40, 150, 200, 500, 100_000, 100_000]))
        elif dice < 0.86:
            if rng.random() < 0.2:
                rng.choice(self.sim.writers).sync()  # in the middle of a turn, as threads do
            for _ in range(rng.choice([0, 1, 1, 2, 5])):
                self.sim.driver.turn()
        elif dice < 0.9:
            self.turn()
        elif dice < 0.94:
            self.clock.advance(rng.choice([1, 1, 2, 5, 60]))
            if rng.random() < 0.3:
                self.sim.kernel.tick()
        elif dice < 0.955:
            self.peers[self.peers.index(peer)] = Peer(self)
            self.old.append(peer)
            rng.choice([peer.go, peer.half_close])()
        elif dice < 0.98:
            rng.choice([peer.connection.pause_writing, peer.connection.resume_writing])()
        elif dice < 0.985:
            if self.is_faulty:
                self.fault()
        else:
            self.spin()

    def fault(self) -> None:
        kind: Any = self.rng.choice(["pwrite", "pwrite", "datasync"])
        self.disk.fail(kind, "*wal*", code=self.rng.choice([errno.EIO, errno.ENOSPC]), times=1)

    def spin(self) -> None:
        for _ in range(3):
            self.loop.run_until_complete(asyncio.sleep(0))

    def turn(self) -> None:
        self.sim.pump()
        self.spin()

    def run(self) -> None:
        for name in "tu":
            self.peers[0].ask(self.put(name))
        self.peers[0].send(100_000)
        if self.rng.random() < 0.8:
            self.turn()
        for _ in range(STEPS):
            self.step()
        if self.rng.random() < 0.2:
            self.drain()
        self.come_to_rest()

    def drain(self) -> None:
        self.hub.draining = True
        self.app.shutdown()
        for peer in self.peers:
            peer.to_send = b""
            peer.connection.drain()

    def come_to_rest(self) -> None:
        for _ in range(40):
            for peer in [*self.peers, *self.old]:
                if not peer.is_gone:
                    peer.connection.resume_writing()
                peer.send(100_000)
            self.turn()
            self.clock.advance(100)
            self.sim.tick()
        assert not self.failures, self.failures

    def check(self) -> None:
        commit, state = self.sim.kernel.commit, self.sim.engine.state
        assert commit.depth() == 0
        assert not commit.growing
        assert state.staged_bytes == 0
        assert {(topic.staged_count, topic.staged_bytes) for topic in state.topics.values()} <= {(0, 0)}
        for peer in [*self.peers, *self.old]:
            self.check_peer(peer)
            peer.go()
        assert self.app.inflight._running == {}, "who was counted is uncounted"

    def check_peer(self, peer: Peer) -> None:
        peer.check_order()
        if peer.is_gone:
            return
        assert set(peer.connection.output.exchanges) <= {peer.connection.current}, "everybody is answered"
        if peer.is_half_closed and not self.hub.draining:
            is_refused = any(asked.status in (400, 413) for asked in peer.asked)
            assert peer.answered >= peer.sent_whole or is_refused, "everybody is answered"
        elif not (peer.is_closed or peer.is_ended or self.hub.draining):
            assert peer.answered == len(peer.asked), "everybody is answered"


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_random_connections(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    world = World(monkeypatch, Random(seed))
    try:
        world.run()
        world.check()
    finally:
        world.loop.close()
