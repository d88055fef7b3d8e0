"""Lease ids: a counter per queue that never hands out an id twice, also across restarts (semantics.md section 16.4).

Where leases are logged, the log itself has every id. Elsewhere a block of ids is reserved by a synced mark before any
of it is handed out, as seqs are: after a crash the counter goes on above the block. A clean stop keeps it exact."""

from __future__ import annotations

from functools import partial

from topics.core.apply import apply
from topics.core.topic import TopicState
from topics.engine.context import Context
from topics.engine.encode import submission
from topics.engine.ticket import Ticket
from topics.model.ops import HeadMark
from topics.model.submission import Submission

BLOCK = 16_384  # ids; a busy queue reserves the next block about once a second, in the background


class LeaseIds:
    def __init__(self, context: Context) -> None:
        self._ctx = context
        self._raising: dict[int, Ticket[None]] = {}

    def wait(self, topic: TopicState, count: int) -> Ticket[None] | None:
        """What has to happen before so many ids may be handed out; None if nothing. Reserves ahead of need."""
        if topic.config.keeps_leases:
            return None
        assert topic.queue is not None
        left = topic.queue.lease_ceiling - topic.queue.next_lease_id + 1
        if left >= count + BLOCK // 2:
            return None
        ticket = self._raise(topic, count)
        return ticket if left < count else None

    def _raise(self, topic: TopicState, count: int) -> Ticket[None]:
        pending = self._raising.get(topic.id)
        if pending is not None:
            return pending
        ctx = self._ctx
        assert topic.queue is not None
        ceiling = max(topic.queue.next_lease_id, topic.queue.lease_ceiling) + count + BLOCK
        mark = HeadMark(topic_id=topic.id, ceiling=topic.ceiling, lease_ceiling=ceiling)
        sub = submission([mark], None, topic_id=topic.id, ts=ctx.clock.now_ms(), durable=True, client_frames=0)
        ticket: Ticket[None] = ctx.commit.submit(
            ctx.group_of(topic.id), sub, finish=partial(self._reserved, mark), barrier=False, internal=True
        )
        self._raising[topic.id] = ticket
        ticket.then(lambda _: self._over(topic.id))
        return ticket

    def _reserved(self, mark: HeadMark, _: Submission) -> None:
        apply(self._ctx.state, mark)

    def _over(self, topic_id: int) -> None:
        self._raising.pop(topic_id, None)
