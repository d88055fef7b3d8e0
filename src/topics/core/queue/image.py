"""Queue image: what a snapshot keeps of a queue, and back (`docs/spec/storage.md#sec-8-2`).

State newer than the recorded position does no harm, since replay sets each job by its last event; only the number of
dead letters is counted by replayed frames, so it is taken as of that position (`note_position`). Leases are written
with their ids even where a restart releases them, because events behind the position refer to them.
"""

from __future__ import annotations

import msgspec

from topics.core.queue.fields import JobFields
from topics.core.queue.queue import QueueState
from topics.core.queue.queue_job import ACKING, DELAYED, LEASED
from topics.core.queue.queue_rules import QueueRules
from topics.model.config import TopicConfig

LeaseRow = tuple[int, str, int, int, int]
"""seq, node, lease_id, deadline, deliveries."""
NoteRow = tuple[int, int, int, int, int, bool, str]
"""seq, lease_id, first_ts, last_ts, priority, final, error."""


class QueueImage(msgspec.Struct, frozen=True, kw_only=True):
    next_lease_id: int
    dead_lettered: int
    leases: list[LeaseRow] = []
    deliveries: list[tuple[int, int]] = []
    reclaim: list[int] = []
    delayed: list[tuple[int, int]] = []
    streamed: list[int] = []
    notes: list[NoteRow] = []
    fields: tuple[bytes, bytes, bytes] = (b"", b"", b"")
    unique: list[tuple[str, int, int]] = []


def note_position(queue: QueueState) -> None:
    """Everything logged before the position of the next snapshot is applied, and nothing after it."""
    queue.dead_lettered_then = queue.dead_lettered


def capture_queue(queue: QueueState, config: TopicConfig, *, clean: bool) -> QueueImage:
    then = queue.dead_lettered_then
    next_lease_id = queue.next_lease_id if clean else max(queue.next_lease_id, queue.lease_ceiling + 1)
    dead_lettered = queue.dead_lettered if then is None else then
    if config.is_ephemeral:
        return QueueImage(next_lease_id=next_lease_id, dead_lettered=dead_lettered)
    jobs = sorted(queue.jobs.values(), key=lambda job: job.seq)
    leased = [job for job in jobs if job.state in (LEASED, ACKING)]
    delayed = [job for job in jobs if job.state == DELAYED]
    other = [job for job in jobs if job.state not in (LEASED, ACKING, DELAYED)]
    return QueueImage(
        next_lease_id=next_lease_id,
        dead_lettered=dead_lettered,
        leases=[(job.seq, job.node, job.lease_id, job.deadline, job.deliveries) for job in leased],
        deliveries=[(job.seq, job.deliveries) for job in [*delayed, *other]],
        reclaim=[job.seq for job in other],
        delayed=[(job.due_at, job.seq) for job in delayed],
        streamed=[job.seq for job in leased if job.stream],
        notes=[(job.seq, job.lease_id, job.first_ts, job.last_ts, job.priority, job.final, job.error) for job in jobs],
        fields=queue.fields.columns(),
        unique=sorted(queue.unique.rows(), key=lambda row: row[1]),
    )


def restore_queue(image: QueueImage, config: TopicConfig, topic_id: int) -> QueueState:
    """The queue before the log behind the snapshot is replayed over it."""
    queue = QueueState(QueueRules(config, topic_id))
    queue.next_lease_id = image.next_lease_id
    queue.dead_lettered = image.dead_lettered
    for seq, lease_id, first_ts, last_ts, priority, final, error in image.notes:
        job = queue.enter(seq)
        job.lease_id, job.first_ts, job.last_ts = lease_id, first_ts, last_ts
        job.priority, job.final, job.error = priority, final, error
    streamed = set(image.streamed)
    for seq, node, lease_id, deadline, deliveries in image.leases:
        queue.lease(
            queue.enter(seq),
            node=node,
            lease_id=lease_id,
            deadline=deadline,
            deliveries=deliveries,
            stream=int(seq in streamed),
        )
    for seq, count in image.deliveries:
        queue.enter(seq).deliveries = count
    for seq in image.reclaim:
        queue.release(queue.enter(seq))
    for ready_at, seq in image.delayed:
        queue.release(queue.enter(seq), ready_at=ready_at)
    queue.take_fields(JobFields.from_columns(*image.fields))
    for key, seq, until in image.unique:
        queue.unique.set(key, seq, until)
    return queue
