"""HTTP/2 over a real socket, against the client side of the `h2` library and against curl."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    InformationalResponseReceived,
    PingReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from hpack import Encoder
from hyperframe.frame import HeadersFrame

from topics.server.connections.h2_answers import H2Output
from topics.testing.clock import SimClock

Live = Any
StartServer = Any
RawClient = Any


class H2Client:
    """Speaks HTTP/2 over a blocking socket and sorts what comes by stream."""

    def __init__(self, raw: RawClient, *, take: bool = True) -> None:
        self.raw = raw
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(100_000_000)
        self.events: list[Event] = []
        self._take = take  # give the window of what was received back at once
        self.flush()

    def flush(self) -> None:
        data = self.h2.data_to_send()
        if data:
            self.raw.send(data)

    def receive(self) -> None:
        data = self.raw.socket.recv(1 << 16)
        if not data:
            raise EOFError("the server ended the connection")
        events = self.h2.receive_data(data)
        for event in events:
            if self._take and isinstance(event, DataReceived) and event.flow_controlled_length:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        self.events.extend(events)
        self.flush()

    def open(self, method: str, path: str, *headers: tuple[str, str], end: bool = True) -> int:
        stream_id: int = self.h2.get_next_available_stream_id()
        fields = [(":method", method), (":scheme", "http"), (":authority", "localhost"), (":path", path), *headers]
        self.h2.send_headers(stream_id, fields, end_stream=end)
        self.flush()
        return stream_id

    def send_body(self, stream_id: int, body: bytes, *, end: bool = True) -> None:
        while body:
            room = min(self.h2.local_flow_control_window(stream_id), self.h2.max_outbound_frame_size, len(body))
            if not room:
                self.receive()
                continue
            self.h2.send_data(stream_id, body[:room], end_stream=end and room == len(body))
            body = body[room:]
            self.flush()

    def wait(self, kind: type[Event], stream_id: int | None = None) -> Any:
        while True:
            for event in self.events:
                if isinstance(event, kind) and stream_id in (None, getattr(event, "stream_id", None)):
                    self.events.remove(event)
                    return event
            self.receive()

    def status(self, stream_id: int) -> int:
        return int(dict(self.wait(ResponseReceived, stream_id).headers)[":status"])

    def body(self, stream_id: int) -> bytes:
        self.wait(StreamEnded, stream_id)
        mine = [event for event in self.events if isinstance(event, DataReceived) and event.stream_id == stream_id]
        return b"".join(event.data for event in mine)

    def request(self, method: str, path: str, *headers: tuple[str, str], body: bytes = b"") -> tuple[int, bytes]:
        stream_id = self.open(method, path, *headers, end=not body)
        if body:
            self.send_body(stream_id, body)
        return self.status(stream_id), self.body(stream_id)


@pytest.fixture
def client(live: Live) -> H2Client:
    return H2Client(live.client())


def code_of(body: bytes) -> str:
    code: str = json.loads(body)["error"]["code"]
    return code


def test_requests_with_and_without_bodies(client: H2Client) -> None:
    assert client.request("GET", "/echo") == (200, b"")
    assert client.request("POST", "/echo", body=b"hello") == (200, b"hello")
    assert client.request("HEAD", "/large?100") == (200, b"")


def test_the_preface_in_pieces_is_still_http_2(live: Live) -> None:
    raw = live.client()
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    for byte in client.data_to_send():
        raw.send(bytes((byte,)))
    head = raw.exactly(9)
    assert client.receive_data(head + raw.exactly(head[2]))


def test_answers_carry_no_connection_fields(live: Live, client: H2Client) -> None:
    stream_id = client.open("POST", "/refuse", ("content-length", "0"))
    head = dict(client.wait(ResponseReceived, stream_id).headers)
    assert not {"connection", "keep-alive", "transfer-encoding", "upgrade"} & set(head)
    assert head["content-type"] == "application/json"
    assert head["content-length"].isdigit()
    assert head["date"].endswith("GMT")


def test_answers_come_in_any_order(live: Live, client: H2Client) -> None:
    first, second = client.open("GET", "/later/1"), client.open("GET", "/later/2")
    live.until(lambda: len(live.app.waiting) == 2)
    live.call(lambda: live.app.do_echo(*live.app.waiting[1]))
    assert client.status(second) == 200
    live.call(lambda: live.app.do_echo(*live.app.waiting[0]))
    assert client.status(first) == 200


def test_a_thousand_streams_at_once(live: Live, client: H2Client) -> None:
    streams = [client.open("GET", f"/later/{number}") for number in range(1024)]
    live.until(lambda: len(live.app.waiting) == 1024)
    live.call(lambda: [live.app.do_echo(*waiting) for waiting in live.app.waiting])
    for stream_id in streams:
        assert client.status(stream_id) == 200


def test_large_bodies_both_ways(client: H2Client) -> None:
    body = bytes(range(256)) * 12_000
    assert client.request("POST", "/echo", body=body) == (200, body)


def test_a_large_answer_does_not_hold_up_a_small_one(live: Live, client: H2Client) -> None:
    large = client.open("GET", "/large?5000000")
    small = client.open("GET", "/echo")
    assert client.status(small) == 200
    client.wait(StreamEnded, small)
    assert not any(isinstance(event, StreamEnded) and event.stream_id == large for event in client.events)
    assert len(client.body(large)) == 5_000_000


def test_a_declared_length_over_the_limit_is_413_at_once(start_server: StartServer) -> None:
    live = start_server(max_body_bytes=1000)
    client = H2Client(live.client())
    stream_id = client.open("POST", "/echo", ("content-length", "1001"), end=False)
    assert client.status(stream_id) == 413
    client.send_body(stream_id, b"x" * 1001)
    assert code_of(client.body(stream_id)) == "payload_too_large"
    assert client.request("POST", "/echo", body=b"y" * 1000) == (200, b"y" * 1000)


def test_more_bytes_than_the_limit_are_413_and_the_answer_survives_the_rest(start_server: StartServer) -> None:
    live = start_server(max_body_bytes=100_000)
    client = H2Client(live.client())
    stream_id = client.open("POST", "/echo", end=False)
    client.send_body(stream_id, b"x" * 5_000_000)
    assert client.status(stream_id) == 413
    assert code_of(client.body(stream_id)) == "payload_too_large"
    assert live.call(lambda: (len(live.app.handled), len(live.app.abandoned))) == (0, 1)
    assert live.call(lambda: live.hub._bodies_bytes) == 0


def test_a_refused_head_is_answered_before_the_body(client: H2Client) -> None:
    stream_id = client.open("POST", "/refuse", end=False)
    assert client.status(stream_id) == 401


def test_a_body_is_asked_for(client: H2Client) -> None:
    stream_id = client.open("POST", "/echo", ("expect", "100-continue"), end=False)
    assert dict(client.wait(InformationalResponseReceived, stream_id).headers)[":status"] == "100"
    client.send_body(stream_id, b"hello")
    assert (client.status(stream_id), client.body(stream_id)) == (200, b"hello")


@pytest.mark.parametrize("path", ["/boom", "/bad-head", "/split/reply", "/split/stream"])
def test_a_bug_is_500_and_the_connection_lives(client: H2Client, path: str) -> None:
    status, body = client.request("GET", path)
    assert (status, code_of(body)) == (500, "internal")
    assert client.request("GET", "/echo")[0] == 200


def test_a_bad_path_is_400_on_its_stream(client: H2Client) -> None:
    status, body = client.request("GET", "/a b")
    assert (status, code_of(body)) == (400, "invalid_request")
    assert client.request("GET", "/echo")[0] == 200


@pytest.mark.parametrize("body", [b"abc", b"abcdefgh"])
def test_a_body_that_is_not_as_long_as_declared_is_400_and_others_go_on(
    live: Live, client: H2Client, body: bytes
) -> None:
    other = open_stream(live, client)
    stream_id = client.open("POST", "/echo", ("content-length", "5"), end=False)
    client.send_body(stream_id, body)
    assert client.status(stream_id) == 400
    assert code_of(client.wait(DataReceived, stream_id).data) == "invalid_request"
    assert client.wait(StreamReset, stream_id).error_code is ErrorCodes.PROTOCOL_ERROR
    assert live.call(lambda: (len(live.app.abandoned), [each.raw_path for each in live.app.handled])) == (
        1,
        [b"/stream"],
    )
    live.call(lambda: live.app.streams[0].send(b"x"))
    assert client.wait(DataReceived, other).data == b"x"
    assert client.request("POST", "/echo", ("content-length", "5"), body=b"hello")[0] == 200


def test_a_malformed_trailer_is_400_and_others_go_on(live: Live, client: H2Client) -> None:
    other = open_stream(live, client)
    stream_id = client.open("POST", "/echo", end=False)
    client.send_body(stream_id, b"abc", end=False)
    frame = HeadersFrame(stream_id, flags=["END_HEADERS", "END_STREAM"])
    frame.data = client.h2.encoder.encode([(b":path", b"/")])
    client.raw.send(frame.serialize())
    assert client.status(stream_id) == 400
    assert client.wait(StreamReset, stream_id).error_code is ErrorCodes.PROTOCOL_ERROR
    live.until(lambda: len(live.app.abandoned) == 1)
    live.call(lambda: live.app.streams[0].send(b"x"))
    assert client.wait(DataReceived, other).data == b"x"
    assert live.call(lambda: live.hub._bodies_bytes) == 0


GOOD = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/echo"), (b":authority", b"localhost")]
MALFORMED_HEADS = {
    "an uppercase name": [*GOOD, (b"X-Test", b"1")],
    "an unknown pseudo-header": [*GOOD, (b":test", b"1")],
    "a pseudo-header of responses": [*GOOD, (b":status", b"200")],
    "a pseudo-header behind a field": [*GOOD[:3], (b"x-test", b"1"), GOOD[3]],
    "a connection-specific field": [*GOOD, (b"connection", b"keep-alive")],
    "a transfer coding": [*GOOD, (b"transfer-encoding", b"chunked")],
    "te that is not trailers": [*GOOD, (b"te", b"trailers, deflate")],
    "an empty path": [*GOOD[:2], (b":path", b""), GOOD[3]],
    "no method": GOOD[1:],
    "no scheme": [GOOD[0], *GOOD[2:]],
    "no path": [*GOOD[:2], GOOD[3]],
    "two methods": [GOOD[0], *GOOD],
    "two schemes": [GOOD[1], *GOOD],
    "two paths": [GOOD[2], *GOOD],
    "a line break in a value": [*GOOD, (b"x-test", b"1\r\nx: 2")],
}


@pytest.mark.parametrize("fields", MALFORMED_HEADS.values(), ids=MALFORMED_HEADS)
def test_a_malformed_head_is_an_error_of_its_stream_and_others_go_on(
    live: Live, client: H2Client, fields: list[tuple[bytes, bytes]]
) -> None:
    """As h2spec asks, frame by frame: the library of the client would not send these."""
    other = open_stream(live, client)
    stream_id = client.h2.get_next_available_stream_id()
    client.h2.send_headers(stream_id, [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a")])
    client.h2.data_to_send()  # the client's side of the stream is open; what is sent on it is ours
    frame = HeadersFrame(stream_id, flags=["END_HEADERS", "END_STREAM"])
    frame.data = Encoder().encode(fields, huffman=False)
    client.raw.send(frame.serialize())
    assert client.wait(StreamReset, stream_id).error_code is ErrorCodes.PROTOCOL_ERROR
    assert live.call(lambda: [each.raw_path for each in live.app.handled]) == [b"/stream"]
    live.call(lambda: live.app.streams[0].send(b"x"))
    assert client.wait(DataReceived, other).data == b"x"


def test_a_websocket_is_not_opened_over_http_2(client: H2Client) -> None:
    assert client.request("GET", "/ws")[0] == 400


def test_a_gzip_body_is_decoded(client: H2Client) -> None:
    large = b"x" * 2_000_000
    assert client.request("POST", "/echo", ("content-encoding", "gzip"), body=gzip.compress(b"hi")) == (200, b"hi")
    assert client.request("POST", "/echo", ("content-encoding", "gzip"), body=gzip.compress(large)) == (200, large)
    assert client.request("POST", "/echo", ("content-encoding", "gzip"), body=b"junk") == (400, b"broken_coding")


# --- streams ----------------------------------------------------------------------------------------------------------


def open_stream(live: Live, client: H2Client) -> int:
    count = live.call(lambda: len(live.app.streams))
    stream_id = client.open("GET", "/stream")
    assert client.status(stream_id) == 200
    live.until(lambda: len(live.app.streams) == count + 1)
    assert client.wait(DataReceived, stream_id).data == b"retry: 2000\n\n"
    return stream_id


def test_frames_of_a_stream_are_sent_at_once(live: Live, client: H2Client) -> None:
    stream_id = open_stream(live, client)
    for number in range(10):
        live.call(lambda number=number: live.app.streams[0].send(b"data: %d\n\n" % number))
        assert client.wait(DataReceived, stream_id).data == b"data: %d\n\n" % number
    live.call(lambda: live.app.streams[0].end())
    client.wait(StreamEnded, stream_id)
    assert live.call(lambda: live.app.gone) == ["stream"]


def test_a_reset_stream_is_noticed_and_the_others_go_on(live: Live, client: H2Client) -> None:
    first, second = open_stream(live, client), open_stream(live, client)
    client.h2.reset_stream(first, ErrorCodes.CANCEL)
    client.flush()
    live.until(lambda: live.app.gone == ["stream"])
    assert live.call(lambda: [stream.closed for stream in live.app.streams]) == [True, False]
    live.call(lambda: live.app.streams[1].send(b"x"))
    assert client.wait(DataReceived, second).data == b"x"


@pytest.mark.parametrize("way", ["close", "reset", "end_sending"])
def test_a_lost_connection_ends_all_its_streams(live: Live, client: H2Client, way: str) -> None:
    open_stream(live, client)
    open_stream(live, client)
    client.open("GET", "/later/x")
    live.until(lambda: len(live.app.waiting) == 1)
    getattr(client.raw, way)()
    live.until(lambda: sorted(live.app.gone) == ["/later/x", "stream", "stream"])


def test_a_stream_that_is_not_taken_is_held_back_alone(live: Live) -> None:
    client = H2Client(live.client(), take=False)
    stuck = open_stream(live, client)
    live.call(lambda: live.app.streams[0].send(b"x" * 3_000_000))
    assert live.call(lambda: live.app.streams[0].buffered_bytes()) > 2_900_000
    assert client.request("POST", "/echo", body=b"other") == (200, b"other")
    assert live.call(lambda: live.app.drained) == 0
    client.h2.increment_flow_control_window(4_000_000, stuck)
    client.flush()
    received = 0
    while received < 3_000_000:
        received += len(client.wait(DataReceived, stuck).data)
    live.until(lambda: live.app.drained == 1)
    assert live.call(lambda: live.app.streams[0].buffered_bytes()) == 0


def test_an_aborted_stream_is_reset(live: Live, client: H2Client) -> None:
    stream_id = open_stream(live, client)
    live.call(lambda: live.app.streams[0].abort())
    assert client.wait(StreamReset, stream_id).error_code == ErrorCodes.CANCEL
    assert client.request("GET", "/echo")[0] == 200


def test_a_body_that_is_reset_is_abandoned(live: Live, client: H2Client) -> None:
    stream_id = client.open("POST", "/echo", end=False)
    client.send_body(stream_id, b"x" * 1000, end=False)
    live.until(lambda: live.hub._bodies_bytes == 1000)
    client.h2.reset_stream(stream_id)
    client.flush()
    live.until(lambda: len(live.app.abandoned) == 1)
    assert live.call(lambda: live.hub._bodies_bytes) == 0


# --- life and end of the connection -----------------------------------------------------------------------------------


def test_a_silent_peer_is_pinged_and_then_dropped(start_server: StartServer) -> None:
    live = start_server(clock=SimClock())
    client = H2Client(live.client())
    open_stream(live, client)
    live.pass_time(27)
    data = client.raw.socket.recv(1 << 16)  # read, but what the library answers is not sent
    assert any(isinstance(event, PingReceived) for event in client.h2.receive_data(data))
    live.pass_time(27)
    live.until(lambda: live.app.gone == ["stream"])


def test_a_peer_that_answers_pings_is_kept(start_server: StartServer) -> None:
    live = start_server(clock=SimClock())
    client = H2Client(live.client())
    stream_id = open_stream(live, client)
    for _ in range(6):
        live.pass_time(27)
        client.wait(PingReceived)
        live.until(lambda: all(peer._pinged_s == 0 for peer in live.hub.peers))
    live.call(lambda: live.app.streams[0].send(b"still here"))
    assert client.wait(DataReceived, stream_id).data == b"still here"


def test_an_idle_connection_is_told_goodbye(start_server: StartServer) -> None:
    live = start_server(clock=SimClock())
    client = H2Client(live.client())
    assert client.request("GET", "/echo")[0] == 200
    for _ in range(2):
        live.pass_time(27)
        client.wait(PingReceived)
        live.until(lambda: all(peer._pinged_s == 0 for peer in live.hub.peers))
    live.pass_time(15)
    assert client.wait(ConnectionTerminated).error_code == 0
    assert client.raw.ended()


def test_a_stalled_body_is_given_up(start_server: StartServer) -> None:
    live = start_server(clock=SimClock())
    client = H2Client(live.client())
    stream_id = client.open("POST", "/echo", end=False)
    live.until(lambda: len(live.app.heads) == 1)
    for _ in range(3):
        live.pass_time(15)
        client.h2.ping(b"01234567")
        client.flush()
        live.until(lambda: all(peer._pinged_s == 0 for peer in live.hub.peers))
    assert client.status(stream_id) == 400
    assert live.call(lambda: len(live.app.abandoned)) == 1


def test_a_protocol_error_is_answered_and_ends_the_connection(live: Live) -> None:
    client = H2Client(live.client())
    assert client.request("GET", "/echo")[0] == 200
    client.raw.send(b"\0\0\4\x08\0\0\0\0\0\0\0\0\0")  # WINDOW_UPDATE by nothing
    assert client.wait(ConnectionTerminated).error_code == ErrorCodes.PROTOCOL_ERROR
    live.until(lambda: not live.hub.peers)


def test_a_flood_of_requests_leaves_others_their_turn(live: Live) -> None:
    client = H2Client(live.client())
    streams = [client.h2.get_next_available_stream_id()]
    for number in range(600):
        stream_id = streams[0] + 2 * number
        client.h2.send_headers(
            stream_id,
            [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/echo")],
            end_stream=True,
        )
    client.flush()
    with live.client() as other:
        assert other.request("GET", "/echo").status == 200
    for number in range(600):
        assert client.status(streams[0] + 2 * number) == 200


def work_of_one_turn(live: Live, client: H2Client, frames: bytes, work: Callable[[], int]) -> int:
    """The most that was done between two turns of others, while the server reads these frames."""
    marks = [0]

    def look() -> None:
        marks.append(work())
        if not is_over.is_set():
            live.hub.loop.call_soon(look)

    is_over = threading.Event()
    live.call(look)
    client.raw.send(frames)
    assert client.request("GET", "/echo")[0] == 200
    is_over.set()
    return max(after - before for before, after in pairwise(marks))


def test_small_requests_are_worked_on_a_few_at_a_time(live: Live, client: H2Client) -> None:
    assert client.request("GET", "/echo")[0] == 200
    for _ in range(800):
        client.h2.send_headers(
            client.h2.get_next_available_stream_id(),
            [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/echo")],
            end_stream=True,
        )
    frames = client.h2.data_to_send()
    assert len(frames) < 16 * 1024  # which is what is read of a large body at a time
    assert work_of_one_turn(live, client, frames, lambda: len(live.app.handled)) < 300


def test_windows_of_the_connection_are_looked_at_once_for_many(
    live: Live, client: H2Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look costs as much as there are streams."""
    pumped: list[int] = []
    pump = H2Output.pump

    def counted(output: H2Output) -> None:
        pumped.append(1)
        pump(output)

    monkeypatch.setattr(H2Output, "pump", counted)
    client.raw.send(b"\0\0\4\x08\0\0\0\0\0\0\0\0\1" * 1000)
    assert client.request("GET", "/echo")[0] == 200
    assert 0 < len(pumped) < 100


# --- curl -------------------------------------------------------------------------------------------------------------

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def curl(*arguments: str) -> str:
    run = subprocess.run(["curl", "-sS", "--max-time", "20", *arguments], capture_output=True, text=True, check=True)
    return run.stdout


@needs_curl
@pytest.mark.parametrize("version", ["--http1.1", "--http2-prior-knowledge", "--http1.0", "--http2"])
def test_curl(live: Live, version: str) -> None:
    url = f"http://127.0.0.1:{live.port}"
    told = curl(version, "-w", " %{http_code} %{http_version}", "--data-binary", "hello", f"{url}/echo")
    expected = {"--http2-prior-knowledge": "2", "--http1.0": "1.1"}.get(version, "1.1")
    assert told == f"hello 200 {expected}"


@needs_curl
@pytest.mark.parametrize("version", ["--http1.1", "--http2-prior-knowledge"])
def test_curl_gets_the_answer_to_a_large_refused_body(start_server: StartServer, version: str, tmp_path: Any) -> None:
    live = start_server(max_body_bytes=1000)
    upload = tmp_path / "large"
    upload.write_bytes(b"x" * 10_000_000)
    for expect in ("Expect:", "Expect: 100-continue"):
        told = curl(
            version,
            "-w",
            " %{http_code}",
            "-H",
            expect,
            "--data-binary",
            f"@{upload}",
            f"http://127.0.0.1:{live.port}/echo",
        )
        assert told.endswith(" 413")
        assert code_of(told.rpartition(" ")[0].encode()) == "payload_too_large"


def test_unfinished_bodies_of_all_streams_share_a_budget(start_server: StartServer) -> None:
    live = start_server(max_body_bytes=9_000_000)  # the budget is eight times that
    clients = [H2Client(live.client()) for _ in range(3)]
    streams = []
    for client in clients:
        for _ in range(4):
            stream_id = client.open("POST", "/echo", end=False)
            client.send_body(stream_id, b"x" * 7_000_000, end=False)
            streams.append((client, stream_id))
    live.until(lambda: len(live.app.abandoned) >= 1)
    assert live.call(lambda: live.hub._bodies_bytes) <= 72_000_000
    client, stream_id = streams[-1]
    assert client.status(stream_id) == 429
    for client in clients:
        client.raw.close()
    live.until(lambda: live.hub._bodies_bytes == 0)
