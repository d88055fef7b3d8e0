"""QueueState: who holds which job of a queue topic, and which comes next (`docs/spec/semantics.md#sec-16`).

Jobs are the topic's records. Those that were handed out at least once have an entry in `jobs`; those that a write gave
a time or a priority have a row in `fields`; all others are fresh and cost nothing. `LeaseEvent` and `JobsAdded` ops are
the only way this changes, live and in replay (`core.queue.leases`). What always holds:

- every live seq at or below `cursor` has an entry, a row, or a place in `lines`; fresh jobs lie above it;
- `in_flight` and `delayed` count the jobs in those states, so counters need no scan;
- an entry or row leaves when its record dies, whatever the cause; nothing else removes a job.

There are no timers per job: `expire` moves what is over to the line, and every queue call starts with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from topics.core.queue.due_times import DueTimes
from topics.core.queue.fields import JobFields, UniqueKeys
from topics.core.queue.lines import BEFORE_FRESH, EVERY_RANK, Lines, TakenJob, rank
from topics.core.queue.queue_job import ACKING, DELAYED, LEASED, MOVING, READY, STUCK, LostLease, QueueJob
from topics.core.queue.queue_rules import QueueRules, TokenBucket
from topics.model.results import JobProgress

if TYPE_CHECKING:
    from topics.core.retention.floors import Floors
    from topics.core.retention.removal import Removal

LOST_LEASES_MAX: Final = 10_000
"""Of one queue: a stuck worker's holder is told of the newest."""
DUE_AT_ONCE: Final = 2000
"""Leases and delays that one call takes note of: more would hold up the loop."""
_SLACK = 256  # stale entries a heap may hold beyond twice what is alive


class QueueState:
    __slots__ = (
        "_bucket",
        "_front",
        "_lost_due",
        "_timers",
        "cursor",
        "dead_lettered",
        "dead_lettered_then",
        "delayed",
        "due",
        "ending",
        "fields",
        "in_flight",
        "jobs",
        "lease_ceiling",
        "lines",
        "lost",
        "lost_in_flight",
        "moving",
        "next_lease_id",
        "progress",
        "rules",
        "streams",
        "unique",
        "untold",
    )

    def __init__(self, rules: QueueRules) -> None:
        self.rules = rules
        self.jobs: dict[int, QueueJob] = {}
        self.fields = JobFields()
        self.unique = UniqueKeys()
        self.due = DueTimes()  # of the delayed jobs in `fields`
        self.lines = Lines(rules)
        self.untold: dict[int, None] = {}  # jobs whose tag has to be read before a rule about tags can judge them
        self.ending: set[int] = set()  # jobs whose end the history is told at this moment: nobody else may end them
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
        self.progress: dict[int, JobProgress] = {}  # by seq: what holders said of their work; of no log and no snapshot
        self.streams: dict[int, set[int]] = {}  # work stream -> the seqs it holds
        self._bucket: TokenBucket | None = None
        self._timers: list[tuple[int, int, int]] = []  # due_at, seq, lease_id
        self._front: list[int] = []  # seqs with an entry, for deaths by position

    # --- looking --------------------------------------------------------------------------------------------------

    def __contains__(self, seq: int) -> bool:
        """Is it more than a fresh job?"""
        return seq in self.jobs or seq in self.fields

    def ready(self, count: int) -> int:
        """Live jobs that are neither leased nor delayed, of a topic with `count` live records."""
        return count - self.in_flight - self.delayed

    def claimable(self, count: int) -> bool:
        """Might a claim be given something?"""
        return not self.rules.paused and count - self.in_flight - self.delayed - self.moving > 0

    def held(self, stream: int) -> int:
        """Leases that a work stream holds."""
        return len(self.streams.get(stream, ()))

    def next_due(self) -> int | None:
        """When the next lease or delay is over."""
        timer, delay = self._next_timer(), self._next_delay()
        return timer if delay is None else delay if timer is None else min(timer, delay)

    def next_chance(self, now: int) -> int | None:
        """When a claim that was given nothing may be given something, if nothing else happens until then."""
        times = [self.next_due(), self.lines.next_refill()]
        if self._bucket is not None and self._bucket.tokens(now) < 1:
            times.append(self._bucket.next_at())
        return min((time for time in times if time is not None), default=None)

    def _next_timer(self) -> int | None:
        timers = self._timers
        while timers:
            due_at, seq, lease_id = timers[0]
            job = self.jobs.get(seq)
            if job is not None and job.due_at == due_at and job.lease_id == lease_id and job.state in (LEASED, DELAYED):
                return due_at
            heappop(timers)
        return None

    def _next_delay(self) -> int | None:
        while (first := self.due.first()) is not None:
            row = self.fields.get(first[1])
            if row is not None and row.ready_at == first[0]:
                return first[0]
            self.due.pop()
        return None

    # --- fields of a write ----------------------------------------------------------------------------------------

    def add_fields(self, rows: Sequence[tuple[int, int, int]]) -> None:
        """Seq, time and priority of jobs that are not plain. A job that is known already is left as it is."""
        dues: list[int] = []
        seqs: list[int] = []
        for seq, ready_at, priority in rows:
            if seq in self.jobs or not self.fields.add(seq, ready_at, priority):
                continue
            if ready_at:
                dues.append(ready_at)
                seqs.append(seq)
            else:
                self._line_up(seq, priority, None, tag_known=False)
        self.delayed += len(dues)
        self.due.extend(dues, seqs)

    def take_fields(self, fields: JobFields) -> None:
        """All rows at once, from a snapshot; there are none yet."""
        self.fields = fields
        self._rebuild_due()
        self.delayed += self.due.count
        for seq, ready_at, priority in fields.rows() if self.due.count < fields.count else ():
            if not ready_at:
                self._line_up(seq, priority, None, tag_known=False)

    def make_ready(self, seq: int) -> bool:
        """End the delay of a job that was never handed out."""
        row = self.fields.get(seq)
        if row is None or not row.ready_at:
            return False
        self.fields.set_ready(seq)
        self.delayed -= 1
        self._line_up(seq, row.priority, None, tag_known=False)
        return True

    # --- transitions ----------------------------------------------------------------------------------------------

    def enter(self, seq: int) -> QueueJob:
        """The entry of a job that is about to be handed out."""
        job = self.jobs.get(seq)
        if job is None:
            job = self.jobs[seq] = QueueJob(seq)
            row = self.fields.pop(seq)
            if row is not None:
                job.priority = row.priority
                self.delayed -= row.ready_at > 0
            heappush(self._front, seq)
            if len(self._front) > 2 * len(self.jobs) + _SLACK:
                self._front = sorted(self.jobs)
        return job

    def lease(
        self, job: QueueJob, *, node: str, lease_id: int, deadline: int, deliveries: int, stream: int, ts: int = 0
    ) -> None:
        self._leave(job)
        job.state = LEASED
        job.node = node
        job.lease_id = lease_id
        job.deliveries = deliveries
        job.stream = stream
        job.first_ts = job.first_ts or ts
        job.last_ts = ts or job.last_ts
        self.in_flight += 1
        if job.tag_known:
            self.promise(job)
        elif self.rules.by_tag:
            self.untold[job.seq] = None
        if stream:
            self.streams.setdefault(stream, set()).add(job.seq)
        self.next_lease_id = max(self.next_lease_id, lease_id + 1)
        self._due(job, deadline + 1)

    def promise(self, job: QueueJob) -> None:
        """It is handed out now, or about to be: rules about tags count it."""
        if not job.counted:
            job.counted = True
            self.lines.leased(job.seq, job.tag)

    def extend(self, job: QueueJob, deadline: int) -> None:
        self._due(job, deadline + 1)

    def acking(self, job: QueueJob) -> None:
        self._free_slot(job)
        job.state = ACKING

    def release(self, job: QueueJob, *, ready_at: int | None = None) -> None:
        """Ready again: at once, on the line, or when a delay is over."""
        self._leave(job)
        if ready_at is None:
            job.state = READY
            self._line_up(job.seq, job.priority, job.tag, tag_known=job.tag_known)
        else:
            job.state = DELAYED
            self.delayed += 1
            self._due(job, ready_at)
            if self.rules.by_tag and not job.tag_known:
                self.untold[job.seq] = None

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
            if self.progress:
                self.progress.pop(job.seq, None)
            if job.counted:
                job.counted = False
                self.lines.unleased(job.tag)
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

    # --- the line -------------------------------------------------------------------------------------------------

    def _line_up(self, seq: int, priority: int, tag: bytes | None, *, tag_known: bool) -> None:
        if self.rules.by_tag and not tag_known:
            self.untold[seq] = None
        else:
            self.lines.put(rank(priority, seq), tag)

    def learn(self, seq: int, tag: bytes | None) -> None:
        """The tag of a job that a rule about tags has to judge: one that waits for that, or a fresh one."""
        self.untold.pop(seq, None)
        job = self.jobs.get(seq)
        if job is None:
            row = self.fields.get(seq)
            if row is None or not row.ready_at:
                self.lines.put(rank(0 if row is None else row.priority, seq), tag)
            return
        job.tag, job.tag_known = tag, True
        if job.state in (LEASED, ACKING):
            self.promise(job)
        elif job.deliveries:
            self.lines.begun(seq, tag)
        if job.state == READY:
            self.lines.put(rank(job.priority, seq), tag)

    def take(self, now: int, *, before_fresh: bool, live: Callable[[int], bool]) -> TakenJob | None:
        """The next job of the line that may be handed out. It is out of line: the caller gives it its next state."""

        def is_ready(seq: int) -> bool:
            job = self.jobs.get(seq)
            if job is not None:
                return job.state == READY
            row = self.fields.get(seq)
            return row.ready_at == 0 if row is not None else self.rules.by_tag and live(seq)

        below = EVERY_RANK
        if before_fresh:  # a serial tag may have a fresh job that comes first, as long as it lies above the cursor
            below = rank(0, self.cursor + 1) if self.rules.serial else BEFORE_FRESH
        return self.lines.take(now, below, is_ready)

    def allowance(self, wanted: int, now: int) -> int:
        """How many of so many jobs the queue as a whole may hand out now."""
        rules = self.rules
        if rules.paused:
            return 0
        if rules.concurrency:
            wanted = min(wanted, rules.concurrency - self.in_flight)
        if rules.rate is not None:
            if self._bucket is None:
                self._bucket = TokenBucket(rules.rate, now)
            wanted = min(wanted, self._bucket.tokens(now))
        return max(wanted, 0)

    def handed_out(self, count: int) -> None:
        if self._bucket is not None:
            self._bucket.take(count)

    def follow(self, rules: QueueRules) -> None:
        """The config has changed: from here on these rules hold."""
        old, self.rules = self.rules, rules
        if old.rate != rules.rate:
            self._bucket = None
        self.lines = Lines(rules)
        self.untold.clear()
        self.cursor = 0  # what was looked at and not handed out is fresh again
        for job in self.jobs.values():
            job.counted = False
            if not rules.by_tag:
                job.tag_known = False
            if rules.by_tag and not job.tag_known:
                self.untold[job.seq] = None
            elif job.state == READY:
                self.lines.put(rank(job.priority, job.seq), job.tag)
            elif job.tag_known and job.state in (LEASED, ACKING):
                self.promise(job)
            elif job.tag_known:
                self.lines.begun(job.seq, job.tag)
        for seq, ready_at, priority in self.fields.rows():
            if not ready_at:
                self._line_up(seq, priority, None, tag_known=False)

    # --- time and death -------------------------------------------------------------------------------------------

    def expire(self, now: int) -> bool:
        """Leases and delays that are over put their jobs on the line; did any?"""
        moved = 0
        while moved < DUE_AT_ONCE and (due_at := self._next_timer()) is not None and due_at <= now:
            _, seq, _ = heappop(self._timers)
            self._over(self.jobs[seq], now)
            moved += 1
        while moved < DUE_AT_ONCE and (due_at := self._next_delay()) is not None and due_at <= now:
            first = self.due.first()
            assert first is not None
            self.due.pop()
            self.make_ready(first[1])
            moved += 1
        if self.due.count > 2 * self.fields.count + DUE_AT_ONCE:
            self._rebuild_due()
        if self.lost and self._lost_due <= now:
            self.lost = {seq: lease for seq, lease in self.lost.items() if lease.due_at > now}
            self._lost_due = min((lease.due_at for lease in self.lost.values()), default=0)
        self.unique.expire(now)
        return self.lines.refill(now) or moved > 0

    def _over(self, job: QueueJob, now: int) -> None:
        """A lease that ran out is a delivery that failed; a delay that is over is just over."""
        delay_ms = self.rules.delay(job.seq, job.deliveries) if job.state == LEASED else 0
        ready_at = job.deadline + delay_ms
        self.release(job, ready_at=ready_at if delay_ms and ready_at > now else None)

    def _rebuild_due(self) -> None:
        times, seqs = self.fields.delayed()
        self.due.clear()
        self.due.fill(times, seqs)

    def forget(self, seq: int) -> None:
        """The record is gone, and the job with it."""
        job = self.jobs.pop(seq, None)
        if job is not None:
            self._leave(job)
            if job.tag_known:
                self.lines.gone(seq, job.tag)
        elif self.fields.count:
            row = self.fields.pop(seq)
            if row is not None:
                self.delayed -= row.ready_at > 0
        self.untold.pop(seq, None)
        self.unique.job_gone(seq)

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
        for gone in [*self.fields.below(seq), *self.unique.seqs_below(seq)]:
            self.forget(gone)

    def _lose(self, job: QueueJob, reason: str) -> None:
        self.lost_in_flight += 1
        self._lost_due = min(self._lost_due, job.due_at) if self.lost else job.due_at
        self.lost[job.seq] = LostLease(job.node, job.lease_id, job.due_at, reason)
        if len(self.lost) > LOST_LEASES_MAX:
            del self.lost[next(iter(self.lost))]

    def forget_all(self) -> None:
        """A restart of a queue that keeps nothing."""
        self.jobs.clear()
        self.fields.clear()
        self.due.clear()
        self.unique = UniqueKeys()
        self.lines = Lines(self.rules)
        self.untold.clear()
        self.streams.clear()
        self._timers.clear()
        self._front.clear()
        self.lost.clear()
        self.progress.clear()
        self.in_flight = self.delayed = self.moving = 0
        self.cursor = 0
