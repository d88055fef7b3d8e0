"""Creating writes: a first write that brings its topic into being.

Creation and records form one submission: a crash keeps both or neither. The name is held meanwhile, so a second first
write waits and then finds the topic there; its inline config has no effect."""

from __future__ import annotations

from functools import partial

import msgspec

from topics.core.append import Reservation, decide_append
from topics.core.apply import apply
from topics.core.topic import TopicState
from topics.engine.context import Context
from topics.engine.encode import submission
from topics.engine.lifecycle import Lifecycle
from topics.engine.ticket import Ticket
from topics.engine.writes import Writes
from topics.model.appended import Appended
from topics.model.config import TopicConfig
from topics.model.ops import RESIDENT, Append, Op, TopicCreate
from topics.model.record import WriteBatch
from topics.model.submission import Submission


class CreatingWrites:
    def __init__(self, context: Context, lifecycle: Lifecycle, writes: Writes) -> None:
        self._ctx = context
        self._lifecycle = lifecycle
        self._writes = writes

    def append(self, name: str, batch: WriteBatch, config: TopicConfig) -> Ticket[Appended]:
        return self._lifecycle.exclusively([name], lambda: self._append(name, batch, config))

    def _append(self, name: str, batch: WriteBatch, config: TopicConfig) -> Ticket[Appended]:
        ctx = self._ctx
        known = ctx.state.topics.get(name)
        if known is not None:
            return self._writes.append(known, batch)
        create = self._lifecycle.create_op(name, config)
        fresh = provisional(create)
        reservation = decide_append(fresh, batch, ctx.clock.now_ms())
        assert isinstance(reservation, Reservation), "a topic that does not exist knows no keys"
        self._writes.check_quota(batch.total_bytes)
        controls: list[Op] = [create]
        if not config.is_fsync:
            mark = ctx.ceilings.raise_over(fresh, reservation.last_seq, reservation.ts)
            assert mark is not None, "a new topic has no ceiling yet"
            controls.append(mark)
        return self._commit(controls, fresh, self._writes.encode(fresh, batch, reservation, durable=True), batch)

    def _commit(self, controls: list[Op], fresh: TopicState, op: Append, batch: WriteBatch) -> Ticket[Appended]:
        ctx = self._ctx
        ephemeral = fresh.config.is_ephemeral
        sub = submission(
            controls,
            None if ephemeral else op,
            topic_id=fresh.id,
            ts=op.ts[0],
            durable=True,
            client_frames=1 if ephemeral else 1 + batch.count,
        )
        ctx.creating += 1
        ctx.state.staged_bytes += batch.total_bytes
        try:
            ticket: Ticket[Appended] = ctx.commit.submit(
                ctx.group_of(fresh.id), sub, finish=partial(self._finish, controls, op)
            )
        except BaseException:
            self._over(fresh.id, batch.total_bytes)
            raise
        ticket.then(lambda _: self._over(fresh.id, batch.total_bytes))
        return ticket

    def _over(self, topic_id: int, size: int) -> None:
        self._ctx.creating -= 1
        self._ctx.state.staged_bytes -= size
        if topic_id not in self._ctx.state.by_id:
            self._ctx.ceilings.forget(topic_id)

    def _finish(self, controls: list[Op], op: Append, sub: Submission) -> Appended:
        for control in controls:
            apply(self._ctx.state, control)
        topic = self._ctx.state.by_id[op.topic_id]
        self._ctx.ceilings.settle(topic)
        if topic.config.is_ephemeral:
            op.file = RESIDENT
        else:
            op.file = sub.file
            op.base += sub.offset
        return msgspec.structs.replace(self._writes.publish(topic, op, sub), created=True)


def provisional(create: TopicCreate) -> TopicState:
    """The topic as it will be; decisions are made on it, and it is dropped when the real one is applied."""
    return TopicState(
        topic_id=create.topic_id,
        name=create.name,
        epoch=create.epoch,
        config=create.config,
        created_ts=create.created_ts,
    )
