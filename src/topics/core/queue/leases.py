"""Lease events and job fields, applied; who holds what is the result of replaying them.

`claimed` sets; `extended` and `acked` act only if their lease id is the job's current one, and `released` if it is that
or a newer one whose claim was not logged; so a stale event changes nothing, live or in replay. Events are applied when
they are decided and logged behind that, in the same order: whatever a later event builds on is in the log in front of
it. A job's record dies by a `Delete`, never here.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from topics.core.effects import Effect, OpResult
from topics.core.queue.queue import QueueState
from topics.core.queue.queue_job import ACKING, DELAYED, LEASED
from topics.core.retention.removal import awaited, blocks_from
from topics.core.topic import TopicLog
from topics.errors import ColdUnavailable
from topics.model.ops import JobsAdded, LeaseEvent

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
            stream=op.stream_id or int(op.stream),
            ts=op.ts,
        )
        return Effect(OpResult.APPLIED, topic.id)
    return Effect(OpResult.APPLIED if _change(queue, op) else OpResult.IGNORED, topic.id)


def _change(queue: QueueState, op: LeaseEvent) -> bool:
    job = queue.jobs.get(op.seq)
    if job is None and op.event == RELEASED:
        if op.lease_id == 0:
            return queue.make_ready(op.seq)
        job = queue.enter(op.seq)
    if job is not None and op.event == RELEASED and job.lease_id < op.lease_id:
        job.lease_id, job.first_ts, job.last_ts = op.lease_id, job.first_ts or op.ts, op.ts
    elif job is None or job.lease_id != op.lease_id or job.state not in (LEASED, ACKING, DELAYED):
        return False
    if op.event == RELEASED:
        job.deliveries = op.deliveries
        job.error = op.error or job.error
        job.final = op.final
        queue.release(job, ready_at=op.ready_at)
        return True
    if job.state not in (LEASED, ACKING):
        return False
    if op.event == EXTENDED:
        queue.extend(job, op.deadline)
    else:
        queue.acking(job)
    return True


def apply_jobs_added(topic: TopicLog, op: JobsAdded) -> Effect:
    queue = topic.queue
    if queue is None or (topic.replaying and topic.config.is_ephemeral):
        return Effect(OpResult.IGNORED, topic.id)
    count = max(len(op.ready_at), len(op.priority))
    times = op.ready_at or (0,) * count
    priorities = op.priority or (0,) * count
    rows = zip(range(op.first_seq, op.first_seq + count), times, priorities, strict=True)
    queue.add_fields([row for row in rows if row[1] or row[2]])
    for seq, given in enumerate(op.unique, op.first_seq):
        if given is not None:
            queue.unique.set(given[0], seq, given[1])
    return Effect(OpResult.APPLIED, topic.id)


def drop_dead_jobs(topic: TopicLog) -> None:
    """Replay is over: what a restart leaves of leases (`docs/spec/semantics.md#sec-16-8`). Ids go on above every one
    that may be out."""
    queue = topic.queue
    if queue is None:
        return
    queue.next_lease_id = max(queue.next_lease_id, queue.lease_ceiling + 1)
    queue.lost_in_flight = 0  # what the log tells of was counted then
    if topic.config.is_ephemeral:
        queue.forget_all()
        return
    for seq in _dead_of(topic, sorted({*queue.jobs, *queue.unique.seqs()} | {row[0] for row in queue.fields.rows()})):
        queue.forget(seq)
    keeps = topic.config.keeps_leases
    for job in list(queue.jobs.values()):
        if job.state == ACKING or (job.state == LEASED and (job.stream or not keeps)):
            queue.release(job)  # its holder is gone, or not known any more
    queue.streams.clear()


def _dead_of(topic: TopicLog, seqs: list[int]) -> list[int]:
    """Which of these are no live records. Where only the index of a cold segment could tell, the job stays until
    `finish_cold_delete` looks at it."""
    column = np.array(seqs, np.int64)
    alive: npt.NDArray[np.bool_] = np.zeros(len(column), np.bool_)
    for block in blocks_from(topic, seqs[0]) if seqs else ():
        lo = int(np.searchsorted(column, max(block.first_seq, topic.floors.earliest_seq)))
        hi = int(np.searchsorted(column, min(block.next_seq, topic.head + 1)))
        if lo < hi:
            try:
                with awaited(topic, block):
                    alive[lo:hi] = ~block.dead(0, block.count)[column[lo:hi] - block.first_seq]
            except ColdUnavailable:
                alive[lo:hi] = True
    dead: list[int] = column[~alive].tolist()
    return dead
