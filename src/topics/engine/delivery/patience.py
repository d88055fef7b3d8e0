"""Patience: whether holding a topic's next push is worth the wait (stage 1 of the ladder, delivery.md section 8).

A hold makes one larger frame out of what comes meanwhile. Where nothing comes, because whoever writes waits for the
delivery first, it only makes everyone slower; and the contract says "up to". Always holds: a hold that gathered nothing
is followed by pushes at once, twice as many each time, and one that gathered something by the next hold."""

from __future__ import annotations

PUSHES_AT_ONCE_MAX = 64
"""Before the next try: when a topic grows busy, so many frames at most are smaller than they could be."""


class Patience:
    __slots__ = ("_at_once", "_gathered", "_left", "_tried")

    def __init__(self) -> None:
        self._tried = False  # the last push was held
        self._gathered = False  # and something came meanwhile
        self._at_once = 0  # pushes after a hold in vain
        self._left = 0  # of them

    def may_hold(self) -> bool:
        """A push could begin to wait now."""
        if self._tried:
            self._tried = False
            self._at_once = 0 if self._gathered else min(self._at_once * 2 or 1, PUSHES_AT_ONCE_MAX)
            self._left = self._at_once
        if self._left:
            self._left -= 1
            return False
        self._tried = True
        self._gathered = False
        return True

    def gather(self) -> None:
        """Something was published while a push waits."""
        self._gathered = True
