"""BroadcastGroup: streams of one topic that have caught up and are sent the same bytes, in one go.

A stream joins when its client has taken everything there is, and when others asked for the same as it did: then one
read, one frame and one chunk serve them all, and what remains per stream is a write.
Always holds: every member stands at `at`, and what its client has not taken was sent since the last check, no more than
a transport is given ahead of its client anyway. A member that turns out to be slow leaves and is served alone. So do
all of them when there is more to say than plain records up to the head. So bounds, lagging and gaps are handled in the
single stream only. Joined by `WatchStream`, served by `Watched` like any other watcher."""

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
from topics.wire.outgoing.live_json import deferred_json, resumed_json

log = logging.getLogger("topics.delivery")


class GroupMember(Protocol):
    """A stream, as its group sees it."""

    def left(self, *, sent_bytes: int, sent_ms: float) -> None:
        """It is served alone again; as a member it was sent so many bytes, the last of them then."""


class _Member(NamedTuple):
    waiting: Callable[[], int]
    listener: GroupMember
    sent_bytes: int  # by the group, when the stream joined


def join_group(
    subscription: Subscription,
    line: Line,
    place: SessionCursor,
    listener: GroupMember,
    *,
    batches: NextBatch,
    monitor: Callable[[Monitored], None],
    bytes_max: int,
) -> None:
    """Let a subscription that has caught up join the group of those who asked for the same, or found it. It does not
    join a group that stands elsewhere."""
    watched = subscription.watched
    assert watched is not None, "a subscription that has caught up is attached"
    group = watched.groups.get((subscription.options, line.framed))
    if group is None:
        group = BroadcastGroup(
            watched,
            subscription.options,
            line.framed,
            at=subscription.at,
            batches=batches,
            monitor=monitor,
            bytes_max=bytes_max,
        )
    assert isinstance(group, BroadcastGroup)
    if group.at == subscription.at:
        group.join(subscription, line, place, listener)


class BroadcastGroup:
    __slots__ = (
        "_batches",
        "_bytes_max",
        "_checked_bytes",
        "_framed",
        "_is_monitored",
        "_lines",
        "_members",
        "_monitor",
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
        monitor: Callable[[Monitored], None],
        bytes_max: int,
    ) -> None:
        self._watched = watched
        self._framed = framed
        self._batches = batches
        self._monitor = monitor
        self._is_monitored = False
        self._bytes_max = bytes_max
        self._members: dict[Subscription, _Member] = {}
        self._lines: dict[Subscription, tuple[Callable[[bytes], object], SessionCursor]] = {}  # all a push has to touch
        self._sent_bytes = 0
        self._checked_bytes = 0  # sent when all clients were last seen to have taken everything
        self.name = watched.topic.name
        self.options = options
        self.at = at
        self.epoch = watched.topic.epoch
        self.is_first_read = False
        self.sent_ms = 0.0  # when something was last sent
        watched.watchers[self] = None
        watched.groups[options, framed] = self

    def __len__(self) -> int:
        return len(self._members)

    # --- coming and going -------------------------------------------------------------------------------------------

    def join(self, subscription: Subscription, line: Line, place: SessionCursor, listener: GroupMember) -> None:
        self._members[subscription] = _Member(line.waiting, listener, self._sent_bytes)
        self._lines[subscription] = line.write, place
        self._watched.watchers.pop(subscription, None)
        subscription.group = self

    def leave(self, subscription: Subscription) -> None:
        """From here on the subscription is a watcher by itself, at the position of the group."""
        member = self._members.pop(subscription)
        del self._lines[subscription]
        subscription.group, subscription.at = None, self.at
        watched = self._watched
        watched.watchers[subscription] = None
        if not self._members:
            watched.watchers.pop(self, None)
            watched.groups.pop((self.options, self._framed), None)
        member.listener.left(sent_bytes=self._sent_bytes - member.sent_bytes, sent_ms=self.sent_ms)

    def topic_deleted(self) -> None:
        for subscription in list(self._members):
            self.leave(subscription)
            subscription.topic_deleted()

    def abandon(self, error: BaseException) -> None:
        for subscription in list(self._members):
            self.leave(subscription)
            subscription.abandon(error)

    def deferred(self, wait_ms_max: int, now_ms: float) -> None:
        """Nobody here has anything left to take, so everybody is told."""
        self._tell(sse.DEFERRED, deferred_json(self.name, max_wait_ms=wait_ms_max), now_ms, is_deferred=True)

    def resumed(self, now_ms: float) -> None:
        if any(subscription.is_told_deferred for subscription in self._members):
            self._tell(sse.RESUMED, resumed_json(self.name), now_ms, is_deferred=False)

    def _tell(self, event: bytes, data: bytes, now_ms: float, *, is_deferred: bool) -> None:
        for subscription in self._members:
            subscription.is_told_deferred = is_deferred
        self._send(framing.frame(None, event, data), self.at, now_ms)

    # --- being served -----------------------------------------------------------------------------------------------

    def serve(self, service: Service) -> bool:
        if service.topic.head == self.at:
            return False
        batch = self._batches.shared(service, self, self.options.bounds.budget_bytes)
        data = self._plain_data(batch)
        if data is None:
            self._serve_alone(list(self._members), service)
        else:
            if self._sent_bytes - self._checked_bytes + len(data) > self._bytes_max:
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
            for subscription in [subscription for subscription, line in self._lines.items() if line in broken]:
                self.leave(subscription)
        self.at, self.sent_ms = at, now_ms
        self._sent_bytes += len(data)
        if not self._is_monitored:
            self._is_monitored = True
            self._monitor(self)

    def _late(self) -> list[Subscription]:
        """Members whose client has not taken what it was sent."""
        self._checked_bytes = self._sent_bytes
        return [subscription for subscription, member in self._members.items() if member.waiting()]

    def _serve_alone(self, subscriptions: list[Subscription], service: Service) -> None:
        for subscription in subscriptions:
            self.leave(subscription)
        for subscription in subscriptions:
            if subscription.serve(service):
                self._watched.behind[subscription] = None

    # --- time -------------------------------------------------------------------------------------------------------

    def check(self, now_ms: float) -> bool:
        """A moment after something was sent: a member that has not taken it leaves, and is monitored alone."""
        self._is_monitored = False
        for subscription in self._late():
            self.leave(subscription)
        return False
