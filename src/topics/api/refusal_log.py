"""RefusalLog: a line for each request that was refused for its key (`docs/spec/http-api.md#sec-8-9`).

Names the key, never its secret, and leaves the query out, which may hold one. Whoever tries secrets by the thousand
does not fill the log: beyond `LINES_MAX` in a window, refusals are only counted."""

from __future__ import annotations

import logging
from collections.abc import Callable

from topics.errors import Forbidden, TopicsError, Unauthorized
from topics.net.messages import Request
from topics.wire.access.auth import presented
from topics.wire.access.keys import KeyRing
from topics.wire.incoming.request_head import Target

log = logging.getLogger("topics.access")

LINES_MAX = 20
WINDOW_S = 10.0
PATH_MAX = 200


class RefusalLog:
    def __init__(self, keys: KeyRing | None, *, monotonic: Callable[[], float]) -> None:
        self._keys = keys
        self._monotonic = monotonic
        self._window_ends_s = 0.0
        self._lines = 0
        self._left_out = 0

    def refused(self, request: Request, target: Target, error: BaseException) -> None:
        """Anything but a refusal for the key is passed over."""
        if self._keys is None or not isinstance(error, Unauthorized | Forbidden) or not self._may_write():
            return
        assert isinstance(error, TopicsError)
        name = self._keys.name_of(presented(target, request.header(b"authorization"), request.query).secret)
        path = request.raw_path[:PATH_MAX].decode("ascii", "backslashreplace")
        log.warning(
            "refused %d: key %s, from %s, %s %s: %s", error.status, name, request.peer, request.method, path, error
        )

    def _may_write(self) -> bool:
        now_s = self._monotonic()
        if now_s >= self._window_ends_s:
            if self._left_out:
                log.warning("%d more requests were refused for their key", self._left_out)
            self._window_ends_s, self._lines, self._left_out = now_s + WINDOW_S, 0, 0
        self._lines += 1
        self._left_out += self._lines > LINES_MAX
        return self._lines <= LINES_MAX
