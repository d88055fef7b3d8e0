"""Queue image: what a snapshot keeps of a queue, and back (storage.md section 8.2).

Leases are kept only with `leases_durable`. Those of work streams are written as released: a restart ends them anyway.
State newer than the recorded position does no harm, since replay sets each job by its last event; only the number of
dead letters is counted by replayed frames, so it is taken as of that position (`note_position`).
"""

from __future__ import annotations

import msgspec

from topics.core.queue import ACKING, DELAYED, LEASED, QueueState
from topics.model.config import TopicConfig

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
