"""One caller cannot use up what all share (`docs/spec/http-api.md#sec-9`), on a simulated clock and on a real
server."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.api.client import Client
from tests.api.server import LiveServer
from tests.engine.delivery.rig import read_options

from topics.api.live.sessions import Session, SessionCursor, Sessions
from topics.api.live.streams import Streams
from topics.errors import NotFound, Throttled
from topics.server.connections.hub import Hub, TransportSettings
from topics.testing.clock import SimClock


class Bench:
    """Sessions of several holders on a clock of their own."""

    def __init__(self, *, cap: int, cap_each: int) -> None:
        self.now_ms = 1_000_000
        self.sessions = Sessions(cap=cap, cap_each=cap_each, now_ms=lambda: self.now_ms)

    def add(self, client: bytes | str | None) -> Session:
        places = [SessionCursor("t", cursor=0, epoch=1)]
        return self.sessions.add(places, read_options(), heartbeat_ms=15_000, owner=None, client=client)

    def refusal(self, client: bytes | str | None) -> object:
        with pytest.raises(Throttled) as refused:
            self.add(client)
        assert refused.value.detail is not None
        return refused.value.detail["limit"]

    def is_there(self, session: Session) -> bool:
        try:
            return self.sessions.find(session.wid) is session
        except NotFound:
            return False


def test_a_holder_has_its_share_and_no_more() -> None:
    bench = Bench(cap=8, cap_each=2)
    for client in (b"a", "10.0.0.1"):
        bench.add(client), bench.add(client)
        assert bench.refusal(client) == "max_watch_sessions_per_client"
    for _ in range(4):
        bench.add(None)  # loopback is not counted, but for the total
    assert bench.refusal(b"b") == "max_watch_sessions"


def test_sessions_whose_client_has_gone_make_room_before_their_time() -> None:
    bench = Bench(cap=8, cap_each=2)
    gone, here = bench.add(b"a"), bench.add(b"a")
    bench.sessions.opened(here)
    bench.now_ms += 9_999
    assert bench.refusal(b"a") == "max_watch_sessions_per_client"
    bench.now_ms += 1
    new = bench.add(b"a")
    assert [bench.is_there(session) for session in (gone, here, new)] == [False, True, True]
    assert bench.refusal(b"a") == "max_watch_sessions_per_client"


def test_at_the_total_the_one_who_holds_most_gives_way_first() -> None:
    bench = Bench(cap=4, cap_each=3)
    quiet = bench.add(b"b")
    bench.now_ms += 1
    greedy = [bench.add(b"a") for _ in range(3)]
    assert bench.refusal(b"c") == "max_watch_sessions"
    bench.now_ms += 10_000
    new = bench.add(b"c")
    assert bench.is_there(quiet)
    assert [bench.is_there(session) for session in greedy] == [False, True, True]
    for session in (*greedy[1:], new):
        bench.sessions.opened(session)
    bench.now_ms += 10_000
    bench.add(b"c")
    assert not bench.is_there(quiet)  # nobody else was idle


@pytest.mark.parametrize("seed", range(20))
def test_counts_stay_right_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench(cap=12, cap_each=4)
    holders: list[bytes | str | None] = [b"a", b"b", "10.0.0.1", None]
    opened: list[Session] = []
    for _ in range(400):
        step = rng.random()
        if step < 0.5:
            try:
                session = bench.add(rng.choice(holders))
                if rng.random() < 0.5:
                    bench.sessions.opened(session)
                    opened.append(session)
            except Throttled:
                pass
        elif step < 0.7 and opened:
            bench.sessions.stream_ended(opened.pop(rng.randrange(len(opened))))
        else:
            bench.now_ms += rng.choice([1, 5_000, 20_000, 300_000])
            bench.sessions.collect()
        by_id = bench.sessions._by_id
        assert all(session.wid in by_id for session in opened), "an open stream keeps its session"
        assert len(by_id) <= 12
        for client in holders:
            mine = [session for session in by_id.values() if session.client == client]
            held = bench.sessions._by_client.get(client)
            assert (0 if held is None else held.count) == len(mine)
            assert client is None or len(mine) <= 4
            idle = {session.wid for session in mine if not session.streams}
            assert idle == (set() if held is None else set(held.idle))


def test_addresses_have_a_share_of_the_streams_where_there_are_no_keys() -> None:
    streams = Streams(cap=10, cap_per_key=0, cap_per_address=1, now_ms=lambda: 0.0)
    stream: Any = object()
    streams.check_cap("10.0.0.1")
    streams.enter(stream, "10.0.0.1")
    with pytest.raises(Throttled) as refused:
        streams.check_cap("10.0.0.1")
    assert refused.value.detail == {"limit": "max_sse_connections_per_client", "max": 1}
    streams.check_cap("10.0.0.2")
    streams.check_cap(b"key")
    streams.check_cap(None)
    streams.leave(stream)
    streams.check_cap("10.0.0.1")


# --- connections ------------------------------------------------------------------------------------------------------


class _Peer:
    """As much of a connection as the hub looks at."""

    def __init__(self, network: str | None) -> None:
        self.network = network
        self.wheel_tick = -1
        self.was_aborted = False
        self.was_asked_to_leave = False
        self.transport = SimpleNamespace(abort=self._abort, close=lambda: None)

    def _abort(self) -> None:
        self.was_aborted = True

    def on_timer(self, now_s: float) -> float:
        return now_s + 60


def test_an_address_has_a_share_of_the_connections() -> None:
    settings = TransportSettings(connections_each_max=2)
    hub = Hub(SimpleNamespace(), settings, clock=SimClock(), loop=SimpleNamespace())  # type: ignore[arg-type]

    def come(network: str | None) -> Any:
        peer: Any = _Peer(network)
        hub.joined(peer)
        return peer

    first, second, third = come("10.0.0.1"), come("10.0.0.1"), come("10.0.0.1")
    assert [peer.was_aborted for peer in (first, second, third)] == [False, False, True]
    assert not come("10.0.0.2").was_aborted
    assert not any(come(None).was_aborted for _ in range(5))
    hub.left(third)
    other: Any = _Peer("10.0.0.1")
    hub.replaced(first, other)  # it speaks another protocol now, and is no new connection
    assert not other.was_aborted
    assert come("10.0.0.1").was_aborted
    for peer in list(hub.peers):
        hub.left(peer)
        hub.left(peer)
    assert not hub._network_counts


# --- over the wire ----------------------------------------------------------------------------------------------------


def test_a_key_that_fills_its_share_locks_nobody_out(tmp_path: Path) -> None:
    with LiveServer(tmp_path, api_keys="ops,a:read,b:read", max_watch_sessions=80) as live:
        ops, a, b = (Client(live.port, http2=False, key=key) for key in ("ops", "a", "b"))
        ops.put("t")
        body: dict[str, Any] = {"topics": {"t": {}}}
        answers = [a.send("POST", "/v0/watch", body) for _ in range(50)]
        assert [answer.status_code for answer in answers] == [200] * 20 + [429] * 30
        a.refused(answers[-1], 429, "throttled", {"limit": "max_watch_sessions_per_client", "max": 20})
        for _ in range(2):
            b.ok("POST", "/v0/watch", body)
            ops.ok("POST", "/v0/watch", body)
        for client in (ops, a, b):
            client.close()


@pytest.mark.parametrize("settings", [{"api_keys": "ops"}, {}, {"api_keys": "ops,a", "client_share": 1.0}])
def test_where_there_is_nobody_else_one_may_have_all(tmp_path: Path, settings: dict[str, Any]) -> None:
    """A single key; loopback without keys; an operator who said so."""
    with LiveServer(tmp_path, max_watch_sessions=5, **settings) as live:
        client = Client(live.port, http2=False, key="ops" if settings else None)
        client.put("t")
        for _ in range(5):
            client.ok("POST", "/v0/watch", {"topics": {"t": {}}})
        more = client.send("POST", "/v0/watch", {"topics": {"t": {}}})
        client.refused(more, 429, "throttled", {"limit": "max_watch_sessions", "max": 5})
        client.close()
