"""Long polls: reads that wait for something to deliver (semantics.md section 12.3).

Always holds: a waiter is registered before the read that may find it caught up, so an append in between is not missed;
it is answered once: by a deliverable record or a tombstone, by the deletion of its topic, at its deadline, or not at
all once its client has gone. Deadlines are looked at by `tick`."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count

from topics.core.read import ReadRequest
from topics.core.topic import TopicState
from topics.engine.engine import Engine
from topics.engine.reads import ReadDone
from topics.engine.ticket import Ticket
from topics.errors import TopicNotFound


class Poll:
    """One waiting read."""

    __slots__ = ("_again", "_polls", "_reading", "deadline_ms", "request", "ticket", "topic")

    def __init__(self, polls: LongPolls, topic: TopicState, request: ReadRequest, deadline_ms: int) -> None:
        self._polls = polls
        self.topic = topic
        self.request = request
        self.deadline_ms = deadline_ms
        self.ticket: Ticket[ReadDone] = Ticket()
        self._reading = False
        self._again = False

    def look(self) -> None:
        """Read; if something was published while a read was under way, read once more after it."""
        if self.ticket.done:
            return
        if self._reading:
            self._again = True
            return
        self._reading = True
        self._polls.engine.reads.read(self.topic, self.request).then(self._looked)

    def _looked(self, done: Ticket[ReadDone]) -> None:
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
        elif self._again:
            self._again = False
            self.look()

    def cancel(self) -> None:
        """The client has gone: nobody waits for the answer."""
        self._polls.forget(self)


class LongPolls:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._by_topic: dict[int, dict[Poll, None]] = {}
        self._deadlines: list[tuple[int, int, Poll]] = []
        self._ids = count()
        engine.context.on_published.append(self._published)
        engine.context.on_deleted.append(self._deleted)

    def now_ms(self) -> int:
        return self.engine.context.clock.now_ms()

    def read(self, name: str, request: ReadRequest, *, wait_ms: int) -> Poll:
        topic = self.engine.state.topic(name)
        poll = Poll(self, topic, request, self.now_ms() + wait_ms)
        self._by_topic.setdefault(topic.id, {})[poll] = None
        poll.look()
        if not poll.ticket.done:
            heappush(self._deadlines, (poll.deadline_ms, next(self._ids), poll))
        return poll

    def forget(self, poll: Poll) -> None:
        waiting = self._by_topic.get(poll.topic.id)
        if waiting is not None:
            waiting.pop(poll, None)
            if not waiting:
                del self._by_topic[poll.topic.id]

    def tick(self) -> None:
        """Answer the polls whose time is over with what there is now."""
        now = self.now_ms()
        while self._deadlines and self._deadlines[0][0] <= now:
            heappop(self._deadlines)[2].look()

    def finish_all(self) -> None:
        """The server drains: everyone gets an answer now."""
        for waiting in list(self._by_topic.values()):
            for poll in list(waiting):
                poll.deadline_ms = 0
                poll.look()

    def fail_all(self, error: Exception) -> None:
        """The engine closes: everyone who waits is told."""
        waiting, self._by_topic = self._by_topic, {}
        for polls in waiting.values():
            for poll in polls:
                if not poll.ticket.done:
                    poll.ticket.fail(error)

    def _published(self, topic: TopicState) -> None:
        waiting = self._by_topic.get(topic.id)
        if waiting is not None:
            for poll in list(waiting):
                poll.look()

    def _deleted(self, topic: TopicState) -> None:
        for poll in list(self._by_topic.pop(topic.id, ())):
            if not poll.ticket.done:
                poll.ticket.fail(TopicNotFound(topic.name))
