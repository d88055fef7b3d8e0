"""The budget of everything that waits to be sent, on all connections (`docs/spec/delivery.md#sec-12`).

An answer or a frame is held from the time it is made until its peer has taken it.

ResponseBudget    the sum over all members, the queue of those that wait, and who is cut
ConnectionBudget  member: the plain answers of one connection; puts its further pages off while it holds too much
StreamBudget      member: what is held for one stream or socket

A member that keeps the others waiting and takes next to nothing is cut. Always holds: whoever waits here has nothing
new made for it, and waits for bytes that are being taken, or whose peer is cut for not taking them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from topics.net.messages import AllowanceOwner
from topics.net.transport_limits import (
    BUDGET_GRACE_S,
    TAKEN_BYTES_MIN,
    UNSENT_ALL_BYTES_MAX,
    UNSENT_BYTES_MAX,
    UNSENT_FREE_BYTES,
    UNSENT_LARGE_BYTES_MAX,
    UNSENT_SMALL_BYTES,
)
from topics.server.connections.callbacks import guarded, log

E = TypeVar("E")  # a request of a connection, and its answer
READS_PER_TURN = 16  # of one connection, before others get their turn
MEASURE_S = 0.1  # between two measurements of all members while the budget is used up
RELAXED_BYTES = UNSENT_ALL_BYTES_MAX // 2  # held by all members: below this nobody is cut


class BudgetedOutput(Protocol[E]):
    """The sending half of a connection, whose answers are counted."""

    def unsent_bytes(self) -> int:
        """Of plain answers that were made and not taken."""

    def pick_over_budget(self, waiting: Collection[E], *, held_bytes: int, making_bytes: int) -> E | None:
        """One of these that may read although the connection holds too much: the peer wants it before the others."""

    def blocks_others(self, exchange: E) -> bool:
        """Do answers that are made wait for this one, and only for it? Then it waits for nobody."""

    def sendable_bytes(self) -> int:
        """The part of the unsent bytes that the peer could take if it wanted to."""

    def cut(self) -> None:
        """End the connection at once, and its budget with it."""


class BudgetMember(Protocol):
    """A part of the budget, as `ResponseBudget` sees it."""

    held_bytes: int
    """Unsent, and being made."""
    reading_bytes: int
    """Announced, and in nobody's memory yet."""
    unsent_bytes: int
    taken_bytes: int
    """Ever, as far as measured."""
    taken_before_bytes: int
    """The taken bytes when the grace period began."""

    def measure(self) -> None: ...

    def take_turn(self) -> None:
        """Others have taken something: it may read one page, or has to wait again."""

    @property
    def is_slow(self) -> bool:
        """It could take what it was given, and took next to nothing in the grace period."""

    def cut(self) -> None: ...


class WaitingRequest(NamedTuple):
    size_bytes: int  # of the page, if it is known
    read: Callable[[], None]
    dropped: Callable[[], None]


class ConnectionBudget(Generic[E]):
    """What one connection holds, and those of its requests that wait."""

    __slots__ = (
        "_expected",
        "_is_admitting",
        "_is_closed",
        "_output",
        "_reading",
        "_total",
        "_waiting",
        "held_bytes",
        "reading_bytes",
        "taken_before_bytes",
        "taken_bytes",
        "unsent_bytes",
    )

    def __init__(self, output: BudgetedOutput[E], total: ResponseBudget) -> None:
        self._output = output
        self._total = total
        self._waiting: dict[E, WaitingRequest] = {}
        self._reading: dict[E, int] = {}  # sizes of pages being read, which takes as long as a store does
        self._expected: dict[E, int] = {}  # sizes of answers being rendered, which are soon there
        self._is_admitting = False
        self._is_closed = False
        self.unsent_bytes = 0
        self.held_bytes = 0  # unsent and being made
        self.reading_bytes = 0
        self.taken_bytes = 0  # ever, as far as measured
        self.taken_before_bytes = 0  # the taken bytes when the grace period began

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    # --- one request --------------------------------------------------------------------------------------------------

    def admits(self, size_bytes: int) -> bool:
        self.measure()
        return self.held_bytes < UNSENT_BYTES_MAX and self._total.admits(self, size_bytes)

    def when_budget(self, exchange: E, size_bytes: int, read: Callable[[], None], dropped: Callable[[], None]) -> None:
        if not size_bytes and not self._waiting and not self._is_admitting:
            self.measure()
            if self.held_bytes < UNSENT_FREE_BYTES:  # nearly always: nothing that it was given is left
                read()
                return
        self._waiting[exchange] = WaitingRequest(size_bytes, read, dropped)
        self.admit_waiting()

    def expect(self, exchange: E, size_bytes: int) -> None:
        self._reading.pop(exchange, None)
        self._expected[exchange] = size_bytes
        self.admit_waiting()

    def answered(self, exchange: E) -> None:
        """The answer is among the connection's unsent bytes now."""
        self._reading.pop(exchange, None)
        self._expected.pop(exchange, None)
        if self._waiting:
            self.admit_waiting()
        else:
            self.measure()

    def forget(self, exchange: E) -> None:
        """Nobody wants the answer any more."""
        self._reading.pop(exchange, None)
        self._expected.pop(exchange, None)
        waiting = self._waiting.pop(exchange, None)
        if waiting is not None:
            guarded(waiting.dropped)

    # --- the connection -----------------------------------------------------------------------------------------------

    def measure(self) -> None:
        if self._is_closed:
            return
        unsent_bytes = self._output.unsent_bytes()
        if not (unsent_bytes or self.held_bytes or self._expected or self._reading or self.reading_bytes):
            return
        self.taken_bytes += max(self.unsent_bytes - unsent_bytes, 0)
        self.unsent_bytes = unsent_bytes
        self._total.measured(self, unsent_bytes + sum(self._expected.values()), sum(self._reading.values()))

    def admit_waiting(self) -> None:
        """Something was taken, made or asked for: let the requests read that the budget admits."""
        if not self._is_admitting and not self._read_some(READS_PER_TURN, in_turn=False):
            self._total.admit_soon(self)

    def take_turn(self) -> None:
        """Peers have taken something: one request may read, then it is the turn of other members."""
        if not self._is_admitting and not self._read_some(1, in_turn=True):
            self._total.enqueue(self)

    def _read_some(self, left: int, *, in_turn: bool) -> bool:
        """Let up to `left` requests read; False if that many did, and more wait."""
        self._is_admitting = True
        self.measure()
        is_short = False
        while self._waiting and left:
            candidates = self._candidates(in_turn=in_turn)
            exchange = self._next(candidates)
            if exchange is None:
                is_short = len(candidates) < len(self._waiting)
                break
            left -= 1
            waiting = self._waiting.pop(exchange)
            if waiting.size_bytes:
                self._reading[exchange] = waiting.size_bytes
            guarded(waiting.read)
            self.measure()
        self._is_admitting = False
        if is_short:
            self._total.enqueue(self)
        return bool(left) or not self._waiting

    def _candidates(self, *, in_turn: bool) -> list[E]:
        admits, blocks_others = self._total.admits, self._output.blocks_others
        return [
            each
            for each, waiting in self._waiting.items()
            if admits(self, waiting.size_bytes, in_turn=in_turn) or blocks_others(each)
        ]

    def _next(self, candidates: list[E]) -> E | None:
        """The first that may read, in the order they came. One of unknown size does not wait for pages that are being
        read, which may never come."""
        for exchange in candidates:
            reading_bytes = self.reading_bytes if self._waiting[exchange].size_bytes else 0
            if self.held_bytes + reading_bytes < UNSENT_BYTES_MAX:
                return exchange
        making_bytes = self.held_bytes - self.unsent_bytes + self.reading_bytes
        return self._output.pick_over_budget(candidates, held_bytes=self.held_bytes, making_bytes=making_bytes)

    @property
    def is_slow(self) -> bool:
        return self.taken_bytes - self.taken_before_bytes < TAKEN_BYTES_MIN <= self._output.sendable_bytes()

    def cut(self) -> None:
        self._output.cut()

    def close(self) -> None:
        """The connection is over, and its answers with it."""
        self._is_closed = True
        for exchange in list(self._waiting):
            self.forget(exchange)
        self._reading.clear()
        self._expected.clear()
        self._total.measured(self, 0, 0)
        self._total.remove(self)


class ResponseBudget:
    """All members together. Those that wait are admitted in the order in which they began to wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop, monotonic: Callable[[], float]) -> None:
        self._loop = loop
        self._monotonic = monotonic
        self.held_bytes = 0
        self._reading_bytes = 0
        self._members: dict[BudgetMember, None] = {}  # that hold something
        self._waiting: dict[BudgetMember, None] = {}
        self._waking: dict[BudgetMember, None] = {}
        self._is_waking = False
        self._measured_s = 0.0
        self._short_since_s: float | None = None  # start of the grace period; None while nobody waits

    def admits(self, member: BudgetMember, size_bytes: int, *, in_turn: bool = False) -> bool:
        """May a page of this size be made? 0 is an unknown size. A large page does not overtake members that wait."""
        if size_bytes <= UNSENT_FREE_BYTES and member.held_bytes < UNSENT_FREE_BYTES:
            return True
        if self.held_bytes >= UNSENT_ALL_BYTES_MAX:
            self._measure_sometimes()
        if size_bytes <= UNSENT_SMALL_BYTES:
            return self.held_bytes < UNSENT_ALL_BYTES_MAX
        is_contended = bool(self._waiting or self._is_waking)
        return (in_turn or not is_contended) and self._admits_large()

    def _admits_large(self) -> bool:
        return self.held_bytes + self._reading_bytes < UNSENT_LARGE_BYTES_MAX

    def measured(self, member: BudgetMember, held_bytes: int, reading_bytes: int) -> None:
        self.held_bytes += held_bytes - member.held_bytes
        self._reading_bytes += reading_bytes - member.reading_bytes
        member.held_bytes, member.reading_bytes = held_bytes, reading_bytes
        if held_bytes:
            self._members[member] = None
        else:
            self._members.pop(member, None)
        self._wake_if_admitting()

    # --- waiting ------------------------------------------------------------------------------------------------------

    def enqueue(self, member: BudgetMember) -> None:
        """The member waits until peers have taken something."""
        self._waiting[member] = None
        self.note_shortage()

    def note_shortage(self) -> None:
        """A member was given less than it asked for."""
        if self._short_since_s is None:
            self._start_grace()

    def remove(self, member: BudgetMember) -> None:
        self._waiting.pop(member, None)
        self._waking.pop(member, None)

    def admit_soon(self, member: ConnectionBudget[Any]) -> None:
        self._loop.call_soon(member.admit_waiting)

    def _wake_if_admitting(self) -> None:
        if self._waiting and self._admits_large():
            self._wake_soon()

    def _wake_soon(self) -> None:
        if self._waiting and not self._is_waking:
            self._is_waking = True
            self._waking, self._waiting = self._waiting, {}
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        """Admit one member per turn of the loop."""
        if self._waking:
            member = next(iter(self._waking))
            del self._waking[member]
            member.take_turn()
        if not self._admits_large():  # the rest go on waiting, before those that came meanwhile
            self._waking, self._waiting = {}, self._waking | self._waiting
        if self._waking:
            self._loop.call_soon(self._wake)
        else:
            self._is_waking = False
            self._wake_if_admitting()  # for those that came meanwhile

    # --- grace period -------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Once a second. No event says that a peer took some of a small answer, so all members are measured while one
        waits."""
        if self._short_since_s is None:
            return
        self._measure_all()
        if self.held_bytes < RELAXED_BYTES:
            self._short_since_s = None if not self._waiting else self._monotonic()
            self._wake_soon()
        elif self._monotonic() - self._short_since_s >= BUDGET_GRACE_S:
            self._cut_slow_members()
            self._start_grace()

    def _measure_sometimes(self) -> None:
        now_s = self._monotonic()
        if now_s - self._measured_s >= MEASURE_S:
            self._measured_s = now_s
            self._measure_all()

    def _measure_all(self) -> None:
        for member in list(self._members):
            member.measure()

    def _start_grace(self) -> None:
        self._short_since_s = self._monotonic()
        for member in self._members:
            member.taken_before_bytes = member.taken_bytes

    def _cut_slow_members(self) -> None:
        """Largest first, until enough is free. A member that takes what it was given is left alone."""
        cut, held_bytes = 0, self.held_bytes
        for member in sorted(self._members, key=lambda member: member.unsent_bytes, reverse=True):
            if self.held_bytes < RELAXED_BYTES:
                break
            if member.is_slow:
                member.cut()
                cut += 1
        if cut:
            log.warning("%d slow connections that held %d bytes are cut", cut, held_bytes - self.held_bytes)


class StreamBudget:
    """What is held for one stream or socket. Made by the sink, closed with it.

    Counts what the sink has not passed on, what its owner holds back, and what is being rendered. The owner asks before
    it reads, and is told when to ask again; an owner whose client keeps others waiting is told that it is too slow."""

    __slots__ = (
        "_buffered_bytes",
        "_has_turn",
        "_is_closed",
        "_owner",
        "_total",
        "held_bytes",
        "reading_bytes",
        "taken_before_bytes",
        "taken_bytes",
        "unsent_bytes",
    )

    def __init__(self, total: ResponseBudget, owner: AllowanceOwner, buffered_bytes: Callable[[], int]) -> None:
        self._total = total
        self._owner = owner
        self._buffered_bytes = buffered_bytes
        self._has_turn = False  # it waited, and may have something large now
        self._is_closed = False
        self.held_bytes = self.reading_bytes = self.unsent_bytes = 0
        self.taken_bytes = self.taken_before_bytes = 0

    # --- Allowance ----------------------------------------------------------------------------------------------------

    def grant(self, wanted_bytes: int, *, least_bytes: int = 0) -> int:
        total = self._total
        in_turn, self._has_turn = self._has_turn or least_bytes > 0, False  # what was read already need not wait again
        if total.admits(self, wanted_bytes, in_turn=in_turn):
            return wanted_bytes
        self.measure()
        if self.held_bytes < UNSENT_FREE_BYTES and least_bytes <= UNSENT_FREE_BYTES:
            total.note_shortage()
            return UNSENT_FREE_BYTES
        if not self._is_closed:
            total.enqueue(self)
        return 0

    def measure(self) -> None:
        """What is held may have been taken, or has grown."""
        if self._is_closed:
            return
        buffered_bytes, owner = self._buffered_bytes(), self._owner
        self.taken_bytes = max(owner.sent_bytes() - buffered_bytes, self.taken_bytes)
        self.unsent_bytes = buffered_bytes + owner.queued_bytes()
        self._total.measured(self, self.unsent_bytes + owner.making_bytes(), 0)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._total.measured(self, 0, 0)
            self._total.remove(self)

    # --- BudgetMember -------------------------------------------------------------------------------------------------

    def take_turn(self) -> None:
        if self._is_closed:
            return
        if self._total.admits(self, UNSENT_SMALL_BYTES + 1, in_turn=True):
            self._has_turn = True
            guarded(self._owner.has_budget_again)
        else:
            self._total.enqueue(self)

    @property
    def is_slow(self) -> bool:
        return self.taken_bytes - self.taken_before_bytes < TAKEN_BYTES_MIN <= self._buffered_bytes()

    def cut(self) -> None:
        guarded(self._owner.too_slow)
        self.close()
