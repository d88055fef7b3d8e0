"""Forks: a child that was forked has copies of its parent's clients, and must share neither connections nor keys.

Two processes that read from one connection get each other's answers; two that write under the same idempotency keys
lose each other's records. So whatever holds one is told when it finds itself in a child."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class ForkListener(Protocol):
    def forked(self) -> None:
        """This is a child now. Its only thread is the one that forked: locks may be held for ever."""

    def __hash__(self) -> int: ...


_told: WeakSet[ForkListener] = WeakSet()

tell_of_forks = _told.add


def _tell_all() -> None:
    for holder in _told:
        holder.forked()


os.register_at_fork(after_in_child=_tell_all)
