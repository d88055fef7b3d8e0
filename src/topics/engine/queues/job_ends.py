"""JobEnds: jobs leave their queue, and the history learns of it (`docs/spec/semantics.md#sec-16-17`).

Every way in which a queue itself ends a job comes here: ack, dead letter, cancellation. Without `done` in the config it
is the delete alone. With it the delete rides in the submission that appends to the history, so that a crash keeps both
or neither. Always holds: of calls that would end a job at the same time, one does; the others find it taken."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple

import msgspec

from topics.core.delete import decide_delete_seqs
from topics.core.queue.operations import queue_of
from topics.core.queue.queue_job import QueueJob
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.deletes import Deletes
from topics.engine.lifecycle import Lifecycle
from topics.engine.reading.reads import Payload, PayloadSearch
from topics.engine.ticket import Ticket, chain, failed, resolved
from topics.engine.writing.riding import Riding
from topics.engine.writing.writes import Writes
from topics.model.ops import Delete, DeleteReason, LeaseEvent
from topics.model.record import WriteBatch, stored_batch
from topics.model.results import Appended, DeleteResult

JobOutcome = Literal["acked", "failed", "cancelled"]
_REASONS: dict[JobOutcome, DeleteReason] = {"acked": "ack", "failed": "dead_letter", "cancelled": "api"}


class JobEnd(NamedTuple):
    """A job that ends now: what its worker made of it, as JSON text, and what went wrong last."""

    seq: int
    result: bytes | None = None


class JobOrigin(NamedTuple):
    """When its record was written, and its tag; None if the record is damaged."""

    ts: int | None
    tag: bytes | None


class DoneRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the history says of one job. A job that was never handed out has no node and no claim times."""

    queue: str
    seq: int
    outcome: JobOutcome
    node: str | None
    appended_ts: int | None
    first_claimed_ts: int | None
    claimed_ts: int | None
    done_ts: int
    deliveries: int
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: str | msgspec.UnsetType = msgspec.UNSET


class JobEnds:
    def __init__(self, context: Context, lifecycle: Lifecycle, deletes: Deletes, writes: Writes) -> None:
        self._ctx = context
        self._lifecycle = lifecycle
        self._deletes = deletes
        self._writes = writes

    def end(
        self, topic: TopicLog, outcome: JobOutcome, ends: Sequence[JobEnd], *, leases: Sequence[LeaseEvent] = ()
    ) -> Ticket[DeleteResult]:
        """Delete jobs, none of which is ending. `leases` are logged in front of the delete."""
        op = decide_delete_seqs(topic, tuple(end.seq for end in ends), reason=_REASONS[outcome])
        if not op.seqs:
            return resolved(self._deletes.nothing(topic))
        if topic.config.done is None:
            return self._deletes.log(topic, op, leases=leases)
        ending, seqs = queue_of(topic).ending, set(op.seqs)
        ending |= seqs
        try:
            ticket = chain(self._origins(topic, op.seqs), partial(self._end, topic, outcome, ends, op, leases))
        except BaseException:
            ending -= seqs
            raise
        ticket.then(lambda _: ending.difference_update(seqs))
        return ticket

    def _end(
        self,
        topic: TopicLog,
        outcome: JobOutcome,
        ends: Sequence[JobEnd],
        op: Delete,
        leases: Sequence[LeaseEvent],
        origins: dict[int, JobOrigin],
    ) -> Ticket[DeleteResult]:
        self._ctx.check_exists(topic)
        name, jobs = topic.config.done, queue_of(topic).jobs
        told = [end for end in ends if end.seq in origins]
        if name is None or not told:
            return self._deletes.log(topic, op, leases=leases)
        now = self._ctx.clock.now_ms()
        records = [_record(topic, outcome, end, jobs.get(end.seq), origins[end.seq], now) for end in told]
        batch = stored_batch(
            [(msgspec.json.encode(record), None) for record in records],
            tags=[origins[end.seq].tag for end in told],
            nodes=[None if record.node is None else record.node.encode() for record in records],
        )
        return self._lifecycle.when_free(name, partial(self._append, topic, name, batch, op, leases))

    def _append(
        self, topic: TopicLog, name: str, batch: WriteBatch, op: Delete, leases: Sequence[LeaseEvent]
    ) -> Ticket[DeleteResult]:
        ctx = self._ctx
        history = ctx.state.topics.get(name)
        if history is None:
            made = self._lifecycle.create_beside(name, topic)
            again = partial(self._append, topic, name, batch, op, leases)
            return chain(made, lambda _: self._lifecycle.when_free(name, again))
        if ctx.group_of(history.id) != ctx.group_of(topic.id):
            appended: Ticket[Appended] = self._writes.append(history, batch)
            return chain(appended, lambda _: self._deletes.log(topic, op, leases=leases))
        deleted: list[DeleteResult] = []

        def plan() -> Riding:
            planned = self._deletes.plan(topic, op, leases=leases)
            return Riding(planned.ops, lambda: deleted.append(planned.finish()), planned.durable, topic.id)

        ticket = self._writes.append_with(history, batch, plan)
        ctx.evidence.hold_until(topic, ticket)
        return chain(ticket, lambda _: resolved(deleted[0]))

    # --- where a job came from ------------------------------------------------------------------------------------

    def _origins(self, topic: TopicLog, seqs: Sequence[int]) -> Ticket[dict[int, JobOrigin]]:
        """From memory for jobs that were handed out since the start, else from their records."""
        jobs = queue_of(topic).jobs
        known = {seq: JobOrigin(*job.origin) for seq in seqs if (job := jobs.get(seq)) is not None and job.origin}
        unknown = [seq for seq in seqs if seq not in known]
        if not unknown:
            return resolved(known)
        return chain(PayloadSearch(self._ctx, topic, unknown).begin(), partial(_with_read, known))


def _with_read(known: dict[int, JobOrigin], payload: Payload) -> Ticket[dict[int, JobOrigin]]:
    """A record that is damaged has no tag any more; one that died meanwhile has ended in another way."""
    if payload.error is not None:
        return failed(payload.error)
    for seq, (run, at) in payload.found.items():
        record = run.record(at)
        known[seq] = JobOrigin(record.ts, record.tag)
    known |= {seq: JobOrigin(None, None) for seq in payload.damaged}
    return resolved(known)


def _record(
    topic: TopicLog, outcome: JobOutcome, end: JobEnd, job: QueueJob | None, origin: JobOrigin, now: int
) -> DoneRecord:
    job = job or QueueJob(end.seq)
    return DoneRecord(
        queue=topic.name,
        seq=end.seq,
        outcome=outcome,
        node=job.node or None,
        appended_ts=origin.ts,
        first_claimed_ts=job.first_ts or None,
        claimed_ts=job.last_ts or None,
        done_ts=now,
        deliveries=job.deliveries,
        result=msgspec.UNSET if end.result is None else msgspec.Raw(end.result),
        error=job.error or msgspec.UNSET,
    )
