"""BroadcastGroup: level streams of one topic that are sent the same bytes, in one go.

A stream whose client has taken everything there is, and that asked for the same as others, sits down among them: one
read, one frame and one chunk serve them all, and what remains per stream is a write.
Always holds: everyone seated stands at `at`, and nothing waits for a client but what was sent since the last look, no
more than a transport is given ahead of its client anyway. Whoever turns out to be slow, and everybody when there is
more to say than plain records up to the head, gets up and is served alone, so bounds, lagging and gaps stay the
business of the single stream. Joined by `WatchStream`, served by `Watched` like any other watcher."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

from topics.api.live.batches import NextBatch, Options, RenderedBatch
from topics.api.live.outbound import Monitored
from topics.api.live.sessions import SessionCursor
from topics.api.live.sse_frames import frames_of
from topics.api.live.subscription import Subscription
from topics.engine.delivery.watched import Service, Watched
from topics.engine.ticket import Ticket
from topics.net.messages import Line
from topics.wire.outgoing import sse
from topics.wire.outgoing import sse as framing

log = logging.getLogger("topics.delivery")


class Listener(Protocol):
    """A seated stream."""

    def left(self, *, sent_bytes: int, sent_ms: float) -> None:
        """It is served alone again; while it sat it was sent so much, for the last time then."""


class _Member(NamedTuple):
    waiting: Callable[[], int]
    listener: Listener
    sent_bytes: int  # of the audience, when the stream sat down


def sit_down(
    feed: Subscription,
    line: Line,
    place: SessionCursor,
    listener: Listener,
    *,
    batches: NextBatch,
    look_after: Callable[[Monitored], None],
    bytes_max: int,
) -> None:
    """Let a feed at rest join those who stand where it does, if they do, or be the first of them."""
    watched = feed.watched
    assert watched is not None, "a feed at rest is attached"
    audience: BroadcastGroup | None = watched.audiences.get((feed.options, line.framed))
    if audience is None:
        audience = BroadcastGroup(
            watched,
            feed.options,
            line.framed,
            at=feed.at,
            batches=batches,
            look_after=look_after,
            bytes_max=bytes_max,
        )
    if audience.at == feed.at:
        audience.sit(feed, line, place, listener)


class BroadcastGroup:
    __slots__ = (
        "_batches",
        "_bytes_max",
        "_framed",
        "_is_looked_after",
        "_lines",
        "_look_after",
        "_looked_bytes",
        "_seats",
        "_sent_bytes",
        "_watched",
        "at",
        "epoch",
        "is_first_read",
        "name",
        "options",
        "sent_ms",
    )

    def __init__(
        self,
        watched: Watched,
        options: Options,
        framed: Callable[[bytes], bytes],
        *,
        at: int,
        batches: NextBatch,
        look_after: Callable[[Monitored], None],
        bytes_max: int,
    ) -> None:
        self._watched = watched
        self._framed = framed
        self._batches = batches
        self._look_after = look_after
        self._is_looked_after = False
        self._bytes_max = bytes_max
        self._seats: dict[Subscription, _Member] = {}
        self._lines: dict[Subscription, tuple[Callable[[bytes], object], SessionCursor]] = {}  # all a push has to touch
        self._sent_bytes = 0
        self._looked_bytes = 0  # sent when all clients were last seen to have taken everything
        self.name = watched.topic.name
        self.options = options
        self.at = at
        self.epoch = watched.topic.epoch
        self.is_first_read = False
        self.sent_ms = 0.0  # when something was last sent
        watched.watchers[self] = None
        watched.audiences[options, framed] = self

    def __len__(self) -> int:
        return len(self._seats)

    # --- coming and going -------------------------------------------------------------------------------------------

    def sit(self, feed: Subscription, line: Line, place: SessionCursor, listener: Listener) -> None:
        self._seats[feed] = _Member(line.waiting, listener, self._sent_bytes)
        self._lines[feed] = line.write, place
        self._watched.watchers.pop(feed, None)
        feed.audience = self

    def leave(self, feed: Subscription) -> None:
        """From here on the feed is a watcher by itself, standing where everyone here stands."""
        seat = self._seats.pop(feed)
        del self._lines[feed]
        feed.audience, feed.at = None, self.at
        watched = self._watched
        watched.watchers[feed] = None
        if not self._seats:
            watched.watchers.pop(self, None)
            watched.audiences.pop((self.options, self._framed), None)
        seat.listener.left(sent_bytes=self._sent_bytes - seat.sent_bytes, sent_ms=self.sent_ms)

    def topic_deleted(self) -> None:
        for feed in list(self._seats):
            self.leave(feed)
            feed.topic_deleted()

    def abandon(self, error: BaseException) -> None:
        for feed in list(self._seats):
            self.leave(feed)
            feed.abandon(error)

    def deferred(self, wait_ms_max: int, now_ms: float) -> None:
        """Nobody here has anything left to take, so everybody is told."""
        self._tell(sse.DEFERRED, sse.deferred_data(self.name, max_wait_ms=wait_ms_max), now_ms, is_deferred=True)

    def resumed(self, now_ms: float) -> None:
        if any(feed.is_told_deferred for feed in self._seats):
            self._tell(sse.RESUMED, sse.resumed_data(self.name), now_ms, is_deferred=False)

    def _tell(self, event: bytes, data: bytes, now_ms: float, *, is_deferred: bool) -> None:
        for feed in self._seats:
            feed.is_told_deferred = is_deferred
        self._send(framing.frame(None, event, data), self.at, now_ms)

    # --- being served -----------------------------------------------------------------------------------------------

    def serve(self, service: Service) -> bool:
        if service.topic.head == self.at:
            return False
        batch = self._batches.shared(service, self, self.options.bounds.budget_bytes)
        data = self._plain_data(batch)
        if data is None:
            self._serve_alone(list(self._seats), service)
        else:
            if self._sent_bytes - self._looked_bytes + len(data) > self._bytes_max:
                self._serve_alone(self._late(), service)
            self._send(data, service.topic.head, service.now_ms)
        return False

    def _plain_data(self, batch: RenderedBatch | Ticket[RenderedBatch]) -> bytes | None:
        """Records up to the head and the news that this is all; None if there is something else to say, or to do."""
        if not isinstance(batch, RenderedBatch) or not batch.records or batch.outcome.tombstone is not None:
            return None
        if not batch.outcome.caught_up or batch.is_large:
            return None
        data = frames_of(batch, self).alone(True)
        return data if len(data) < self._bytes_max else None

    def _send(self, data: bytes, at: int, now_ms: float) -> None:
        framed, broken = self._framed(data), []
        for line in self._lines.values():
            write, place = line
            try:
                write(framed)
                place.cursor = at
            except Exception:
                log.exception("writing to a stream of topic %s failed", self.name)
                broken.append(line)
        if broken:
            for feed in [feed for feed, line in self._lines.items() if line in broken]:
                self.leave(feed)
        self.at, self.sent_ms = at, now_ms
        self._sent_bytes += len(data)
        if not self._is_looked_after:
            self._is_looked_after = True
            self._look_after(self)

    def _late(self) -> list[Subscription]:
        """Whose client has not taken what it was sent."""
        self._looked_bytes = self._sent_bytes
        return [feed for feed, seat in self._seats.items() if seat.waiting()]

    def _serve_alone(self, feeds: list[Subscription], service: Service) -> None:
        for feed in feeds:
            self.leave(feed)
        for feed in feeds:
            if feed.serve(service):
                self._watched.behind[feed] = None

    # --- time -------------------------------------------------------------------------------------------------------

    def look(self, now_ms: float) -> bool:
        """A moment after something was sent: whoever has not taken it is looked after alone."""
        self._is_looked_after = False
        for feed in self._late():
            self.leave(feed)
        return False
