"""Close callbacks: registered any number of times, called once, never lost."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger("topics.server")

Callback = Callable[[], None]


class CloseCallbacks:
    """Called in order of registration when `fire` is; what is registered later is called at once."""

    __slots__ = ("_callbacks", "fired")

    def __init__(self) -> None:
        self._callbacks: list[Callback] = []
        self.fired = False

    def add(self, callback: Callback) -> None:
        if self.fired:
            guarded(callback)
        else:
            self._callbacks.append(callback)

    def fire(self) -> None:
        self.fired = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            guarded(callback)


def guarded(callback: Callback) -> None:
    """Call the application; its mistake must not take the connection's own housekeeping with it."""
    try:
        callback()
    except Exception:
        log.exception("a callback of the application failed")
