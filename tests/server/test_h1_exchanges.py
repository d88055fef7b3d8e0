"""HTTP/1.1 over a real socket: order, persistence, early answers, streams, ends."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import pytest
from tests.server.framing_cases import FRAMING_CASES, FramingCase
from tests.server.raw_http import RawClient, RawResponse

from topics.net.transport_limits import DRAIN_BYTES_MAX
from topics.testing.clock import SimClock

Live = Any  # the fixtures of conftest.py
StartServer = Any

GET = b"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"


def error_of(response: RawResponse) -> str:
    assert response.headers["content-type"] == "application/json"
    envelope = json.loads(response.body)
    assert set(envelope) == {"error"}
    assert envelope["error"]["message"]
    code: str = envelope["error"]["code"]
    return code


# --- framing ----------------------------------------------------------------------------------------------------------


def test_framing_cases_over_sockets(live: Live) -> None:
    """Every request of a case is answered, in order; what must be refused gets 400 and the end of the connection."""
    for case in FRAMING_CASES:
        with live.client() as client:
            check_framing_case(client, case)
    assert live.call(lambda: len(live.hub.peers)) <= len(FRAMING_CASES)


def check_framing_case(client: RawClient, case: FramingCase) -> None:
    client.send(case.raw)
    for taken in case.taken:
        response = client.response(taken.method)
        assert (response.status, response.line[:9]) == (200, b"HTTP/1.1 "), case.name
        assert response.headers["x-path"].encode("latin-1") == taken.path, case.name
        assert response.body == taken.body, case.name
    if case.refused:
        refusal = client.response()
        assert refusal.status == 400, case.name
        assert error_of(refusal) == "invalid_request", case.name
        assert not refusal.keeps_alive, case.name
        assert client.ended(), case.name


REQUESTS = [
    GET,
    b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
    b"HEAD /echo HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /refuse HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    b"GET /echo HTTP/1.1\r\nHost: a\r\nX: 1\r\n 2\r\n\r\n",
]


@pytest.mark.parametrize("raw", REQUESTS, ids=range(len(REQUESTS)))
def test_a_request_cut_at_every_byte_gets_the_same_answer(live: Live, raw: bytes) -> None:
    def ask(*pieces: bytes) -> tuple[int, bytes, bool]:
        with live.client() as client:
            for piece in pieces:
                client.send(piece)
            response = client.response("HEAD" if raw.startswith(b"HEAD") else "GET")
            return response.status, response.body, response.keeps_alive

    whole = ask(raw)
    for at in range(1, len(raw)):
        assert ask(raw[:at], raw[at:]) == whole


# --- persistence and order --------------------------------------------------------------------------------------------


def test_answers_carry_a_length_a_type_and_a_date(live: Live) -> None:
    with live.client() as client:
        response = client.request("POST", "/echo", body=b"{}")
    assert response.line == b"HTTP/1.1 200 OK"
    assert response.headers["content-type"] == "application/json"
    assert response.headers["content-length"] == "2"
    assert response.headers["date"].endswith(" GMT")
    assert "connection" not in response.headers
    assert "server" not in response.headers


def test_a_connection_carries_many_requests(live: Live) -> None:
    with live.client() as client:
        for number in range(50):
            body = b"%d" % number * number
            assert client.request("POST", f"/echo/{number}", body=body).body == body


def test_pipelined_requests_are_answered_in_order_although_the_application_does_not(live: Live) -> None:
    with live.client() as client:
        client.send(b"".join(b"GET /later/%d HTTP/1.1\r\nHost: a\r\n\r\n" % number for number in range(5)))
        live.until(lambda: len(live.app.waiting) == 5)
        for index in (3, 1, 4, 0, 2):
            live.call(lambda index=index: reply_to(live, index))
        paths = [client.response().headers["x-path"] for _ in range(5)]
    assert paths == [f"/later/{number}" for number in range(5)]


def reply_to(live: Live, index: int) -> object:
    return live.app.do_echo(*live.app.waiting[index])


def test_answers_of_one_turn_leave_in_one_write(live: Live) -> None:
    with live.client() as client:
        client.send(b"".join(b"GET /later/%d HTTP/1.1\r\nHost: a\r\n\r\n" % number for number in range(5)))
        live.until(lambda: len(live.app.waiting) == 5)
        live.call(lambda: [reply_to(live, index) for index in range(5)])
        time.sleep(0)
        first = client.socket.recv(1 << 16)
    assert first.count(b"HTTP/1.1 200 OK") == 5


def test_a_flood_of_pipelined_requests_is_answered_completely(live: Live) -> None:
    count = 3000
    with live.client() as client:
        sender = threading.Thread(target=client.send, args=(GET * count,))
        sender.start()
        for _ in range(count):
            assert client.response().status == 200
        sender.join()


def test_no_more_than_a_bounded_number_of_requests_of_a_connection_is_in_work(live: Live) -> None:
    with live.client() as client:
        client.send(b"GET /later/x HTTP/1.1\r\nHost: a\r\n\r\n" * 500)
        live.until(lambda: len(live.app.waiting) >= 64)
        assert live.call(lambda: len(live.app.waiting)) == 64
        for index in range(500):
            live.until(lambda index=index: len(live.app.waiting) > index)
            live.call(lambda index=index: reply_to(live, index))
            assert client.response().status == 200


def test_connection_close_is_obeyed_and_said(live: Live) -> None:
    with live.client() as client:
        response = client.request("GET", "/echo", headers="Connection: close\r\n")
        assert response.headers["connection"] == "close"
        assert client.ended()


def test_http_1_0_is_answered_as_1_1_and_closed(live: Live) -> None:
    with live.client() as client:
        response = client.send(b"GET /echo HTTP/1.0\r\n\r\n").response()
        assert (response.line, response.headers["connection"]) == (b"HTTP/1.1 200 OK", "close")
        assert client.ended()


def test_http_1_0_keep_alive_is_granted_in_words(live: Live) -> None:
    with live.client() as client:
        for _ in range(2):
            response = client.send(b"GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").response()
            assert response.headers["connection"] == "keep-alive"


def test_head_is_answered_like_get_without_a_body(live: Live) -> None:
    with live.client() as client:
        response = client.request("HEAD", "/large?500")
        assert (response.status, response.headers["content-length"]) == (200, "500")
        assert client.request("GET", "/echo").status == 200


def test_a_large_answer_arrives_whole(live: Live) -> None:
    with live.client() as client:
        assert len(client.request("GET", "/large?20000000").body) == 20_000_000
        assert client.request("GET", "/echo").status == 200


def test_requests_are_not_read_while_their_answers_are_not_taken(live: Live) -> None:
    with live.client() as client:
        client.send(b"GET /large?1000000 HTTP/1.1\r\nHost: a\r\n\r\n" * 200)
        time.sleep(0.3)
        assert live.call(lambda: len(live.app.handled)) < 60
        for _ in range(200):
            assert len(client.response().body) == 1_000_000


# --- bugs and refusals of the application -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/boom", "/bad-head", "/split/reply", "/split/stream"])
def test_a_bug_is_500_without_a_word_about_it(live: Live, path: str) -> None:
    with live.client() as client:
        response = client.request("GET", path)
        assert (response.status, error_of(response)) == (500, "internal")
        assert b"bug" not in response.body
        assert "set-cookie" not in response.headers
        assert client.request("GET", "/echo").status == 200


def test_a_raised_refusal_is_reported_as_itself(live: Live) -> None:
    with live.client() as client:
        response = client.request("POST", "/raise", body=b"x")
        assert (response.status, error_of(response)) == (400, "invalid_request")


def test_a_second_answer_is_ignored(live: Live) -> None:
    with live.client() as client:
        client.send(b"GET /later/x HTTP/1.1\r\nHost: a\r\n\r\n")
        live.until(lambda: len(live.app.waiting) == 1)
        live.call(lambda: (reply_to(live, 0), reply_to(live, 0)))
        assert client.response().status == 200
        assert client.request("GET", "/echo").headers["x-path"] == "/echo"


# --- early answers ----------------------------------------------------------------------------------------------------


def test_a_declared_length_over_the_limit_is_413_before_the_body(start_server: StartServer) -> None:
    live = start_server(max_body_bytes=1000)
    with live.client() as client:
        client.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n")
        response = client.response()
        assert (response.status, error_of(response)) == (413, "payload_too_large")
        assert response.keeps_alive
        client.send(b"x" * 1001)
        assert client.request("POST", "/echo", body=b"y" * 1000).status == 200
    assert live.call(lambda: (len(live.app.handled), len(live.app.abandoned))) == (1, 1)


@pytest.mark.parametrize("length", [b"9" * 18, b"9" * 19, b"18446744073709551617", b"1" + b"0" * 5000])
def test_a_declared_length_beyond_all_numbers_is_413_like_any_other(live: Live, length: bytes) -> None:
    """Its value is past 64 bits, or past what Python reads: the next bytes are still not taken for a request."""
    raw = b"POST /echo HTTP/1.1\r\nHost: a\r\ncontent-LENGTH:\t %b \r\nX: y\r\n\r\nGET / HTTP/1.1\r\n\r\n" % length
    for ahead in (b"", b"POST /echo HTTP/1.1\r\nHost: a\r\ncontent-LENGTH:\t 1 \r\nX: y\r\n\r\nx"):
        with live.client() as client:
            client.send(ahead + raw)
            assert not ahead or client.response().status == 200
            response = client.response()
            assert (response.status, error_of(response), response.keeps_alive) == (413, "payload_too_large", False)
            assert client.ended()


def test_a_chunked_body_over_the_limit_is_413(start_server: StartServer) -> None:
    live = start_server(max_body_bytes=10)
    with live.client() as client:
        client.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n")
        response = client.response()
        assert (response.status, error_of(response)) == (413, "payload_too_large")


def test_a_limit_of_zero_refuses_every_body_but_an_empty_one(start_server: StartServer) -> None:
    live = start_server(max_body_bytes=0)
    with live.client() as client:
        assert client.request("POST", "/echo", body=b"").status == 200
        assert client.request("POST", "/echo", body=b"x").status == 413


@pytest.mark.parametrize(("path", "status"), [("/refuse", 401), ("/echo", 413)])
def test_an_early_answer_reaches_a_client_that_sends_all_before_it_reads(
    start_server: StartServer, path: str, status: int
) -> None:
    live = start_server(max_body_bytes=1000)
    body = b"x" * 20_000_000
    with live.client() as client:
        client.send(b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body)))
        client.send(body)
        response = client.response()
        assert (response.status, response.keeps_alive) == (status, False)
        assert client.ended()


def test_an_early_answer_arrives_while_the_body_is_still_being_sent(start_server: StartServer) -> None:
    live = start_server(max_body_bytes=1000)
    with live.client() as client:
        client.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 50000000\r\n\r\n" + b"x" * 100_000)
        assert client.response().status == 413
        for _ in range(20):
            client.send(b"x" * 100_000)


def test_more_of_a_refused_body_than_is_reasonable_is_not_read(start_server: StartServer) -> None:
    live = start_server(max_body_bytes=1000)
    with live.client() as client:
        client.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (DRAIN_BYTES_MAX * 4))
        assert client.response().status == 413
        with pytest.raises(OSError):  # noqa: PT012
            for _ in range(DRAIN_BYTES_MAX * 2 // 1_000_000):
                client.send(b"x" * 1_000_000)


def test_a_refusal_with_a_small_body_keeps_the_connection(live: Live) -> None:
    with live.client() as client:
        for _ in range(3):
            response = client.request("POST", "/refuse", body=b"x" * 100_000)
            assert (response.status, response.keeps_alive) == (401, True)
        assert client.request("POST", "/echo", body=b"y").body == b"y"


# --- Expect: 100-continue ---------------------------------------------------------------------------------------------

EXPECT = b"POST %b HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"


def test_the_body_is_asked_for_once_the_head_has_passed(live: Live) -> None:
    with live.client() as client:
        client.send(EXPECT % (b"/echo", 5))
        assert client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert client.send(b"hello").response().body == b"hello"


def test_a_refused_head_gets_its_answer_and_no_100(live: Live) -> None:
    with live.client() as client:
        response = client.send(EXPECT % (b"/refuse", 5)).response()
        assert (response.status, response.keeps_alive) == (401, False)


def test_a_body_that_is_there_already_is_not_asked_for(live: Live) -> None:
    with live.client() as client:
        assert client.send(EXPECT % (b"/echo", 5) + b"hello").response().status == 200


def test_a_pipelined_expectation_waits_for_its_turn(live: Live) -> None:
    with live.client() as client:
        client.send(b"GET /later/x HTTP/1.1\r\nHost: a\r\n\r\n" + EXPECT % (b"/echo", 5))
        live.until(lambda: len(live.app.heads) == 1)
        live.call(lambda: reply_to(live, 0))
        assert client.response().headers["x-path"] == "/later/x"
        assert client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert client.send(b"hello").response().body == b"hello"


LATER_POST = b"POST /later/x HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        (b"GET /later/x HTTP/1.1\r\nHost: a\r\n\r\n", b"GET /later/y HTTP/1.1\r\nHost: a\r\n\r\n", True),
        (LATER_POST, LATER_POST, True),
        (LATER_POST, LATER_POST.replace(b"/x", b"/y"), False),
        (LATER_POST, b"GET /later/y HTTP/1.1\r\nHost: a\r\n\r\n", False),
        (b"GET /later/x HTTP/1.1\r\nHost: a\r\n\r\n", LATER_POST, False),
    ],
)
def test_what_changes_something_is_carried_out_in_order(
    live: Live, first: bytes, second: bytes, together: bool
) -> None:
    """RFC 9112 section 9.3.2: only what changes nothing may overlap; of one head, order is kept anyway."""
    with live.client() as client:
        client.send(first + second + second)
        live.until(lambda: len(live.app.handled) >= (3 if together else 1))
        for at in range(3):
            live.until(lambda at=at: len(live.app.handled) > at)
            if not together and at == 0:
                assert len(live.app.handled) == 1
            live.call(lambda at=at: reply_to(live, at))
            client.response()


# --- the peer's end ---------------------------------------------------------------------------------------------------


def test_a_half_closed_client_still_gets_its_answers(live: Live) -> None:
    with live.client() as client:
        client.send(b"GET /later/x HTTP/1.1\r\nHost: a\r\n\r\n" + GET)
        client.end_sending()
        live.until(lambda: len(live.app.handled) == 2)
        live.call(lambda: reply_to(live, 0))
        assert [client.response().headers["x-path"] for _ in range(2)] == ["/later/x", "/echo"]
        assert client.ended()


@pytest.mark.parametrize(
    "part", [b"GET / HT", b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe", b"PRI * "]
)
def test_a_request_that_ends_too_early_is_told_so(live: Live, part: bytes) -> None:
    with live.client() as client:
        client.send(part)
        client.end_sending()
        response = client.response()
        assert (response.status, error_of(response)) == (400, "invalid_request")
        assert client.ended()


def test_a_reset_tells_the_handler_that_still_waits(live: Live) -> None:
    client = live.client()
    client.send(b"GET /later/x HTTP/1.1\r\nHost: a\r\n\r\n")
    live.until(lambda: len(live.app.waiting) == 1)
    client.reset()
    live.until(lambda: live.app.gone == ["/later/x"])
    live.call(lambda: reply_to(live, 0))


def test_a_body_that_never_comes_is_abandoned(live: Live) -> None:
    client = live.client()
    client.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe")
    live.until(lambda: len(live.app.heads) == 1)
    client.reset()
    live.until(lambda: len(live.app.abandoned) == 1)
    assert live.call(lambda: len(live.hub.peers)) == 0


def test_nagle_is_off_on_accepted_sockets(live: Live) -> None:
    with live.client() as client:
        client.request("GET", "/echo")
        sock = live.call(lambda: next(iter(live.hub.peers)).transport.get_extra_info("socket"))
        assert live.call(lambda: sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)) != 0


# --- deadlines --------------------------------------------------------------------------------------------------------


def test_an_idle_connection_is_closed_after_a_minute(start_server: StartServer) -> None:
    live = start_server(clock=SimClock())
    with live.client() as fresh, live.client() as used:
        assert used.request("GET", "/echo").status == 200
        live.until(lambda: len(live.hub.peers) == 2)
        live.pass_time(58)
        assert live.call(lambda: len(live.hub.peers)) == 2
        live.pass_time(4)
        assert fresh.ended()
        assert used.ended()


def test_a_head_that_trickles_is_cut_off_with_an_answer(start_server: StartServer) -> None:
    live = start_server(clock=SimClock())
    with live.client() as client:
        client.send(b"GET / HTTP/1.1\r\nHost")
        live.until(lambda: any(peer.wheel_tick >= 0 and peer.reader.waiting_bytes() for peer in live.hub.peers
                               if hasattr(peer, "reader")))  # fmt: skip
        for _ in range(8):
            live.pass_time(2)
            try:
                client.send(b"x")
            except OSError:
                break
        live.pass_time(2)
        response = client.response()
        assert (response.status, error_of(response)) == (400, "invalid_request")


def test_a_body_that_stalls_is_cut_off_with_an_answer(start_server: StartServer) -> None:
    live = start_server(clock=SimClock())
    with live.client() as client:
        client.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\n\r\nhe")
        live.until(lambda: len(live.app.heads) == 1)
        live.pass_time(28)
        assert live.call(lambda: live.app.abandoned) == []
        live.pass_time(6)
        response = client.response()
        assert (response.status, error_of(response)) == (400, "invalid_request")
        assert live.call(lambda: len(live.app.abandoned)) == 1


def test_a_slow_but_steady_body_is_given_its_time(start_server: StartServer) -> None:
    live = start_server(clock=SimClock())
    with live.client() as client:
        client.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n")
        for part in range(20):
            client.send(b"x" * 10_000)
            live.until(lambda part=part: part == 19 or held_bytes(live) == 10_000 * (part + 1))
            live.pass_time(5)
        assert client.response().status == 200


def held_bytes(live: Live) -> int:
    return sum(peer.reader.held_bytes() for peer in live.hub.peers if hasattr(peer, "reader"))


def test_a_running_request_is_not_timed_out(start_server: StartServer) -> None:
    live = start_server(clock=SimClock())
    with live.client() as client:
        client.send(b"GET /later/x HTTP/1.1\r\nHost: a\r\n\r\n")
        live.until(lambda: len(live.app.waiting) == 1)
        live.pass_time(200)
        live.call(lambda: reply_to(live, 0))
        assert client.response().status == 200


def test_a_peer_that_takes_no_byte_of_its_answer_is_dropped(start_server: StartServer) -> None:
    live = start_server(clock=SimClock())
    with live.client() as client:
        client.send(b"GET /large?30000000 HTTP/1.1\r\nHost: a\r\n\r\n")
        live.until(lambda: len(live.app.handled) == 1)
        live.pass_time(60)
        live.until(lambda: not live.hub.peers)


def test_the_end_of_a_long_answer_is_not_cut_by_the_wait_for_the_peer(start_server: StartServer) -> None:
    live = start_server(clock=SimClock())

    def waiting_bytes() -> int:
        return sum(peer.transport.get_write_buffer_size() for peer in live.hub.peers)

    with live.client() as client:
        client.send(b"GET /large?30000000 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        live.until(lambda: len(live.app.handled) == 1)
        for _ in range(4):
            before = live.call(waiting_bytes)
            client.exactly(4_000_000)
            live.until(lambda before=before: waiting_bytes() < before)
            live.pass_time(12)
        assert len(client.rest()) > 13_900_000


# --- memory -----------------------------------------------------------------------------------------------------------


def test_unfinished_bodies_of_all_connections_share_a_budget(start_server: StartServer) -> None:
    live = start_server(max_body_bytes=9_000_000)  # the budget is eight times that
    clients = [live.client() for _ in range(10)]
    for client in clients:
        client.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 8_000_000)
    live.until(lambda: len(live.app.abandoned) > 0)
    refused = 0
    for client in clients:
        client.socket.settimeout(0.1)
        try:
            response = client.response()
        except TimeoutError:
            continue
        refused += 1
        assert (response.status, error_of(response)) == (429, "throttled")
        assert response.headers["retry-after"] == "1"
    assert 1 <= refused <= 3
    for client in clients:
        client.close()
    live.until(lambda: live.hub._bodies_bytes == 0)


def test_the_server_also_runs_on_the_loop_of_the_standard_library(start_server: StartServer) -> None:
    live = start_server(loop_kind="asyncio", max_body_bytes=1000)
    with live.client() as client:
        assert client.request("POST", "/echo", body=b"abc").body == b"abc"
        assert client.request("POST", "/echo", body=b"x" * 2000).status == 413
        assert client.send(b"bad\r\n\r\n").response().status == 400
        assert client.ended()
