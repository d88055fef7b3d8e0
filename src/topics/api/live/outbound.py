"""Outbound: what one connection holds for its client, bounded, and what becomes of a client that does not take it.

    live      room in the buffer
    lagged    at its bound: nothing more is read or rendered for the connection, its cursors stand still
    shed      lagged for 5000 ms: what was not handed to the transport is dropped, cursors go back to what was
    closed    30,000 ms without the client taking a byte

Always holds: any progress of the client makes the connection live again and starts both clocks anew; nobody ever waits
for a connection (`docs/spec/delivery.md#sec-12`); everything held here is counted in the budget of all connections, and
is made only if that grants it. `Outbound` is for streams, which keep frames back until the transport has room;
`Messages` is for sockets, whose few messages go to the transport at once. Watched over by `Streams.tick`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from topics import limits
from topics.net.messages import Sink, StreamSink, WsSink

T = TypeVar("T")

HAND_OVER_BYTES = 64 * limits.KIB
"""The transport is given no more than this at a time, so that what a stuck client never takes can be dropped."""


class SlowConsumerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one connection."""

    frames_max: int = limits.SSE_BUFFER_FRAMES
    bytes_max: int = limits.SSE_BUFFER_BYTES
    messages_max: int = limits.WS_BUFFER_MESSAGES
    hand_over_bytes: int = HAND_OVER_BYTES
    grace_ms: float = limits.BUFFER_GRACE_MS
    slow_timeout_ms: float = limits.SLOW_TIMEOUT_MS


class OutboundOwner(Protocol[T]):
    """The connection, as its buffer sees it."""

    def handed_over(self, mark: T) -> None:
        """Held frames of this mark were handed to the transport."""

    def dropped(self, marks: list[T]) -> None:
        """The frames of these marks never will be."""

    def has_budget_again(self) -> None: ...

    def all_taken(self) -> None:
        """The client has taken everything it was sent, a moment ago."""

    def too_slow(self) -> None:
        """The client took nothing for too long."""


class HeldFrames(NamedTuple, Generic[T]):
    data: bytes
    frames: int
    mark: T
    keep: bool  # not to be dropped


class Monitored(Protocol):
    def check(self, now_ms: float) -> bool:
        """Called at every tick while there is something to take. False: there is nothing any more."""


class ClientProgress(Monitored):
    """Is the client taking anything, and may more be made for it? Counts bytes; knows no frames."""

    __slots__ = (
        "_allowance",
        "_making_bytes",
        "_progress_ms",
        "_sent_bytes",
        "_sink",
        "_slow_limits",
        "_taken_bytes",
        "is_monitored",
        "is_shed",
        "lagged_ms",
    )

    def __init__(self, sink: Sink, slow_limits: SlowConsumerLimits) -> None:
        self._sink = sink
        self._slow_limits = slow_limits
        self._allowance = sink.allowance(self)
        self._making_bytes = 0
        self._sent_bytes = 0
        self._taken_bytes = 0  # of what was sent, as of the last look
        self._progress_ms = 0.0  # when the client last took something, or began to have something to take
        self.lagged_ms: float | None = None  # since when the buffer is at its bound
        self.is_shed = False
        self.is_monitored = False  # in the list of connections with something to take

    # --- the budget of all connections ----------------------------------------------------------------------------

    def sent_bytes(self) -> int:
        return self._sent_bytes

    def queued_bytes(self) -> int:
        return 0

    def making_bytes(self) -> int:
        return self._making_bytes

    def making(self, change_bytes: int) -> None:
        """Something is being rendered for the client, or no longer is."""
        self._making_bytes += change_bytes
        self._allowance.measure()

    def has_budget_again(self) -> None:
        raise NotImplementedError

    def too_slow(self) -> None:
        raise NotImplementedError

    # --- time -----------------------------------------------------------------------------------------------------

    def _made_progress(self, now_ms: float) -> bool:
        taken = self._sent_bytes - self._sink.buffered_bytes()
        progress, self._taken_bytes = taken > self._taken_bytes, taken
        if progress:
            self._progress_ms = now_ms
        return progress

    def _is_too_slow(self, now_ms: float) -> bool:
        return now_ms - self._progress_ms >= self._slow_limits.slow_timeout_ms

    def _is_overdue(self, now_ms: float) -> bool:
        """Lagged, and given enough time."""
        if self.lagged_ms is None:
            return False
        return now_ms - max(self.lagged_ms, self._progress_ms) >= self._slow_limits.grace_ms

    def _begin_monitoring(self, now_ms: float, monitor: Callable[[Monitored], None]) -> None:
        if not self.is_monitored:
            self.is_monitored = True
            self._progress_ms = now_ms
            self._taken_bytes = self._sent_bytes - self._sink.buffered_bytes()
            monitor(self)


class Outbound(ClientProgress, Generic[T]):
    """Of a stream. A mark says whose frames these are; the owner is told when they are handed over."""

    __slots__ = ("_bytes", "_frames", "_monitor", "_owner", "_queue", "_stream")

    def __init__(
        self,
        owner: OutboundOwner[T],
        sink: StreamSink,
        slow_limits: SlowConsumerLimits,
        monitor: Callable[[Monitored], None],
    ) -> None:
        super().__init__(sink, slow_limits)
        self._owner = owner
        self._stream = sink
        self._monitor = monitor
        self._queue: deque[HeldFrames[T]] | None = None  # frames the transport has no room for
        self._frames = 0
        self._bytes = 0
        sink.set_drain_callback(self._drained, low_bytes=slow_limits.hand_over_bytes // 2)

    # --- room -----------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        return self.lagged_ms is None and not self.is_shed

    def grant(self, wanted_bytes: int, *, least_bytes: int = 0) -> int:
        """How much may be made for the client now; after 0 the owner is told when there is room again."""
        return self._allowance.grant(wanted_bytes, least_bytes=least_bytes) if self.has_room else 0

    def has_budget_again(self) -> None:
        if self.has_room:
            self._owner.has_budget_again()

    def too_slow(self) -> None:
        self._owner.too_slow()

    @property
    def is_quiet(self) -> bool:
        """Nothing is held and nothing is monitored, so all was taken when something was last sent."""
        return self._queue is None and not self.is_monitored and not self.is_shed and self.lagged_ms is None

    @property
    def is_empty(self) -> bool:
        """Everything was handed to the transport."""
        return self._queue is None

    def queued_bytes(self) -> int:
        return self._bytes

    def held_bytes(self) -> int:
        """All that is held for the client, in this process."""
        return self._bytes + self._sink.buffered_bytes()

    def _is_at_bound(self) -> bool:
        slow_limits = self._slow_limits
        return self._frames >= slow_limits.frames_max or self.held_bytes() >= slow_limits.bytes_max

    # --- in -------------------------------------------------------------------------------------------------------

    def offer(self, data: bytes, mark: T, now_ms: float, *, frames: int = 1, keep: bool = False) -> bool:
        """Hand frames to the transport and say True, or hold them until it has room; then the owner is told."""
        stream = self._stream
        if self._queue is None and stream.buffered_bytes() < self._slow_limits.hand_over_bytes:
            self._sent_bytes += len(data)
            stream.send(data)
            buffered = stream.buffered_bytes()
            if buffered:
                self._allowance.measure()
                self._begin_monitoring(now_ms, self._monitor)
                if buffered >= self._slow_limits.bytes_max:
                    self.lagged_ms = now_ms
            return True
        self._hold(HeldFrames(data, frames, mark, keep), now_ms)
        return False

    def sent_elsewhere(self, sent_bytes: int, now_ms: float) -> None:
        """Somebody else has used the transport, until then."""
        self._sent_bytes += sent_bytes
        if self._stream.buffered_bytes():
            self._stream.set_drain_callback(self._drained, low_bytes=self._slow_limits.hand_over_bytes // 2)
            self._allowance.measure()
            self._begin_monitoring(now_ms, self._monitor)

    def _hold(self, held: HeldFrames[T], now_ms: float) -> None:
        if self._queue is None:
            self._queue = deque()
        self._queue.append(held)
        self._frames += held.frames
        self._bytes += len(held.data)
        self._allowance.measure()
        self._begin_monitoring(now_ms, self._monitor)
        if self.lagged_ms is None and self._is_at_bound():
            self.lagged_ms = now_ms

    # --- out ------------------------------------------------------------------------------------------------------

    def _drained(self) -> None:
        self._hand_over()

    def _hand_over(self) -> None:
        """The transport has room again."""
        queue, stream = self._queue, self._stream
        was_full = not self.has_room
        self.is_shed = False
        while queue and stream.buffered_bytes() < self._slow_limits.hand_over_bytes and not stream.closed:
            held = queue.popleft()
            if not queue:
                self._queue = None  # before the owner is told: it may want to end now
            self._frames -= held.frames
            self._bytes -= len(held.data)
            self._sent_bytes += len(held.data)
            stream.send(held.data)
            self._owner.handed_over(held.mark)
        self._allowance.measure()
        if self.lagged_ms is not None and not self._is_at_bound():
            self.lagged_ms = None
        if was_full and self.has_room:
            self._owner.has_budget_again()

    # --- time -----------------------------------------------------------------------------------------------------

    def check(self, now_ms: float) -> bool:
        if self._stream.closed:
            return False
        if self._made_progress(now_ms):
            self._hand_over()
            if self.lagged_ms is not None:
                self.lagged_ms = now_ms
        if self._queue is None and not self._sink.buffered_bytes() and not self.is_shed:
            self.is_monitored = False
            self._allowance.measure()
            self._owner.all_taken()
            return False
        if self._is_too_slow(now_ms):
            self._owner.too_slow()
            return False
        if self._is_overdue(now_ms):
            self._shed()
        return True

    def _shed(self) -> None:
        queue = self._queue or deque()
        self._queue = deque(held for held in queue if held.keep)
        dropped = [held.mark for held in queue if not held.keep]
        self._frames = sum(held.frames for held in self._queue)
        self._bytes = sum(len(held.data) for held in self._queue)
        self._queue = self._queue or None
        self.lagged_ms = None
        self.is_shed = True
        self._allowance.measure()
        self._owner.dropped(dropped)

    def clear(self) -> None:
        """Nothing held is wanted any more."""
        self._queue = None
        self._frames = self._bytes = 0
        self._allowance.measure()

    def end_if_empty(self) -> None:
        """End the stream, if everything was handed to the transport."""
        if self.is_empty:
            self._stream.end()

    def end_if_taken(self) -> None:
        """End the stream, if everything has left the transport, too. Not before: what is ended cannot be cut off any
        more, and a stuck client would keep a stopping server up."""
        if self.is_empty and not self._stream.buffered_bytes():
            self._stream.end()

    def give_up(self, last_words: bytes) -> None:
        """End now, with last words if they fit behind what the transport still has; else the client is cut off."""
        self.clear()
        if self._stream.buffered_bytes() < self._slow_limits.hand_over_bytes:
            self._stream.send(last_words)
            self._stream.end()
        else:
            self._stream.abort()


class Messages(ClientProgress):
    """Of a socket: how many messages its client has not taken."""

    __slots__ = ("_ends", "_monitor", "_owner", "_reserved", "_socket")

    def __init__(
        self,
        owner: OutboundOwner[None],
        sink: WsSink,
        slow_limits: SlowConsumerLimits,
        monitor: Callable[[Monitored], None],
    ) -> None:
        super().__init__(sink, slow_limits)
        self._owner = owner
        self._socket = sink
        self._monitor = monitor
        self._ends: deque[int] = deque()  # of messages sent and not taken, in bytes sent
        self._reserved = 0
        sink.set_drain_callback(self._drained, low_bytes=0)

    def places(self) -> int:
        """How many messages may be sent now; those promised to replies are taken."""
        ends = self._ends
        if ends:
            buffered = self._sink.buffered_bytes()
            taken = self._sent_bytes - buffered
            while ends and (ends[0] <= taken or not buffered):
                ends.popleft()
        return self._slow_limits.messages_max - len(ends) - self._reserved

    def grant(self, wanted_bytes: int, *, least_bytes: int = 0) -> int:
        """As `Outbound.grant`."""
        return self._allowance.grant(wanted_bytes, least_bytes=least_bytes) if self.places() > 0 else 0

    def has_budget_again(self) -> None:
        self._owner.has_budget_again()

    def too_slow(self) -> None:
        self._owner.too_slow()

    def reserve(self) -> None:
        """Promise a place to a reply that is to come."""
        self._reserved += 1

    def send_reserved(self, payload: bytes, now_ms: float) -> None:
        self._reserved -= 1
        self.send(payload, now_ms)

    def send(self, payload: bytes, now_ms: float) -> None:
        socket = self._socket
        self._sent_bytes += len(payload)
        socket.send_text(payload)
        if socket.buffered_bytes():
            self._ends.append(self._sent_bytes)
            self._allowance.measure()
            self._begin_monitoring(now_ms, self._monitor)

    def _drained(self) -> None:
        self._ends.clear()
        self._allowance.measure()
        self._owner.has_budget_again()

    def check(self, now_ms: float) -> bool:
        if self._socket.closed:
            return False
        if self._made_progress(now_ms):
            self._allowance.measure()
            if self.places() > 0:
                self._owner.has_budget_again()
        if not self._sink.buffered_bytes():
            self.is_monitored = False
            self._allowance.measure()
            return False
        if self._is_too_slow(now_ms):
            self._owner.too_slow()
            return False
        return True
