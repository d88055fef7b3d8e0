"""Queue: who holds which job of a queue topic (`docs/spec/semantics.md#sec-16`).

Jobs are the topic's records; only those that were handed out at least once have an entry here, so a queue costs memory
for what is under way and nothing for its backlog. `LeaseEvent` ops are the only way leases change, live and in replay
(`core.queue_leases`). What always holds:

- every live seq at or below `cursor` has an entry; fresh jobs lie above it, and it only moves forward;
- `in_flight` and `delayed` count the entries in those states, so counters need no scan;
- an entry leaves when its record dies, whatever the cause; nothing else removes a job.

There are no timers per job: `expire` moves what is over to the reclaim list, and every queue call starts with it.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from topics.core.retention.floors import Floors
    from topics.core.retention.removal import Removal

LEASED: Final = 1
ACKING: Final = 2
"""Acked; its delete is being committed. Counts as in flight and cannot expire."""
DELAYED: Final = 3
READY: Final = 4
"""On the reclaim list."""
MOVING: Final = 5
"""On its way to the dead-letter topic. Counts as ready."""
STUCK: Final = 6
"""Its payload is damaged on disk: counted as ready, handed to nobody until the next start."""

LOST_LEASES_MAX: Final = 10_000
"""Of one queue: a stuck worker's holder is told of the newest."""
_SLACK = 256  # stale entries a heap may hold beyond twice what is alive


class QueueJob:
    """A job that was handed out. `due_at` is when its lease or its delay is over: the first moment it is ready."""

    __slots__ = ("deliveries", "due_at", "lease_id", "node", "seq", "state", "stream")

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.state = READY
        self.deliveries = 0
        self.lease_id = 0
        self.node = ""
        self.due_at = 0
        self.stream = 0  # the work stream that holds it; 0: a plain claim

    @property
    def deadline(self) -> int:
        """The last moment at which the lease holds."""
        return self.due_at - 1

    def __repr__(self) -> str:
        return f"Job({self.seq}, state={self.state}, deliveries={self.deliveries}, lease={self.lease_id})"


class LostLease(NamedTuple):
    """Retention took a job while somebody held it."""

    node: str
    lease_id: int
    due_at: int
    reason: str


class QueueState:
    __slots__ = (
        "_front",
        "_lost_due",
        "_reclaim",
        "_timers",
        "cursor",
        "dead_lettered",
        "dead_lettered_then",
        "delayed",
        "in_flight",
        "jobs",
        "lease_ceiling",
        "lost",
        "lost_in_flight",
        "moving",
        "next_lease_id",
        "streams",
    )

    def __init__(self) -> None:
        self.jobs: dict[int, QueueJob] = {}
        self.cursor = 0
        self.in_flight = 0
        self.delayed = 0
        self.moving = 0
        self.next_lease_id = 1
        self.lease_ceiling = 0  # ids up to here may be handed out unlogged: a restart begins above them
        self.dead_lettered = 0
        self.dead_lettered_then: int | None = None  # as of the log position the next snapshot records
        self.lost: dict[int, LostLease] = {}  # by seq, oldest first, until the lease would have been over
        self._lost_due = 0  # when the first of them will be over
        self.lost_in_flight = 0  # leased jobs that retention took, since the start
        self.streams: dict[int, set[int]] = {}  # work stream -> the seqs it holds
        self._timers: list[tuple[int, int, int]] = []  # due_at, seq, lease_id
        self._reclaim: list[int] = []
        self._front: list[int] = []  # seqs with an entry, for deaths by position

    # --- looking --------------------------------------------------------------------------------------------------

    def ready(self, count: int) -> int:
        """Live jobs that are neither leased nor delayed, of a topic with `count` live records."""
        return count - self.in_flight - self.delayed

    def claimable(self, count: int) -> bool:
        return count - self.in_flight - self.delayed - self.moving > 0

    def held(self, stream: int) -> int:
        """Leases that a work stream holds."""
        return len(self.streams.get(stream, ()))

    def next_due(self) -> int | None:
        """When the next lease or delay is over."""
        timers = self._timers
        while timers:
            due_at, seq, lease_id = timers[0]
            job = self.jobs.get(seq)
            if job is not None and job.due_at == due_at and job.lease_id == lease_id and job.state in (LEASED, DELAYED):
                return due_at
            heappop(timers)
        return None

    # --- transitions ----------------------------------------------------------------------------------------------

    def enter(self, seq: int) -> QueueJob:
        """The entry of a job that is about to be handed out."""
        job = self.jobs.get(seq)
        if job is None:
            job = self.jobs[seq] = QueueJob(seq)
            heappush(self._front, seq)
            if len(self._front) > 2 * len(self.jobs) + _SLACK:
                self._front = sorted(self.jobs)
        return job

    def lease(self, job: QueueJob, *, node: str, lease_id: int, deadline: int, deliveries: int, stream: int) -> None:
        self._leave(job)
        job.state = LEASED
        job.node = node
        job.lease_id = lease_id
        job.deliveries = deliveries
        job.stream = stream
        self.in_flight += 1
        if stream:
            self.streams.setdefault(stream, set()).add(job.seq)
        self.next_lease_id = max(self.next_lease_id, lease_id + 1)
        self._due(job, deadline + 1)

    def extend(self, job: QueueJob, deadline: int) -> None:
        self._due(job, deadline + 1)

    def acking(self, job: QueueJob) -> None:
        self._free_slot(job)
        job.state = ACKING

    def release(self, job: QueueJob, *, ready_at: int | None = None) -> None:
        """Ready again: at once, at the head of the line, or when a delay is over."""
        self._leave(job)
        if ready_at is None:
            job.state = READY
            heappush(self._reclaim, job.seq)
        else:
            job.state = DELAYED
            self.delayed += 1
            self._due(job, ready_at)

    def move(self, job: QueueJob) -> None:
        self._leave(job)
        job.state = MOVING
        self.moving += 1

    def set_aside(self, job: QueueJob) -> None:
        self._leave(job)
        job.state = STUCK

    def _leave(self, job: QueueJob) -> None:
        state = job.state
        if state in (LEASED, ACKING):
            self.in_flight -= 1
            self._free_slot(job)
        elif state == DELAYED:
            self.delayed -= 1
        elif state == MOVING:
            self.moving -= 1
        job.state = READY

    def _free_slot(self, job: QueueJob) -> None:
        if job.stream:
            held = self.streams.get(job.stream)
            if held is not None:
                held.discard(job.seq)
            job.stream = 0

    def _due(self, job: QueueJob, due_at: int) -> None:
        job.due_at = due_at
        heappush(self._timers, (due_at, job.seq, job.lease_id))
        if len(self._timers) > 2 * (self.in_flight + self.delayed) + _SLACK:
            waiting = (job for job in self.jobs.values() if job.state in (LEASED, DELAYED))
            self._timers = [(job.due_at, job.seq, job.lease_id) for job in waiting]
            heapify(self._timers)

    # --- time and death -------------------------------------------------------------------------------------------

    def expire(self, now: int) -> bool:
        """Leases and delays that are over put their jobs on the reclaim list; did any?"""
        any_over = False
        while (due_at := self.next_due()) is not None and due_at <= now:
            _, seq, _ = heappop(self._timers)
            self.release(self.jobs[seq])
            any_over = True
        if self.lost and self._lost_due <= now:
            self.lost = {seq: lease for seq, lease in self.lost.items() if lease.due_at > now}
            self._lost_due = min((lease.due_at for lease in self.lost.values()), default=0)
        return any_over

    def next_reclaimed(self) -> QueueJob | None:
        """The lowest job that was handed out before and is ready; out of line, the caller gives it its next state."""
        while self._reclaim:
            seq = heappop(self._reclaim)
            while self._reclaim and self._reclaim[0] == seq:  # released, leased and over again: one job still
                heappop(self._reclaim)
            job = self.jobs.get(seq)
            if job is not None and job.state == READY:
                return job
        return None

    def forget(self, seq: int) -> None:
        """The record is gone, and the job with it."""
        job = self.jobs.pop(seq, None)
        if job is not None:
            self._leave(job)

    def removed(self, removal: Removal, earliest_seq: int, *, lost_to: Floors | None) -> None:
        """Records of the topic died: on request, or lost to what moved these floors."""
        one_by_one = 0
        for seqs in removal.seqs:
            one_by_one += len(seqs)
            for seq in seqs.tolist():
                self.forget(seq)
        if removal.count > one_by_one:
            self._forget_below(earliest_seq, lost_to)

    def _forget_below(self, seq: int, lost_to: Floors | None) -> None:
        while self._front and self._front[0] < seq:
            job = self.jobs.get(heappop(self._front))
            if job is not None:
                if lost_to is not None and job.state == LEASED:
                    self._lose(job, lost_to.reason_since(job.seq))
                self.forget(job.seq)

    def _lose(self, job: QueueJob, reason: str) -> None:
        self.lost_in_flight += 1
        self._lost_due = min(self._lost_due, job.due_at) if self.lost else job.due_at
        self.lost[job.seq] = LostLease(job.node, job.lease_id, job.due_at, reason)
        if len(self.lost) > LOST_LEASES_MAX:
            del self.lost[next(iter(self.lost))]

    def forget_all(self) -> None:
        """A restart that kept no leases: every job is fresh again."""
        self.jobs.clear()
        self.streams.clear()
        self._timers.clear()
        self._reclaim.clear()
        self._front.clear()
        self.lost.clear()
        self.in_flight = self.delayed = self.moving = 0
        self.cursor = 0

    def reclaimed(self) -> list[int]:
        """Every entry that is neither leased nor delayed, for a snapshot: after a restart all of them are ready."""
        return sorted(job.seq for job in self.jobs.values() if job.state in (READY, MOVING, STUCK))
