"""StreamBudget: what is held for one stream or socket, of the budget of all connections.

Counts what the sink has not passed on, what its owner holds back, and what is being rendered. The owner asks before it
reads, and is told when there is room again; an owner whose client keeps others waiting is told that it is too slow.
Made by the sink, closed with it."""

from __future__ import annotations

from collections.abc import Callable

from topics.net.messages import AllowanceOwner
from topics.net.transport_limits import TAKEN_BYTES_MIN, UNSENT_FREE_BYTES, UNSENT_SMALL_BYTES
from topics.server.budget import ResponseBudget
from topics.server.callbacks import guarded


class StreamBudget:
    __slots__ = (
        "_buffered_bytes",
        "_has_turn",
        "_is_closed",
        "_owner",
        "_room",
        "held_bytes",
        "reading_bytes",
        "seen_bytes",
        "taken_bytes",
        "unsent_bytes",
    )

    def __init__(self, room: ResponseBudget, owner: AllowanceOwner, buffered_bytes: Callable[[], int]) -> None:
        self._room = room
        self._owner = owner
        self._buffered_bytes = buffered_bytes
        self._has_turn = False  # it waited, and may have something large now
        self._is_closed = False
        self.held_bytes = self.reading_bytes = self.unsent_bytes = 0
        self.taken_bytes = self.seen_bytes = 0

    # --- Allowance ----------------------------------------------------------------------------------------------------

    def grant(self, wanted_bytes: int, *, least_bytes: int = 0) -> int:
        room = self._room
        in_turn, self._has_turn = self._has_turn or least_bytes > 0, False  # what is in hand need not queue up again
        if room.has_room(self, wanted_bytes, in_turn=in_turn):
            return wanted_bytes
        self.measure()
        if self.held_bytes < UNSENT_FREE_BYTES and least_bytes <= UNSENT_FREE_BYTES:
            room.is_short()
            return UNSENT_FREE_BYTES
        if not self._is_closed:
            room.waits(self)
        return 0

    def measure(self) -> None:
        """What is held may have been taken, or has grown."""
        if self._is_closed:
            return
        buffered_bytes, owner = self._buffered_bytes(), self._owner
        self.taken_bytes = max(owner.sent_bytes() - buffered_bytes, self.taken_bytes)
        self.unsent_bytes = buffered_bytes + owner.queued_bytes()
        self._room.measured(self, self.unsent_bytes + owner.making_bytes(), 0)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._room.measured(self, 0, 0)
            self._room.left(self)

    # --- Member of the room -------------------------------------------------------------------------------------------

    def take_turn(self) -> None:
        if self._is_closed:
            return
        if self._room.has_room(self, UNSENT_SMALL_BYTES + 1, in_turn=True):
            self._has_turn = True
            guarded(self._owner.has_room_again)
        else:
            self._room.waits(self)

    @property
    def is_slow(self) -> bool:
        return self.taken_bytes - self.seen_bytes < TAKEN_BYTES_MIN <= self._buffered_bytes()

    def cut(self) -> None:
        guarded(self._owner.too_slow)
        self.close()
