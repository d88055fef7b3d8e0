"""Gather: one ticket for many, tickets or steps.

all_done      of tickets
in_portions   of steps of the owner that would hold everybody up if they were taken at once"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from topics.engine.ticket import Ticket, resolved
from topics.runtime.drivers.driver import Driver

T = TypeVar("T")

PORTION = 128
"""Items of a turn: a few milliseconds, at some tens of microseconds each."""


def all_done(tickets: Sequence[Ticket[Any]]) -> Ticket[None]:
    """Resolves when all have resolved; fails with the first error, once all are over."""
    left = len(tickets)
    if not left:
        return resolved(None)
    target: Ticket[None] = Ticket()
    errors: list[BaseException] = []

    def one_done(done: Ticket[Any]) -> None:
        nonlocal left
        left -= 1
        if done.error is not None:
            errors.append(done.error)
        if left == 0:
            if errors:
                target.fail(errors[0])
            else:
                target.resolve(None)

    for ticket in tickets:
        ticket.then(one_done)
    return target


def in_portions(driver: Driver, items: Sequence[T], step: Callable[[T], None]) -> Ticket[None]:
    """`step` with each item, in order; whoever is ready acts between two portions. A few items are done at once."""
    target: Ticket[None] = Ticket()

    def go_on(at: int) -> None:
        try:
            for item in items[at : at + PORTION]:
                step(item)
        except Exception as error:
            target.fail(error)
            return
        if at + PORTION < len(items):
            driver.soon(partial(go_on, at + PORTION))
        else:
            target.resolve(None)

    go_on(0)
    return target
