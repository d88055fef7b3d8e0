"""Followers over streams that break at any byte, sessions that vanish, servers without streams."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.client.peer import Peer, read_request, response

import topics
from topics import Gap
from topics.client import following
from topics.client.client import Client
from topics.client.transport.retry import RetryPolicy
from topics.errors import ConfigError, DataLoss, MethodNotAllowed, TopicNotFound
from topics.model.position import Position
from topics.wire.outgoing import sse
from topics.wire.outgoing.sse import CAUGHT_UP, RECORD, TOMBSTONE, TOPIC_DELETED, decode_id, encode_id, shutdown_data

pytestmark = pytest.mark.timeout(100)

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = 6


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_FOREVER", RetryPolicy(total_s=float("inf"), first_s=0.0005))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def record_frame(first: int, last: int) -> bytes:
    records = ",".join(f'{{"$seq":{n},"$ts":1,"data":{n}}}' for n in range(first, last + 1))
    data = f'{{"topic":"a","from_seq":{first - 1},"head_seq":{LAST},"records":[{records}],"to_seq":{last}}}'
    return sse.frame(encode_id({"a": last}), RECORD, data.encode())


def header(request: bytes, name: bytes) -> bytes:
    for line in request.split(b"\r\n"):
        if line.lower().startswith(name + b":"):
            return line.partition(b":")[2].strip()
    return b""


class Streams:
    """A server of one topic with six records, two per frame. `cut`: bytes of the first stream that get through."""

    def __init__(self, cut: int = 1 << 30) -> None:
        self.cut = cut
        self.sessions: list[Any] = []
        self.opened: list[dict[str, int]] = []

    def __call__(self, connection: socket.socket, _: int) -> None:
        request = read_request(connection)
        if request.startswith(b"POST /v0/watch"):
            self.sessions.append(msgspec.json.decode(request.partition(b"\r\n\r\n")[2]))
            connection.sendall(response(b'{"wid":"wid_1","stream_url":"/","session_ttl_ms":1,"topics":{}}'))
        elif request.startswith(b"GET /v0/watch/wid_1"):
            cursors = decode_id(header(request, b"last-event-id"))
            assert cursors is not None
            self.opened.append({name: position.seq for name, position in cursors.items()})
            self.stream(connection, cursors["a"].seq)

    def stream(self, connection: socket.socket, cursor: int) -> None:
        frames = [record_frame(first, min(first + 1, LAST)) for first in range(cursor + 1, LAST + 1, 2)]
        whole = (
            HEAD + chunk(sse.RETRY) + b"".join(map(chunk, frames)) + chunk(sse.frame(None, CAUGHT_UP, b'{"topic":"a"}'))
        )
        connection.sendall(whole[: self.cut] if len(self.opened) == 1 else whole)


def followed(client: Client, count: int, **options: Any) -> list[Any]:
    items = list(islice(client.topic("a").follow(**options), count))
    return [item if isinstance(item, Gap) else (item.seq, item.value) for item in items]


SIZE = len(HEAD + chunk(sse.RETRY)) + sum(len(chunk(record_frame(n, n + 1))) for n in (1, 3, 5))


@pytest.mark.parametrize("part", range(8))
def test_a_stream_cut_at_any_byte_is_resumed_without_loss_or_repeat(part: int) -> None:
    for cut in range(part, SIZE, 8):
        streams = Streams(cut)
        with Peer(streams) as peer, topics.connect(peer.url, timeout=5) as client:
            assert followed(client, LAST) == [(n, n) for n in range(1, LAST + 1)]
        assert len(streams.sessions) == 1


def test_a_stream_is_resumed_from_the_readers_own_cursor() -> None:
    streams = Streams(cut=len(HEAD + chunk(sse.RETRY) + chunk(record_frame(1, 2))) + 30)
    with Peer(streams) as peer, topics.connect(peer.url, timeout=5) as client:
        followed(client, LAST)
    assert streams.opened == [{"a": 0}, {"a": 2}]
    assert streams.sessions[0]["topics"] == {"a": {"from_seq": 0, "tail": False, "from_ts": None, "cursor": None}}


def test_a_session_that_is_gone_is_made_anew() -> None:
    class Forgetful(Streams):
        def stream(self, connection: socket.socket, cursor: int) -> None:
            if len(self.opened) == 2:
                connection.sendall(response(b'{"error":{"code":"not_found","message":"gone"}}', 404))
            else:
                super().stream(connection, cursor)

    streams = Forgetful(cut=len(HEAD + chunk(sse.RETRY) + chunk(record_frame(1, 2))))
    with Peer(streams) as peer, topics.connect(peer.url, timeout=5) as client:
        assert followed(client, LAST) == [(n, n) for n in range(1, LAST + 1)]
    assert [session["topics"]["a"]["from_seq"] for session in streams.sessions] == [0, 2]


def test_a_server_that_shuts_down_is_waited_for() -> None:
    class Closing(Streams):
        def stream(self, connection: socket.socket, cursor: int) -> None:
            if len(self.opened) == 1:
                bye = sse.frame(None, b"error", shutdown_data())
                connection.sendall(HEAD + chunk(record_frame(1, 2)) + chunk(bye) + b"0\r\n\r\n")
            else:
                super().stream(connection, cursor)

    with Peer(Closing()) as peer, topics.connect(peer.url, timeout=5) as client:
        assert followed(client, LAST) == [(n, n) for n in range(1, LAST + 1)]


def test_a_silent_stream_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "SILENCE_S_MAX", 0.2)

    class Silent(Streams):
        def stream(self, connection: socket.socket, cursor: int) -> None:
            if len(self.opened) == 1:
                connection.sendall(HEAD + chunk(record_frame(1, 2)))
                connection.recv(1)
            else:
                super().stream(connection, cursor)

    with Peer(Silent()) as peer, topics.connect(peer.url, timeout=5) as client:
        assert followed(client, LAST) == [(n, n) for n in range(1, LAST + 1)]


class Losing(Streams):
    """Records 3 and 4 are lost while we follow."""

    def stream(self, connection: socket.socket, cursor: int) -> None:
        lost = b'{"topic":"a","reason":"cap","gap_from":3,"gap_to":4,"earliest_seq":5,"head_seq":6}'
        frames = [record_frame(1, 2), sse.frame(encode_id({"a": 4}), TOMBSTONE, lost), record_frame(5, 6)]
        connection.sendall(HEAD + b"".join(map(chunk, frames[1 if cursor else 0 :])))


def test_a_gap_in_a_stream_is_raised_or_handed_over() -> None:
    with Peer(Losing()) as peer, topics.connect(peer.url, timeout=5) as client:
        assert followed(client, 5, gaps="yield") == [(1, 1), (2, 2), Gap("a", 3, 4, "cap"), (5, 5), (6, 6)]
    with Peer(Losing()) as peer, topics.connect(peer.url, timeout=5) as client:
        items = client.topic("a").follow()
        assert [item.value for item in islice(items, 2)] == [1, 2]
        with pytest.raises(DataLoss) as caught:
            next(items)
        assert (caught.value.gap_from, caught.value.gap_to) == (3, 4)


class LosingTheStart(Streams):
    """Records 1 to 4 are lost: before we came, or, where the first frame says that there are none, since then."""

    def __init__(self, *, after_caught_up: bool) -> None:
        super().__init__()
        self.first = [sse.frame(encode_id({"a": 0}), CAUGHT_UP, b'{"topic":"a"}')] if after_caught_up else []

    def stream(self, connection: socket.socket, cursor: int) -> None:
        lost = b'{"topic":"a","reason":"cap","gap_from":1,"gap_to":4,"earliest_seq":5,"head_seq":6}'
        frames = [*self.first, sse.frame(encode_id({"a": 4}), TOMBSTONE, lost), record_frame(5, 6)]
        connection.sendall(HEAD + b"".join(map(chunk, frames)))


def test_what_is_lost_at_the_start_is_told_unless_it_was_gone_before() -> None:
    with Peer(LosingTheStart(after_caught_up=False)) as peer, topics.connect(peer.url) as client:
        assert followed(client, 2) == [(5, 5), (6, 6)]
    with Peer(LosingTheStart(after_caught_up=True)) as peer, topics.connect(peer.url) as client:
        with pytest.raises(DataLoss) as caught:
            followed(client, 2)
        assert (caught.value.gap_from, caught.value.gap_to) == (1, 4)


def test_a_follower_stands_where_it_was_told_that_it_has_seen_everything() -> None:
    """Behind records that are hidden from it: should they go meanwhile, that is no loss to it."""

    class Hidden(Streams):
        def stream(self, connection: socket.socket, cursor: int) -> None:
            if len(self.opened) == 1:
                connection.sendall(HEAD + chunk(sse.frame(encode_id({"a": 4}), CAUGHT_UP, b'{"topic":"a"}')))
            else:
                connection.sendall(HEAD + chunk(record_frame(5, 6)))

    streams = Hidden()
    with Peer(streams) as peer, topics.connect(peer.url, timeout=5) as client:
        assert followed(client, 2, exclude_nodes="me") == [(5, 5), (6, 6)]
    assert streams.opened == [{"a": 0}, {"a": 4}]


def test_what_a_new_topic_sent_and_nobody_got_is_told_again() -> None:
    """The follower comes with a place of the old topic, behind the end of the new one. As the contract has it, the
    session goes on behind what it has sent, and an id can only take it back."""

    class Anew(Streams):
        sent = 0

        def __call__(self, connection: socket.socket, number: int) -> None:
            request = read_request(connection)
            if request.startswith(b"POST"):
                self.sent = self.start = msgspec.json.decode(request.partition(b"\r\n\r\n")[2])["topics"]["a"][
                    "from_seq"
                ]
                start = f'{{"a":{{"from_seq":{self.start},"head_seq":{LAST},"earliest_seq":1}}}}'
                made = f'{{"wid":"wid_1","stream_url":"/","session_ttl_ms":1,"topics":{start}}}'
                connection.sendall(response(made.encode()))
            elif request.startswith(b"GET"):
                given = (decode_id(header(request, b"last-event-id")) or {"a": Position(self.sent)})["a"].seq
                self.opened.append({"a": given})
                self.stream(connection, min(self.sent, given))

        def stream(self, connection: socket.socket, cursor: int) -> None:
            anew = b'{"topic":"a","reason":"recreated","gap_from":1,"gap_to":6,"earliest_seq":1,"head_seq":6}'
            frames = sse.frame(encode_id({"a": 0}), TOMBSTONE, anew) + record_frame(1, LAST) if cursor > LAST else b""
            self.sent = LAST
            connection.sendall(HEAD + (chunk(frames) if len(self.opened) > 1 else b""))

    with Peer(Anew()) as peer, topics.connect(peer.url, timeout=5) as client:
        told = followed(client, 3, after=40, gaps="yield")
    assert told == [Gap("a", 1, 6, "recreated"), (1, 1), (2, 2)]


def test_a_deleted_topic_ends_a_follower() -> None:
    class Deleting(Streams):
        def stream(self, connection: socket.socket, cursor: int) -> None:
            gone = sse.frame(encode_id({"a": 2}), TOPIC_DELETED, b'{"topic":"a","head_seq":0,"reason":"deleted"}')
            connection.sendall(HEAD + chunk(record_frame(1, 2)) + chunk(gone) + b"0\r\n\r\n")

    with Peer(Deleting()) as peer, topics.connect(peer.url, timeout=5) as client, pytest.raises(TopicNotFound):
        followed(client, 3)


@pytest.mark.parametrize("status", [404, 405, 429])
def test_a_server_without_sessions_is_long_polled(status: int) -> None:
    code = {404: b"not_found", 405: b"method_not_allowed", 429: b"throttled"}[status]
    asked: list[Any] = []

    def script(connection: socket.socket, _: int) -> None:
        request = read_request(connection)
        if request.startswith(b"POST /v0/watch"):
            connection.sendall(response(b'{"error":{"code":"%b","message":"no"}}' % code, status))
            return
        if request.startswith(b"GET /v0/topics/a/frames"):
            connection.sendall(response(b"", extra=b"Topics-Epoch: 7\r\n"))
            return
        asked.append(msgspec.json.decode(request.partition(b"\r\n\r\n")[2]))
        seq = asked[-1]["from_seq"] + 1
        connection.sendall(
            response(
                b'{"topic":"a","records":[{"$seq":%d,"$ts":1,"data":%d}],"next_from_seq":%d,"head_seq":9,'
                b'"earliest_seq":1,"caught_up":false,"tombstone":null,"lag":1}' % (seq, seq, seq)
            )[: 20 if len(asked) == 2 else None]
        )

    with Peer(script) as peer, topics.connect(peer.url, timeout=5) as client:
        assert followed(client, 3) == [(1, 1), (2, 2), (3, 3)]
    polls = [poll["from_seq"] for poll in asked]
    assert polls == sorted(polls)  # a peer that hangs up after each answer may be asked once more
    assert set(polls) == {0, 1, 2}
    assert polls.count(1) >= 2
    assert asked[0]["wait_ms"] == 0
    assert asked[1]["wait_ms"] > 0


@pytest.mark.parametrize("gaps", ["raise", "yield"])
def test_a_follower_that_polls_is_told_that_its_topic_was_made_anew(
    url: str, name: str, gaps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_session(*_: Any, **__: Any) -> None:
        raise MethodNotAllowed("no sessions here")

    monkeypatch.setattr(following.Following, "session_call", no_session)
    with topics.connect(url) as client:
        topic = client.topic(name)
        topic.append_many([1, 2, 3])
        items = topic.follow(gaps=gaps)
        assert [record.value for record in islice(items, 3)] == [1, 2, 3]
        topic.drop()
        topic.append_many(["new"] * 5)
        if gaps == "raise":
            with pytest.raises(DataLoss, match="created again"):
                next(items)
            return
        assert next(items) == Gap(name, 1, 5, "recreated")
        assert [record.value for record in islice(items, 5)] == ["new"] * 5


def test_closing_the_client_ends_a_waiting_follower_at_once(url: str, name: str) -> None:
    client = topics.connect(url)
    client.topic(name).append(1)
    got: list[Any] = []
    follower = threading.Thread(target=lambda: got.extend(client.topic(name).follow()))
    follower.start()
    follower.join(0.3)
    client.close()
    follower.join(5)
    assert not follower.is_alive()
    assert [record.value for record in got] == [1]


# --- TLS -------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_tls_is_spoken_and_a_foreign_certificate_refused(tmp_path: Path) -> None:
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    make = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert]
    subprocess.run(["openssl", *make.split(), *names], check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    def script(connection: socket.socket, _: int) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            while read_request(secured):
                secured.sendall(response(b'{"status":"ok"}'))

    with Peer(script) as peer:
        url = f"https://localhost:{peer.url.rpartition(':')[2]}"
        with topics.connect(url, timeout=5, retry_s=0) as client, pytest.raises(ConfigError, match="not trusted"):
            client.health()
        with topics.connect(url, timeout=5, tls=ssl.create_default_context(cafile=cert)) as client:
            assert [client.health()["status"] for _ in range(3)] == ["ok"] * 3
        assert peer.connections == 2
