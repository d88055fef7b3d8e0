"""Connections that break, hang, lie or are refused."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.api.server import LiveServer
from tests.client.peer import Peer, read_request, response

import topics
from topics.client.http_door import IdempotencyKeys
from topics.errors import ConfigError, Forbidden, TopicsError, Unauthorized, Unreachable

pytestmark = pytest.mark.timeout(60)

APPENDED = response(
    b'{"topic":"a","first_seq":7,"last_seq":7,"head_seq":7,"count":1,"created":false,"deduped":false,'
    b'"performance":{"server_total_ms":0.1}}'
)


def body_of(request: bytes) -> Any:
    return msgspec.json.decode(request.partition(b"\r\n\r\n")[2])


def test_an_answer_cut_at_any_byte_is_never_taken_for_whole() -> None:
    cut = 0

    def script(connection: socket.socket, _: int) -> None:
        read_request(connection)
        connection.sendall(APPENDED[:cut])

    with Peer(script) as peer, topics.connect(peer.url, timeout=5, retry_s=0) as client:
        for cut in range(len(APPENDED)):  # noqa: B007 - the script reads it
            with pytest.raises(Unreachable) as caught:
                client.topic("a").append(1)
            assert caught.value.sent
        cut = len(APPENDED)
        assert client.topic("a").append(1).first_seq == 7


def test_an_append_is_repeated_under_its_own_key() -> None:
    keys: list[str] = []

    def script(connection: socket.socket, number: int) -> None:
        keys.append(body_of(read_request(connection))["idempotency_key"])
        connection.sendall(APPENDED[: number * 40])

    with Peer(script) as peer, topics.connect(peer.url, timeout=5, retry_s=10) as client:
        assert client.topic("a").append(1).first_seq == 7
        client.topic("a").append(2)
    assert len(set(keys[:-1])) == 1
    assert keys[-1] != keys[0]
    assert len(keys) == peer.connections > 3


def test_two_clients_never_share_a_key() -> None:
    one, other = IdempotencyKeys(), IdempotencyKeys()
    assert len({one.next(), one.next(), other.next(), other.next()}) == 4


def test_a_claim_whose_answer_was_lost_is_not_repeated() -> None:
    def script(connection: socket.socket, _: int) -> None:
        read_request(connection)

    with Peer(script) as peer, topics.connect(peer.url, timeout=5, retry_s=10) as client:
        with pytest.raises(Unreachable):
            client.queue("q").claim("w")
        assert peer.connections == 1


def test_a_server_that_says_wait_is_asked_again() -> None:
    refusal = response(b'{"error":{"code":"not_ready","message":"wait"}}', 503, b"Retry-After: 0\r\n")

    def script(connection: socket.socket, number: int) -> None:
        for answer in (refusal, refusal, APPENDED):
            read_request(connection)
            connection.sendall(answer)

    with Peer(script) as peer, topics.connect(peer.url, timeout=5) as client:
        assert client.topic("a").append(1).first_seq == 7
        assert peer.connections == 1


def test_a_silent_server_is_given_up_after_the_timeout() -> None:
    def script(connection: socket.socket, _: int) -> None:
        read_request(connection)
        connection.recv(1)  # until the client hangs up

    with Peer(script) as peer, topics.connect(peer.url, timeout=0.2, retry_s=0) as client:
        start = time.monotonic()
        with pytest.raises(Unreachable, match="timed out"):
            client.topic("a").append(1)
        assert time.monotonic() - start < 3


def test_a_server_that_drips_is_given_up_as_well() -> None:
    def script(connection: socket.socket, _: int) -> None:
        read_request(connection)
        for at in range(len(APPENDED)):
            connection.sendall(APPENDED[at : at + 1])
            time.sleep(0.05)

    with Peer(script) as peer, topics.connect(peer.url, timeout=0.3, retry_s=0) as client:
        topic = client.topic("a")
        with pytest.raises(Unreachable, match=r"took more than|timed out"):  # the last wait may be the one that ends
            topic.append(1)


def test_a_kept_connection_that_the_server_closed_is_not_used_again(tmp_path: Path) -> None:
    def script(connection: socket.socket, _: int) -> None:
        read_request(connection)
        connection.sendall(APPENDED)

    with Peer(script) as peer, topics.connect(peer.url, timeout=5, retry_s=0) as client:
        for _ in range(3):
            client.topic("a").append(1)
            time.sleep(0.05)  # the end of the connection arrives
        assert peer.connections == 3


def test_a_refusal_of_a_half_sent_call_is_heard() -> None:
    refusal = response(b'{"error":{"code":"unauthorized","message":"no"}}', 401)

    def script(connection: socket.socket, _: int) -> None:
        connection.recv(100)
        connection.sendall(refusal)
        connection.shutdown(socket.SHUT_WR)

    with Peer(script) as peer, topics.connect(peer.url, timeout=5, retry_s=0) as client:
        topic, large = client.topic("a"), "x" * (8 << 20)
        with pytest.raises(Unauthorized):
            topic.append(large)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with topics.connect(f"http://127.0.0.1:{port}", timeout=1, retry_s=0.1) as client:
        with pytest.raises(Unreachable) as caught:
            client.topic("a").append(1)
        assert not caught.value.sent
        with pytest.raises(Unreachable):
            next(client.topic("a").follow())


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:4000", "ftp://x", "http://", "http://x:notaport", "http://x:99999", "http://x/?a=1"]
)
def test_a_bad_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigError):
        topics.connect(url)


def test_a_host_that_does_not_exist_is_a_wrong_setting_or_unreachable() -> None:
    client = topics.connect("http://no-such-host.invalid:4000", timeout=5, retry_s=0)
    with pytest.raises((ConfigError, Unreachable)):
        client.health()


def test_a_closed_client_says_so() -> None:
    client = topics.connect("http://127.0.0.1:1")
    client.close()
    with pytest.raises(TopicsError, match="closed"):
        client.health()


# --- keys ------------------------------------------------------------------------------------------------------------

SECRET = "s3cret-do-not-show"


@pytest.fixture
def locked(tmp_path: Path) -> Any:
    with LiveServer(tmp_path, api_keys=f"{SECRET}:read,writer:rw") as live:
        yield f"http://127.0.0.1:{live.port}"


def test_keys_open_what_they_may(locked: str) -> None:
    with topics.connect(locked, api_key="writer") as client:
        client.topic("a").append(1)
    with topics.connect(locked, api_key=SECRET) as client:
        assert [record.value for record in client.topic("a").read()] == [1]
        with pytest.raises(Forbidden):
            client.topic("a").append(2)
        assert next(client.topic("a").follow()).value == 1
    for key in (None, "wrong"):
        with topics.connect(locked, api_key=key) as client:
            with pytest.raises(Unauthorized):
                client.topic("a").page()
            with pytest.raises(Unauthorized):
                next(client.topic("a").follow())


def test_a_key_is_shown_nowhere(locked: str) -> None:
    client = topics.connect(locked, api_key=SECRET)
    shown = [repr(client), str(client), repr(client._transport.address)]
    for act in (lambda: client.topic("a").append(1), lambda: client.topic("a\u2028").page()):
        try:
            act()
        except TopicsError as error:
            shown += [repr(error), str(error), repr(error.__dict__)]
    client.close()
    assert len(shown) == 9
    assert not any(SECRET in text for text in shown)
    with pytest.raises(ConfigError) as caught:
        topics.connect(f"http://user:{SECRET}@localhost:1")
    assert SECRET not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        topics.connect("http://localhost:1", api_key=f"{SECRET}\r\nX: y")
    assert SECRET not in str(caught.value)


def test_a_client_loads_neither_numpy_nor_the_engine() -> None:
    told = "import sys, topics.client; print(*(name for name in sys.modules if name in HEAVY))".replace(
        "HEAVY", "('numpy', 'pyarrow', 'uvloop', 'topics.engine', 'topics.storage')"
    )
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(("url", "timeout"), [(5, 1), ("http://127.0.0.1:1", 0), ("http://127.0.0.1:1", "soon")])
@pytest.mark.parametrize("connect", [topics.connect, topics.aconnect])
def test_what_names_no_server_is_told_at_once(connect: Any, url: Any, timeout: Any) -> None:
    with pytest.raises(ConfigError, match=r"URL looks like|number of seconds"):
        connect(url, timeout=timeout)
