"""Ticket: the promise that a command is answered exactly once, now or after its commit.

Always holds: a ticket is resolved or failed once; every waiter is called once, in order of arrival, on the owner's
thread. A waiter that raises ends nobody else's turn, neither that of other waiters nor that of whoever answers: it is
logged, and those who wait for its work are failed (`otherwise`). Made by the engine's services, awaited by the doors
(server, embedded library, simulator)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

log = logging.getLogger("topics.engine")

CALLBACK_FAILED = "a callback failed"

T = TypeVar("T")
U = TypeVar("U")

Otherwise = Callable[[BaseException], None]
"""Fails those who wait for the work of a callback that raised, unless they are answered already."""


def guarded(callback: Callable[..., object], *args: Any, otherwise: Otherwise | None = None, **named: Any) -> None:
    """Run a callback. What it raises is a bug of ours, and must not cost others their answer."""
    try:
        callback(*args, **named)
    except Exception as error:
        callback_failed(error, otherwise)


def callback_failed(error: Exception, otherwise: Otherwise | None = None) -> None:
    """What `guarded` does about an error. For the few callers on the path of every write, which catch it themselves: a
    call more for each of their callbacks would cost a write several percent."""
    log.exception(CALLBACK_FAILED)
    if otherwise is not None:
        otherwise(error)


class Ticket(Generic[T]):
    """A value to come. No asyncio inside, so that every driver can wait for it in its own way."""

    __slots__ = ("_waiters", "done", "error", "value")

    wait_ms: float = 0.0
    """How long the command waited for a place in the log's queue; only an `AdmittedTicket` did."""

    def __init__(self) -> None:
        self.done = False
        self.value: T | None = None
        self.error: BaseException | None = None
        self._waiters: list[Callable[[Ticket[T]], None]] | None = None

    def then(self, waiter: Callable[[Ticket[T]], None], otherwise: Otherwise | None = None) -> None:
        """Call `waiter(self)` once the outcome is known; at once if it is known already. Give `otherwise` if somebody
        waits for what the waiter does: it is told when the waiter raises. Without it, a waiter that is called at once
        raises to its caller."""
        if otherwise is not None:
            waiter = partial(guarded, waiter, otherwise=otherwise)
        if self.done:
            waiter(self)
        elif self._waiters is None:
            self._waiters = [waiter]
        else:
            self._waiters.append(waiter)

    def resolve(self, value: T) -> None:
        self.value = value
        self._finish()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self._finish()

    def abandon(self, error: BaseException) -> None:
        """Fail it, unless it is answered."""
        if not self.done:
            self.fail(error)

    def result(self) -> T:
        """The value, or the error raised. Only for a ticket that is done."""
        assert self.done, "a ticket was asked for its result before it had one"
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]

    def _finish(self) -> None:
        assert not self.done, "a ticket was answered twice"
        self.done = True
        waiters, self._waiters = self._waiters, None
        if waiters is not None:
            for waiter in waiters:
                if waiter.__class__ is _Follow:
                    waiter.settle(self)
                    continue
                try:
                    waiter(self)
                except Exception as error:
                    callback_failed(error)


class _Follow:
    """The waiter through which one ticket gets the outcome of another. A chain of steps is a row of tickets that each
    follow the next; they are settled in a loop, since a row of a thousand calls would exceed Python's stack."""

    __slots__ = ("target",)

    def __init__(self, target: Ticket[Any]) -> None:
        self.target = target

    def __call__(self, done: Ticket[Any]) -> None:
        self.settle(done)

    def settle(self, done: Ticket[Any]) -> None:
        target: Ticket[Any] = self.target
        while True:
            assert not target.done, "a ticket was answered twice"
            waiters = target._waiters
            if waiters is None or len(waiters) != 1 or waiters[0].__class__ is not _Follow:
                break
            target.value, target.error, target.done, target._waiters = done.value, done.error, True, None
            target = waiters[0].target
        if done.error is not None:
            target.fail(done.error)
        else:
            target.resolve(done.value)


def resolved(value: T) -> Ticket[T]:
    """A ticket that is answered already."""
    ticket: Ticket[T] = Ticket()
    ticket.value = value
    ticket.done = True
    return ticket


def failed(error: BaseException) -> Ticket[T]:
    """A ticket that failed before it was handed out."""
    ticket: Ticket[T] = Ticket()
    ticket.error = error
    ticket.done = True
    return ticket


def forward(source: Ticket[T], target: Ticket[T]) -> None:
    """Let `target` have the outcome of `source`."""
    source.then(_Follow(target))


def chain(source: Ticket[T], step: Callable[[T], Ticket[U]]) -> Ticket[U]:
    """Run `step` with the value of `source`; the result is the outcome of the ticket that `step` returns."""
    target: Ticket[U] = Ticket()

    def advance(done: Ticket[T]) -> None:
        if done.error is not None:
            target.fail(done.error)
            return
        try:
            following = step(done.value)  # type: ignore[arg-type]
        except Exception as error:
            target.fail(error)
        else:
            forward(following, target)

    source.then(advance)
    return target


def gathered(tickets: Sequence[Ticket[Any]]) -> Ticket[None]:
    """Resolves when all are over; fails with the first error among them, but not before."""
    target: Ticket[None] = Ticket()
    left = len(tickets)

    def one_over(_: Ticket[Any]) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            errors = [ticket.error for ticket in tickets if ticket.error is not None]
            if errors:
                target.fail(errors[0])
            else:
                target.resolve(None)

    for ticket in tickets:
        ticket.then(one_over)
    return target if tickets else resolved(None)


def either_way(source: Ticket[T]) -> Ticket[None]:
    """A ticket that resolves when `source` is over, well or badly."""
    target: Ticket[None] = Ticket()
    source.then(lambda _: target.resolve(None))
    return target
