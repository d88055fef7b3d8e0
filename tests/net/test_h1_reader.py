"""H1Reader: raw bytes in, heads, bodies and faults out, however the bytes are cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.framing_cases import FRAMING_CASES, FramingCase, Taken

from topics.errors import PayloadTooLarge, TopicsError
from topics.net.h1_reader import H1Reader
from topics.net.messages import RequestHead

LIMIT_BYTES = 1 << 20
Outcome = Taken | str


def read(pieces: Iterable[bytes], limit_bytes: int = LIMIT_BYTES) -> list[Outcome]:
    """What a connection makes of the bytes: requests, and the fault that ends them if there is one."""
    return list(outcomes(H1Reader(limit_bytes), pieces))


def outcomes(reader: H1Reader, pieces: Iterable[bytes]) -> Iterator[Outcome]:
    head: RequestHead | None = None
    for piece in pieces:
        reader.receive(piece)
        while True:
            try:
                head = head or reader.next_head()
                body = reader.read_body() if head is not None else None
            except TopicsError as error:
                yield f"{error.status} {error.message}"
                return
            if head is None or body is None:
                break
            yield Taken(head.method, head.raw_path, body)
            if not head.keep_alive:
                return
            head = None


def cut_everywhere(raw: bytes) -> Iterator[list[bytes]]:
    yield from ([raw[:at], raw[at:]] for at in range(1, len(raw)))
    yield [raw[at : at + 1] for at in range(len(raw))]


@pytest.mark.parametrize("case", FRAMING_CASES, ids=lambda case: case.name)
def test_framing_case(case: FramingCase) -> None:
    got = read([case.raw])
    taken = [outcome for outcome in got if isinstance(outcome, Taken)]
    faults = [outcome for outcome in got if isinstance(outcome, str)]
    assert taken == list(case.taken)
    assert [fault[:3] for fault in faults] == ["400"] * case.refused


@pytest.mark.parametrize("case", FRAMING_CASES, ids=lambda case: case.name)
def test_a_framing_case_does_not_depend_on_how_it_is_cut(case: FramingCase) -> None:
    whole = read([case.raw])
    if len(case.raw) <= 400:
        for pieces in cut_everywhere(case.raw):
            assert read(pieces) == whole
    else:
        assert read([case.raw[at : at + 997] for at in range(0, len(case.raw), 997)]) == whole
        assert read([case.raw[:65_000], case.raw[65_000:]]) == whole


def test_there_are_over_a_hundred_cases_with_distinct_names() -> None:
    assert len({case.name for case in FRAMING_CASES}) == len(FRAMING_CASES) >= 150


REQUESTS = [
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /v0/topics?page_size=3&prefix=a%2Fb HTTP/1.1\r\nHost: a:4000\r\nAccept: */*\r\n\r\n",
    b"HEAD /healthz HTTP/1.1\r\nHost: [::1]\r\nUser-Agent: x/1\r\n\r\n",
    b"DELETE /v0/topics/t?if_empty=true HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer k\r\n\r\n",
    b"PUT /v0/topics/t HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    b'PUT /t HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{"ttl_ms": 5}',
    b'POST /v0/topics/t HTTP/1.1\r\nhost: a\r\ncontent-length: 30\r\n\r\n{"records":[{"data":"\r\n\r\n  "}]}',
    b"POST /t HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"POST /t HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nT: 1\r\n\r\n",
    b"POST /t HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
    b"GET http://proxy/a?b HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
    b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n" * 2,
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx" * 3,
    b"".join(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (n, b"x" * n) for n in (9, 10)),
    b"\r\nGET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
]


@pytest.mark.parametrize("raw", REQUESTS, ids=range(len(REQUESTS)))
def test_a_request_cut_at_every_byte_reads_the_same(raw: bytes) -> None:
    whole = read([raw])
    assert whole
    for pieces in cut_everywhere(raw):
        assert read(pieces) == whole


@given(st.data())
def test_mutated_requests_read_the_same_whole_and_in_pieces(data: st.DataObject) -> None:
    raw = bytearray(data.draw(st.sampled_from(REQUESTS)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([b"\r", b"\n", b"\r\n", b" ", b"\t", b":", b"\x00", b"\xff", b"5", b",", b"", b"chunked"])
        )
    cut = data.draw(st.integers(0, len(raw)))
    whole = read([bytes(raw)])
    assert read([bytes(raw[:cut]), bytes(raw[cut:])] if 0 < cut < len(raw) else [bytes(raw)]) == whole
    assert read([bytes(raw[at : at + 1]) for at in range(len(raw))]) == whole


# --- heads ------------------------------------------------------------------------------------------------------------


def head_of(raw: bytes) -> RequestHead:
    reader = H1Reader(LIMIT_BYTES)
    reader.receive(raw)
    head = reader.next_head()
    assert head is not None
    return head


def test_field_names_are_lower_case_and_repeated_values_are_joined() -> None:
    head = head_of(b"GET / HTTP/1.1\r\nHOST: a\r\nAccept: x\r\naccept:  y \r\n\r\n")
    assert dict(head.headers) == {b"host": b"a", b"accept": b"x, y"}


def test_framing_fields_are_not_shown_to_the_application() -> None:
    head = head_of(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert dict(head.headers) == {b"host": b"a"}
    assert dict(head_of(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").headers) == {b"host": b"a"}


@pytest.mark.parametrize(
    ("version", "connection", "kept"),
    [
        (b"1.1", None, True),
        (b"1.1", b"close", False),
        (b"1.1", b"Close", False),
        (b"1.1", b"keep-alive, CLOSE", False),
        (b"1.1", b"closed", True),
        (b"1.0", None, False),
        (b"1.0", b"keep-alive", True),
        (b"1.0", b"keep-alive, close", False),
    ],
)
def test_persistence(version: bytes, connection: bytes | None, kept: bool) -> None:
    field = b"Connection: %b\r\n" % connection if connection is not None else b""
    assert head_of(b"GET / HTTP/%b\r\nHost: a\r\n%b\r\n" % (version, field)).keep_alive is kept


def test_a_repeated_head_is_the_same_object_whatever_its_content_length() -> None:
    reader = H1Reader(LIMIT_BYTES)
    heads = []
    for body in (b"a", b"bb", b"0123456789"):
        reader.receive(b"POST /t HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\nX: y\r\n\r\n%b" % (len(body), body))
        heads.append(reader.next_head())
        assert reader.content_length == len(body)
        assert reader.read_body() == body
    assert heads[0] is heads[1] is heads[2]


@pytest.mark.parametrize("length", [b"", b"+1", b"-1", b"1 ", b"1, 1", b"0x1", b"1" * 40])
def test_a_remembered_head_does_not_admit_a_bad_length(length: bytes) -> None:
    reader = H1Reader(LIMIT_BYTES)
    first = b"POST /t HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"
    second = b"POST /t HTTP/1.1\r\nHost: a\r\nContent-Length: %b\r\n\r\nx" % length
    assert list(outcomes(reader, [first, second]))[1:] == read([second])


@pytest.mark.parametrize("blank", [b"\r\n", b"\r\n" * 2, b"\r\n" * 4], ids=["one", "two", "four"])
def test_empty_lines_may_come_before_each_of_many_equal_heads(blank: bytes) -> None:
    raw = (blank + b"POST /t HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx") * 4
    assert read([raw]) == [Taken("POST", b"/t", b"x")] * 4
    for pieces in cut_everywhere(raw):
        assert read(pieces) == read([raw])


def test_a_changed_head_is_not_mistaken_for_the_remembered_one() -> None:
    reader = H1Reader(LIMIT_BYTES)
    one = b"GET /a HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer k1\r\n\r\n"
    two = b"GET /a HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer k2\r\n\r\n"
    reader.receive(one + two)
    first, second = reader.next_head(), reader.next_head()
    assert first is not None
    assert second is not None
    assert (first.headers[b"authorization"], second.headers[b"authorization"]) == (b"Bearer k1", b"Bearer k2")


def test_expect_is_seen_only_in_http_1_1() -> None:
    assert head_of(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\n\r\n").expects_continue
    assert not head_of(b"POST / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n").expects_continue


# --- bodies -----------------------------------------------------------------------------------------------------------


def test_a_chunked_body_over_the_limit_is_refused_before_its_data_arrives() -> None:
    reader = H1Reader(10)
    reader.receive(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n123456\r\n5\r\n")
    assert reader.next_head() is not None
    with pytest.raises(PayloadTooLarge):
        reader.read_body()


def test_a_chunked_body_of_exactly_the_limit_is_taken() -> None:
    raw = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n123456\r\n4\r\n7890\r\n0\r\n\r\n"
    assert read([raw], limit_bytes=10) == [Taken("POST", b"/", b"1234567890")]


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_discarded_body_leaves_the_next_request_untouched(framing: str) -> None:
    body = b"x" * 5000
    if framing == "length":
        raw = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n" + body
    else:
        raw = b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1388\r\n" + body + b"\r\n0\r\n\r\n"
    reader = H1Reader(10)
    reader.receive(raw[:1000])
    assert reader.next_head() is not None
    passed = reader.discard_body()
    for at in range(1000, len(raw), 700):
        assert not passed
        reader.receive(raw[at : at + 700])
        passed = reader.discard_body()
    assert passed
    reader.receive(b"GET /b HTTP/1.1\r\nHost: a\r\n\r\n")
    head = reader.next_head()
    assert head is not None
    assert head.raw_path == b"/b"


def test_held_bytes_are_those_of_the_unfinished_body() -> None:
    reader = H1Reader(LIMIT_BYTES)
    reader.receive(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n" + b"x" * 30)
    assert reader.next_head() is not None
    assert reader.read_body() is None
    assert (reader.held_bytes(), reader.bytes_to_come()) == (30, 70)
    reader.receive(b"y" * 70)
    assert reader.read_body() == b"x" * 30 + b"y" * 70
    assert (reader.held_bytes(), reader.waiting_bytes()) == (0, 0)


def test_a_head_that_trickles_in_costs_no_more_than_its_length() -> None:
    """Each byte is looked at a bounded number of times: 60,000 single bytes take well under a second."""
    reader = H1Reader(LIMIT_BYTES)
    for byte in b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 60_000:
        reader.receive(bytes((byte,)))
        assert reader.next_head() is None


@pytest.mark.parametrize("size", [b"100001", b"fffffffffffffff", b"10000000000000005", b"f" * 400])
def test_a_chunk_of_any_size_over_the_limit_is_too_large_at_once(size: bytes) -> None:
    raw = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%b\r\nhello" % size
    (fault,) = read([raw])
    assert str(fault).startswith("413")
    assert all(read(pieces) == [fault] for pieces in cut_everywhere(raw))


def test_what_follows_an_upgrade_can_be_taken_over() -> None:
    reader = H1Reader(LIMIT_BYTES)
    reader.receive(b"GET /ws HTTP/1.1\r\nHost: a\r\n\r\n\x81\x80rest")
    assert reader.next_head() is not None
    assert reader.read_body() == b""
    assert reader.take_rest() == b"\x81\x80rest"
    assert reader.waiting_bytes() == 0
