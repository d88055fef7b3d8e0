"""Lease events: the leases log of a queue, applied; who holds what is the result of replaying it.

`claimed` sets; `released`, `extended` and `acked` act only if their lease id is the job's current one, so a stale event
changes nothing, live or in replay. Events are applied when they are decided and logged behind that, in the same order:
whatever a later event builds on is in the log in front of it. A job's record dies by a `Delete`, never here.

Queue image: what a snapshot keeps of a queue, and back (`docs/spec/storage.md#sec-8-2`).

Leases are kept only with `leases_durable`. Those of work streams are written as released: a restart ends them anyway.
State newer than the recorded position does no harm, since replay sets each job by its last event; only the number of
dead letters is counted by replayed frames, so it is taken as of that position (`note_position`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from topics.core.effects import Effect, OpResult
from topics.core.queue.queue import ACKING, DELAYED, LEASED, QueueState
from topics.core.retention.removal import awaited
from topics.core.topic import TopicLog
from topics.errors import ColdUnavailable
from topics.model.config import TopicConfig
from topics.model.ops import LeaseEvent

CLAIMED: Final = 0
RELEASED: Final = 1
EXTENDED: Final = 2
ACKED: Final = 3


def apply_lease(topic: TopicLog, op: LeaseEvent) -> Effect:
    queue = topic.queue
    if queue is None or (topic.replaying and topic.config.is_ephemeral):
        return Effect(OpResult.IGNORED, topic.id)
    queue.next_lease_id = max(queue.next_lease_id, op.lease_id + 1)
    if op.event == CLAIMED:
        queue.lease(
            queue.enter(op.seq),
            node=op.node,
            lease_id=op.lease_id,
            deadline=op.deadline,
            deliveries=op.deliveries,
            stream=op.stream,
        )
        return Effect(OpResult.APPLIED, topic.id)
    return Effect(OpResult.APPLIED if _change(queue, op) else OpResult.IGNORED, topic.id)


def _change(queue: QueueState, op: LeaseEvent) -> bool:
    job = queue.jobs.get(op.seq)
    if job is None or job.lease_id != op.lease_id or job.state not in (LEASED, ACKING):
        return False
    if op.event == RELEASED:
        job.deliveries = op.deliveries
        queue.release(job, ready_at=op.ready_at)
    elif op.event == EXTENDED:
        queue.extend(job, op.deadline)
    else:
        queue.acking(job)
    return True


def drop_dead_jobs(topic: TopicLog) -> None:
    """Replay is over: what a restart leaves of leases (`docs/spec/semantics.md#sec-16-8`). Ids go on above every one
    that may be out."""
    queue = topic.queue
    if queue is None:
        return
    queue.next_lease_id = max(queue.next_lease_id, queue.lease_ceiling + 1)
    queue.lost_in_flight = 0  # what the log tells of was counted then
    if not topic.config.keeps_leases:
        queue.forget_all()
        return
    for job in list(queue.jobs.values()):
        if not _may_be_live(topic, job.seq):
            queue.forget(job.seq)
        elif job.state == ACKING or (job.state == LEASED and job.stream):
            queue.release(job)  # its stream ended with the process
        else:
            assert job.state != DELAYED or job.due_at
    queue.streams.clear()


def _may_be_live(topic: TopicLog, seq: int) -> bool:
    """Where only the index of a cold segment could tell, the job stays until `finish_cold_delete` looks at it."""
    try:
        with awaited(topic, topic.sealed.find(seq)):
            return topic.live(seq)
    except ColdUnavailable:
        return True


LeaseRow = tuple[int, str, int, int, int]
"""seq, node, lease_id, deadline, deliveries."""


class QueueImage(msgspec.Struct, frozen=True, kw_only=True):
    next_lease_id: int
    dead_lettered: int
    claim_cursor: int | None = None
    leases: list[LeaseRow] = []
    deliveries: list[tuple[int, int]] = []
    reclaim: list[int] = []
    delayed: list[tuple[int, int]] = []


def note_position(queue: QueueState) -> None:
    """Everything logged before the position of the next snapshot is applied, and nothing after it."""
    queue.dead_lettered_then = queue.dead_lettered


def capture_queue(queue: QueueState, config: TopicConfig, *, clean: bool) -> QueueImage:
    then = queue.dead_lettered_then
    next_lease_id = queue.next_lease_id if clean else max(queue.next_lease_id, queue.lease_ceiling + 1)
    dead_lettered = queue.dead_lettered if then is None else then
    if not config.keeps_leases:
        return QueueImage(next_lease_id=next_lease_id, dead_lettered=dead_lettered)
    jobs = sorted(queue.jobs.values(), key=lambda job: job.seq)
    kept = [job for job in jobs if job.state in (LEASED, ACKING) and not job.stream]
    delayed = [job for job in jobs if job.state == DELAYED]
    other = [job for job in jobs if job.state not in (LEASED, ACKING, DELAYED) or job.stream]
    return QueueImage(
        next_lease_id=next_lease_id,
        dead_lettered=dead_lettered,
        claim_cursor=queue.cursor,
        leases=[(job.seq, job.node, job.lease_id, job.deadline, job.deliveries) for job in kept],
        deliveries=[(job.seq, job.deliveries) for job in [*delayed, *other]],
        reclaim=[job.seq for job in other],
        delayed=[(job.due_at, job.seq) for job in delayed],
    )


def restore_queue(image: QueueImage) -> QueueState:
    """The queue before the log behind the snapshot is replayed over it."""
    queue = QueueState()
    queue.next_lease_id = image.next_lease_id
    queue.dead_lettered = image.dead_lettered
    queue.cursor = image.claim_cursor or 0
    for seq, node, lease_id, deadline, deliveries in image.leases:
        job = queue.enter(seq)
        queue.lease(job, node=node, lease_id=lease_id, deadline=deadline, deliveries=deliveries, stream=0)
    for seq, count in image.deliveries:
        queue.enter(seq).deliveries = count
    for seq in image.reclaim:
        queue.release(queue.enter(seq))
    for ready_at, seq in image.delayed:
        queue.release(queue.enter(seq), ready_at=ready_at)
    return queue
