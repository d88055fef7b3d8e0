"""AnswerStream: an answer of unknown length, as the application sees it (`net.messages.StreamSink`), in every protocol.

The protocol's output does the framing, keeps the order and buffers (`StreamOutput`). The stream has what is the same
everywhere: its part of the budget, the callback when the peer has caught up, and its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from topics.net.messages import AllowanceOwner, Line
from topics.net.transport_limits import WRITE_LOW_BYTES
from topics.server.connections.budget import ResponseBudget, StreamBudget
from topics.server.connections.callbacks import CloseCallbacks

E = TypeVar("E", contravariant=True)  # the exchange whose answer it is


class StreamOutput(Protocol[E]):
    """The sending half of a connection, to its streams."""

    def send_chunk(self, exchange: E, data: bytes) -> None: ...

    def buffered_bytes(self, exchange: E) -> int:
        """Of this answer, accepted here and not taken by the kernel yet."""

    def line(self, exchange: E) -> Line | None: ...

    def end_stream(self, exchange: E) -> None: ...

    def abort_stream(self, exchange: E) -> None:
        """Cut the peer off; ends with `AnswerStream.over`."""


class AnswerStream(Generic[E]):
    __slots__ = (
        "_above_low",
        "_budget",
        "_callbacks",
        "_drained",
        "_exchange",
        "_low_bytes",
        "_output",
        "_total",
        "closed",
    )

    def __init__(self, exchange: E, output: StreamOutput[E], total: ResponseBudget) -> None:
        self._exchange = exchange
        self._output = output
        self._total = total
        self._budget: StreamBudget | None = None
        self._callbacks = CloseCallbacks()
        self._drained: Callable[[], None] | None = None
        self._low_bytes = WRITE_LOW_BYTES
        self._above_low = False  # more than the low mark was waiting
        self.closed = False

    # --- StreamSink ---------------------------------------------------------------------------------------------------

    def allowance(self, owner: AllowanceOwner) -> StreamBudget:
        self._budget = StreamBudget(self._total, owner, self.buffered_bytes)
        return self._budget

    def send(self, chunk: bytes) -> None:
        if chunk and not self.closed:
            self._output.send_chunk(self._exchange, chunk)
            if self._drained is not None:
                self._above_low = self.buffered_bytes() > self._low_bytes

    def line(self) -> Line | None:
        return None if self.closed else self._output.line(self._exchange)

    def buffered_bytes(self) -> int:
        return 0 if self.closed else self._output.buffered_bytes(self._exchange)

    def set_drain_callback(self, callback: Callable[[], None], *, low_bytes: int = WRITE_LOW_BYTES) -> None:
        self._drained = callback
        self._low_bytes = low_bytes
        self._above_low = self.buffered_bytes() > low_bytes

    def on_close(self, callback: Callable[[], None]) -> None:
        self._callbacks.add(callback)

    def end(self) -> None:
        if not self.closed:
            self._output.end_stream(self._exchange)
            self.over()

    def abort(self) -> None:
        if not self.closed:
            self._output.abort_stream(self._exchange)

    # --- the connection's side ----------------------------------------------------------------------------------------

    def taken(self) -> None:
        """The peer has taken some of what was buffered."""
        if self._above_low and self._drained is not None and self.buffered_bytes() <= self._low_bytes:
            self._above_low = False
            self._drained()

    def over(self) -> None:
        if not self.closed:
            self.closed = True
            self._drained = None
            if self._budget is not None:
                self._budget.close()
            self._callbacks.fire()
