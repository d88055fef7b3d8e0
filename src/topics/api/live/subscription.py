"""Subscription: the interest of one connection in one topic: where it stands, and what it does when it is served.

Always holds: batches of one subscription are pushed one after the other, in seq order; one that waits for files or for
a thread is skipped by services and goes on by itself (`CatchUp`) until it reaches what is in memory; after `close`
nothing is pushed for it. Served by `DeliveryLoop` through `Watched`; pushes into its channel, a stream or a socket."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Protocol

from topics.api.live.batches import NextBatch, Options, RenderedBatch
from topics.api.live.history_throttle import CatchUp
from topics.core.topic import TopicLog
from topics.engine.delivery.delivery import DeliveryLoop
from topics.engine.delivery.watched import Service, Watched
from topics.engine.ticket import Ticket
from topics.errors import TopicNotFound

if TYPE_CHECKING:
    from topics.api.live.broadcast import BroadcastGroup

log = logging.getLogger("topics.delivery")


class Channel(Protocol):
    """A connection that subscriptions push into."""

    def has_room(self, subscription: Subscription) -> bool:
        """Does the connection hold less than it may? If not, the channel wakes the subscription when that changes."""

    def grant(self, subscription: Subscription, wanted_bytes: int, *, least_bytes: int = 0) -> int:
        """How much may be read and rendered for this subscription now, of its connection's bound and of the budget of
        all. If that is less than `least_bytes` it is 0, and the channel wakes the subscription when that changes."""

    def making(self, change_bytes: int) -> None:
        """So much is read ahead or being rendered for one of its subscriptions, or no longer is."""

    def frames_key(self, subscription: Subscription) -> object:
        """Subscriptions that take one batch and have equal keys are sent the same frames."""

    def build(self, subscription: Subscription, batch: RenderedBatch) -> object:
        """Build the frames of a large batch, for `push` to find; called on a thread while the subscription waits."""

    def push(self, subscription: Subscription, batch: RenderedBatch, now_ms: float) -> None:
        """Send what the batch says, and move the subscription."""

    def topic_gone(self, subscription: Subscription) -> None: ...

    def topic_deferred(self, subscription: Subscription, wait_ms_max: int) -> bool:
        """Whether the client was told that records wait; not if it has enough to take already."""

    def topic_resumed(self, subscription: Subscription) -> None: ...

    def read_failed(self, subscription: Subscription, error: BaseException) -> None:
        """The subscription stands still; the channel wakes it after a while."""


class Subscription:
    __slots__ = (
        "_batches",
        "_busy",
        "_catch_up",
        "_delivery",
        "_making_bytes",
        "at",
        "channel",
        "closed",
        "epoch",
        "group",
        "has_failed",
        "is_caught_up",
        "is_first_read",
        "is_told_deferred",
        "name",
        "number",
        "options",
        "queued",
        "watched",
    )

    def __init__(self, channel: Channel, name: str, options: Options, *, at: int, epoch: int, number: int = 0) -> None:
        self.channel = channel
        self.name = name
        self.options = options
        self.at = at  # everything up to it was pushed or passed over
        self.epoch = epoch  # the life of the topic that `at` belongs to
        self.number = number  # its place in the connection
        self.is_caught_up = False  # the client was told that it has seen everything
        self.is_first_read = True
        self.has_failed = False  # its last read failed, and the client knows
        self.is_told_deferred = False  # and not yet that it is over
        self.queued = 0  # pushes that the channel has not handed to its transport
        self.closed = False
        self.group: BroadcastGroup | None = None  # it is served with others, and `at` is theirs
        self._busy = False
        self._making_bytes = 0  # rendered for it by a thread, and read ahead
        self._catch_up: CatchUp | None = None  # while it reads what is not in memory
        self.watched: Watched | None = None

    # --- beginning and end ----------------------------------------------------------------------------------------

    def attach(self, delivery: DeliveryLoop, batches: NextBatch, topic: TopicLog, *, now_ms: int) -> None:
        """Register first, then ask to be served: what is published in between is not missed."""
        self._delivery = delivery
        self._batches = batches
        bounds = self.options.bounds
        topic.touch(now_ms, read=False)
        self.watched = delivery.watch(
            topic, self, fill_records=bounds.limit, fill_bytes=bounds.budget_bytes, strong=bounds.strong
        )
        self.wake()

    def close(self) -> None:
        if not self.closed:
            if self.group is not None:
                self.group.leave(self)
            self.closed = True
            if not self._busy:
                self._let_go()
            if self.watched is not None:
                self._delivery.unwatch(self.watched, self, strong=self.options.bounds.strong)

    def topic_deleted(self) -> None:
        if not self.closed:
            self.close()
            self.channel.topic_gone(self)

    def deferred(self, wait_ms_max: int, now_ms: float) -> None:
        if not self.closed:
            self.is_told_deferred = self.channel.topic_deferred(self, wait_ms_max)

    def resumed(self, now_ms: float) -> None:
        if self.is_told_deferred and not self.closed:
            self.is_told_deferred = False
            self.channel.topic_resumed(self)

    @property
    def is_at_rest(self) -> bool:
        """Caught up, with nothing under way, and asking for what is visible to all."""
        watched, options = self.watched, self.options
        if watched is None or watched.deleted or self.closed or self._busy or self.queued or self.group is not None:
            return False
        if not self.is_caught_up or options.nodes is not None or options.bounds.strong or options.bounds.tag:
            return False
        return self.at == watched.topic.head and self.epoch == watched.topic.epoch

    # --- being served ---------------------------------------------------------------------------------------------

    def _is_behind(self, topic: TopicLog) -> bool:
        """Is there something to read, or to say? Not for a member of a group, which is served with the others: `at` is
        the group's then, and a read from here would send what the group has sent."""
        if self.group is not None:
            return False
        if self.epoch != topic.epoch:
            return True
        head = topic.head
        if self.options.bounds.strong:
            head = self._delivery.synced.limit(topic)
            if head < self.at <= topic.head:
                return False  # it began at a head that is not synced yet
        return self.at != head or not self.is_caught_up

    def wake(self) -> None:
        """The channel has room again, or it is time to try again."""
        watched = self.watched
        if watched is None or self._busy or self.closed or watched.deleted:
            return
        if self._is_behind(watched.topic):
            self._delivery.wake(watched, self)

    def serve(self, service: Service) -> bool:
        topic = service.topic
        if self._busy or not self._is_behind(topic):
            return False
        granted_bytes = self.channel.grant(self, self.options.bounds.budget_bytes)
        if not granted_bytes:
            return False
        if self._catch_up is not None:
            self._read_on(granted_bytes)
            return False
        batch = self._batches.shared(service, self, granted_bytes)
        if not self._take(batch, service.now_ms, granted_bytes):
            return False
        return self._is_behind(topic) and self.channel.has_room(self)

    def _take(self, batch: RenderedBatch | Ticket[RenderedBatch], now_ms: float, granted_bytes: int) -> bool:
        """Push a batch, or wait for it. True if it was pushed. One that is too large for what is granted is let go: the
        cursor stands still, and it is read again when there is room."""
        if not isinstance(batch, RenderedBatch):
            self._begin_to_wait()
            if not self._is_in_cold_history():  # a cold store may hang, and would keep the room from everybody
                self._count(granted_bytes)
            batch.then(self._arrived, self.abandon)
            return False
        if granted_bytes < self.options.bounds.budget_bytes and not self._has_room_for(batch):
            return False
        key = self.channel.frames_key(self) if batch.is_large else None
        if not batch.is_built(key):
            self._begin_to_wait()
            self._count(batch.outcome.size_bytes)
            build = partial(self.channel.build, self, batch)
            built = batch.build_elsewhere(key, self.options.view, build, self._batches.off_loop)
            built.then(partial(self._rendered, batch), self.abandon)
            return False
        self.channel.push(self, batch, now_ms)
        return True

    def _is_in_cold_history(self) -> bool:
        assert self.watched is not None
        block = self.watched.topic.sealed.find(self.at + 1)
        return block is not None and block.view.tier == "cold"

    def _has_room_for(self, batch: RenderedBatch) -> bool:
        size_bytes = batch.outcome.size_bytes if batch.records else 0
        return bool(self.channel.grant(self, max(size_bytes, 1), least_bytes=size_bytes))

    # --- going on alone -------------------------------------------------------------------------------------------

    def _begin_to_wait(self) -> None:
        """For files, or for a thread: services pass it over."""
        assert self.watched is not None
        self._busy = True
        if self._catch_up is None:
            self._catch_up = CatchUp(self._batches.throttle, self.watched.topic.head)
        self._catch_up.begin()

    def _waited(self) -> bool:
        """Is there still somebody to go on for?"""
        self._busy = False
        self._count(0)
        return not self.closed

    def _count(self, rendered_bytes: int) -> None:
        """What is held for it besides its frames counts in the budget of all connections."""
        ahead_bytes = 0 if self._catch_up is None or self.closed else self._catch_up.ahead.size_bytes
        change_bytes = rendered_bytes + ahead_bytes - self._making_bytes
        if change_bytes:
            self._making_bytes += change_bytes
            self.channel.making(change_bytes)

    def _let_go(self) -> None:
        """It may not push now: what was read ahead is dropped, and read again when it may."""
        if self._catch_up is not None:
            self._catch_up.ahead.let_go()
            self._count(0)

    def _arrived(self, done: Ticket[RenderedBatch]) -> None:
        if self._waited():
            if done.error is not None:
                self._failed(done.error)
            else:
                self._push_and_go_on(done.result(), granted_bytes=0)

    def _rendered(self, batch: RenderedBatch, done: Ticket[None]) -> None:
        if self._waited():
            if done.error is not None:
                self._failed(done.error)
            else:
                self._push_and_go_on(batch, granted_bytes=self.options.bounds.budget_bytes)

    def _push_and_go_on(self, batch: RenderedBatch, *, granted_bytes: int) -> None:
        """Push a batch that has come, or was read ahead; then pause, and read on."""
        before = self.at
        if not self.channel.has_room(self) or not self._take(batch, self._delivery.now_ms(), granted_bytes):
            if not self._busy:
                self._let_go()
            return
        self._busy = True
        self._batches.throttle.after(self._delay_ms(read=self.at - before), self._delay_over)

    def _delay_ms(self, *, read: int) -> float:
        assert self.watched is not None
        topic, catch_up = self.watched.topic, self._catch_up
        return 0.0 if catch_up is None or not self._is_behind(topic) else catch_up.delay_ms(head=topic.head, read=read)

    def _delay_over(self) -> None:
        if self._waited():
            self._read_on(self.channel.grant(self, self.options.bounds.budget_bytes))

    def _read_on(self, granted_bytes: int) -> None:
        """The next batch while it catches up; services take over again once a read ends in memory."""
        watched, catch_up = self.watched, self._catch_up
        assert watched is not None
        assert catch_up is not None
        if watched.deleted or not self._is_behind(watched.topic):
            self._catch_up = None
            self._count(0)
        elif not granted_bytes:
            self._let_go()
        else:
            catch_up.begin()
            following = self._batches.alone(watched, self, granted_bytes, catch_up.ahead)
            if isinstance(following, RenderedBatch) and following.is_old:
                self._push_and_go_on(following, granted_bytes=granted_bytes)
            elif self._take(following, self._delivery.now_ms(), granted_bytes):
                self._catch_up = None
                self._count(0)
                self.wake()

    def abandon(self, error: BaseException) -> None:
        """A mistake of ours; the channel tries again after a while."""
        self._busy = False
        self._catch_up = None
        self._count(0)
        if not self.closed:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, TopicNotFound):
            return  # it was deleted while we waited: the news of that is on its way
        log.warning("reading topic %s for a stream failed: %s", self.name, error)
        self.channel.read_failed(self, error)
