"""DeadlineWheel: one coarse clock for the deadlines of all connections.

A connection stands in at most one slot, and in an early one rather than a late one: when its slot comes up it is asked
(`Timed.on_timer`) and says when to ask again. So traffic never touches the wheel, only the start of a shorter wait
does. Deadlines are kept to within a tick.

Hub: what the connections of one server share, and the list of them.

The wheel, the renderer, the application, the budgets for unfinished bodies and for answers that are not taken, and one
flush per turn of the loop for answers that came out of it. Made by `Server`; every peer holds it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from email.utils import formatdate
from itertools import islice
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from topics.clock import Clock
from topics.limits import KIB, MIB
from topics.net.h1_renderer import H1Renderer
from topics.net.messages import Application, Request
from topics.net.transport_limits import BODIES_BYTES_FACTOR, BODIES_BYTES_MIN, CONNECTIONS_MAX
from topics.server.allocator import Burst, give_back
from topics.server.budget import ResponseBudget

if TYPE_CHECKING:
    from topics.server.peer import Peer

TICK_S = 1.0
SLOTS = 64  # ticks ahead; a later deadline is asked for on the way


class Timed(Protocol):
    wheel_tick: int  # the wheel's own; -1: in no slot

    def on_timer(self, now_s: float) -> float:
        """Do what is due; returns the time of the next thing that could be."""


class DeadlineWheel:
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
        """Ask up to `count` of those who are due; True if there are more. A crowd must not hold the loop."""
        due, now_s = self._due, self.now_s
        while due and count:
            count -= 1
            timed = due.pop()
            next_s = timed.on_timer(now_s)
            if timed.wheel_tick < 0 and next_s > now_s:
                self.arm(timed, next_s)
        return bool(due)


T = TypeVar("T")
ASK_PER_TURN = 100  # connections whose deadlines are looked at before others get their turn
IDLE_LOOKS = 64  # connections that are looked at for one that is idle, before a new one is turned away
PEER_BYTES = 16 * KIB  # of a connection, about, with what it has parsed and what waits in its buffers
log = logging.getLogger("topics.server")


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
        self.room = ResponseBudget(loop, clock.monotonic)
        self._crowds: dict[str, int] = {}  # connections by network
        self.peers: dict[Peer, None] = {}  # those that were looked at for being idle, and were not, come last
        self._leaving = 0  # were closed to make room, and are still among the peers
        self.draining = False
        self.held = False  # the application is behind: no new request is read
        self.date = b""
        self._bodies_bytes = 0
        self._burst = Burst()
        self._unflushed: list[Flushable] = []
        self._held_back: list[Callable[[], None]] = []
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
        self.room.tick()
        if self._burst.is_over(self._load_bytes(), self.monotonic()):
            self.off_loop(give_back, _log_failure)
        self._ask()

    def _load_bytes(self) -> int:
        """What connections make the process hold, about."""
        return self.room.held_bytes + self._bodies_bytes + len(self.peers) * PEER_BYTES

    def _ask(self) -> None:
        if self.wheel.ask(ASK_PER_TURN):
            self.loop.call_soon(self._ask)

    # --- connections --------------------------------------------------------------------------------------------------

    def joined(self, peer: Peer) -> None:
        """One network has its share. When there are too many of all, one that waits for nothing makes room, the oldest
        first; if there is none, the new one is told to come back."""
        self.peers[peer] = None
        if self._is_crowded(peer.network):
            peer.transport.abort()
        elif len(self.peers) - self._leaving > self.settings.connections_max and not self._close_idle(peer):
            peer.turn_away()
        else:
            self._begin(peer)

    def _is_crowded(self, network: str | None) -> bool:
        """Count a connection; has its network more than its share now?"""
        if network is None:
            return False
        count = self._crowds[network] = self._crowds.get(network, 0) + 1
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
        for peer in list(islice(self.peers, IDLE_LOOKS)):
            if peer is not newest and peer.is_idle and not peer.transport.is_closing():
                self._leaving += 1
                peer.was_asked_to_leave = True
                peer.transport.close()
                return True
            self.peers[peer] = self.peers.pop(peer)
        return False

    def left(self, peer: Peer) -> None:
        if peer in self.peers and peer.network is not None:
            self._crowds[peer.network] -= 1
            if not self._crowds[peer.network]:
                del self._crowds[peer.network]
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

    # --- back-pressure ------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """The application is behind: leave further requests in their sockets until `release`."""
        self.held = True

    def release(self) -> None:
        self.held = False
        waiting, self._held_back = self._held_back, []
        for resume in waiting:
            self.loop.call_soon(resume)

    def when_released(self, resume: Callable[[], None]) -> None:
        self._held_back.append(resume)

    def account_body(self, change_bytes: int) -> bool:
        """An unfinished body grew or went; False if all of them together are too large now."""
        self._bodies_bytes += change_bytes
        return self._bodies_bytes <= self.settings.bodies_bytes_max()

    def abandon(self, request: Request) -> None:
        """Tell the application; its mistake must not take the connection's housekeeping with it."""
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
