"""Long polls: reads that wait for something to deliver (`docs/spec/semantics.md#sec-12-3`).

Always holds: a waiter is registered with delivery before the read that may find it caught up, so an append in between
is not missed; it is answered once: by a deliverable record or a tombstone, by the deletion of its topic, at its
deadline, or not at all once its client has gone. `tick` ends those whose deadline has passed."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count

from msgspec.structs import replace

from topics.core.reading.walk import ReadRequest
from topics.core.topic import TopicLog
from topics.engine.delivery.delivery import DeliveryLoop
from topics.engine.delivery.watched import Service, Watched
from topics.engine.engine import Engine
from topics.engine.reading.reads import ReadDone
from topics.engine.ticket import Ticket, guarded
from topics.errors import TopicNotFound

DEADLINES_SPARE = 1024
"""So many deadlines of answered polls may stay in the heap before it is cleaned, beside one per waiting poll."""


class Poll:
    """One waiting read: a watcher of its topic that is served once."""

    __slots__ = ("_again", "_polls", "_reading", "deadline_ms", "number", "request", "ticket", "topic", "watched")

    def __init__(self, polls: LongPolls, topic: TopicLog, request: ReadRequest, deadline_ms: int, number: int) -> None:
        self._polls = polls
        self.number = number
        self.topic = topic
        self.request = request
        self.deadline_ms = deadline_ms
        self.ticket: Ticket[ReadDone] = Ticket()
        self.watched: Watched | None = None
        self._reading = False
        self._again = False

    def serve(self, service: Service) -> bool:
        """Something was published."""
        self.read(service)
        return False

    def read(self, service: Service | None = None) -> None:
        """Read; if something was published while a read was under way, read once more after it."""
        if self.ticket.done:
            return
        if self._reading:
            self._again = True
            return
        self._reading = True
        reads = self._polls.engine.reads
        ticket = reads.read(self.topic, self.request) if service is None else service.read(self.request)
        ticket.then(self._read_done, self.abandon)

    def _read_done(self, done: Ticket[ReadDone]) -> None:
        self._reading = False
        if self.ticket.done:
            return
        if done.error is not None:
            self._polls.forget(self)
            self.ticket.fail(done.error)
            return
        result = done.result()
        outcome = result.outcome
        waits = outcome.records == 0 and outcome.tombstone is None and outcome.caught_up
        if not waits or self._polls.now_ms() >= self.deadline_ms:
            self._polls.forget(self)
            self.ticket.resolve(result)
            return
        if self.request.tag is not None:  # what was passed over is not looked at again with every write
            self.request = replace(self.request, from_seq=outcome.next_from_seq, epoch=outcome.epoch)
        if self._again:
            self._again = False
            self.read()

    def topic_deleted(self) -> None:
        self.abandon(TopicNotFound(self.topic.name))

    def abandon(self, error: BaseException) -> None:
        self._polls.forget(self)
        self.ticket.abandon(error)

    def deferred(self, wait_ms_max: int, now_ms: float) -> None:
        """Nothing to tell: a poll is answered once, with records."""

    def resumed(self, now_ms: float) -> None: ...

    def cancel(self) -> None:
        """The client has gone: the poll ends now, so that it counts as a running request no longer."""
        self.deadline_ms = 0
        self.read()


class LongPolls:
    def __init__(self, engine: Engine, delivery: DeliveryLoop) -> None:
        self.engine = engine
        self._delivery = delivery
        self._waiting: dict[int, Poll] = {}
        self._deadlines: list[tuple[int, int]] = []  # with the numbers of their polls, some of them answered
        self._numbers = count()

    def now_ms(self) -> int:
        return self.engine.context.clock.running_ms()

    def read(self, name: str, request: ReadRequest, *, wait_ms: int, epoch: int | None = None) -> Poll:
        """Read the topic of this epoch, if one is given: one that was recreated is another topic."""
        topic = self.engine.state.topic(name)
        if epoch not in (None, topic.epoch):
            raise TopicNotFound(name)
        poll = Poll(self, topic, request, self.now_ms() + wait_ms, next(self._numbers))
        self._waiting[poll.number] = poll
        poll.watched = self._delivery.watch(topic, poll, fill_records=request.limit, fill_bytes=request.budget_bytes)
        poll.read()
        if not poll.ticket.done:
            heappush(self._deadlines, (poll.deadline_ms, poll.number))
        return poll

    def forget(self, poll: Poll) -> None:
        """It is over. Its deadline stays in the heap until enough of them are stale."""
        self._waiting.pop(poll.number, None)
        if len(self._deadlines) > DEADLINES_SPARE + 2 * len(self._waiting):
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._waiting]
            heapify(self._deadlines)
        if poll.watched is not None:
            self._delivery.unwatch(poll.watched, poll)

    def tick(self) -> None:
        """Answer the polls whose deadline has passed with what there is now."""
        now = self.now_ms()
        while self._deadlines and self._deadlines[0][0] <= now:
            poll = self._waiting.get(heappop(self._deadlines)[1])
            if poll is not None:
                guarded(poll.read, otherwise=poll.abandon)

    def finish_all(self) -> None:
        """The server drains: everyone gets an answer now."""
        for poll in list(self._waiting.values()):
            poll.deadline_ms = 0
            guarded(poll.read, otherwise=poll.abandon)

    def fail_all(self, error: Exception) -> None:
        """The engine closes: everyone who waits is told."""
        for poll in list(self._waiting.values()):
            poll.abandon(error)
