"""Queue calls: claim, ack, nack and extend as decisions (`docs/spec/semantics.md#sec-16-3` and
`docs/spec/semantics.md#sec-16-6`).

Each looks at the queue as it is at `now`, after `expire`, and returns lease events; the caller logs them and applies
them at once. `pick` alone takes jobs out of line before there is an event for them: its caller claims or moves every
one of them in the same breath.

Fresh jobs are live records behind the claim cursor, found by whole stretches of slots. Retention at `now` has run, so
nothing below the front is looked at and nothing expired is found. A cold segment whose index is not loaded stops the
walk in front of it: the caller has it loaded and asks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from topics.core.queue.leases import ACKED, CLAIMED, EXTENDED, RELEASED
from topics.core.queue.queue import QueueState
from topics.core.queue.queue_job import DELAYED, LEASED, QueueJob
from topics.core.retention.removal import blocks_from, index_needed
from topics.core.slots.extent import Extent, index_of
from topics.core.slots.sealed_slots import Sealed
from topics.core.slots.slot_range import Slots
from topics.core.topic import TopicLog
from topics.errors import ColdUnavailable
from topics.model.ops import LeaseEvent
from topics.model.results import LostJob

LOOK_AHEAD = 1000
"""Jobs whose tags a pass reads at a time, where a rule about tags has to judge them."""
_SLOTS_MAX = 65_536  # looked at in one step of the walk


class UndeliveredJobs(NamedTuple):
    """`cursor` is the highest seq dealt with: everything live at or below it is known or among `seqs`."""

    seqs: list[int]
    cursor: int
    index_extent: Extent | None


def fresh_seqs(topic: TopicLog, *, wanted: int) -> UndeliveredJobs:
    """Up to `wanted` live seqs behind the cursor that are no more than fresh, ascending."""
    queue = queue_of(topic)
    after = queue.cursor
    seqs: list[int] = []
    cursor = max(after, topic.floors.earliest_seq - 1)
    if wanted <= 0 or cursor >= topic.head:
        return UndeliveredJobs(seqs, max(after, min(cursor, topic.head)), None)
    for block in blocks_from(topic, cursor + 1):
        if block.first_seq > topic.head:
            break
        needed = index_needed(topic, block)
        try:
            if needed is None:
                cursor = _take(topic, block, cursor, wanted, queue, seqs)
        except ColdUnavailable:
            assert isinstance(block, Sealed)
            needed = block
        if needed is not None:
            return UndeliveredJobs(seqs, cursor, index_of(needed, max(cursor + 1, needed.first_seq)))
        if len(seqs) == wanted:
            return UndeliveredJobs(seqs, cursor, None)
    return UndeliveredJobs(seqs, topic.head, None)


def _take(topic: TopicLog, block: Slots, cursor: int, wanted: int, queue: QueueState, seqs: list[int]) -> int:
    """Take from one block; returns how far it was looked through."""
    lo = max(cursor + 1 - block.first_seq, 0)
    hi = min(block.next_seq, topic.head + 1) - block.first_seq
    step = 2 * (wanted - len(seqs)) + 64
    while lo < hi:
        stop = min(hi, lo + step)
        for seq in queue.fields.outside(block.live_slots(lo, stop) + block.first_seq).tolist():
            if seq not in queue.jobs:
                seqs.append(seq)
                if len(seqs) == wanted:
                    return int(seq)
        lo = stop
        step = min(2 * step, _SLOTS_MAX)
    return block.first_seq + hi - 1


def queue_of(topic: TopicLog) -> QueueState:
    """The queue of a topic that is one."""
    assert topic.queue is not None, "a queue call reached a log topic"
    return topic.queue


# --- claim -----------------------------------------------------------------------------------------------------------


class Picked(NamedTuple):
    """`seqs` in hand-out order. `exhausted` are dead letters."""

    seqs: list[int]
    exhausted: list[int]


def claim_index_needed(topic: TopicLog, wanted: int) -> Extent | None:
    """What must be loaded before `pick` can see so many jobs: a cold segment nobody has looked into yet."""
    queue = queue_of(topic)
    if not len(topic.sealed) or queue.cursor + 1 >= topic.sealed[len(topic.sealed) - 1].next_seq:
        return None
    return fresh_seqs(topic, wanted=wanted).index_extent


def unlearned(topic: TopicLog) -> list[int]:
    """Jobs whose tags have to be read before the next ones can be picked; none where no rule is about tags. Fresh ones
    among them are behind the cursor from here on: whoever asks teaches the queue every one of them that is there."""
    queue = queue_of(topic)
    if not queue.rules.by_tag:
        return []
    if queue.untold:
        return list(queue.untold)[:LOOK_AHEAD]
    fresh = fresh_seqs(topic, wanted=LOOK_AHEAD)
    queue.cursor = fresh.cursor
    return fresh.seqs


def pick(topic: TopicLog, wanted: int, now: int) -> Picked:
    """The next jobs, as many of them as limits allow. They are taken out of line."""
    queue = queue_of(topic)
    allowed = queue.allowance(wanted, now)
    seqs: list[int] = []
    exhausted: list[int] = []
    if allowed:
        _pick_known(topic, allowed, now, seqs, exhausted, before_fresh=True)
    if len(seqs) < allowed and not queue.rules.by_tag:
        fresh = fresh_seqs(topic, wanted=allowed - len(seqs))
        queue.cursor = fresh.cursor
        seqs += fresh.seqs
    if len(seqs) < allowed and queue.cursor >= topic.head:
        _pick_known(topic, allowed, now, seqs, exhausted, before_fresh=False)
    queue.handed_out(len(seqs))
    return Picked(seqs, exhausted)


def _pick_known(
    topic: TopicLog, wanted: int, now: int, seqs: list[int], exhausted: list[int], *, before_fresh: bool
) -> None:
    queue = queue_of(topic)
    while len(seqs) < wanted:
        taken = queue.take(now, before_fresh=before_fresh, live=topic.may_be_live)
        if taken is None:
            return
        job = queue.enter(taken.seq)
        if queue.rules.by_tag:
            job.tag, job.tag_known = taken.tag, True
        if job.final or queue.rules.is_exhausted(job.deliveries):
            queue.move(job)
            exhausted.append(job.seq)
        else:
            queue.promise(job)
            seqs.append(job.seq)


def deal(count: int, wants: Sequence[int]) -> list[list[int]]:
    """Places `0..count-1` dealt one at a time around the claimers, leaving out those who have their fill."""
    shares: list[list[int]] = [[] for _ in wants]
    if len(wants) == 1:
        return [list(range(min(count, wants[0])))]
    around = [at for at, want in enumerate(wants) if want]
    place = 0
    while place < count and around:
        for at in around[: count - place]:
            shares[at].append(place)
            place += 1
        around = [at for at in around if len(shares[at]) < wants[at]]
    return shares


def claim_events(
    topic: TopicLog, seqs: Sequence[int], *, node: str, lease_ms: int, stream: int, now: int
) -> list[LeaseEvent]:
    """Leases for picked jobs, with new ids."""
    queue = queue_of(topic)
    jobs, lease_id = queue.jobs, queue.next_lease_id
    queue.next_lease_id += len(seqs)
    return [
        LeaseEvent(
            topic_id=topic.id,
            seq=seq,
            event=CLAIMED,
            node=node,
            lease_id=lease_id + at,
            deadline=now + lease_ms,
            deliveries=(jobs[seq].deliveries if seq in jobs else 0) + 1,
            stream=stream != 0,
            stream_id=stream,
            ts=now,
        )
        for at, seq in enumerate(seqs)
    ]


def give_back(topic: TopicLog, event: LeaseEvent, now: int) -> LeaseEvent:
    """A claim that was never delivered, undone: the job is ready, and this delivery does not count."""
    return LeaseEvent(
        topic_id=topic.id,
        seq=event.seq,
        event=RELEASED,
        node=event.node,
        lease_id=event.lease_id,
        deadline=event.deadline,
        deliveries=event.deliveries - 1,
        ts=now,
    )


# --- ack, nack, extend -----------------------------------------------------------------------------------------------


class HeldJobs(NamedTuple):
    """Of the seqs of a call: the jobs the caller holds, and the others in request order; those among them that
    retention took while the caller held them."""

    jobs: list[QueueJob]
    skipped: list[int]
    lost: list[LostJob]


def held_by(queue: QueueState, node: str, seqs: Sequence[int], fences: Sequence[int | None] | None) -> HeldJobs:
    """A seq counts if this node holds it and its token, if there is one, is the current lease id. Once per call."""
    jobs: list[QueueJob] = []
    skipped: list[int] = []
    lost: dict[int, LostJob] = {}
    seen: set[int] = set()
    for at, seq in enumerate(seqs):
        job = queue.jobs.get(seq)
        fence = None if fences is None else fences[at]
        gone = queue.lost.get(seq)
        if gone is not None and gone.node == node and fence in (None, gone.lease_id):
            lost[seq] = LostJob(seq, gone.reason)
        if (
            job is None
            or job.state != LEASED
            or seq in queue.ending
            or job.node != node
            or (fence is not None and fence != job.lease_id)
            or seq in seen
        ):
            skipped.append(seq)
        else:
            seen.add(seq)
            jobs.append(job)
    return HeldJobs(jobs, skipped, list(lost.values()))


def ack_events(topic: TopicLog, jobs: Sequence[QueueJob], now: int) -> list[LeaseEvent]:
    return [_of(topic, job, ACKED, now) for job in jobs]


def nack_events(
    topic: TopicLog, jobs: Sequence[QueueJob], *, delay_ms: int | None, error: str = "", final: bool = False, now: int
) -> list[LeaseEvent]:
    """Without a delay the queue's policy says how long each job waits."""
    rules = queue_of(topic).rules
    events: list[LeaseEvent] = []
    for job in jobs:
        wait_ms = rules.delay(job.seq, job.deliveries) if delay_ms is None else delay_ms
        ready_at = now + wait_ms if wait_ms and not final else None
        events.append(_of(topic, job, RELEASED, now, ready_at=ready_at, error=error, final=final))
    return events


def extend_events(topic: TopicLog, jobs: Sequence[QueueJob], *, lease_ms: int, now: int) -> list[LeaseEvent]:
    return [_of(topic, job, EXTENDED, now, deadline=now + lease_ms) for job in jobs]


def release_events(topic: TopicLog, jobs: Sequence[QueueJob], now: int) -> list[LeaseEvent]:
    """Leases dropped on nobody's request: a work stream ended, or an ack failed."""
    return [_of(topic, job, RELEASED, now) for job in jobs]


def ready_events(topic: TopicLog, seqs: Sequence[int], now: int) -> tuple[list[LeaseEvent], list[int]]:
    """Delays that are to end now, and the seqs that are not delayed. Each seq counts once."""
    queue = queue_of(topic)
    events: list[LeaseEvent] = []
    skipped: list[int] = []
    seen: set[int] = set()
    for seq in seqs:
        job, row = queue.jobs.get(seq), queue.fields.get(seq)
        if seq in seen or (job is None and row is None):
            skipped.append(seq)
        elif job is not None and job.state == DELAYED:
            events.append(_of(topic, job, RELEASED, now))
        elif job is None and row is not None and row.ready_at:
            events.append(_of(topic, QueueJob(seq), RELEASED, now, deadline=0))
        else:
            skipped.append(seq)
        seen.add(seq)
    return events, skipped


def _of(
    topic: TopicLog,
    job: QueueJob,
    event: int,
    now: int,
    *,
    deadline: int | None = None,
    ready_at: int | None = None,
    error: str = "",
    final: bool = False,
) -> LeaseEvent:
    return LeaseEvent(
        topic_id=topic.id,
        seq=job.seq,
        event=event,
        node=job.node,
        lease_id=job.lease_id,
        deadline=job.deadline if deadline is None else deadline,
        deliveries=job.deliveries,
        ready_at=ready_at,
        ts=now,
        error=error,
        final=final,
    )
