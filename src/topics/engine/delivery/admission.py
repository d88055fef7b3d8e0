"""Admission: what happens to a write, delete or change when its log shard's queue is full
(`docs/spec/delivery.md#sec-9`).

    queue has a place                                  go ahead
    full, pressure below 0.95, or opted out            wait for a entry, up to 1000 ms, then 429 without detail
    full, pressure 0.95 or more                        429 at once, with `retry_after_ms`

Always holds: waiting commands of a shard go ahead in order of arrival, and nobody overtakes them; a refusal comes
before anything is reserved; every command that waits is answered. Reads never come here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from topics.engine.context import Context
from topics.engine.delivery.pressure import Tuning
from topics.engine.ticket import Ticket, forward
from topics.errors import Throttled, WalFull

T = TypeVar("T")


class _Waiting:
    __slots__ = ("command", "deadline_ms", "since_ms", "ticket")

    def __init__(self, command: Callable[[], Ticket[Any]], since_ms: float, deadline_ms: float) -> None:
        self.command = command
        self.since_ms = since_ms
        self.deadline_ms = deadline_ms
        self.ticket: AdmittedTicket[Any] = AdmittedTicket()


class AdmittedTicket(Ticket[T]):
    """The ticket of a command that had to wait; `wait_ms` is how long."""

    __slots__ = ("wait_ms",)

    def __init__(self) -> None:
        super().__init__()
        self.wait_ms = 0.0


class Admission:
    def __init__(self, context: Context, *, tuning: Tuning | None = None) -> None:
        self._ctx = context
        self._commit = context.commit
        self.tuning = tuning or Tuning()
        self.waiting: dict[int, deque[_Waiting]] = {}
        """By shard, in order of arrival. While it is empty and no queue is full (`Commit.some_full`), commands need not
        come here."""
        self._listening = False

    def admit(self, group: int, command: Callable[[], Ticket[T]], *, may_refuse: bool = True) -> Ticket[T]:
        """Run `command` now, or when its shard has a place; `may_refuse` is off for `disable_backpressure`."""
        if group not in self.waiting and self._commit.has_room(group):
            return command()
        if may_refuse and self._ctx.pressure.pressure >= self.tuning.refuse_from:
            self._commit.count_full(group)
            raise Throttled.shed(round(self.tuning.admit_wait_ms))
        waiting = self.waiting.setdefault(group, deque())
        if len(waiting) >= self.tuning.admit_waiting_max:
            self._commit.count_full(group)
            raise WalFull
        now = self._now_ms()
        entry = _Waiting(command, now, now + self.tuning.admit_wait_ms)
        waiting.append(entry)
        self._listen()
        return entry.ticket

    def _now_ms(self) -> float:
        return self._ctx.clock.monotonic() * 1000

    def tick(self) -> None:
        """Refuse those who waited too long."""
        now = self._now_ms()
        for group, waiting in list(self.waiting.items()):
            while waiting and waiting[0].deadline_ms <= now:
                entry = waiting.popleft()
                self._commit.count_full(group)
                entry.ticket.fail(WalFull())
            if not waiting:
                self.waiting.pop(group, None)

    def _listen(self) -> None:
        if not self._listening:
            self._listening = True
            self._commit.room_waiters.append(self._places_free)

    def _places_free(self) -> None:
        """Places came free somewhere: let the first commands of each shard go, as many as there are places."""
        self._listening = False
        for group, waiting in list(self.waiting.items()):
            while waiting and self._commit.has_room(group):
                self._go(waiting.popleft())
            if not waiting:
                self.waiting.pop(group, None)
        if self.waiting:
            self._listen()

    def _go(self, entry: _Waiting) -> None:
        entry.ticket.wait_ms = self._now_ms() - entry.since_ms
        try:
            following = entry.command()
        except Exception as error:
            entry.ticket.fail(error)
        else:
            forward(following, entry.ticket)

    def __len__(self) -> int:
        return sum(map(len, self.waiting.values()))
