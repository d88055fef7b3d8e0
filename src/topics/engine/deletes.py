"""Deletes: removal of records on request (`docs/spec/semantics.md#sec-9`).

Always holds: the delete is logged with its bound before anything dies; when the ticket resolves, no read started
afterwards sees the records, and the flags of those that lie in segments have been issued."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from topics.core.apply import apply
from topics.core.delete import awaited_deletes, decide_delete, removes_nothing, unsearchable
from topics.core.retention.rules import unlogged
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.floor_log import FloorLog
from topics.engine.routers.forwarding import Forwarding
from topics.engine.ticket import Ticket, chain, failed, resolved
from topics.errors import ColdUnavailable, TopicsError
from topics.model.names import TagMatch
from topics.model.ops import Delete, Evict, LeaseEvent, Op
from topics.model.results import DeleteResult
from topics.model.submission import Submission


class PlannedDelete(NamedTuple):
    """What is to be logged, whether it has to be synced, and what applies it then. An ephemeral topic logs nothing."""

    ops: list[Op]
    durable: bool
    finish: Callable[[], DeleteResult]


class Deletes:
    def __init__(self, context: Context, floor_log: FloorLog, forwarding: Forwarding) -> None:
        self._ctx = context
        self._floor_log = floor_log
        self._forwarding = forwarding
        self.carried_bytes = 0
        """Log bytes written by `carry_over`."""

    def delete(self, topic: TopicLog, *, before_seq: int | None, match: TagMatch | None) -> Ticket[DeleteResult]:
        """First the routers make the copies that a read would see. Then retention: a record that has expired counts as
        lost, not as deleted. Then the indexes of cold segments that must be searched are loaded; if one cannot be, the
        delete takes place all the same, and reports a lower count."""
        feeding = self._forwarding.bring_up_to_date(topic) or resolved(None)
        return chain(feeding, lambda _: self._delete_with_floors_logged(topic, before_seq=before_seq, match=match))

    def _delete_with_floors_logged(
        self, topic: TopicLog, *, before_seq: int | None, match: TagMatch | None
    ) -> Ticket[DeleteResult]:
        self._ctx.check_exists(topic)

        def load(_: None) -> Ticket[None]:
            return self._floor_log.load_indexes(topic, unsearchable(topic, before_seq=before_seq, match=match))

        ready = chain(self._floor_log.ensure_logged_exactly(topic), load)
        return chain(ready, lambda _: self._delete(topic, before_seq=before_seq, match=match))

    def _delete(self, topic: TopicLog, *, before_seq: int | None, match: TagMatch | None) -> Ticket[DeleteResult]:
        self._ctx.check_exists(topic)
        op = decide_delete(topic, before_seq=before_seq, match=match)
        done = resolved(_deleted(topic, 0)) if removes_nothing(topic, op) else self.log(topic, op)
        return chain(done, lambda deleted: self._shown(topic, deleted))

    def _shown(self, topic: TopicLog, deleted: DeleteResult) -> Ticket[DeleteResult]:
        """A write applied meanwhile may have moved the floor of a count cap."""
        shown = self._floor_log.shown(topic, deleted.earliest_seq)
        return chain(shown, lambda earliest: resolved(msgspec.structs.replace(deleted, earliest_seq=earliest)))

    def log(self, topic: TopicLog, op: Delete, *, leases: Sequence[LeaseEvent] = ()) -> Ticket[DeleteResult]:
        """Commit a delete under the rules of its class, then apply it. Lease events go before it and are synced;
        they were applied when they were decided."""
        planned = self.plan(topic, op, leases=leases)
        if topic.config.is_ephemeral:
            return resolved(planned.finish())
        ticket = self._ctx.log(
            topic.id,
            planned.ops,
            finish=lambda _: planned.finish(),
            durable=planned.durable,
            client_frames=1 + len(leases),
            reclaims=True,
        )
        self._ctx.evidence.hold_until(topic, ticket)
        return ticket

    def plan(self, topic: TopicLog, op: Delete, *, leases: Sequence[LeaseEvent] = ()) -> PlannedDelete:
        """As `log`, for a submission that has more in it."""
        ctx, config = self._ctx, topic.config
        op = ctx.evidence.with_evidence(topic, op)
        if config.is_ephemeral:
            return PlannedDelete([], False, partial(self._finish, topic, op, None))
        floors = unlogged(topic)
        if floors is not None:
            floors = ctx.evidence.evict_with_evidence(topic, floors)
        first: list[Op] = [] if floors is None else [floors]
        durable = (
            bool(leases)
            or floors is not None
            or op.reason == "compact"  # what superseded them must be safe before they go, whatever the class
            or (config.durability != "memory" and (op.reason == "api" or config.is_fsync))
        )
        return PlannedDelete([*first, *leases, op], durable, partial(self._finish, topic, op, floors))

    @staticmethod
    def nothing(topic: TopicLog) -> DeleteResult:
        """The answer of a delete that finds nothing to delete."""
        return _deleted(topic, 0)

    def carry_over(self, topic: TopicLog) -> Ticket[None]:
        """Log the deletes that wait for the index of a cold segment once more, so that a snapshot may release the log
        before them. Nothing is applied: in memory they wait already. Refused where a replay would ignore the frames."""
        ctx = self._ctx
        waiting = awaited_deletes(topic)
        if not waiting:
            return resolved(None)
        if topic.config.is_ephemeral or topic.id in ctx.changing:
            return failed(ColdUnavailable("", reason=f"a delete in {topic.name!r} waits for the index of a segment"))
        ops = [ctx.evidence.with_evidence(topic, op) for op in waiting]
        try:
            ticket = ctx.log(topic.id, ops, finish=self._carried, internal=True)
        except TopicsError as error:
            return failed(error)
        ctx.evidence.hold_until(topic, ticket)
        return ticket

    def _carried(self, sub: Submission) -> None:
        self.carried_bytes += sub.size

    def _finish(self, topic: TopicLog, op: Delete, floors: Evict | None) -> DeleteResult:
        """Floors that a count cap moved must be in the log before a flag is set: replay finds them by trimming as the
        appends did, and would trim too little among records that are flagged already."""
        if floors is not None:
            apply(self._ctx.state, floors)
        effect = apply(self._ctx.state, op)
        if effect.removal is not None:
            # A write that was applied since the decision may have moved the floors once more.
            late = not topic.config.is_ephemeral and unlogged(topic) is not None
            self._ctx.removed(topic, effect, flag_after=self._floor_log.log_floors(topic) if late else None)
        return _deleted(topic, effect.removed_count)


def _deleted(topic: TopicLog, count: int) -> DeleteResult:
    return DeleteResult(topic.name, count, topic.earliest_seq, topic.head, topic.count, topic.bytes)
