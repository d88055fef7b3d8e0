"""The connections of one server, and what they share.

DeadlineWheel  one coarse clock for the deadlines of all connections
Hub            the list of connections, the application, the budgets, one flush per turn of the loop
Peer           one connection, whatever it speaks: the base of `H1Connection`, `H2Connection`, `WsConnection`, `Sniffer`

`Server` makes the hub, and every peer holds it; a peer owns its transport. A connection changes its protocol by handing
its transport to another peer (`replace_by`), so that each class knows one protocol only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from email.utils import formatdate
from itertools import islice
from typing import Protocol, TypeVar, cast

import msgspec

from topics.clock import Clock
from topics.limits import KIB, MIB
from topics.net.h1_renderer import H1Renderer
from topics.net.messages import Application, Request
from topics.net.transport_limits import (
    BODIES_BYTES_FACTOR,
    BODIES_BYTES_MIN,
    BODY_BYTES_PER_S_MIN,
    BODY_GRACE_S,
    CONNECTIONS_MAX,
    LINGER_S,
    WRITE_HIGH_BYTES,
    WRITE_LOW_BYTES,
    WRITE_STALL_S,
)
from topics.server.allocator import Burst, give_back
from topics.server.connections.budget import ResponseBudget
from topics.server.connections.callbacks import log
from topics.wire.access.keys import network_of

TICK_S = 1.0
SLOTS = 64  # ticks ahead; a later deadline is asked for on the way


class Timed(Protocol):
    wheel_tick: int  # the wheel's own; -1: in no slot

    def on_timer(self, now_s: float) -> float:
        """Do what is due; returns the time of the next thing that could be."""


class DeadlineWheel:
    """One coarse clock for the deadlines of all connections, kept to within a tick.

    A connection stands in at most one slot, and in an early one rather than a late one: when its slot comes up it is
    asked (`Timed.on_timer`) and says when to ask again. So traffic never touches the wheel; only the start of a shorter
    wait does."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s  # as of the last tick: cheap to read, a tick late at most
        self._tick = int(now_s / TICK_S)
        self._slots: list[set[Timed]] = [set() for _ in range(SLOTS)]
        self._due: set[Timed] = set()  # their slot has come up

    def arm(self, timed: Timed, at_s: float) -> None:
        """Ask `timed` at `at_s`, or sooner if it is to be asked sooner already."""
        tick = min(max(int(at_s / TICK_S) + 1, self._tick + 1), self._tick + SLOTS - 1)
        if timed.wheel_tick >= 0:
            if timed.wheel_tick <= tick:
                return
            self._slots[timed.wheel_tick % SLOTS].discard(timed)
        timed.wheel_tick = tick
        self._slots[tick % SLOTS].add(timed)

    def disarm(self, timed: Timed) -> None:
        self._due.discard(timed)
        if timed.wheel_tick >= 0:
            self._slots[timed.wheel_tick % SLOTS].discard(timed)
            timed.wheel_tick = -1

    def advance(self, now_s: float) -> None:
        """Time is now `now_s`; whoever has come due is asked by `ask`."""
        self.now_s = now_s
        last = int(now_s / TICK_S)
        for tick in range(max(self._tick + 1, last - SLOTS + 1), last + 1):
            due, self._slots[tick % SLOTS] = self._slots[tick % SLOTS], set()
            for timed in due:
                timed.wheel_tick = -1
            self._due |= due
        self._tick = max(self._tick, last)

    def ask(self, count: int) -> bool:
        """Ask up to `count` of those who are due; True if there are more. Many at once must not hold the loop."""
        due, now_s = self._due, self.now_s
        while due and count:
            count -= 1
            timed = due.pop()
            next_s = timed.on_timer(now_s)
            if timed.wheel_tick < 0 and next_s > now_s:
                self.arm(timed, next_s)
        return bool(due)


T = TypeVar("T")
ASK_PER_TURN = 100  # connections whose deadlines are checked before other work gets its turn
IDLE_SCAN_MAX = 64  # connections searched for an idle one before a new one is turned away
PEER_BYTES = 16 * KIB  # of a connection, about, with what it has parsed and what waits in its buffers


def _log_failure(done: BaseException | None) -> None:
    if done is not None:
        log.error("giving memory back failed", exc_info=done)


class TransportSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of `docs/spec/http-api.md#sec-22` that the transport itself obeys."""

    max_body_bytes: int = 64 * MIB
    gzip_min_bytes: int = 0
    connections_max: int = CONNECTIONS_MAX
    connections_each_max: int = 0
    """Of one address, loopback excepted; 0 is no such bound."""

    def bodies_bytes_max(self) -> int:
        """What unfinished bodies of all connections may hold together."""
        return max(BODIES_BYTES_MIN, BODIES_BYTES_FACTOR * self.max_body_bytes)


class Flushable(Protocol):
    def flush(self) -> None: ...


class Hub:
    def __init__(
        self, app: Application, settings: TransportSettings, *, clock: Clock, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.app = app
        self.settings = settings
        self.loop = loop
        self.monotonic = clock.monotonic
        self._wall_ms = clock.wall_ms
        self.wheel = DeadlineWheel(clock.monotonic())
        self.renderer = H1Renderer()
        self.budget = ResponseBudget(loop, clock.monotonic)
        self._network_counts: dict[str, int] = {}  # connections by network
        self.peers: dict[Peer, None] = {}  # those that were found not to be idle come last
        self._leaving = 0  # peers that were closed in favour of new ones, and have not left yet
        self.draining = False
        self.date = b""
        self._bodies_bytes = 0
        self._burst = Burst()
        self._unflushed: list[Flushable] = []
        self._on_empty: Callable[[], None] | None = None
        self._ticker: asyncio.TimerHandle | None = None

    # --- time ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.tick()

    def stop(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None

    def tick(self) -> None:
        self.date = formatdate(self._wall_ms() / 1000, usegmt=True).encode("ascii")
        self.renderer.set_date(self.date)
        self._ticker = self.loop.call_later(TICK_S, self.tick)
        self.wheel.advance(self.monotonic())
        self.budget.tick()
        if self._burst.is_over(self._load_bytes(), self.monotonic()):
            self.off_loop(give_back, _log_failure)
        self._ask()

    def _load_bytes(self) -> int:
        """What connections make the process hold, about."""
        return self.budget.held_bytes + self._bodies_bytes + len(self.peers) * PEER_BYTES

    def _ask(self) -> None:
        if self.wheel.ask(ASK_PER_TURN):
            self.loop.call_soon(self._ask)

    # --- connections --------------------------------------------------------------------------------------------------

    def joined(self, peer: Peer) -> None:
        """A network that has its maximum gets no further connection. When there are too many in all, an idle one is
        closed, the oldest first; if there is none, the new one is told to come back."""
        self.peers[peer] = None
        if self._exceeds_network_max(peer.network):
            peer.transport.abort()
        elif len(self.peers) - self._leaving > self.settings.connections_max and not self._close_idle(peer):
            peer.turn_away()
        else:
            self._begin(peer)

    def _exceeds_network_max(self, network: str | None) -> bool:
        """Count a connection; has its network too many now?"""
        if network is None:
            return False
        count = self._network_counts[network] = self._network_counts.get(network, 0) + 1
        return 0 < self.settings.connections_each_max < count

    def replaced(self, old: Peer, new: Peer) -> None:
        """A connection speaks another protocol from now on."""
        self.peers.pop(old, None)
        self.wheel.disarm(old)
        self.peers[new] = None
        self._begin(new)

    def _begin(self, peer: Peer) -> None:
        if self.draining:
            peer.transport.close()
        else:
            self.wheel.arm(peer, peer.on_timer(self.wheel.now_s))

    def _close_idle(self, newest: Peer) -> bool:
        for peer in list(islice(self.peers, IDLE_SCAN_MAX)):
            if peer is not newest and peer.is_idle and not peer.transport.is_closing():
                self._leaving += 1
                peer.was_asked_to_leave = True
                peer.transport.close()
                return True
            self.peers[peer] = self.peers.pop(peer)
        return False

    def left(self, peer: Peer) -> None:
        if peer in self.peers and peer.network is not None:
            self._network_counts[peer.network] -= 1
            if not self._network_counts[peer.network]:
                del self._network_counts[peer.network]
        self.peers.pop(peer, None)
        if peer.was_asked_to_leave:
            peer.was_asked_to_leave = False
            self._leaving -= 1
        self.wheel.disarm(peer)
        if not self.peers and self._on_empty is not None:
            self._on_empty()

    def when_empty(self, callback: Callable[[], None]) -> None:
        """Call back whenever the last connection has left; at once if there is none."""
        self._on_empty = callback
        if not self.peers:
            callback()

    # --- requests -----------------------------------------------------------------------------------------------------

    def account_body(self, change_bytes: int) -> bool:
        """An unfinished body grew or went; False if all of them together are too large now."""
        self._bodies_bytes += change_bytes
        return self._bodies_bytes <= self.settings.bodies_bytes_max()

    def abandon(self, request: Request) -> None:
        """Tell the application that `handle` will not be called for this request."""
        try:
            self.app.abandon(request)
        except Exception:
            log.exception("abandoning a request failed")

    # --- output -------------------------------------------------------------------------------------------------------

    def flush_soon(self, peer: Flushable) -> None:
        """Answers wait in `peer`, and more may come in this turn of the loop: write them together, after it."""
        if not self._unflushed:
            self.loop.call_soon(self._flush)
        self._unflushed.append(peer)

    def _flush(self) -> None:
        peers, self._unflushed = self._unflushed, []
        for peer in peers:
            peer.flush()

    def off_loop(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run `work` on a thread, then `done` with its value or its error on the loop."""
        future = self.loop.run_in_executor(None, work)
        future.add_done_callback(lambda f: done(f.exception() or f.result()) if not f.cancelled() else None)


NEVER_S = float("-inf")  # from `on_timer`: do not ask again


def body_time_s(received_bytes: int) -> float:
    """How long an unfinished body or message may have taken so far."""
    return BODY_GRACE_S + received_bytes / BODY_BYTES_PER_S_MIN


class Peer(asyncio.Protocol):
    """One connection, whatever it speaks."""

    __slots__ = (
        "_stall_bytes", "_stall_since_s", "address", "hub", "network", "transport", "was_asked_to_leave", "wheel_tick",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.address = ""
        self.network: str | None = None  # that it is counted with
        self.wheel_tick = -1
        self.was_asked_to_leave = False  # closed in favour of a new one
        self._stall_bytes = 0
        self._stall_since_s = 0.0

    # --- asyncio's side ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)
        self.address = _address(transport)
        self.network = network_of(self.address.rpartition(":")[0])
        self.hub.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.hub.left(self)
        self.lost()

    def replace_by(self, peer: Peer) -> None:
        """From now on the transport's bytes go to `peer`; this one is done."""
        peer.transport = self.transport
        peer.address = self.address
        peer.network = self.network
        self.hub.replaced(self, peer)
        self.transport.set_protocol(peer)

    # --- what each protocol says --------------------------------------------------------------------------------------

    def lost(self) -> None:
        """The connection is over: tell everybody who waits for it. Called once or more."""

    def on_timer(self, now_s: float) -> float:
        """See `Timed`."""
        return NEVER_S

    @property
    def is_idle(self) -> bool:
        """Nothing of it is under way: closing it costs its client a new connection and nothing else."""
        return False

    def turn_away(self) -> None:
        """There are too many connections."""
        self.transport.abort()

    def drain(self) -> None:
        """The server drains: close at once if no request is running, else as soon as none is."""
        self.close_idle()

    # --- shared -------------------------------------------------------------------------------------------------------

    def close_idle(self) -> None:
        """Close what nobody waits for. Over TLS the peer is to answer our end with its own, but one that is idle does
        not look."""
        transport = self.transport
        transport.close()
        if not transport.can_write_eof() and not transport.get_write_buffer_size():
            self.hub.loop.call_later(LINGER_S, transport.abort)

    def cut(self) -> None:
        self.transport.abort()
        self.lost()

    def write_stalled(self, now_s: float) -> bool:
        """Output waits, and the peer took none of it for too long. To be asked every few seconds."""
        waiting = self.transport.get_write_buffer_size()
        if not waiting or waiting != self._stall_bytes:
            self._stall_bytes = waiting
            self._stall_since_s = now_s
        return waiting > 0 and now_s - self._stall_since_s >= WRITE_STALL_S


def _address(transport: asyncio.BaseTransport) -> str:
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name or "")
