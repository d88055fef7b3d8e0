"""Job controls: the frames in front of records that have job fields, and the answer of such a write
(`docs/spec/semantics.md#sec-16-11`)."""

from __future__ import annotations

import msgspec

from topics.core.append import Reservation
from topics.core.delete import decide_delete_seqs
from topics.core.queue.entering import Entering, jobs_op
from topics.core.retention.rules import unlogged
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.ticket import Ticket, resolved
from topics.model.ops import Op
from topics.model.record import JobField
from topics.model.results import Appended, EnteredJobs


def job_controls(
    context: Context,
    topic: TopicLog,
    fields: list[JobField | None],
    reservation: Reservation,
    replaced: tuple[int, ...],
) -> list[Op]:
    """Jobs that are replaced go, then comes what is to be known of the new ones."""
    controls: list[Op] = []
    if replaced:
        floors = unlogged(topic)
        if floors is not None:
            controls.append(context.evidence.evict_with_evidence(topic, floors))
        controls.append(context.evidence.with_evidence(topic, decide_delete_seqs(topic, replaced, reason="ack")))
    added = jobs_op(topic, fields, reservation.first_seq, reservation.ts)
    return controls if added is None else [*controls, added]


def entered_jobs(decision: Entering, done: Appended) -> Ticket[Appended]:
    """The answer of a write with unique keys."""
    if done.deduped or not decision.has_keys:
        return resolved(done)
    entered = EnteredJobs(decision.seqs(done.first_seq), decision.kept, decision.replaced)
    return resolved(msgspec.structs.replace(done, entered=entered))
