"""ResponseBudget: what is made for peers ahead of what they take, and the one budget for all of it
(`docs/spec/delivery.md#sec-12`).

An answer or a frame is held from the time it is made until its peer has taken it. A `ConnectionBudget` counts what one
connection holds of plain answers and puts further pages off while that is too much; a `StreamBudget`
(`stream_share.py`) counts what is held for one stream or socket; `ResponseBudget` adds the shares up. A connection that
keeps everybody else waiting and takes next to nothing is cut. Always holds: whoever waits here has nothing new made for
it, and waits for bytes that are being taken, or whose peer is cut for not taking them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from topics.net.transport_limits import (
    ROOM_GRACE_S,
    TAKEN_BYTES_MIN,
    UNSENT_ALL_BYTES_MAX,
    UNSENT_BYTES_MAX,
    UNSENT_FREE_BYTES,
    UNSENT_LARGE_BYTES_MAX,
    UNSENT_SMALL_BYTES,
)
from topics.server.callbacks import guarded, log

E = TypeVar("E")  # a request of a connection, and its answer
READS_PER_TURN = 16  # of one connection, before others get their turn
MEASURE_S = 0.1  # between two looks at everybody while there is no room
ENOUGH_BYTES = UNSENT_ALL_BYTES_MAX // 2  # held by all: nobody is cut any more


class BudgetHolder(Protocol[E]):
    """A connection whose answers are counted."""

    def unsent_bytes(self) -> int:
        """Of answers that were made and not taken."""

    def next_ahead(self, waiting: Collection[E], *, held_bytes: int, making_bytes: int) -> E | None:
        """One of these that may read although the connection holds its share: the peer wants it before the others."""

    def is_in_the_way(self, exchange: E) -> bool:
        """Do answers that are made wait for this one, and only for it? Then it waits for nobody."""

    def offered_bytes(self) -> int:
        """The part of the unsent bytes that the peer could take if it wanted to."""

    def cut(self) -> None:
        """End the connection at once, and its share."""


class BudgetMember(Protocol):
    """A share, as the room sees it."""

    held_bytes: int
    """Unsent, and being made."""
    reading_bytes: int
    """Announced, and in nobody's memory yet."""
    unsent_bytes: int
    taken_bytes: int
    """Ever, as far as measured."""
    seen_bytes: int
    """Taken when the room's patience began."""

    def measure(self) -> None: ...

    def take_turn(self) -> None:
        """Others have taken something: it may read one page, or has to wait again."""

    @property
    def is_slow(self) -> bool:
        """It could take what it was given, and took next to nothing since the room's patience began."""

    def cut(self) -> None: ...


class WaitingRequest(NamedTuple):
    size_bytes: int  # of the page, if it is known
    read: Callable[[], None]
    dropped: Callable[[], None]


class ConnectionBudget(Generic[E]):
    """What one connection holds, and those of its requests that wait."""

    __slots__ = (
        "_expected",
        "_holder",
        "_is_closed",
        "_is_looking",
        "_reading",
        "_room",
        "_waiting",
        "held_bytes",
        "reading_bytes",
        "seen_bytes",
        "taken_bytes",
        "unsent_bytes",
    )

    def __init__(self, holder: BudgetHolder[E], room: ResponseBudget) -> None:
        self._holder = holder
        self._room = room
        self._waiting: dict[E, WaitingRequest] = {}
        self._reading: dict[E, int] = {}  # pages that were announced: they may take as long as a store does
        self._expected: dict[E, int] = {}  # answers that are being made: soon there
        self._is_looking = False
        self._is_closed = False
        self.unsent_bytes = 0
        self.held_bytes = 0  # unsent and being made
        self.reading_bytes = 0
        self.taken_bytes = 0  # ever, as far as measured
        self.seen_bytes = 0  # taken when the room's patience began

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    # --- one request --------------------------------------------------------------------------------------------------

    def has_room(self, size_bytes: int) -> bool:
        self.measure()
        return self.held_bytes < UNSENT_BYTES_MAX and self._room.has_room(self, size_bytes)

    def when_budget(self, exchange: E, size_bytes: int, read: Callable[[], None], dropped: Callable[[], None]) -> None:
        self._waiting[exchange] = WaitingRequest(size_bytes, read, dropped)
        self.look()

    def expect(self, exchange: E, size_bytes: int) -> None:
        self._reading.pop(exchange, None)
        self._expected[exchange] = size_bytes
        self.look()

    def answered(self, exchange: E) -> None:
        """The answer is among the connection's unsent bytes now."""
        self._reading.pop(exchange, None)
        self._expected.pop(exchange, None)
        self.look()

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
        unsent_bytes = self._holder.unsent_bytes()
        self.taken_bytes += max(self.unsent_bytes - unsent_bytes, 0)
        self.unsent_bytes = unsent_bytes
        self._room.measured(self, unsent_bytes + sum(self._expected.values()), sum(self._reading.values()))

    def look(self) -> None:
        """Something was taken, made or asked for: let those read for whom there is room."""
        if not self._is_looking and not self._read_some(READS_PER_TURN, in_turn=False):
            self._room.look_soon(self)

    def take_turn(self) -> None:
        """Others have taken something: one may read, and then those of other connections."""
        if not self._is_looking and not self._read_some(1, in_turn=True):
            self._room.waits(self)

    def _read_some(self, left: int, *, in_turn: bool) -> bool:
        """False if that many did, and there are more."""
        self._is_looking = True
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
        self._is_looking = False
        if is_short:
            self._room.waits(self)
        return bool(left) or not self._waiting

    def _candidates(self, *, in_turn: bool) -> list[E]:
        has_room, is_in_the_way = self._room.has_room, self._holder.is_in_the_way
        return [
            each
            for each, waiting in self._waiting.items()
            if has_room(self, waiting.size_bytes, in_turn=in_turn) or is_in_the_way(each)
        ]

    def _next(self, candidates: list[E]) -> E | None:
        """In the order they came. A page that was not announced does not wait for pages that may never come."""
        for exchange in candidates:
            reading_bytes = self.reading_bytes if self._waiting[exchange].size_bytes else 0
            if self.held_bytes + reading_bytes < UNSENT_BYTES_MAX:
                return exchange
        making_bytes = self.held_bytes - self.unsent_bytes + self.reading_bytes
        return self._holder.next_ahead(candidates, held_bytes=self.held_bytes, making_bytes=making_bytes)

    @property
    def is_slow(self) -> bool:
        return self.taken_bytes - self.seen_bytes < TAKEN_BYTES_MIN <= self._holder.offered_bytes()

    def cut(self) -> None:
        self._holder.cut()

    def close(self) -> None:
        """The connection is over, and its answers with it."""
        self._is_closed = True
        for exchange in list(self._waiting):
            self.forget(exchange)
        self._reading.clear()
        self._expected.clear()
        self._room.measured(self, 0, 0)
        self._room.left(self)


class ResponseBudget:
    """All shares together. Those that wait are looked at in the order in which they began to."""

    def __init__(self, loop: asyncio.AbstractEventLoop, monotonic: Callable[[], float]) -> None:
        self._loop = loop
        self._monotonic = monotonic
        self.held_bytes = 0
        self._reading_bytes = 0
        self._shares: dict[BudgetMember, None] = {}  # that hold something
        self._waiting: dict[BudgetMember, None] = {}
        self._waking: dict[BudgetMember, None] = {}
        self._is_waking = False
        self._measured_s = 0.0
        self._short_since_s: float | None = None  # patience began; somebody waits for others to take something

    def has_room(self, share: BudgetMember, size_bytes: int, *, in_turn: bool = False) -> bool:
        """For a page of this size; 0 if nothing is known of it yet. A large one does not overtake those that wait."""
        if size_bytes <= UNSENT_FREE_BYTES and share.held_bytes < UNSENT_FREE_BYTES:
            return True
        if self.held_bytes >= UNSENT_ALL_BYTES_MAX:
            self._measure_now_and_then()
        if size_bytes <= UNSENT_SMALL_BYTES:
            return self.held_bytes < UNSENT_ALL_BYTES_MAX
        is_contended = bool(self._waiting or self._is_waking)
        return (in_turn or not is_contended) and self._has_room_for_large()

    def _has_room_for_large(self) -> bool:
        return self.held_bytes + self._reading_bytes < UNSENT_LARGE_BYTES_MAX

    def measured(self, share: BudgetMember, held_bytes: int, reading_bytes: int) -> None:
        self.held_bytes += held_bytes - share.held_bytes
        self._reading_bytes += reading_bytes - share.reading_bytes
        share.held_bytes, share.reading_bytes = held_bytes, reading_bytes
        if held_bytes:
            self._shares[share] = None
        else:
            self._shares.pop(share, None)
        self._wake_if_there_is_room()

    # --- waiting ------------------------------------------------------------------------------------------------------

    def waits(self, share: BudgetMember) -> None:
        """For others to take something."""
        self._waiting[share] = None
        self.is_short()

    def is_short(self) -> None:
        """Somebody was given less than it asked for."""
        if self._short_since_s is None:
            self._be_patient()

    def left(self, share: BudgetMember) -> None:
        self._waiting.pop(share, None)
        self._waking.pop(share, None)

    def look_soon(self, share: ConnectionBudget[Any]) -> None:
        self._loop.call_soon(share.look)

    def _wake_if_there_is_room(self) -> None:
        if self._waiting and self._has_room_for_large():
            self._wake_soon()

    def _wake_soon(self) -> None:
        if self._waiting and not self._is_waking:
            self._is_waking = True
            self._waking, self._waiting = self._waiting, {}
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        """One of them per turn of the loop."""
        if self._waking:
            share = next(iter(self._waking))
            del self._waking[share]
            share.take_turn()
        if not self._has_room_for_large():  # the rest go on waiting, in front of those who came meanwhile
            self._waking, self._waiting = {}, self._waking | self._waiting
        if self._waking:
            self._loop.call_soon(self._wake)
        else:
            self._is_waking = False
            self._wake_if_there_is_room()  # for those who came to wait meanwhile

    # --- patience -----------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Nobody tells us when a peer takes some of a small answer, so all are measured while it matters."""
        if self._short_since_s is None:
            return
        self._measure_all()
        if self.held_bytes < ENOUGH_BYTES:
            self._short_since_s = None if not self._waiting else self._monotonic()
            self._wake_soon()
        elif self._monotonic() - self._short_since_s >= ROOM_GRACE_S:
            self._cut_the_slow()
            self._be_patient()

    def _measure_now_and_then(self) -> None:
        now_s = self._monotonic()
        if now_s - self._measured_s >= MEASURE_S:
            self._measured_s = now_s
            self._measure_all()

    def _measure_all(self) -> None:
        for share in list(self._shares):
            share.measure()

    def _be_patient(self) -> None:
        self._short_since_s = self._monotonic()
        for share in self._shares:
            share.seen_bytes = share.taken_bytes

    def _cut_the_slow(self) -> None:
        """Largest first, until there is enough room. Whoever takes what it was given is left alone."""
        cut, held_bytes = 0, self.held_bytes
        for share in sorted(self._shares, key=lambda share: share.unsent_bytes, reverse=True):
            if self.held_bytes < ENOUGH_BYTES:
                break
            if share.is_slow:
                share.cut()
                cut += 1
        if cut:
            log.warning("%d slow connections that held %d bytes are cut", cut, held_bytes - self.held_bytes)
