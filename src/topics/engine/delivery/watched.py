"""Watched: a topic that somebody watches, as the scheduler sees it, and the service it gets.

Always holds: a watcher is registered before the read that may find it caught up, so no publication is missed; a topic
without watchers has no `Watched` and costs its writers one lookup. A watcher that has caught up is not served again
before the next publication.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sized
from typing import Protocol

from topics.core.reading.walk import ReadRequest
from topics.core.topic import TopicLog
from topics.engine.delivery.pressure import CoalesceBackoff
from topics.engine.delivery.ready import Entry
from topics.engine.reading.reads import ReadDone, Reads
from topics.engine.ticket import Ticket, guarded

log = logging.getLogger("topics.delivery")


class Watcher(Protocol):
    """A stream's or socket's interest in one topic, or a waiting long poll."""

    def serve(self, service: Service) -> bool:
        """Take one batch if possible. True: there is more to come, and it could be taken."""

    def topic_deleted(self) -> None:
        """The topic is gone; nothing follows."""

    def abandon(self, error: BaseException) -> None:
        """Serving it failed, by a mistake of ours."""

    def deferred(self, wait_ms_max: int, now_ms: float) -> None:
        """What is to be pushed waits, because the server is under pressure."""

    def resumed(self, now_ms: float) -> None:
        """It no longer waits: a service follows."""


class Watched(Entry):
    """`behind` are the watchers to serve although nothing was published. `bodies`, a cache of rendered records, and
    `groups`, watchers that stand for many, belong to the API: they live as long as the topic is watched."""

    __slots__ = (
        "behind",
        "bodies",
        "coalesce_backoff",
        "deleted",
        "fill_bytes",
        "fill_records",
        "groups",
        "has_published",
        "held_bytes",
        "held_records",
        "is_deferred",
        "router",
        "seen_seq",
        "strong",
        "topic",
        "watchers",
    )

    def __init__(self, topic: TopicLog) -> None:
        super().__init__()
        self.topic = topic
        self.watchers: dict[Watcher, None] = {}
        self.behind: dict[Watcher, None] = {}
        self.has_published = False  # since the last service
        self.deleted = False
        self.is_deferred = False  # and its watchers were told
        self.strong = 0  # watchers that see only what is synced
        self.seen_seq = topic.head  # of the last publication that was marked
        self.held_records = self.held_bytes = 0  # that came while a push is held
        self.fill_records = self.fill_bytes = sys.maxsize  # a held push ends when either is reached
        self.coalesce_backoff = CoalesceBackoff()
        self.bodies: object | None = None
        self.groups: dict[tuple[object, ...], Sized] = {}
        self.router: DeferredRouters | None = None

    def serve(self, reads: Reads, now_ms: float) -> bool:
        """One batch for each watcher that is behind and can take one. True: something is left to do."""
        if self.deleted:
            return self._end_watchers()
        if self.is_deferred:
            self.is_deferred = False
            for watcher in list(self.watchers):
                guarded(watcher.resumed, now_ms)
        if self.has_published:
            targets, self.has_published = list(self.watchers), False
        else:
            targets = list(self.behind)
        self.behind.clear()
        service = Service(self, reads, now_ms)
        behind, watchers = self.behind, self.watchers
        for watcher in targets:
            try:
                if watcher in watchers and watcher.serve(service):
                    behind[watcher] = None
            except Exception as error:  # of one watcher; the others are served
                log.exception("a watcher of topic %r could not be served", self.topic.name)
                guarded(watcher.abandon, error)
        return bool(behind)

    def defer(self, wait_ms_max: int, now_ms: float) -> None:
        if not self.is_deferred:
            self.is_deferred = True
            for watcher in list(self.watchers):
                guarded(watcher.deferred, wait_ms_max, now_ms)

    def _end_watchers(self) -> bool:
        watchers, self.watchers = self.watchers, {}
        self.behind.clear()
        for watcher in watchers:
            guarded(watcher.topic_deleted)
        return False

    def add(self, watcher: Watcher, *, fill_records: int, fill_bytes: int) -> None:
        if not self.watchers:
            self.fill_records = self.fill_bytes = sys.maxsize
        self.fill_records = min(self.fill_records, fill_records)
        self.fill_bytes = min(self.fill_bytes, fill_bytes)
        self.watchers[watcher] = None

    @property
    def is_shared(self) -> bool:
        """Does more than one stream or socket watch it?"""
        return len(self.watchers) > 1 or any(map(_is_plural, self.groups.values()))

    @property
    def is_idle(self) -> bool:
        return not self.watchers and (self.router is None or self.router.routing is None)


def _is_plural(group: Sized) -> bool:
    return len(group) > 1


class DeferredRouters(Entry):
    """The routers of a topic as an entry of their own, while pressure defers them; `routing` lets them step."""

    __slots__ = ("routing", "watched")

    def __init__(self, watched: Watched) -> None:
        super().__init__()
        self.watched = watched
        self.routing: Callable[[], None] | None = None


class Service:
    """One service of a topic: what its watchers share. Equal reads are read once, and `shared` has what was rendered of
    them."""

    __slots__ = ("_reads", "_tickets", "now_ms", "shared", "topic", "watched")

    def __init__(self, watched: Watched, reads: Reads, now_ms: float) -> None:
        self.watched = watched
        self.topic = watched.topic
        self.now_ms = now_ms
        self.shared: dict[tuple[object, ...], object] = {}
        self._tickets: dict[ReadRequest, Ticket[ReadDone]] = {}
        self._reads = reads

    def read(self, request: ReadRequest) -> Ticket[ReadDone]:
        ticket = self._tickets.get(request)
        if ticket is None:
            ticket = self._tickets[request] = self._reads.read(self.topic, request)
        return ticket
