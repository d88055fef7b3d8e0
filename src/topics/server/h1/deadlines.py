"""H1Deadlines: how long an HTTP/1 connection waits for its peer, and how much of an unfinished body it holds meanwhile.

A head has a time to come in, a body a rate, an idle connection an end. The wheel asks every few seconds; nothing here
has a timer of its own. Part of `H1Connection`, which reads, between it and `H1Output`, which sends."""

from __future__ import annotations

from topics.errors import InvalidRequest, Throttled, TopicsError
from topics.limits import IDLE_CONNECTION_MS
from topics.net.transport_limits import BODY_BYTES_PER_S_MIN, BODY_GRACE_S, DRAIN_S, HEAD_TIMEOUT_S
from topics.server.h1.output import DEAF, GONE, READING, SKIPPING, WAITING, H1Output
from topics.server.hub import Hub
from topics.server.peer import NEVER_S

LOOK_S = 10.0  # between two looks at a connection that has no deadline of its own


class H1Deadlines(H1Output):
    __slots__ = ("_accounted_bytes",)

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self._accounted_bytes = 0  # of the unfinished body, in the hub's budget

    # --- what has come in part ----------------------------------------------------------------------------------------

    def _note_partial_head(self) -> None:
        if not self._partial:
            self._partial = True
            self._since_s = self.hub.wheel.now_s
            self.hub.wheel.arm(self, self._since_s + HEAD_TIMEOUT_S)

    def _note_partial_body(self) -> None:
        if not self._accounted_bytes:
            self._since_s = self.hub.wheel.now_s
            self.hub.wheel.arm(self, self._since_s + LOOK_S)
        if not self._account(max(1, self._reader.held_bytes())):
            raise Throttled("too many unfinished request bodies are being held")

    def _account(self, held_bytes: int) -> bool:
        change, self._accounted_bytes = held_bytes - self._accounted_bytes, held_bytes
        return self.hub.account_body(change)

    # --- when the wheel asks ------------------------------------------------------------------------------------------

    def on_timer(self, now_s: float) -> float:
        if self._mode == GONE:
            return NEVER_S
        if self._mode != WAITING and self.write_stalled(now_s):
            self.cut()
            return NEVER_S
        due_s = self._due_s(now_s)
        if due_s > now_s:
            return min(due_s, now_s + LOOK_S)
        self._expire()
        return now_s + LOOK_S

    def _due_s(self, now_s: float) -> float:
        if self._current is not None:
            return self._since_s + BODY_GRACE_S + self._reader.held_bytes() / BODY_BYTES_PER_S_MIN
        if self._exchanges or self._mode == WAITING or self.transport.get_write_buffer_size():
            self._since_s = max(self._since_s, now_s)
            return now_s + LOOK_S
        if self._mode == DEAF:
            return self._since_s + self._linger_s
        if self._mode == SKIPPING:
            return self._since_s + DRAIN_S
        return self._since_s + (HEAD_TIMEOUT_S if self._partial else IDLE_CONNECTION_MS / 1000)

    def _expire(self) -> None:
        if self._current is not None:
            self._fail(InvalidRequest("the request body came too slowly"))
        elif self._mode == READING and self._partial:
            self._fail(InvalidRequest("the request head came too slowly"))
        elif self._mode == READING:
            self.transport.close()
        else:
            self.cut()

    # --- the reading half's part --------------------------------------------------------------------------------------

    def _fail(self, error: TopicsError) -> None:
        raise NotImplementedError
