"""Calls into the application, whose mistakes must not take the connection's own housekeeping with them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from topics.errors import Internal, TopicsError
from topics.net.messages import Response, error_response

log = logging.getLogger("topics.server")

Callback = Callable[[], None]


def guarded(callback: Callback) -> None:
    """Call the application, and log what it raises."""
    try:
        callback()
    except Exception:
        log.exception("a callback of the application failed")


def failure_response(error: Exception) -> Response:
    """The answer to a request that the application failed on. A refusal that was raised is told as it is; a bug is
    logged, and the client is told nothing but that there was one."""
    if isinstance(error, TopicsError):
        return error_response(error)
    log.error("a request failed", exc_info=error)
    return error_response(Internal())


class CloseCallbacks:
    """Called once, in order of registration, when `fire` is; what is registered later is called at once."""

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
