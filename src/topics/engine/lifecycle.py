"""Lifecycle: creating, reconfiguring and deleting topics, each holding its name until it is applied.

Always holds: of concurrent creates of one name exactly one creates; a lifecycle change is synced before it is visible,
and a failed one leaves everything as it was. A write that creates its topic (`CreatingWrites`) carries the TopicCreate
in front of its records, in one submission, so that a crash keeps both or neither. It holds the name meanwhile, so a
second first write waits and then finds the topic there; its inline config has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec

from topics.core.append import Reservation, decide_append
from topics.core.apply import apply
from topics.core.create_drop import decide_create, decide_delete_topic, decide_put
from topics.core.queue.entering import Entering, check_times, decide_entering, jobs_op
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.floor_log import FloorLog
from topics.engine.routers.checkpoints import RouterCheckpoints
from topics.engine.routers.forwarding import Forwarding
from topics.engine.ticket import Ticket, chain, either_way, failed, forward, guarded, resolved
from topics.engine.writing.encode import encode_append, submission
from topics.engine.writing.job_controls import entered_jobs
from topics.engine.writing.writes import Writes
from topics.errors import NotAQueue, Throttled
from topics.formats.file_names import shard_of
from topics.model.config import TopicConfig, config_beside
from topics.model.ops import RESIDENT, Append, Op, TopicCreate, TopicDelete
from topics.model.record import WriteBatch
from topics.model.results import Appended, PutTopicResult
from topics.model.router import RouterDef
from topics.model.submission import Submission

T = TypeVar("T")


class Dropped(NamedTuple):
    deleted: bool
    routers_removed: list[RouterDef]


class Lifecycle:
    def __init__(
        self, context: Context, floor_log: FloorLog, forwarding: Forwarding, router_checkpoints: RouterCheckpoints
    ) -> None:
        self._ctx = context
        self._floor_log = floor_log
        self._forwarding = forwarding
        self._router_checkpoints = router_checkpoints

    # --- holding names --------------------------------------------------------------------------------------------

    def exclusively(self, names: list[str], command: Callable[[], Ticket[T]]) -> Ticket[T]:
        """Run `command` when nobody holds the names, and hold them until its ticket is done."""
        name_locks = self._ctx.name_locks
        held = name_locks.first_held(names)
        if held is not None:
            target: Ticket[T] = Ticket()
            name_locks.wait(held, lambda: forward(self.exclusively(names, command), target))
            return target
        name_locks.hold(names)
        try:
            ticket = command()
        except Exception as error:
            ticket = failed(error)
        ticket.then(lambda _: name_locks.release(names))
        return ticket

    def when_free(self, name: str, command: Callable[[], Ticket[T]]) -> Ticket[T]:
        """Run `command` now, or once nobody holds the name."""
        if name not in self._ctx.name_locks.held:
            return command()
        target: Ticket[T] = Ticket()

        def resume() -> None:
            try:
                following = self.when_free(name, command)
            except Exception as error:
                target.fail(error)
            else:
                forward(following, target)

        self._ctx.name_locks.wait(name, resume)
        return target

    # --- create, reconfigure --------------------------------------------------------------------------------------

    def put(self, name: str, config: TopicConfig) -> Ticket[PutTopicResult]:
        """Create the topic, or replace its config as a whole. The history that a queue names is created with it."""
        history = config.done if config.is_queue and config.done != name else None
        return self.exclusively([name] if history is None else [name, history], lambda: self._put(name, config))

    def _put(self, name: str, config: TopicConfig) -> Ticket[PutTopicResult]:
        topic = self._ctx.state.topics.get(name)
        if topic is not None and config.is_ephemeral and not topic.config.is_ephemeral and topic.reserved_head:
            return chain(self._in_segments(topic), lambda _: self._put_with_floors_logged(name, config))
        if topic is None or not topic.config.is_ephemeral:
            return self._put_with_floors_logged(name, config)
        # An ephemeral topic has no frames that could hold its floors: what the old config evicts must go now.
        return chain(self._floor_log.ensure_logged(topic), lambda _: self._put_with_floors_logged(name, config))

    def _in_segments(self, topic: TopicLog) -> Ticket[None]:
        """Checkpoints skip an ephemeral topic, and snapshots release the log before them: the records that the topic
        had before must be in segments by then, or a later change back would find them gone. If the checkpoint fails,
        they stay in the log, and only a snapshot could remove them."""
        return either_way(chain(self.drain(topic), lambda _: self._ctx.files.checkpoint()))

    def _put_with_floors_logged(self, name: str, config: TopicConfig) -> Ticket[PutTopicResult]:
        ctx = self._ctx
        now = ctx.clock.now_ms()
        controls, created = decide_put(
            ctx.state, name, config, now=now, chance=ctx.chance(), suits=self._beside(config.done)
        )
        topic_id: int = controls[-1].topic_id if controls else ctx.state.topics[name].id  # type: ignore[union-attr]
        if config.is_queue and config.done is not None and config.done not in ctx.state.topics:
            controls.insert(0, self._history_op(config.done, topic_id, config))
        new_topics = sum(isinstance(op, TopicCreate) for op in controls)
        if new_topics:
            self.check_topic_cap(new_topics)
        if not controls:
            return resolved(PutTopicResult(name, False, ctx.state.topics[name].config))
        ticket = self.log(
            controls, topic_id, lambda _: PutTopicResult(name, created, ctx.state.topics[name].config), new=new_topics
        )
        if not created:
            ctx.changing[topic_id] = Ticket()
            ticket.then(lambda _: self._changed(topic_id))
        return ticket

    def _changed(self, topic_id: int) -> None:
        """Called before the name is released: those who wait here came before those who wait for the name."""
        self._ctx.changing.pop(topic_id).resolve(None)

    def check_topic_cap(self, new: int = 1) -> None:
        """Topics being created count: a race neither overshoots the cap nor stops short of it."""
        cap = self._ctx.settings.max_topics
        if cap and len(self._ctx.state.topics) + self._ctx.creating + new > cap:
            raise Throttled.cap("max_topics", max=cap)

    # --- the history of a queue -----------------------------------------------------------------------------------

    def create_beside(self, name: str, queue: TopicLog) -> Ticket[None]:
        """Create the history of a queue that was deleted, or that a write has named, unless it is there."""

        def create() -> Ticket[None]:
            if name in self._ctx.state.topics:
                return resolved(None)
            op = self._history_op(name, queue.id, queue.config)
            self.check_topic_cap()
            return self.log([op], op.topic_id, lambda _: None, new=1)

        return self.exclusively([name], create)

    def _history_op(self, name: str, queue_id: int, queue: TopicConfig) -> TopicCreate:
        """In the queue's log group, so that a job and its record in the history share a submission."""
        ctx, group = self._ctx, self._ctx.group_of(queue_id)
        return decide_create(
            ctx.state,
            name,
            config_beside(queue),
            now=ctx.clock.now_ms(),
            chance=ctx.chance(),
            suits=lambda topic_id: shard_of(topic_id, ctx.shards) == group,
        )

    def _beside(self, history: str | None) -> Callable[[int], bool]:
        """Ids of a new queue whose history is there already."""
        ctx = self._ctx
        known = None if history is None else ctx.state.topics.get(history)
        if known is None:
            return lambda _: True
        return lambda topic_id: shard_of(topic_id, ctx.shards) == ctx.group_of(known.id)

    def create_op(self, name: str, config: TopicConfig) -> TopicCreate:
        """The op of a creation that rides in another submission; the caller holds the name."""
        ctx = self._ctx
        suits = self._beside(config.done)
        op = decide_create(ctx.state, name, config, now=ctx.clock.now_ms(), chance=ctx.chance(), suits=suits)
        self.check_topic_cap()
        return op

    def log(
        self, controls: Sequence[Op], topic_id: int, reply: Callable[[Submission], T], *, new: int = 0
    ) -> Ticket[T]:
        """Log and apply ops of a topic; `new`: so many topics are created."""
        ctx = self._ctx
        topic = ctx.state.by_id.get(topic_id)
        if topic is not None:
            controls = ctx.evidence.all_with_evidence(topic, list(controls))
        ticket = ctx.log(
            topic_id,
            controls,
            finish=partial(self._finish, reply),
            client_frames=1,
            reclaims=all(isinstance(op, TopicDelete) for op in controls),
        )
        if topic is not None:
            ctx.evidence.hold_until(topic, ticket)
        if new:
            ctx.creating += new
            ticket.then(lambda _: self._created(new))
        return ticket

    def _created(self, new: int) -> None:
        self._ctx.creating -= new

    def _finish(self, reply: Callable[[Submission], T], sub: Submission) -> T:
        for op in sub.ops:
            self._apply(op)  # type: ignore[arg-type]
        return reply(sub)

    def _apply(self, op: Op) -> None:
        ctx = self._ctx
        before = ctx.state.by_id.get(getattr(op, "topic_id", 0))
        old_config = None if before is None else before.config
        effect = apply(ctx.state, op)
        topic = ctx.state.by_id.get(effect.topic_id)
        if topic is None:
            return
        ctx.ceilings.release(topic)
        if effect.removal is not None:
            ctx.removed(topic, effect)
        if old_config is not None and topic.config is not old_config:
            for listener in ctx.on_config:
                guarded(listener, topic, old_config)

    # --- delete ---------------------------------------------------------------------------------------------------

    def drop(self, name: str, *, if_empty: bool) -> Ticket[Dropped]:
        """Remove a topic with everything in it; an absent one is no error."""
        return self.exclusively([name], lambda: self._drop(name, if_empty=if_empty))

    def _drop(self, name: str, *, if_empty: bool) -> Ticket[Dropped]:
        topic = self._ctx.state.topics.get(name)
        if topic is None:
            return resolved(Dropped(False, []))
        if not if_empty:
            return self._drop_with_floors_logged(topic, if_empty=False)
        # Copies that a read would see make it not empty.
        feeding = self._forwarding.bring_up_to_date(topic) or resolved(None)
        logged = chain(feeding, lambda _: self._floor_log.ensure_logged(topic))
        return chain(logged, lambda _: self._drop_with_floors_logged(topic, if_empty=True))

    def _drop_with_floors_logged(self, topic: TopicLog, *, if_empty: bool) -> Ticket[Dropped]:
        if if_empty and topic.staged_count:
            # Writes that are submitted and not applied make it not empty.
            return chain(self.drain(topic), lambda _: self._drop_with_floors_logged(topic, if_empty=if_empty))
        op = decide_delete_topic(topic, if_empty=if_empty)
        return chain(self._router_checkpoints.detach(topic), lambda routers: self._drop_detached(topic, op, routers))

    def _drop_detached(self, topic: TopicLog, op: TopicDelete, routers: list[RouterDef]) -> Ticket[Dropped]:
        try:
            logged = self.log([op], topic.id, lambda _: self._ctx.deleted(topic))
        except BaseException:
            self._router_checkpoints.detached(topic, routers)
            raise
        over = chain(either_way(logged), lambda _: self._router_checkpoints.detached(topic, routers))
        return chain(over, lambda _: chain(logged, lambda _: resolved(Dropped(True, routers))))

    def drain(self, topic: TopicLog) -> Ticket[None]:
        """Wait until the writes submitted so far are applied, by an empty submission after them."""
        return self._ctx.log(topic.id, [], finish=lambda _: None, internal=True)


class CreatingWrites:
    def __init__(self, context: Context, lifecycle: Lifecycle, writes: Writes) -> None:
        self._ctx = context
        self._lifecycle = lifecycle
        self._writes = writes

    def append(self, name: str, batch: WriteBatch, config: TopicConfig) -> Ticket[Appended]:
        return self._lifecycle.exclusively([name], lambda: self._append(name, batch, config))

    def _append(self, name: str, batch: WriteBatch, config: TopicConfig) -> Ticket[Appended]:
        ctx = self._ctx
        existing = ctx.state.topics.get(name)
        if existing is not None:
            return self._writes.append(existing, batch)
        if batch.jobs is not None and not config.is_queue:
            raise NotAQueue(name)
        create = self._lifecycle.create_op(name, config)
        topic = provisional(create)
        entering = self._entering(topic, batch)
        batch = batch if entering is None or entering.batch is None else entering.batch
        reservation = decide_append(topic, batch, ctx.clock.now_ms())
        assert isinstance(reservation, Reservation), "a topic that does not exist knows no keys"
        self._writes.check_quota(batch.total_bytes)
        controls: list[Op] = [create]
        if not config.is_fsync:
            mark = ctx.ceilings.raise_over(topic, reservation.last_seq, reservation.ts)
            assert mark is not None, "a new topic has no ceiling yet"
            controls.append(mark)
        op = encode_append(topic, batch, reservation, durable=True)
        if batch.jobs is not None:
            op.jobs = jobs_op(topic, batch.jobs, op.first_seq, reservation.ts)
            if op.jobs is not None and not config.is_ephemeral:
                controls.append(op.jobs)
        ticket = self._commit(controls, topic, op, batch)
        return ticket if entering is None else chain(ticket, partial(entered_jobs, entering))

    def _entering(self, topic: TopicLog, batch: WriteBatch) -> Entering | None:
        """Which of the records are appended, if they have unique keys."""
        if batch.jobs is None:
            return None
        now = self._ctx.clock.now_ms()
        check_times(batch, now)
        decision = decide_entering(topic, batch, now)
        assert isinstance(decision, Entering), "a topic that does not exist knows no keys"
        return decision

    def _commit(self, controls: list[Op], topic: TopicLog, op: Append, batch: WriteBatch) -> Ticket[Appended]:
        ctx = self._ctx
        ephemeral = topic.config.is_ephemeral
        sub = submission(
            controls,
            None if ephemeral else op,
            topic_id=topic.id,
            ts=op.ts[0],
            durable=True,
            client_frames=1 if ephemeral else 1 + batch.count,
        )
        ctx.creating += 1
        ctx.state.staged_bytes += batch.total_bytes
        try:
            ticket: Ticket[Appended] = ctx.commit.submit(
                ctx.group_of(topic.id), sub, finish=partial(self._finish, controls, op)
            )
        except BaseException:
            self._over(topic.id, batch.total_bytes)
            raise
        ticket.then(lambda _: self._over(topic.id, batch.total_bytes))
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
        self._ctx.ceilings.release(topic)
        if topic.config.is_ephemeral:
            op.file = RESIDENT
        else:
            op.file = sub.file
            op.base += sub.offset
        return msgspec.structs.replace(self._writes.publish(topic, op, sub), created=True)


def provisional(create: TopicCreate) -> TopicLog:
    """The topic as it will be; decisions are made on it, and it is dropped when the real one is applied."""
    return TopicLog(
        topic_id=create.topic_id,
        name=create.name,
        epoch=create.epoch,
        config=create.config,
        created_ts=create.created_ts,
    )
