"""Streams: all open streams and sockets: how many there may be, what time asks of them, and their last words.

Always holds: a place is taken before a stream opens and given back exactly once, whatever ends it; one tick monitors
all of them, there is no timer per stream. `cap` 0 means no cap; a client is a key, or a network where there are no
keys."""

from __future__ import annotations

from collections.abc import Callable, Collection
from heapq import heappop, heappush
from math import ceil
from typing import Protocol

from topics.api.live.outbound import Monitored
from topics.api.live.subscription import Subscription
from topics.errors import Throttled
from topics.wire.access.keys import ClientId

BEAT_SLOT_MS = 50.0
"""Silence is looked at once per tick, so streams due in one tick share a slot."""
RETRY_READ_MS = 1000.0
"""A subscription whose read failed tries again after this long."""
FAREWELL_MS = 2000.0
"""When the server stops, a client that is behind has so long to take what it was sent; the last words follow."""


class Stream(Protocol):
    """An open stream or socket."""

    def shut_down(self) -> None:
        """Say the last words and end, as soon as the client has taken what it was sent before."""

    def cut_off(self) -> None:
        """It has had its time."""


class HeartbeatStream(Stream, Protocol):
    """A stream that must not be silent for too long."""

    def beat(self, now_ms: float) -> float:
        """Say something if it is time to; returns when to ask again."""


class Streams:
    def __init__(self, *, cap: int, cap_per_key: int, cap_per_address: int = 0, now_ms: Callable[[], float]) -> None:
        self._cap = cap
        self._cap_per_key = cap_per_key
        self._cap_per_address = cap_per_address
        self.now_ms = now_ms
        self._open: dict[Stream, ClientId] = {}
        self._by_client: dict[bytes | str, int] = {}
        self._monitored: list[Monitored] = []
        self._beats: dict[int, dict[HeartbeatStream, None]] = {}  # by the tick they are due at
        self._beat_of: dict[Stream, int] = {}
        self._retries: list[tuple[float, int, Subscription]] = []
        self._order = 0
        self._cut_ms: float | None = None  # the server drains: whoever is still there then is cut off
        self.shed_total = 0
        self.too_slow_total = 0

    def __len__(self) -> int:
        return len(self._open)

    # --- places ---------------------------------------------------------------------------------------------------

    def check_cap(self, client: ClientId) -> None:
        """May the holder open one more? Asked right before `enter`, in one step with it."""
        if self._cap and len(self._open) >= self._cap:
            raise Throttled.cap("max_sse_connections", max=self._cap)
        if client is None:
            return
        is_key = isinstance(client, bytes)
        cap = self._cap_per_key if is_key else self._cap_per_address
        if cap and self._by_client.get(client, 0) >= cap:
            raise Throttled.cap("max_sse_connections_per_" + ("key" if is_key else "client"), max=cap)

    def enter(self, stream: Stream, client: ClientId) -> None:
        self._open[stream] = client
        if client is not None:
            self._by_client[client] = self._by_client.get(client, 0) + 1

    def leave(self, stream: Stream) -> None:
        client = self._open.pop(stream)
        self._forget_beat(stream)
        if client is not None:
            left = self._by_client[client] - 1
            if left:
                self._by_client[client] = left
            else:
                del self._by_client[client]

    # --- time -----------------------------------------------------------------------------------------------------

    def monitor(self, one: Monitored) -> None:
        self._monitored.append(one)

    def beat_at(self, at_ms: float, stream: HeartbeatStream) -> None:
        """Ask an open stream then; it is asked no more once it has left."""
        slot = ceil(at_ms / BEAT_SLOT_MS)
        self._beats.setdefault(slot, {})[stream] = None
        self._beat_of[stream] = slot

    def _forget_beat(self, stream: Stream) -> None:
        slot = self._beat_of.pop(stream, None)
        if slot is not None:
            due = self._beats[slot]
            del due[stream]  # type: ignore[arg-type]  # what beats is a stream
            if not due:
                del self._beats[slot]

    def retry(self, subscription: Subscription) -> None:
        self._order += 1
        heappush(self._retries, (self.now_ms() + RETRY_READ_MS, self._order, subscription))

    def tick(self) -> None:
        now = self.now_ms()
        is_monitored, self._monitored = self._monitored, []
        self._monitored.extend([one for one in is_monitored if one.check(now)])
        while self._retries and self._retries[0][0] <= now:
            heappop(self._retries)[2].wake()
        for slot in [slot for slot in self._beats if slot * BEAT_SLOT_MS <= now]:
            for stream in list(self._beats.get(slot, ())):
                self._forget_beat(stream)
                self.beat_at(stream.beat(now), stream)
        if self._cut_ms is not None and now >= self._cut_ms:
            for left in list(self._open):
                left.cut_off()

    def cut_off_clients(self, clients: Collection[ClientId]) -> None:
        """Their keys have ended."""
        for stream in [stream for stream, client in self._open.items() if client in clients]:
            stream.cut_off()

    def shut_down(self) -> None:
        """The server drains: everyone says goodbye."""
        self._cut_ms = self.now_ms() + FAREWELL_MS
        for stream in list(self._open):
            stream.shut_down()
