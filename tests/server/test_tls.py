"""TLS on the listener: both protocols by ALPN, and files that cannot be used."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ResponseReceived
from tests.server.bare_transport import BareTransport

from topics.errors import ConfigError
from topics.limits import KIB
from topics.server.connections import hub
from topics.server.tls import TlsPacer, tls_context
from topics.testing.clock import SimClock

Live = Any
StartServer = Any

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


@pytest.fixture
def live(start_server: StartServer, files: tuple[str, str]) -> Live:
    return start_server(tls=tls_context(cert_file=files[0], key_file=files[1]), max_body_bytes=1000)


def trusting(cert: str, *alpn: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=cert)
    context.set_alpn_protocols(list(alpn))
    return context


def test_http_1_1_over_tls(live: Live, files: tuple[str, str]) -> None:
    with live.client(trusting(files[0], "http/1.1")) as client:
        assert client.socket.selected_alpn_protocol() == "http/1.1"
        for _ in range(3):
            assert client.request("POST", "/echo", body=b"hello").body == b"hello"
        assert len(client.request("GET", "/large?3000000").body) == 3_000_000
        assert client.request("GET", "/echo", headers="Connection: close\r\n").status == 200
        assert client.ended()


def test_http_2_is_chosen_by_alpn(live: Live, files: tuple[str, str]) -> None:
    with live.client(trusting(files[0], "h2", "http/1.1")) as client:
        assert client.socket.selected_alpn_protocol() == "h2"
        h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        h2.initiate_connection()
        h2.send_headers(
            1, [(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "/echo")], end_stream=True
        )
        client.send(h2.data_to_send())
        events: list[Any] = []
        while not any(isinstance(event, ResponseReceived) for event in events):
            events += h2.receive_data(client.socket.recv(1 << 16))


def test_an_early_answer_reaches_the_client_over_tls(live: Live, files: tuple[str, str]) -> None:
    with live.client(trusting(files[0])) as client:
        body = b"x" * 3_000_000
        client.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert client.response().status == 413


def test_a_stream_over_tls_is_noticed_when_it_goes(live: Live, files: tuple[str, str]) -> None:
    client = live.client(trusting(files[0]))
    client.send(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
    assert client.head().status == 200
    assert client.chunk() == b"retry: 2000\n\n"
    client.close()
    live.until(lambda: live.app.gone == ["stream"])


def waiting_bytes(live: Live) -> int:
    return sum(each.transport.get_write_buffer_size() for each in live.hub.peers)


def test_what_a_client_does_not_take_is_seen_and_ends_its_connection(
    start_server: StartServer, files: tuple[str, str]
) -> None:
    live = start_server(tls=tls_context(cert_file=files[0], key_file=files[1]), clock=SimClock())
    client = live.client(trusting(files[0]))
    client.send(b"GET /large?16000000 HTTP/1.1\r\nHost: a\r\n\r\n")
    live.until(lambda: waiting_bytes(live) > 4_000_000)
    live.pass_time(45)
    live.until(lambda: not live.hub.peers)


def test_a_last_answer_that_is_taken_slowly_arrives_whole(start_server: StartServer, files: tuple[str, str]) -> None:
    live = start_server(tls=tls_context(cert_file=files[0], key_file=files[1]))
    with live.client(trusting(files[0])) as client:
        client.send(b"GET /large?16000000 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        live.until(lambda: waiting_bytes(live) > 4_000_000)
        client.exactly(4_000_000)
        assert len(client.rest()) > 12_000_000
    live.until(lambda: not live.hub.peers)


def test_a_stream_that_is_not_taken_stops_and_goes_on_over_tls(live: Live, files: tuple[str, str]) -> None:
    client = live.client(trusting(files[0]))
    client.send(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
    assert client.head().status == 200
    live.until(lambda: len(live.app.streams) == 1)
    (stream,) = live.app.streams
    chunks = 0
    while live.call(stream.buffered_bytes) < 1_000_000:
        live.call(lambda: stream.send(b"x" * 100_000))
        chunks += 1
    assert live.call(lambda: live.app.drained) == 0
    assert client.chunk() == b"retry: 2000\n\n"
    assert [client.chunk() for _ in range(chunks)] == [b"x" * 100_000] * chunks
    live.until(lambda: live.app.drained > 0)


class StuckBelow(BareTransport):
    """A TLS transport whose socket takes nothing until `drain`; says so as asyncio's and uvloop's do."""

    def __init__(self) -> None:
        self.protocol: Any = None
        self.limits = (0, 0)
        self.taken_bytes = self.waiting_bytes = 0
        self.is_paused = False

    def set_write_buffer_limits(self, **limits: int) -> None:
        self.limits = limits["low"], limits["high"]

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes

    def write(self, data: bytes) -> None:
        self.waiting_bytes += len(data)
        if self.waiting_bytes >= self.limits[1] and not self.is_paused:
            self.is_paused = True
            self.protocol.pause_writing()

    def drain(self) -> None:
        self.taken_bytes += self.waiting_bytes
        self.waiting_bytes = 0
        if self.is_paused:
            self.is_paused = False
            self.protocol.resume_writing()


class ToldPeer(asyncio.Protocol):
    """Remembers whether it was told to pause last, or to go on."""

    is_paused = False

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False


@pytest.mark.parametrize("size", range(260 * KIB, 560 * KIB, 20 * KIB))
def test_whoever_was_told_to_pause_is_told_to_go_on_whatever_the_size_of_the_last_piece(size: int) -> None:
    peer, below = ToldPeer(), StuckBelow()
    pacer = TlsPacer(cast(Any, peer), cast(Any, None))
    below.protocol = pacer
    pacer.connection_made(cast(Any, below))
    pacer.write(b"x" * size)
    assert peer.is_paused
    for _ in range(20):
        below.drain()
    assert below.taken_bytes == size
    assert not peer.is_paused


def test_idle_connections_do_not_hold_up_the_end(
    start_server: StartServer, files: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that is idle does not look, so it does not answer our end with its own."""
    monkeypatch.setattr(hub, "LINGER_S", 0.05)
    live = start_server(tls=tls_context(cert_file=files[0], key_file=files[1]), drain_ms=60_000)
    clients = [live.client(trusting(files[0])) for _ in range(3)]
    for client in clients[1:]:
        assert client.request("GET", "/echo").status == 200
    stream = live.client(trusting(files[0]))
    stream.send(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
    live.until(lambda: len(live.app.streams) == 1)
    running = live.client(trusting(files[0]))
    running.send(b"GET /later HTTP/1.1\r\nHost: a\r\n\r\n")
    live.until(lambda: len(live.app.waiting) == 1)
    live.ask_to_stop()
    live.until(lambda: live.app.was_shut_down)
    live.call(lambda: live.app.do_echo(*live.app.waiting[0]))
    live.wait_for_the_end()
    assert clients[1].ended()
    assert running.response().status == 200
    assert b"data: bye" in stream.rest()


def test_a_client_that_speaks_in_the_clear_is_dropped(live: Live) -> None:
    with live.client() as client:
        client.send(b"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n")
        try:
            assert b"HTTP" not in client.rest()
        except ConnectionResetError:
            pass


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(("version", "told"), [("--http1.1", "hello 200 1.1"), ("--http2", "hello 200 2")])
def test_curl_over_tls(live: Live, files: tuple[str, str], version: str, told: str) -> None:
    run = subprocess.run(
        ["curl", "-sS", "--max-time", "20", version, "--cacert", files[0],
         "--resolve", f"localhost:{live.port}:127.0.0.1",
         "-w", " %{http_code} %{http_version}", "--data-binary", "hello", f"https://localhost:{live.port}/echo"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.stdout == told


def test_no_files_is_no_tls() -> None:
    assert tls_context(cert_file=None, key_file=None) is None


def test_files_that_cannot_be_used_are_an_error(files: tuple[str, str], tmp_path: Path) -> None:
    cert, key = files
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    for pair in ((cert, None), (None, key), (cert, "/does/not/exist"), ("/does/not/exist", key), (str(junk), key)):
        with pytest.raises(ConfigError):
            tls_context(cert_file=pair[0], key_file=pair[1])


def test_an_encrypted_key_is_an_error_and_nobody_is_asked(files: tuple[str, str], tmp_path: Path) -> None:
    locked = tmp_path / "locked.pem"
    subprocess.run(
        ["openssl", "ec", "-aes256", "-passout", "pass:secret", "-in", files[1], "-out", str(locked)],
        check=True,
        capture_output=True,
    )
    with pytest.raises(ConfigError):
        tls_context(cert_file=files[0], key_file=str(locked))
