"""Gather: one ticket for many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from topics.engine.ticket import Ticket, resolved


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
