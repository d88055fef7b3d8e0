"""ResponseBudget: answers that are not taken are bounded, and nobody who takes his waits for ever."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Any

import pytest
from h2.errors import ErrorCodes
from h2.events import StreamReset
from h2.settings import SettingCodes
from tests.server.test_h2 import H2Client

from topics.limits import MIB
from topics.net.transport_limits import (
    UNSENT_ALL_BYTES_MAX,
    UNSENT_FREE_BYTES,
    UNSENT_LARGE_BYTES_MAX,
    UNSENT_SMALL_BYTES,
)
from topics.server.connections import h2_answers, h2_connection
from topics.server.connections.budget import ConnectionBudget, ResponseBudget, StreamBudget
from topics.testing.clock import SimClock

Live = Any
StartServer = Any

PAGE_BYTES = 1_000_000
MANY = 60
SOME = 30  # a share of 8 MiB, and what lies in the kernel's buffers


def get_page(name: int) -> bytes:
    return b"GET /page?%d HTTP/1.1\r\nHost: a\r\n\r\n" % name


def names(live: Live) -> list[str]:
    pages: list[str] = live.call(lambda: list(live.app.pages))
    return pages


def deaf_client(live: Live, streams: int = MANY, *, window: int = 0) -> tuple[H2Client, list[int]]:
    """An HTTP/2 client that lets its streams stand, after it has asked for a page on each."""
    client = H2Client(live.client(), take=False)
    client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
    client.flush()
    opened = [client.open("GET", f"/page?{number}") for number in range(streams)]
    live.until(lambda: len(live.app.handled) == streams)
    return client, opened


def give_window(client: H2Client, stream_id: int) -> None:
    client.h2.increment_flow_control_window(2 * PAGE_BYTES, stream_id)
    client.flush()


# --- HTTP/1.1 ---------------------------------------------------------------------------------------------------------


def test_pages_that_are_not_taken_are_not_made_and_come_in_order_once_they_are(live: Live) -> None:
    with live.client() as client:
        client.send(b"".join(map(get_page, range(MANY))))
        live.until(lambda: len(live.app.handled) == MANY)
        assert len(names(live)) < SOME
        for number in range(MANY):
            assert client.response().body.strip() == b"%d" % number
    live.until(lambda: live.hub.budget.held_bytes == 0)


def test_the_answer_that_others_wait_for_is_made_although_they_hold_all_the_room(live: Live) -> None:
    """The first is a long poll, say: it finds something when those behind it have been answered already."""
    with live.client() as client:
        client.send(b"GET /later/first HTTP/1.1\r\nHost: a\r\n\r\n" + b"".join(map(get_page, range(20))))
        live.until(lambda: len(live.app.handled) == 21)
        assert len(names(live)) < 12
        first, responder = live.app.waiting[0]
        live.call(lambda: responder.when_budget(lambda: live.app.do_echo(first, responder), lambda: None))
        assert client.response().headers["x-path"] == "/later/first"
        assert [client.response().body.strip() for _ in range(20)] == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("protocol", ["HTTP/1.1", "HTTP/2"])
def test_who_goes_away_holds_nothing_and_its_waiting_requests_are_told(live: Live, protocol: str) -> None:
    if protocol == "HTTP/2":
        deaf_client(live)[0].raw.close()
    else:
        with live.client() as client:
            client.send(b"".join(map(get_page, range(MANY))))
            live.until(lambda: len(live.app.handled) == MANY)
    live.until(lambda: len(live.app.pages) + len(live.app.dropped) == MANY)
    live.until(lambda: live.hub.budget.held_bytes == 0)


# --- HTTP/2 -----------------------------------------------------------------------------------------------------------


def test_a_stream_that_is_opened_is_answered_although_others_hold_all_the_room(live: Live) -> None:
    client, opened = deaf_client(live)
    assert len(names(live)) < 12
    give_window(client, opened[50])
    assert client.body(opened[50]).strip() == b"50"
    for stream_id in opened:
        if stream_id != opened[50]:
            give_window(client, stream_id)
    for number, stream_id in enumerate(opened):
        if number != 50:
            assert client.body(stream_id).strip() == b"%d" % number


def test_streams_that_are_taken_from_all_the_time_are_all_answered(live: Live) -> None:
    client = H2Client(live.client())
    opened = [client.open("GET", f"/page?{number}") for number in range(MANY)]
    for number, stream_id in enumerate(opened):
        assert client.body(stream_id).strip() == b"%d" % number
    live.until(lambda: live.hub.budget.held_bytes == 0)


def test_windows_of_a_byte_each_do_not_get_around_the_bound(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    for half in (h2_connection, h2_answers):
        monkeypatch.setattr(half, "H2_UNSENT_BYTES_MAX", 16_000_000)
    client, _ = deaf_client(live, 15, window=1)
    for number in range(MANY):
        client.open("GET", f"/page?{number}")
    live.until(lambda: live.hub.budget.held_bytes >= 16_000_000)
    assert len(names(live)) < 18
    refused = client.open("GET", "/echo")
    reset = client.wait(StreamReset, refused)
    assert reset.error_code is ErrorCodes.REFUSED_STREAM  # nothing was done: it may be asked again


def test_answers_that_nobody_takes_are_given_up_when_others_wait(start_server: StartServer) -> None:
    live = start_server(clock=SimClock())
    client, opened = deaf_client(live, 20)
    made = len(names(live))
    live.pass_time(36)
    for stream_id in opened[:made]:
        client.wait(StreamReset, stream_id)
    give_window(client, opened[made])
    assert client.body(opened[made]).strip() == b"%d" % made


# --- all connections --------------------------------------------------------------------------------------------------


class Bench:
    """A room without sockets: connections hold what they are told to, turns and seconds pass by hand."""

    def __init__(self) -> None:
        self.turns: deque[Callable[[], None]] = deque()
        self.clock = SimClock()
        self.budget = ResponseBudget(self, self.clock.monotonic)  # type: ignore[arg-type]
        self.read: list[str] = []

    def call_soon(self, turn: Callable[[], None]) -> None:
        self.turns.append(turn)

    def settle(self) -> None:
        while self.turns:
            self.turns.popleft()()

    def pass_seconds(self, count: int) -> None:
        for _ in range(count):
            self.clock.advance(1000)
            self.budget.tick()
            self.settle()


class Deaf:
    """A connection; it takes nothing by itself."""

    def __init__(self, bench: Bench, unsent_bytes: int = 0) -> None:
        self.bench = bench
        self.unsent = unsent_bytes
        self.is_cut = False
        self.in_the_way = ""  # made answers wait for this one, and are not offered yet
        self.budget: ConnectionBudget[str] = ConnectionBudget(self, bench.budget)
        self.budget.measure()

    def unsent_bytes(self) -> int:
        return self.unsent

    def sendable_bytes(self) -> int:
        return 0 if self.in_the_way else self.unsent

    def blocks_others(self, exchange: str) -> bool:
        return exchange == self.in_the_way

    def pick_over_budget(self, waiting: Collection[str], *, held_bytes: int, making_bytes: int) -> str | None:
        return None

    def cut(self) -> None:
        self.is_cut = True
        self.unsent = 0
        self.budget.close()

    def ask(self, name: str, size_bytes: int = 0) -> None:
        self.budget.when_budget(name, size_bytes, lambda: self.bench.read.append(name), lambda: None)


def full(bench: Bench) -> list[Deaf]:
    """Nothing large is made any more."""
    return [Deaf(bench, UNSENT_LARGE_BYTES_MAX // 8 + size) for size in range(8)]


def test_a_large_page_waits_until_connections_that_take_nothing_are_cut() -> None:
    bench = Bench()
    slow = full(bench)
    Deaf(bench).ask("honest", MIB)
    bench.pass_seconds(4)
    assert bench.read == []
    bench.pass_seconds(2)
    assert bench.read == ["honest"]
    assert [each.is_cut for each in slow] == [False] * 5 + [True] * 3  # those that hold most, until half of it is free


def test_who_takes_what_it_was_given_is_not_cut() -> None:
    bench = Bench()
    readers = full(bench)
    Deaf(bench).ask("large", MIB)
    for _ in range(20):
        for reader in readers:
            reader.unsent -= 100_000  # takes some, and is given as much again
            reader.budget.measure()
            reader.unsent += 100_000
            reader.budget.measure()
        bench.pass_seconds(4)
    assert not any(reader.is_cut for reader in readers)
    readers[0].unsent = 0
    bench.pass_seconds(1)
    assert bench.read == ["large"]


def test_small_answers_do_not_wait_for_those_who_hold_much() -> None:
    bench = Bench()
    full(bench)
    connection = Deaf(bench)
    connection.ask("unknown")
    connection.ask("small", 1000)
    assert bench.read == ["unknown", "small"]
    assert connection.budget.admits(1000)
    assert not connection.budget.admits(MIB)


def test_connections_take_turns_when_room_comes_back() -> None:
    bench = Bench()
    slow = full(bench)
    greedy, modest = Deaf(bench), Deaf(bench)
    for number in range(5):
        greedy.ask(f"greedy {number}", MIB)
    modest.ask("modest", MIB)
    slow[0].unsent = 3 * MIB
    slow[0].budget.measure()
    bench.settle()
    assert bench.read[:3] == ["greedy 0", "modest", "greedy 1"]


def test_pages_that_never_come_do_not_keep_others_from_reading() -> None:
    """A cold store may hang: what is announced is in nobody's memory yet."""
    bench = Bench()
    connections = [Deaf(bench) for _ in range(64)]
    for connection in connections:
        connection.ask("cold", 8 * MIB)
    assert len(bench.read) == 24
    connections[0].ask("resident")
    assert bench.read[-1] == "resident"
    connections[0].budget.answered("cold")
    bench.settle()
    assert bench.read.count("cold") == 25


def test_an_answer_that_made_ones_wait_for_is_made_and_nobody_is_cut_for_it() -> None:
    bench = Bench()
    slow = full(bench)
    pipelining = Deaf(bench, 7 * MIB)
    pipelining.in_the_way = "first"
    pipelining.ask("second", MIB)
    pipelining.ask("first", MIB)
    assert bench.read == ["first"]
    pipelining.unsent = 2 * UNSENT_ALL_BYTES_MAX
    bench.pass_seconds(20)
    assert all(each.is_cut for each in slow)
    assert not pipelining.is_cut


def test_who_left_is_not_woken() -> None:
    bench = Bench()
    slow = full(bench)
    gone = Deaf(bench)
    gone.ask("gone", MIB)
    gone.cut()
    for each in slow:
        each.cut()
    bench.settle()
    bench.pass_seconds(10)
    assert bench.read == []
    assert bench.budget.held_bytes == 0


# --- one budget for answers and streams -------------------------------------------------------------------------------


class Listener:
    """A stream; it takes nothing by itself."""

    def __init__(self, bench: Bench, name: str = "stream", unsent_bytes: int = 0) -> None:
        self.bench = bench
        self.name = name
        self.sent = self.unsent = unsent_bytes
        self.queued = self.making = 0
        self.is_cut = False
        self.budget = StreamBudget(bench.budget, self, lambda: self.unsent)
        self.budget.measure()

    def sent_bytes(self) -> int:
        return self.sent

    def queued_bytes(self) -> int:
        return self.queued

    def making_bytes(self) -> int:
        return self.making

    def has_budget_again(self) -> None:
        """It renders at once, as a feed does in its next service."""
        if self.budget.grant(MIB) == MIB:
            self.bench.read.append(self.name)
            self.sent += MIB
            self.unsent += MIB
            self.budget.measure()

    def too_slow(self) -> None:
        self.is_cut = True
        self.unsent = 0


def test_answers_and_streams_share_one_budget() -> None:
    bench = Bench()
    full(bench)
    assert Listener(bench).budget.grant(MIB) == UNSENT_FREE_BYTES
    assert Listener(bench, unsent_bytes=UNSENT_FREE_BYTES).budget.grant(MIB) == 0
    bench = Bench()
    for _ in range(8):
        Listener(bench, unsent_bytes=UNSENT_LARGE_BYTES_MAX // 8)
    assert not Deaf(bench).budget.admits(MIB)
    assert Deaf(bench).budget.admits(UNSENT_SMALL_BYTES)


def test_what_is_queued_and_what_is_rendered_counts_as_what_is_sent() -> None:
    bench = Bench()
    listener = Listener(bench, unsent_bytes=1000)
    listener.queued, listener.making = 200, 30
    listener.budget.measure()
    assert bench.budget.held_bytes == 1230
    listener.budget.close()
    assert bench.budget.held_bytes == 0


def test_beyond_the_whole_budget_only_who_took_everything_gets_a_little() -> None:
    bench = Bench()
    Deaf(bench, UNSENT_ALL_BYTES_MAX)
    quiet, behind = Listener(bench), Listener(bench, unsent_bytes=UNSENT_FREE_BYTES)
    assert quiet.budget.grant(UNSENT_SMALL_BYTES) == UNSENT_FREE_BYTES
    assert quiet.budget.grant(UNSENT_SMALL_BYTES, least_bytes=UNSENT_SMALL_BYTES) == 0
    assert behind.budget.grant(UNSENT_SMALL_BYTES) == 0
    assert Deaf(bench).budget.admits(UNSENT_FREE_BYTES)
    assert not Deaf(bench).budget.admits(UNSENT_FREE_BYTES + 1)


def test_streams_that_wait_take_turns_and_only_as_many_as_there_is_room_for_are_woken() -> None:
    bench = Bench()
    slow = full(bench)
    waiting = [Listener(bench, f"stream {number}", UNSENT_FREE_BYTES) for number in range(5)]
    assert [each.budget.grant(MIB) for each in waiting] == [0] * 5
    slow[0].unsent -= MIB + 6 * UNSENT_FREE_BYTES
    slow[0].budget.measure()
    bench.settle()
    assert bench.read == ["stream 0", "stream 1"]  # the first left less than one free, and that is enough for one more
    slow[1].unsent = 0
    slow[1].budget.measure()
    bench.settle()
    assert bench.read[2:] == ["stream 2", "stream 3", "stream 4"]


def test_a_stream_that_takes_nothing_is_cut_when_others_wait_and_one_that_takes_some_is_not() -> None:
    bench = Bench()
    stuck, moving = (Listener(bench, unsent_bytes=UNSENT_LARGE_BYTES_MAX // 2) for _ in range(2))
    Deaf(bench).ask("honest", MIB)
    for _ in range(6):
        moving.sent += 100_000  # was taken, and as much again was sent
        moving.budget.measure()
        bench.pass_seconds(1)
    assert stuck.is_cut
    assert not moving.is_cut
    assert bench.read == ["honest"]


def test_a_stream_that_left_is_not_woken() -> None:
    bench = Bench()
    slow = full(bench)
    gone = Listener(bench, "gone", UNSENT_FREE_BYTES)
    assert gone.budget.grant(MIB) == 0
    gone.budget.close()
    for each in slow:
        each.cut()
    bench.pass_seconds(10)
    assert bench.read == []
    assert bench.budget.held_bytes == 0
