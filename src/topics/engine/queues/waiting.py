"""Waiting: claims that found nothing and wait for a job, and what wakes them and the work streams
(`docs/spec/semantics.md#sec-16-14`).

    QueueWaker     which queues have news, and the one time at which each has to be looked at again
    WaitingClaims  those who wait, in order of arrival

Nobody polls: a queue is looked at when something about it changed, or when its next lease, delay or bucket is due.
Always holds: whoever waits is answered by its deadline; a claim that goes back to waiting keeps its place."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from topics.core.queue.operations import queue_of
from topics.core.topic import TopicLog
from topics.engine.queues.claim_pass import Claimed, Claimer
from topics.errors import TopicNotFound, TopicsError

if TYPE_CHECKING:
    from topics.engine.queues.queues import Queues


class QueueWaker:
    """`serve` is called at the end of a turn with each queue that has news; `wanted` says whether anybody cares."""

    def __init__(self, queues: Queues, *, wanted: Callable[[int], bool], serve: Callable[[TopicLog], None]) -> None:
        self._ctx = queues.context
        self._wanted = wanted
        self._serve = serve
        self.dirty: dict[int, TopicLog] = {}
        """Queues that have news in this turn."""
        self._due: dict[int, int] = {}
        self._ctx.on_removed.append(lambda topic, _: self.mark_dirty(topic))
        self._ctx.on_config.append(lambda topic, _: self.mark_dirty(topic))
        self._ctx.on_deleted.append(self._deleted)

    def mark_dirty(self, topic: TopicLog) -> None:
        """Something about this queue changed."""
        if topic.queue is not None and topic.id not in self.dirty and self._wanted(topic.id):
            self.dirty[topic.id] = topic
            self._ctx.commit.wake()

    def plan(self, topic: TopicLog) -> None:
        """Look at the queue again when something of it is due."""
        now = self._ctx.clock.now_ms()
        due = queue_of(topic).next_chance(now)
        if due is None:
            self._due.pop(topic.id, None)
            return
        due = max(due, now + 1)
        if self._due.get(topic.id) != due:
            self._due[topic.id] = due
            self._ctx.wake_at(due)

    def turn(self) -> None:
        """The end of a turn: serve those who wait at queues with news."""
        dirty, self.dirty = self.dirty, {}
        for topic in dirty.values():
            self._look_at(topic)

    def tick(self, now: int) -> None:
        for topic_id in [topic_id for topic_id, due in self._due.items() if due <= now]:
            del self._due[topic_id]
            topic = self._ctx.state.by_id.get(topic_id)
            if topic is not None:
                self._look_at(topic)

    def _look_at(self, topic: TopicLog) -> None:
        if not self._wanted(topic.id) or not self._ctx.exists(topic):
            self._due.pop(topic.id, None)
            return
        queue_of(topic).expire(self._ctx.clock.now_ms())
        self._serve(topic)
        self.plan(topic)

    def _deleted(self, topic: TopicLog) -> None:
        self._due.pop(topic.id, None)
        self.dirty.pop(topic.id, None)


class WaitingClaims:
    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._ctx = queues.context
        self._by_topic: dict[int, dict[int, Claimer]] = {}
        self._numbers = count(1)
        self._deadlines: list[tuple[int, int, int]] = []  # heap: by the running clock, topic id, number
        self._is_closed = False
        self._ctx.on_published.append((self._by_topic, queues.waker.mark_dirty))
        self._ctx.on_deleted.append(self._deleted)

    def __contains__(self, topic_id: int) -> bool:
        return topic_id in self._by_topic

    def wait(self, topic: TopicLog, claimer: Claimer) -> bool:
        """A claim that was given nothing; False if it does not wait, or no longer."""
        clock = self._ctx.clock
        now = clock.running_ms()
        if claimer.waits_until <= now or not claimer.max or self._is_closed:
            return False
        if not claimer.number:
            claimer.number = next(self._numbers)
            heappush(self._deadlines, (claimer.waits_until, topic.id, claimer.number))
            self._ctx.wake_at(clock.now_ms() + claimer.waits_until - now)
        self._by_topic.setdefault(topic.id, {})[claimer.number] = claimer
        self._queues.waker.plan(topic)
        return True

    def serve(self, topic: TopicLog) -> None:
        """As many of those who wait as there are jobs, in order of arrival."""
        waiting = self._by_topic.get(topic.id)
        queue = queue_of(topic)
        if not waiting or not queue.claimable(topic.count):
            return
        numbers = sorted(waiting)[: max(queue.ready(topic.count), 1)]
        claimers = [self._take(topic.id, number) for number in numbers]
        self._queues.join(topic, [claimer for claimer in claimers if claimer is not None])

    def tick(self) -> None:
        """Answer those whose time is over."""
        now = self._ctx.clock.running_ms()
        while self._deadlines and self._deadlines[0][0] <= now:
            _, topic_id, number = heappop(self._deadlines)
            claimer = self._take(topic_id, number)
            topic = self._ctx.state.by_id.get(topic_id)
            if claimer is not None and topic is not None:
                claimer.ticket.resolve(Claimed(topic.name, [], queue_of(topic).ready(topic.count)))

    def leave(self, claimer: Claimer) -> None:
        """Its caller has gone."""
        claimer.leave()
        for topic_id in [topic_id for topic_id, waiting in self._by_topic.items() if claimer.number in waiting]:
            if self._by_topic[topic_id][claimer.number] is claimer:
                self._take(topic_id, claimer.number)

    def nodes(self, topic_id: int) -> list[str]:
        """Who waits, once for each claim."""
        return [claimer.node for claimer in self._by_topic.get(topic_id, {}).values()]

    def finish_all(self) -> None:
        """The server drains: everyone gets an answer now, and nobody waits any more."""
        self._is_closed = True
        for topic_id in list(self._by_topic):
            topic = self._ctx.state.by_id[topic_id]
            for claimer in self._by_topic.pop(topic_id).values():
                claimer.ticket.resolve(Claimed(topic.name, [], queue_of(topic).ready(topic.count)))

    def fail_all(self, error: Exception) -> None:
        """The engine closes: everyone who waits is told."""
        self._is_closed = True
        for topic_id in list(self._by_topic):
            for claimer in self._by_topic.pop(topic_id).values():
                claimer.ticket.abandon(error)

    def _take(self, topic_id: int, number: int) -> Claimer | None:
        waiting = self._by_topic.get(topic_id, {})
        claimer = waiting.pop(number, None)
        if not waiting:
            self._by_topic.pop(topic_id, None)
        return claimer

    def _deleted(self, topic: TopicLog) -> None:
        error: TopicsError = TopicNotFound(topic.name)
        for claimer in self._by_topic.pop(topic.id, {}).values():
            claimer.ticket.fail(error)
