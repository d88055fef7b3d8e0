"""Writes that go the short way: the same answers, records and refusals as the usual way gives.

Connections are driven by hand on a simulated kernel: all requests of a turn come in, then the turn ends."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.bare_transport import BareTransport

from topics import limits
from topics.api.build import ServerApp
from topics.api.fast_append import BODY_BYTES_MAX, FastAppendHead, FastAppends
from topics.core.reading.walk import ReadRequest
from topics.engine.writing.coalesced_write import BYTES_MAX, CoalescedWrite
from topics.engine.writing.writes import RECORDS_EACH_MAX
from topics.errors import CommitFailed, WalReadOnly
from topics.model.config import patch_from, resolve_config
from topics.server.connections.h1_answers import H1Exchange
from topics.server.connections.h1_connection import H1Connection
from topics.server.connections.hub import Hub, TransportSettings
from topics.testing.clock import SimClock, SimHost
from topics.testing.driver import SimKernel
from topics.testing.faultfs import FaultFs
from topics.testing.simfs import SimFs
from topics.wire.access.keys import parse_keys
from topics.wire.outgoing.records import View, render_runs

LINES = "POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
WRITE = b'{"records":[{"data":{"n":%d},"tag":"a"}]}'


class Wire(BareTransport):
    """A transport that keeps what it is given."""

    def __init__(self) -> None:
        self.sent = b""
        self.is_closing = False

    def write(self, data: bytes) -> None:
        self.sent += data

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.is_closing = True

    pause_reading = resume_reading = write_eof = abort = close


class Door:
    """A server without sockets, and what went through its short way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, keys: str | None = None, **settings: Any) -> None:
        self.clock = SimClock()
        self.disk = FaultFs(SimFs())
        self.sim = SimKernel.open(self.disk, clock=self.clock, **settings)
        self.loop = asyncio.new_event_loop()
        kernel = self.sim.kernel
        app = ServerApp(kernel.settings, keys=parse_keys(keys), clock=self.clock, host=SimHost())
        app.attach(kernel)
        self.app = app.app
        transport = TransportSettings(max_body_bytes=kernel.settings.max_body_bytes)
        self.hub = Hub(app.app, transport, clock=self.clock, loop=self.loop)
        self.offered: list[H1Exchange] = []
        self.sent_away: list[H1Exchange] = []
        take, decline = FastAppendHead.take, H1Exchange.decline

        def noting(writes: FastAppendHead, body: bytes, responder: Any) -> bool:
            self.offered.append(responder)
            is_taken = take(writes, body, responder)
            if not is_taken:
                self.sent_away.append(responder)
            return is_taken

        def noting_decline(exchange: H1Exchange, body: bytes) -> None:
            self.sent_away.append(exchange)
            decline(exchange, body)

        monkeypatch.setattr(FastAppendHead, "take", noting)
        monkeypatch.setattr(H1Exchange, "decline", noting_decline)

    @property
    def taken(self) -> list[bool]:
        """Of those who were offered the short way: who went it."""
        return [exchange not in self.sent_away for exchange in self.offered]

    def create(self, name: str = "t", **config: Any) -> None:
        self.sim.call(lambda engine: engine.put_topic(name, resolve_config(patch_from(config))))
        self.post([WRITE % 0])  # the first write raises the seq ceiling, which takes a turn of its own
        self.offered.clear()

    def connect(self) -> tuple[H1Connection, Wire]:
        connection, wire = H1Connection(self.hub), Wire()
        connection.connection_made(wire)  # type: ignore[arg-type]
        return connection, wire

    def prime(self, count: int, lines: str = LINES) -> list[tuple[H1Connection, Wire]]:
        """Connections whose next head is known."""
        peers = [self.connect() for _ in range(count)]
        for connection, wire in peers:
            self.send(connection, lines, WRITE % 0)
            self.turn()
            wire.sent = b""
        self.offered.clear()
        return peers

    def post(self, bodies: list[bytes], *, name: str = "t", query: str = "", fields: str = "") -> list[Answer]:
        """Each body on a connection of its own, all in one turn."""
        lines = (
            f"POST /v0/topics/{name}{query} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{fields}"
        )
        peers = self.prime(len(bodies), lines)
        for (connection, _), body in zip(peers, bodies, strict=True):
            self.send(connection, lines, body)
        self.turn()
        return [Answer(wire.sent) for _, wire in peers]

    def usual(self, body: bytes, *, name: str = "t", query: str = "") -> Answer:
        """On a connection whose head nobody has seen before, which is not offered the short way."""
        connection, wire = self.connect()
        self.offered.clear()
        self.send(connection, LINES.replace("/t ", f"/{name}{query} "), body)
        self.turn()
        assert self.taken == []
        return Answer(wire.sent)

    def send(self, connection: H1Connection, lines: str, body: bytes) -> None:
        connection.data_received(f"{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def turn(self) -> None:
        self.sim.pump()
        self.loop.run_until_complete(asyncio.sleep(0))

    def last(self, count: int) -> bytes:
        """The last records as a reader gets them, without their seqs."""
        request = ReadRequest(from_seq=self.head() - count, limit=count)
        runs = self.sim.call(lambda engine: engine.read("t", request)).outcome.runs
        return re.sub(rb'"\$seq":\d+', b'"$seq":#', render_runs(runs, View(data=True, tags=True, meta=True)))

    def head(self, name: str = "t") -> int:
        return self.sim.engine.state.topics[name].head


class Answer:
    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        self.status = int(head.split(b" ")[1])
        length = re.search(rb"Content-Length: (\d+)", head)
        assert length is not None
        assert int(length[1]) == len(self.body), "one whole answer, and no more"
        self.json: dict[str, Any] = json.loads(self.body)

    def without_times(self) -> bytes:
        return re.sub(rb"\d+\.\d+", b"#", self.body)


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    made = Door(monkeypatch)
    made.create()
    yield made
    made.loop.close()


def test_writes_of_one_record_go_the_short_way(door: Door) -> None:
    first_seq = door.head() + 1 + 5
    answers = door.post([WRITE % n for n in range(5)])
    assert door.taken == [True] * 5
    assert [answer.json["first_seq"] for answer in answers] == list(range(first_seq, first_seq + 5))
    assert [answer.json["seqs"] for answer in answers] == [[first_seq + n] for n in range(5)]


def test_both_ways_give_the_same_bytes(door: Door) -> None:
    usual = door.usual(WRITE % 1).without_times()
    usual = re.sub(rb"\b%d\b" % door.head(), b"N", usual)
    short = door.post([WRITE % 1])[0].without_times()
    short = re.sub(rb"\b%d\b" % door.head(), b"N", short)
    assert door.taken == [True]
    assert short == usual


@pytest.mark.parametrize("query", ["?return_seqs=false", "?return_seqs=true", "?return_seqs=maybe", "?other=1"])
def test_the_query_means_what_it_means_elsewhere(door: Door, query: str) -> None:
    usual, short = door.usual(WRITE % 1, query=query), door.post([WRITE % 1], query=query)[0]
    assert door.taken == [True]
    assert ("seqs" in short.json) is ("seqs" in usual.json) is (query != "?return_seqs=false")


@pytest.mark.parametrize(
    "record",
    [
        b'{"data":null}',
        b'{"data":{"a":1,"a":2} , "tag":"x","node":"n","meta":{"k":"v"}}',
        b'{"data":12345678901234567890123,"meta":null}',
        b'{"data":"\\ud83d\\ude00 \xf0\x9f\x98\x80","tag":null}',
        b'{"data":[' + b"[" * 100 + b"]" * 100 + b"]}",
    ],
)
def test_records_are_stored_as_the_usual_way_stores_them(door: Door, record: bytes) -> None:
    body = b'{"records":[' + record + b"]}"
    assert door.usual(body).status == 200
    usual = door.last(1)
    assert door.post([body])[0].status == 200
    assert door.taken == [True]
    assert door.last(1) == usual


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"records":[]}',
        b'{"records":[{}]}',
        b'{"records":[{"data":1,"tag":7}]}',
        b'{"records":[{"data":1,"tag":"\\ud800"}]}',
        b'{"records":[{"data":1,"tag":"%b"}]}' % (b"x" * 2000),
        b'{"records":[{"data":1,"node":"%b"}]}' % (b"x" * 2000),
        b'{"records":[{"data":"\xff"}]}',
        b'{"records":[{"data":' + b"[" * 200 + b"]" * 200 + b"}]}",
        b'{"records":[{"data":1}],"node":"%b"}' % (b"x" * 2000),
        b'{"records":[],"idempotency_key":"k"}',
        b'{"records":[{"data":1}],"idempotency_key":"%b"}' % (b"x" * 2000),
    ],
)
def test_a_bad_body_is_refused_as_elsewhere_and_stores_nothing(door: Door, body: bytes) -> None:
    usual = door.usual(body)
    _, refused, last = door.post([WRITE % 1, body, WRITE % 2])
    assert door.taken == [True, False, True]
    assert (refused.status, refused.json) == (usual.status, usual.json)
    assert refused.status == 400
    assert last.json["first_seq"] == door.head()
    assert re.findall(rb'{"n":(\d)}', door.last(2)) == [b"1", b"2"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"records":[%b]}' % b",".join([b'{"data":1}'] * (RECORDS_EACH_MAX + 1)),
        b'{"records":[{"data":1}],"node":"n"}',
        b'{"records":[{"data":1}],"idempotency_key":"k\\n"}',
        b'{"records":[{"data":1}],"node":"n","idempotency_key":"k"}',
        b'{"idempotency_key":"k","records":[{"data":1}]}',
        b'{"records":[{"data":1}],"create":false}',
        b'{"records":[{"data":1}],"config":{"ttl_ms":1000}}',
        b'{"records":[{"data":"%b"}]}' % (b"x" * BODY_BYTES_MAX),
    ],
)
def test_other_writes_go_the_usual_way(door: Door, body: bytes) -> None:
    answers = door.post([WRITE % 1, body])
    assert door.taken[-1] is False
    assert [answer.status for answer in answers] == [200, 200]


def test_writes_with_a_key_go_the_short_way_too_and_a_repeated_key_appends_once(door: Door) -> None:
    body = b'{"records":[{"data":{"n":7},"tag":"a"}],"idempotency_key":"%b"}'
    usual = re.sub(rb"\b%d\b" % (door.head() + 1), b"N", door.usual(body % b"k-1").without_times())
    first = door.post([body % b"k-2"])[0]
    assert door.taken == [True]
    assert re.sub(rb"\b%d\b" % first.json["first_seq"], b"N", first.without_times()) == usual
    [again] = door.post([body % b"k-2"])
    assert door.taken == [True]
    assert (again.json["deduped"], again.json["first_seq"]) == (True, first.json["first_seq"])
    head, (busy, later) = door.head(), door.post([body % b"k-3", body % b"k-3"])
    assert (busy.json["first_seq"], later.json["deduped"]) == (later.json["first_seq"], True)
    assert door.head() == head + 3, "two writes of the connections' own, and one with the key"


def test_a_key_in_a_payload_is_no_key_of_the_write(door: Door) -> None:
    payload = b'{"a":[1],"idempotency_key":"k"}'
    seqs = [door.post([b'{"records":[{"data":%b}]}' % payload])[0].json["first_seq"] for _ in range(2)]
    assert seqs[0] < seqs[1]
    assert payload in door.last(1)
    [cut] = door.post([b'{"records":[{"data":%b' % payload])
    assert cut.status == 400


@pytest.mark.parametrize("fields", ["Idempotency-Key: k\r\n", "Expect: 100-continue\r\n", "Connection: close\r\n"])
def test_heads_that_ask_for_more_are_not_offered_the_short_way(door: Door, fields: str) -> None:
    connection, wire = door.connect()
    for _ in range(2):
        door.send(connection, LINES + fields, WRITE % 1)
        door.turn()
    assert door.taken == []
    assert wire.sent.startswith((b"HTTP/1.1 200 OK", b"HTTP/1.1 100 Continue"))


def test_a_wrong_content_type_is_still_refused(door: Door) -> None:
    connection, wire = door.connect()
    for _ in range(2):
        door.send(connection, LINES.replace("application/json", "text/plain"), WRITE % 1)
        door.turn()
    assert door.taken == []
    assert wire.sent.count(b"HTTP/1.1 415 ") == 2


def test_answers_of_pipelined_requests_stay_in_order(door: Door) -> None:
    """The second comes before the first is answered, so it waits its turn behind it."""
    (other, _), (connection, wire) = door.prime(2)
    before = door.head()
    for peer, number in ((other, 1), (connection, 2), (connection, 3), (connection, 4)):
        door.send(peer, LINES, WRITE % number)
    for _ in range(3):
        door.turn()
    assert door.taken == [True, True], "the third is offered only what it would owe nobody"
    seqs = [int(seq) for seq in re.findall(rb'"first_seq":(\d+)', wire.sent)]
    assert seqs == [before + 2, before + 3, before + 4]


def test_an_empty_line_before_each_request_is_ignored_here_too(door: Door) -> None:
    ((connection, wire),) = door.prime(1)
    for number in range(3):
        connection.data_received(b"\r\n")
        door.send(connection, LINES, WRITE % number)
        door.turn()
    assert door.taken == [True] * 3
    assert wire.sent.count(b"HTTP/1.1 200 OK") == 3


def test_a_peer_that_goes_before_its_answer_harms_nobody(door: Door) -> None:
    peers = door.prime(3)
    for connection, _ in peers:
        door.send(connection, LINES, WRITE % 1)
    peers[1][0].connection_lost(None)
    door.turn()
    assert [bool(wire.sent) for _, wire in peers] == [True, False, True]


def test_a_failed_commit_is_told_to_each_of_them(door: Door) -> None:
    peers = door.prime(3)
    before = door.head()
    door.disk.fail("pwrite", "*wal*", times=1)
    for connection, _ in peers:
        door.send(connection, LINES, WRITE % 1)
    door.turn()
    answers = [Answer(wire.sent) for _, wire in peers]
    assert {answer.json["error"]["code"] for answer in answers} == {CommitFailed("not_committed", cause="write").code}
    assert door.head() == before


def test_requests_of_a_key_are_counted_and_uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door(monkeypatch, keys="secret:write", max_inflight_per_key=2)
    try:
        door.sim.call(lambda engine: engine.put_topic("t", resolve_config(patch_from({}))))
        fields = "Authorization: Bearer secret\r\n"
        door.post([WRITE % 0], fields=fields)
        for _ in range(3):  # if one were not uncounted, there would be no place left
            answers = door.post([WRITE % 1, WRITE % 2, WRITE % 3], fields=fields)
            assert [answer.status for answer in answers] == [200, 200, 429]
            assert door.taken == [True, True, False]
    finally:
        door.loop.close()


@pytest.mark.parametrize("durability", ["fsync", "memory", "ephemeral"])
def test_every_class_is_answered_alike(door: Door, durability: str) -> None:
    door.create("c", durability=durability)
    usual, (short,) = door.usual(WRITE % 1, name="c"), door.post([WRITE % 2], name="c")
    assert [usual.status, short.status] == [200, 200]
    for answer in (usual, short):
        assert (answer.json["performance"]["fsync_ms"] > 0) is (durability == "fsync")
    assert door.taken == [durability != "ephemeral"]


def test_while_the_server_drains_nothing_goes_the_short_way(door: Door) -> None:
    peers = door.prime(2)
    door.hub.draining = True
    for connection, _ in peers:
        door.send(connection, LINES, WRITE % 1)
    door.turn()
    assert [b"Connection: close" in wire.sent for _, wire in peers] == [True, True]
    assert door.taken == []


def test_a_body_over_the_limit_is_refused_as_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door(monkeypatch, max_body_bytes=1024)
    try:
        door.create()
        answers = door.post([b'{"records":[{"data":"%b"}]}' % (b"x" * size) for size in (900, 1200)])
        assert [answer.status for answer in answers] == [200, 413]
        assert door.taken == [True]
    finally:
        door.loop.close()


def test_what_travels_together_is_bounded(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    seal = CoalescedWrite.seal

    def noting(joint: CoalescedWrite) -> None:
        sizes.append(joint.bytes)
        seal(joint)

    monkeypatch.setattr(CoalescedWrite, "seal", noting)
    count = BYTES_MAX // 4002 + 3
    answers = door.post([b'{"records":[{"data":"%b"}]}' % (b"x" * 4000)] * count)
    assert {answer.status for answer in answers} == {200}
    assert door.taken == [True] * count
    assert sum(sizes[-2:]) == count * 4002
    assert max(sizes) <= BYTES_MAX


def test_seqs_are_reserved_ahead_without_losing_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ceiling is a submission of the topic, so it ends what grows."""
    door = Door(monkeypatch, seq_reserve=8)
    try:
        door.create()
        peers, numbers = door.prime(5), iter(range(1000))
        before, sent = door.head(), 0
        for turn in range(30):
            for connection, _ in peers[: 1 + turn % 5]:
                door.send(connection, LINES, WRITE % next(numbers))
                sent += 1
            door.turn()
        assert door.head() == before + sent
        assert [int(n) for n in re.findall(rb'{"n":(\d+)}', door.last(sent))] == list(range(sent))
        seqs = sorted(int(seq) for _, wire in peers for seq in re.findall(rb'"first_seq":(\d+)', wire.sent))
        assert seqs == list(range(before + 1, before + sent + 1))
        assert door.taken.count(True) > sent / 2
    finally:
        door.loop.close()


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ({"cap_records": 1, "discard": "reject"}, {}),
        ({"cap_bytes": 100}, {}),
        ({"durability": "ephemeral", "cap_bytes": 100}, {}),
        ({}, {"max_total_bytes": 300}),
    ],
)
def test_what_does_not_fit_is_refused_as_elsewhere(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], settings: dict[str, Any]
) -> None:
    door = Door(monkeypatch, **settings)
    try:
        door.sim.call(lambda engine: engine.put_topic("t", resolve_config(patch_from(config))))
        peers = door.prime(1)
        large = b'{"records":[{"data":"%b"}]}' % (b"x" * 320)
        usual, before = door.usual(large), door.head()
        door.send(peers[0][0], LINES, large)
        door.turn()
        short = Answer(peers[0][1].sent)
        assert (short.status, short.json) == (usual.status, usual.json)
        assert short.status >= 400
        assert door.head() == before
    finally:
        door.loop.close()


def test_a_log_that_takes_no_writes_says_so_as_elsewhere(door: Door) -> None:
    peers = door.prime(2)
    door.disk.fail("pwrite", "*wal*", times=1)
    door.usual(WRITE % 1)
    usual, before = door.usual(WRITE % 1), door.head()
    for connection, _ in peers:
        door.send(connection, LINES, WRITE % 1)
    door.turn()
    for _, wire in peers:
        short = Answer(wire.sent)
        assert (short.status, short.json) == (usual.status, usual.json)
    assert usual.json["error"]["code"] == WalReadOnly("write").code
    assert door.head() == before


def test_a_turn_that_is_too_much_for_the_queue_is_not_counted_as_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door(monkeypatch, wal_queue=4)
    try:
        door.create()
        answers = door.post([WRITE % n for n in range(6)])
        assert [answer.status for answer in answers] == [200] * 6
        assert door.sim.kernel.commit.full_total == 0
    finally:
        door.loop.close()


@pytest.mark.parametrize("query", ["", "?return_seqs=false"])
@pytest.mark.parametrize("count", [3, 20])
def test_writes_of_any_few_records_go_together(door: Door, query: str, count: int) -> None:
    records = [b'{"data":%d,"tag":"b"}' % n if n % 3 else b'{"data":"%d","node":"n"}' % n for n in range(count)]
    body = b'{"records":[%b]}' % b",".join(records)
    usual, stored = door.usual(body, query=query), door.last(count)
    answers = door.post([WRITE % 1, body, body, WRITE % 2], query=query)
    assert door.taken == [True] * 4
    first = door.head() - 2 * count - 1
    assert [answer.json["first_seq"] for answer in answers] == [first, first + 1, first + 1 + count, door.head()]
    told = answers[2].json
    assert told.get("seqs") == (None if query else [*range(first + 1 + count, door.head())])
    assert list(told) == list(usual.json)
    assert [told["count"], told["head_seq"], told["last_seq"]] == [count, door.head() - 1, door.head() - 1]
    assert door.last(count + 1).startswith(stored)


def test_records_with_and_without_extras_stay_in_order(door: Door) -> None:
    """Long bodies that are nothing but payloads are decoded and kept in another way than the rest."""
    plain = b'{"records":[%b]}' % b",".join([b'{"data":{"plain":"%b"}}' % (b"x" * (n + 30)) for n in range(20)])
    usual, stored = door.usual(plain), door.last(20)
    answers = door.post([plain, WRITE % 1, WRITE % 2, plain, plain, WRITE % 3])
    assert door.taken == [True] * 6
    firsts = [answer.json["first_seq"] - answers[0].json["first_seq"] for answer in answers]
    assert firsts == [0, 20, 21, 22, 42, 62]
    assert list(answers[3].json) == list(usual.json)
    assert door.last(63).startswith(stored[:-1])
    assert door.last(41).startswith(stored[:-1])


def test_a_payload_that_is_too_large_spoils_only_its_own_write(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECORD_BYTES_MAX", 500)
    good = b'{"records":[%b]}' % b",".join([b'{"data":"%b"}' % (b"x" * 90)] * 20)
    bad = b'{"records":[%b,{"data":"%b"}]}' % (b",".join([b'{"data":"%b"}' % (b"x" * 90)] * 20), b"x" * 600)
    usual = door.usual(bad)
    first, refused, last = door.post([good, bad, good])
    assert (first.status, refused.status, last.status) == (200, usual.status, 200)
    assert (refused.body, last.json["first_seq"]) == (usual.body, first.json["first_seq"] + 20)


# --- how long a turn waits --------------------------------------------------------------------------------------------


class Kept:
    """Writes that were taken and wait for the end of the turn."""

    def __init__(self) -> None:
        self.count = 0
        self.submitted: list[int] = []

    def __len__(self) -> int:
        return self.count

    def submit(self) -> None:
        self.submitted.append(self.count)
        self.count = 0


def turns(*looks: int) -> tuple[list[int], list[bool]]:
    """Each look at the sockets brings so many writes: what is logged together, and which looks were not the last."""
    fast_appends: Any = FastAppends(None, keys=None, monotonic=float, inflight=None, requests=None)  # type: ignore[arg-type]
    kept = Kept()
    waited = []
    for look in looks:
        kept.count += look
        fast_appends._dirty = {kept: None} if kept.count else {}
        waited.append(fast_appends.end_turn())
    return kept.submitted, waited


def test_a_turn_that_brings_fewer_than_the_last_waits_as_long_as_each_look_brings_more() -> None:
    logged, waited = turns(16, 5, 4, 6, 1)
    assert logged == [16, 16]
    assert waited == [False, True, True, True, False]


def test_a_turn_does_not_wait_for_those_who_do_not_come() -> None:
    logged, waited = turns(16, 5, 0, 5, 0, 5, 0)
    assert logged == [16, 5, 5, 5]
    assert waited == [False, True, False, True, False, True, False]


def test_after_a_crowd_a_lone_writer_is_soon_answered_at_once() -> None:
    logged, waited = turns(4, 1, 0, 1, 0, 1, 0, 1, 1)
    assert logged == [4, 1, 1, 1, 1, 1]
    assert waited == [False, True, False, True, False, True, False, False, False]


def test_a_growing_crowd_is_never_waited_for() -> None:
    assert turns(1, 2, 3, 50) == ([1, 2, 3, 50], [False] * 4)
