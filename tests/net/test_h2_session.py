"""H2Session against the client side of the `h2` library: no socket, only bytes handed across."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    PingAckReceived,
    PingReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from h2.settings import SettingCodes
from hyperframe.frame import HeadersFrame, PingFrame, PriorityFrame, RstStreamFrame, SettingsFrame

from topics.net.h2_session import (
    H2BadRequest,
    H2Body,
    H2BodyEnd,
    H2Event,
    H2Over,
    H2Request,
    H2Reset,
    H2Session,
    H2Window,
)
from topics.net.transport_limits import H2_STREAMS_MAX

Fields = Sequence[tuple[str, str]]
GET: Fields = [(":method", "GET"), (":scheme", "http"), (":authority", "a:80"), (":path", "/v0/topics?x=1")]
POST: Fields = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/t")]
ROOM = 1 << 30


class Pair:
    """A client and our session, joined by hand."""

    def __init__(self, *, validate: bool = True) -> None:
        self.client = H2Connection(
            H2Configuration(
                client_side=True,
                validate_outbound_headers=validate,
                normalize_outbound_headers=validate,
            )
        )
        self.client.initiate_connection()
        self.session = H2Session(0.0)
        self.exchange()
        self.exchange()

    def exchange(self, now_s: float = 0.0) -> tuple[list[H2Event], list[Event]]:
        """Everything the client has said to the session, then everything the session has said to the client."""
        ours = self.session.receive(self.client.data_to_send(), now_s)
        output = self.session.take_output()
        theirs = self.client.receive_data(output) if output else []
        return ours, theirs

    def request(self, fields: Fields, body: bytes | None = None) -> int:
        stream_id = self.client.get_next_available_stream_id()
        self.client.send_headers(stream_id, fields, end_stream=body is None)
        if body is not None:
            self.client.send_data(stream_id, body, end_stream=True)
        return stream_id


def of(kind: type[Event], events: list[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, kind)]


def test_the_settings_are_those_of_the_contract() -> None:
    pair = Pair()
    remote = pair.client.remote_settings
    assert remote.max_concurrent_streams is not None
    assert remote.max_concurrent_streams >= 1024
    assert remote.initial_window_size == 1 << 20
    assert remote[SettingCodes.MAX_HEADER_LIST_SIZE] == 131_072
    assert pair.client.outbound_flow_control_window == 4 << 20


def test_a_request_without_a_body() -> None:
    pair = Pair()
    stream_id = pair.request(GET)
    ours, _ = pair.exchange()
    request, end = ours
    assert isinstance(request, H2Request)
    assert (request.stream_id, request.content_length) == (stream_id, None)
    assert (request.head.method, request.head.raw_path, request.head.query) == ("GET", b"/v0/topics", b"x=1")
    assert request.head.version == "2"
    assert dict(request.head.headers) == {b"host": b"a:80"}
    assert end == H2BodyEnd(stream_id)


def test_repeated_fields_are_joined_and_the_length_is_taken_out() -> None:
    pair = Pair()
    pair.request([*POST, ("accept", "x"), ("accept", "y"), ("content-length", "3")], b"abc")
    ours, _ = pair.exchange()
    assert isinstance(ours[0], H2Request)
    assert ours[0].content_length == 3
    assert dict(ours[0].head.headers) == {b"accept": b"x, y", b"host": b"a"}
    assert ours[1:] == [H2Body(1, b"abc", 3), H2BodyEnd(1)]


def test_an_answer_with_a_body() -> None:
    pair = Pair()
    stream_id = pair.request(GET)
    pair.exchange()
    pair.session.send_head(stream_id, 200, ((b"Content-Type", b"application/json"),), end=False)
    pair.session.send(stream_id, b"hello", end=True)
    pair.session.pump(ROOM)
    _, theirs = pair.exchange()
    head = of(ResponseReceived, theirs)[0]
    assert isinstance(head, ResponseReceived)
    assert list(head.headers) == [(b":status", b"200"), (b"content-type", b"application/json")]
    assert [event.data for event in theirs if isinstance(event, DataReceived)] == [b"hello"]
    assert of(StreamEnded, theirs)
    assert not pair.session.waiting


def with_path(path: str) -> Fields:
    return [*GET[:3], (":path", path)]


MALFORMED: dict[str, Fields] = {
    "no path": GET[:3],
    "empty path": with_path(""),
    "relative path": with_path("relative"),
    "asterisk": with_path("*"),
    "absolute form": with_path("http://a/b"),
    "space in the path": with_path("/a b"),
    "fragment": with_path("/a#b"),
    "DEL in the path": with_path("/a\x7f"),
    "connection": [*GET, ("connection", "close")],
    "keep-alive": [*GET, ("keep-alive", "timeout=5")],
    "proxy-connection": [*GET, ("proxy-connection", "close")],
    "upgrade": [*GET, ("upgrade", "websocket")],
    "transfer-encoding": [*GET, ("transfer-encoding", "chunked")],
    "te": [*GET, ("te", "gzip")],
    "upper case": [*GET, ("Upper", "x")],
    "empty name": [*GET, ("", "x")],
    "colon in a name": [*GET, ("a:b", "x")],
    "space in a name": [*GET, ("a b", "x")],
    "name beyond ASCII": [*GET, ("\xe9", "x")],
    "line feed": [*GET, ("x", "a\nb")],
    "carriage return": [*GET, ("x", "a\rb")],
    "NUL": [*GET, ("x", "a\0b")],
    "line break in a pseudo-header": [*GET[:2], (":authority", "a\r\nx: y"), GET[3]],
    "space before a value": [*GET, ("x", " a")],
    "tab behind a value": [*GET, ("x", "a\t")],
    "path twice": [*GET, (":path", "/twice")],
    "unknown pseudo-header": [*GET, (":unknown", "x")],
    "our own mark": [*GET, (":malformed", "x")],
    "our own length": [*GET, (":length", "1")],
    "status": [*GET, (":status", "200")],
    "informational status": [(":status", "100"), *GET],
    "no method": GET[1:],
    "no scheme": [GET[0], *GET[2:]],
    "no authority": [*GET[:2], GET[3]],
    "empty": [],
    "pseudo-header behind a field": [("x", "before"), *GET],
    "two hosts": [*GET[:2], GET[3], ("host", "a"), ("host", "a")],
    "another host": [*GET, ("host", "b")],
    "protocol": [*GET, (":protocol", "websocket")],
    "CONNECT": [(":method", "CONNECT"), (":authority", "a")],
    "CONNECT with a path": [(":method", "CONNECT"), *GET[1:]],
    "extended CONNECT": [(":method", "CONNECT"), *GET[1:], (":protocol", "websocket")],
    "length that is no number": [*GET, ("content-length", "+1")],
    "two lengths": [*GET, ("content-length", "1"), ("content-length", "2")],
    "many fields": [*GET, *((f"x-{number}", "y") for number in range(130))],
    "one field many times": [*GET, *[("x", "")] * 130],
}


def head_frame(pair: Pair, fields: Fields, stream_id: int) -> bytes:
    """As nobody's library would send it."""
    frame = HeadersFrame(stream_id, flags=["END_HEADERS", "END_STREAM"])
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]
    frame.data = pair.client.encoder.encode(pairs)
    return frame.serialize()


@pytest.mark.parametrize("fields", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_request_is_refused_on_its_stream_and_others_go_on(fields: Fields) -> None:
    pair = Pair()
    for first in (1, 7):  # the second time mostly as indices
        frames = [head_frame(pair, each, first + 2 * at) for at, each in enumerate((GET, fields, GET))]
        ours = [event for event in pair.session.receive(b"".join(frames), 0.0) if not isinstance(event, H2BodyEnd)]
        assert [type(event) for event in ours] == [H2Request, H2BadRequest, H2Request]


@pytest.mark.parametrize(
    "fields",
    [
        [*GET, ("te", "trailers")],
        [*GET[:2], GET[3], ("host", "a")],
        [*GET, ("host", "a:80")],
        [*GET, ("x", ""), ("y", "a b\tc\xe9")],
        [*GET, ("cookie", "a=b"), ("cookie", "c=d")],
        [(":method", "OPTIONS"), *GET[1:3], (":path", "*")],
        [*reversed(GET)],
    ],
)
def test_unusual_fields_that_are_well_formed_are_taken(fields: Fields) -> None:
    pair = Pair()
    ours = pair.session.receive(head_frame(pair, fields, 1), 0.0)
    assert isinstance(ours[0], H2Request)


@pytest.mark.parametrize("fields", [[(":path", "/")], [("Upper", "x")], [("x", "a\nb")]])
def test_a_malformed_trailer_is_told_before_the_body_ends(fields: Fields) -> None:
    pair = Pair()
    pair.client.send_headers(1, POST)
    pair.client.send_data(1, b"abc")
    pair.exchange()
    ours = pair.session.receive(head_frame(pair, fields, 1), 0.0)
    assert [type(event) for event in ours] == [H2BadRequest, H2BodyEnd]


def test_a_trailer_is_dropped() -> None:
    pair = Pair()
    pair.client.send_headers(1, POST)
    pair.exchange()
    assert pair.session.receive(head_frame(pair, [("x-sum", "1")], 1), 0.0) == [H2BodyEnd(1)]


def test_an_answer_waits_for_the_stream_window() -> None:
    pair = Pair()
    stream_id = pair.request(GET)
    pair.exchange()
    body = b"x" * 200_000
    pair.session.send_head(stream_id, 200, (), end=False)
    pair.session.send(stream_id, body, end=True)
    pair.session.pump(ROOM)
    assert pair.session.pending_bytes(stream_id) == 200_000 - 65_535
    received = b""
    while True:
        ours, theirs = pair.exchange()
        pair.session.pump(ROOM)
        for event in theirs:
            if isinstance(event, DataReceived):
                received += event.data
                pair.client.acknowledge_received_data(event.flow_controlled_length, stream_id)
        if of(StreamEnded, theirs):
            break
        assert theirs or ours
    assert received == body


def test_an_open_window_is_reported() -> None:
    pair = Pair()
    stream_id = pair.request(GET)
    pair.exchange()
    pair.client.increment_flow_control_window(1000, stream_id)
    pair.client.increment_flow_control_window(1000)
    ours, _ = pair.exchange()
    assert ours == [H2Window(stream_id), H2Window(0)]


def test_streams_take_turns() -> None:
    pair = Pair()
    pair.client.increment_flow_control_window(10_000_000)
    large, small = pair.request(GET), pair.request(GET)
    pair.exchange()
    for stream_id, size in ((large, 60_000), (small, 10)):
        pair.session.send_head(stream_id, 200, (), end=False)
        pair.session.send(stream_id, b"x" * size, end=True)
    pair.session.pump(20_000)
    _, theirs = pair.exchange()
    ended = [event.stream_id for event in theirs if isinstance(event, StreamEnded)]
    assert ended == [small]


def test_no_more_is_framed_than_there_is_room_for() -> None:
    pair = Pair()
    stream_id = pair.request(GET)
    pair.exchange()
    pair.session.send_head(stream_id, 200, (), end=False)
    pair.session.send(stream_id, b"x" * 50_000)
    assert pair.session.pump(10_000) == 10_000
    assert pair.session.pending_bytes(stream_id) == 40_000


def test_received_bytes_are_given_back_as_window() -> None:
    pair = Pair()
    stream_id = pair.client.get_next_available_stream_id()
    pair.client.send_headers(stream_id, POST)
    sent = 0
    while sent < 8_000_000:
        room = min(pair.client.local_flow_control_window(stream_id), 16_384)
        assert room > 0
        pair.client.send_data(stream_id, b"x" * room)
        sent += room
        ours, _ = pair.exchange()
        for event in ours:
            if isinstance(event, H2Body):
                pair.session.acknowledge(event.stream_id, event.credit)
        pair.exchange()


def test_a_reset_is_reported_and_drops_what_waits() -> None:
    pair = Pair()
    stream_id = pair.request(GET)
    pair.exchange()
    pair.session.send_head(stream_id, 200, (), end=False)
    pair.session.send(stream_id, b"x" * 100_000)
    pair.client.reset_stream(stream_id, ErrorCodes.CANCEL)
    ours, _ = pair.exchange()
    assert ours == [H2Reset(stream_id)]
    assert not pair.session.waiting
    pair.session.send(stream_id, b"late", end=True)
    pair.session.pump(ROOM)
    pair.session.send_head(stream_id, 200, (), end=True)
    assert not pair.session.waiting


def test_we_can_reset_a_stream() -> None:
    pair = Pair()
    stream_id = pair.request(GET)
    pair.exchange()
    pair.session.reset(stream_id, refused=True)
    _, theirs = pair.exchange()
    reset = of(StreamReset, theirs)[0]
    assert isinstance(reset, StreamReset)
    assert reset.error_code == ErrorCodes.REFUSED_STREAM


def test_pings_go_both_ways() -> None:
    pair = Pair()
    pair.client.ping(b"01234567")
    pair.session.ping()
    _, theirs = pair.exchange()
    assert of(PingAckReceived, theirs)
    assert of(PingReceived, theirs)


def test_after_goodbye_running_streams_are_still_answered() -> None:
    pair = Pair()
    stream_id = pair.request(GET)
    pair.exchange()
    pair.session.say_goodbye()
    output = pair.session.take_output()
    pair.session.send_head(stream_id, 200, (), end=False)
    pair.session.send(stream_id, b"still", end=True)
    pair.session.pump(ROOM)
    output += pair.session.take_output()
    goodbye = b"\0\0\x08\x07\0\0\0\0\0" + stream_id.to_bytes(4, "big") + b"\0\0\0\0"
    assert output.startswith(goodbye)
    assert b"still" in output


# --- work that asks for nothing ---------------------------------------------------------------------------------------


def flood(session: H2Session, frames: bytes, *, now_s: float = 0.0) -> list[H2Event]:
    return session.receive(frames, now_s)


def test_a_flood_of_pings_ends_the_connection() -> None:
    session = Pair().session
    assert flood(session, PingFrame(0, opaque_data=b"x" * 8).serialize() * 1000) == []
    assert isinstance(flood(session, PingFrame(0, opaque_data=b"x" * 8).serialize() * 1001)[-1], H2Over)
    assert int(ErrorCodes.ENHANCE_YOUR_CALM).to_bytes(4, "big") in session.take_output()


def test_pings_at_a_decent_rate_are_fine_for_ever() -> None:
    session = Pair().session
    for second in range(20):
        assert flood(session, PingFrame(0).serialize() * 400, now_s=float(second)) == []


@pytest.mark.parametrize(
    "frame",
    [
        SettingsFrame(0).serialize(),
        PriorityFrame(3, depends_on=0, stream_weight=1).serialize(),
        b"\0\0\0\xee\0\0\0\0\1",
    ],
    ids=["settings", "priority", "unknown"],
)
def test_other_floods_end_the_connection(frame: bytes) -> None:
    session = Pair().session
    assert isinstance(flood(session, frame * 2100)[-1], H2Over)


@pytest.mark.parametrize("table_bytes", [0, 100, 4096, 1 << 16, (1 << 31) - 1])
def test_our_heads_are_remembered_within_a_bound_whatever_the_peer_offers(table_bytes: int) -> None:
    pair = Pair()
    pair.client.update_settings({SettingCodes.HEADER_TABLE_SIZE: table_bytes})
    pair.exchange()
    for number in range(300):
        stream_id = pair.request(GET)
        pair.exchange()
        pair.session.send_head(stream_id, 200, ((b"content-length", b"%d" % number),), end=True)
        (head,) = of(ResponseReceived, pair.exchange()[1])
        assert isinstance(head, ResponseReceived)
        assert head.headers[1] == (b"content-length", b"%d" % number)
    assert len(pair.client.decoder.header_table.dynamic_entries) < 100


def test_priorities_and_trailers_of_requests_are_no_flood() -> None:
    pair = Pair()
    for number in range(2100):
        stream_id = 1 + 2 * number
        pair.client.send_headers(stream_id, POST, priority_weight=200)
        pair.client.send_headers(stream_id, [("x-sum", "1")], end_stream=True)
        ours, _ = pair.exchange()
        assert [type(event) for event in ours] == [H2Request, H2BodyEnd]
        pair.session.reset(stream_id)


def test_all_streams_that_may_be_open_can_be_cancelled_at_once() -> None:
    pair = Pair()
    streams = [pair.request(GET) for _ in range(H2_STREAMS_MAX)]
    pair.exchange()
    for stream_id in streams:
        pair.client.reset_stream(stream_id)
    assert pair.session.receive(pair.client.data_to_send(), 0.0) == [H2Reset(stream_id) for stream_id in streams]


def test_rapid_resets_end_the_connection() -> None:
    pair = Pair()
    ended = False
    for _ in range(H2_STREAMS_MAX + 500):
        stream_id = pair.request(GET)
        pair.client.reset_stream(stream_id)
        ours = pair.session.receive(pair.client.data_to_send(), 0.0)
        ended = any(isinstance(event, H2Over) for event in ours)
        if ended:
            break
    assert ended


def test_streams_are_not_counted_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs as much as there are open ones, which may be a thousand."""
    pair = Pair()
    for _ in range(1000):
        pair.request(GET)
        pair.exchange()
    counted: list[bool] = []
    count = H2Connection._open_streams

    def noted(library: H2Connection, remainder: int) -> int:
        counted.append(library is pair.session._conn)
        return count(library, remainder)

    monkeypatch.setattr(H2Connection, "_open_streams", noted)
    for _ in range(3000):
        stream_id = pair.request(GET)
        pair.exchange()
        pair.session.send_head(stream_id, 200, (), end=True)
    assert sum(counted) < 10
    assert len(pair.session._conn.streams) < H2_STREAMS_MAX


def test_as_many_streams_as_allowed_may_be_open_beside_others_that_came_and_went() -> None:
    pair = Pair()
    for _ in range(3):
        for _ in range(H2_STREAMS_MAX - 1):
            stream_id = pair.request(GET)
            pair.exchange()
            pair.session.send_head(stream_id, 200, (), end=True)
    for _ in range(H2_STREAMS_MAX):
        pair.request(GET)
        assert isinstance(pair.exchange()[0][0], H2Request)


def test_more_streams_than_allowed_end_the_connection() -> None:
    pair = Pair()
    block = pair.client.encoder.encode(GET)
    frames = [HeadersFrame(2 * n + 1, data=block, flags=["END_HEADERS"]).serialize() for n in range(2049)]
    assert isinstance(pair.session.receive(b"".join(frames), 0.0)[-1], H2Over)


def test_a_header_bomb_ends_the_connection() -> None:
    pair = Pair(validate=False)
    pair.request([*GET, ("x", "y" * 60_000), ("x", "y" * 60_000), ("z", "y" * 60_000)])
    ours, _ = pair.exchange()
    assert isinstance(ours[-1], H2Over)


def test_a_reset_of_an_unknown_stream_ends_the_connection_or_is_ignored() -> None:
    session = Pair().session
    events = flood(session, RstStreamFrame(99, error_code=8).serialize())
    assert all(isinstance(event, H2Over) for event in events)
