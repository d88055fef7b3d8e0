"""Lease events: the leases log of a queue, applied; who holds what is the result of replaying it.

`claimed` sets; `released`, `extended` and `acked` act only if their lease id is the job's current one, so a stale event
changes nothing, live or in replay. Events are applied when they are decided and logged behind that, in the same order:
whatever a later event builds on is in the log in front of it. A job's record dies by a `Delete`, never here.
"""

from __future__ import annotations

from typing import Final

from topics.core.effects import Effect, Fate
from topics.core.front import awaited
from topics.core.queue import ACKING, DELAYED, LEASED, QueueState
from topics.core.topic import TopicState
from topics.errors import ColdUnavailable
from topics.model.ops import LeaseEvent

CLAIMED: Final = 0
RELEASED: Final = 1
EXTENDED: Final = 2
ACKED: Final = 3


def apply_lease(topic: TopicState, op: LeaseEvent) -> Effect:
    queue = topic.queue
    if queue is None or (topic.replaying and topic.config.is_ephemeral):
        return Effect(Fate.IGNORED, topic.id)
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
        return Effect(Fate.APPLIED, topic.id)
    return Effect(Fate.APPLIED if _change(queue, op) else Fate.IGNORED, topic.id)


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


def settle_queue(topic: TopicState) -> None:
    """Replay is over: what a restart leaves of leases (section 16.8). Ids go on above every one that may be out."""
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


def _may_be_live(topic: TopicState, seq: int) -> bool:
    """Where only the index of a cold segment could tell, the job stays until `settle_cold` looks at it."""
    try:
        with awaited(topic, topic.sealed.find(seq)):
            return topic.live(seq)
    except ColdUnavailable:
        return True
