"""WsSession without a socket: the same messages come out however the frames are cut."""

from __future__ import annotations

import struct
import tracemalloc

import pytest

from topics.net.messages import Request, RequestHead
from topics.net.websocket import WsEnd, WsMessage, WsSession, accept_response, handshake_problem, text_frame

LIMIT_BYTES = 100
MASK = b"\x11\x22\x33\x44"


def frame(opcode: int, payload: bytes, *, fin: bool = True) -> bytes:
    """A masked frame, as a client sends it."""
    masked = bytes(byte ^ MASK[at % 4] for at, byte in enumerate(payload))
    return struct.pack("!BB", (0x80 if fin else 0) | opcode, 0x80 | len(payload)) + MASK + masked


def read(pieces: list[bytes]) -> tuple[list[WsMessage | WsEnd], bytes]:
    """What comes out, and what the session wants to send meanwhile."""
    session = WsSession(LIMIT_BYTES)
    events: list[WsMessage | WsEnd] = []
    for piece in pieces:
        session.receive(piece)
        while (event := session.next_event()) is not None:
            if not isinstance(event, str):
                events.append(event)
    return events, session.take_output()


CONVERSATIONS = [
    frame(1, b"hello"),
    frame(1, "é€😀".encode()) + frame(2, b"\x00\xff"),
    frame(1, b"a", fin=False) + frame(9, b"ping") + frame(0, "é".encode()[:1], fin=False) + frame(0, b"\xa9"),
    frame(1, b"") + frame(10, b"unasked pong") + frame(1, b"x" * 100),
    frame(1, b"x" * 60, fin=False) + frame(0, b"x" * 41),
    frame(1, b"\xff"),
    frame(8, struct.pack("!H", 1000) + b"bye"),
    frame(1, b"last") + frame(8, b"") + frame(1, b"never seen"),
]


@pytest.mark.parametrize("raw", CONVERSATIONS, ids=range(len(CONVERSATIONS)))
def test_the_cut_does_not_matter(raw: bytes) -> None:
    whole = read([raw])
    assert whole[0]
    for at in range(1, len(raw)):
        assert read([raw[:at], raw[at:]]) == whole
    assert read([raw[at : at + 1] for at in range(len(raw))]) == whole


def test_fragments_are_joined_and_pings_answered_between_them() -> None:
    events, output = read([CONVERSATIONS[2]])
    assert events == [WsMessage("aé".encode(), is_text=True)]
    assert output == b"\x8a\x04ping"


@pytest.mark.parametrize("part", [b"", b"ab"])
def test_a_message_in_tiny_fragments_costs_no_more_than_its_bytes(part: bytes) -> None:
    session = WsSession(1 << 20)
    session.receive(frame(1, b"", fin=False))
    fragments = frame(0, part, fin=False) * 1000
    tracemalloc.start()
    for _ in range(10):
        session.receive(fragments)
        while session.next_event() is not None:
            pass
    held_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held_bytes < 40_000  # 20,000 of them are the message
    session.receive(frame(0, b"!"))
    assert session.next_event() == WsMessage(part * 10_000 + b"!", is_text=True)


def test_exactly_the_limit_is_taken_and_one_byte_more_is_1009() -> None:
    assert read([CONVERSATIONS[3]])[0][-1] == WsMessage(b"x" * 100, is_text=True)
    assert read([CONVERSATIONS[4]]) == ([WsEnd(1009)], b"\x88\x02" + struct.pack("!H", 1009))


@pytest.mark.parametrize("before", [b"", frame(1, b"x" * 60, fin=False)], ids=["alone", "last fragment"])
def test_a_frame_that_declares_too_much_is_refused_before_its_payload_comes(before: bytes) -> None:
    declared = struct.pack("!BBQ", 0x80 if before else 0x82, 0x80 | 127, 1 << 40)
    events, output = read([before, declared])
    assert events == [WsEnd(1009)]
    assert output[2:4] == struct.pack("!H", 1009)


def test_what_fits_by_itself_but_not_behind_the_fragments_before_is_refused_by_its_header() -> None:
    events, _ = read([frame(1, b"x" * 60, fin=False), frame(0, b"x" * 41)[:2]])
    assert events == [WsEnd(1009)]


def test_nothing_is_read_behind_a_close() -> None:
    assert read([CONVERSATIONS[7]])[0] == [WsMessage(b"last", is_text=True), WsEnd(1005)]


def test_a_close_of_ours_is_sent_once() -> None:
    session = WsSession(LIMIT_BYTES)
    session.close(1001)
    session.close(1000)
    assert session.take_output() == b"\x88\x02\x03\xe9"
    assert session.closing
    session.receive(frame(1, b"late") + frame(8, struct.pack("!H", 1001)))
    assert session.next_event() == "progress"
    assert session.next_event() == WsEnd(1001)
    assert session.take_output() == b""


@pytest.mark.parametrize(
    ("size", "head"),
    [
        (0, b"\x81\x00"),
        (125, b"\x81\x7d"),
        (126, b"\x81\x7e\x00\x7e"),
        (65_535, b"\x81\x7e\xff\xff"),
        (65_536, b"\x81\x7f\x00\x00\x00\x00\x00\x01\x00\x00"),
    ],
)
def test_a_text_frame_has_the_shortest_length(size: int, head: bytes) -> None:
    assert text_frame(b"x" * size) == head + b"x" * size


def test_the_handshake_of_the_rfc() -> None:
    head = RequestHead(
        method="GET",
        raw_path=b"/ws",
        query=b"",
        version="1.1",
        headers={
            b"upgrade": b"foo, WebSocket",
            b"connection": b"keep-alive, Upgrade",
            b"sec-websocket-version": b"13",
            b"sec-websocket-key": b"dGhlIHNhbXBsZSBub25jZQ==",
        },
    )
    assert handshake_problem(Request(head)) is None
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in accept_response(Request(head))
