"""Commit: orders submissions per WAL group and applies their ops when their class is satisfied.

Always holds: per group, submissions are written in the order they were accepted; per topic, ops are applied in that
order too, so a submission behind one that still waits for a sync waits for that sync as well. A submission is applied
or failed exactly once. Nothing of a failed submission is ever applied. A submission may grow while it is queued and the
last one of its topic, so that growing never overtakes anything.

    submit -> queued -> (take) written -> applied                 needs no sync
                                       -> awaiting -> applied     durable, behind a durable one, or above the ceiling

Called only on the owner's thread. The runtime moves bytes (`take`, then `written` or `write_failed`; `synced` or
`sync_failed`) and knows nothing of topics.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence, Sized
from time import perf_counter
from typing import TYPE_CHECKING, Any

from topics.engine.ticket import Ticket, guarded
from topics.errors import CommitFailed, ReadOnlyCause, WalFull, log_refusal
from topics.model.submission import Submission

if TYPE_CHECKING:
    from topics.engine.writing.coalesced_write import CoalescedWrite

log = logging.getLogger("topics.engine")


class CommitTicket(Ticket[Any]):
    """The ticket of one submission: what to do when it commits, what to give back when it does not."""

    __slots__ = ("barrier", "finish", "gate", "on_failure", "submitted_s", "synced_s", "written_s")

    def __init__(
        self,
        *,
        finish: Callable[[Submission], Any],
        on_failure: Callable[[BaseException], None] | None,
        gate: Callable[[], bool] | None,
        barrier: bool,
        answer: Callable[[Ticket[Any]], None] | None,
    ) -> None:
        self.done = False
        self.value = None
        self.error = None
        self._waiters = None if answer is None else [answer]
        self.finish = finish
        self.on_failure = on_failure
        self.gate = gate
        self.barrier = barrier
        self.submitted_s = perf_counter()
        self.written_s = 0.0
        self.synced_s = 0.0

    @property
    def append_ms(self) -> float:
        return (self.written_s - self.submitted_s) * 1e3

    @property
    def sync_ms(self) -> float:
        return (self.synced_s - self.written_s) * 1e3 if self.synced_s else 0.0


class _Group:
    __slots__ = (
        "awaiting",
        "depth",
        "depth_peak",
        "full_total",
        "queued",
        "read_only",
        "reserve_open",
        "synced_lsn",
        "taken",
        "waiting",
        "written_lsn",
    )

    def __init__(self) -> None:
        self.queued: deque[Submission] = deque()
        self.depth = 0  # callers' writes accepted and not yet answered
        self.awaiting: deque[Submission] = deque()
        self.waiting: dict[int, int] = {}  # topic id -> its submissions in `awaiting` that hold back later ones
        self.read_only: ReadOnlyCause | None = None
        self.reserve_open = False  # read-only, but what gives space back is taken
        self.synced_lsn = 0
        self.written_lsn = 0
        self.taken = 0  # batches that the writer has and has not reported
        self.depth_peak = 0
        self.full_total = 0

    def check_writable(self, *, reclaims: bool) -> None:
        if self.read_only is not None and not (reclaims and self.reserve_open):
            raise log_refusal(self.read_only)

    def close(self, cause: ReadOnlyCause) -> None:
        self.read_only = cause
        self.reserve_open = False


class Commit:
    def __init__(self, groups: int, *, queue_max: int, wake: Callable[[], None]) -> None:
        self._groups = [_Group() for _ in range(groups)]
        self._queue_max = queue_max
        self._wake = wake
        self.growing: dict[int, CoalescedWrite] = {}
        """By topic id: what was submitted last for the topic and may take in more writes, until another submission of
        the topic comes or it is taken to be written."""
        self.failures_total: dict[str, int] = {}
        self.room_waiters: deque[Callable[[], None]] = deque()
        self.some_full = False
        """A group's queue may have no place left: those who can wait should look before they submit."""
        self.on_synced: list[Callable[[int, int], None]] = []
        """Told with a group and its synced position, after what waited for it was applied."""

    def wake(self) -> None:
        """Have the end of this turn come, although nothing may have been submitted."""
        self._wake()

    # --- in ------------------------------------------------------------------------------------------------------

    def has_room(self, group: int, writes: int = 1) -> bool:
        return self._groups[group].depth + writes <= self._queue_max

    def count_full(self, group: int) -> None:
        """A submission was refused for want of a place."""
        self._groups[group].full_total += 1

    def check_writable(self, group: int, *, reclaims: bool = False) -> None:
        """Refuse at once what could not be committed."""
        self._groups[group].check_writable(reclaims=reclaims)

    def submit(
        self,
        group: int,
        submission: Submission,
        *,
        finish: Callable[[Submission], Any],
        on_failure: Callable[[BaseException], None] | None = None,
        gate: Callable[[], bool] | None = None,
        barrier: bool = True,
        internal: bool = False,
        reclaims: bool = False,
        answer: Callable[[Ticket[Any]], None] | None = None,
    ) -> CommitTicket:
        """Accept a submission whole, or refuse it whole.

        `finish` applies its ops and makes the reply; `answer` is the first waiter of the ticket. `gate`, asked after
        the write, says whether it must wait for a sync although its class does not ask for one (its seqs lie above the
        applied ceiling). `barrier=False` is for ops that commute with everything else of their topic: later submissions
        need not wait for them. `internal` submissions (marks, floors) are not refused for a full queue: they are few,
        and they are what drains it. They and what `reclaims` space (deletes, acks) may use the log's reserve when the
        disk is full."""
        state = self._groups[group]
        submission.reclaims = reclaims or internal
        if state.read_only is not None:
            state.check_writable(reclaims=submission.reclaims)
        if state.depth + submission.writes > self._queue_max and not internal:
            self.count_full(group)
            raise WalFull()
        if self.growing:
            self._stop_growing(submission.topic_id)
            self._stop_growing(submission.rider_topic_id)
        ticket = CommitTicket(finish=finish, on_failure=on_failure, gate=gate, barrier=barrier, answer=answer)
        submission.ticket = ticket
        state.queued.append(submission)
        self._deepen(state, submission.writes)
        self._wake()
        return ticket

    def _deepen(self, state: _Group, writes: int) -> None:
        depth = state.depth = state.depth + writes
        if depth > state.depth_peak:
            state.depth_peak = depth
        if depth >= self._queue_max:
            self.some_full = True

    # --- submissions that grow -----------------------------------------------------------------------------------

    def grow(self, group: int, submission: Submission, writes: int) -> bool:
        """More writes want to travel with a submission that grows; False if there is no place for all of them."""
        state = self._groups[group]
        if state.depth + writes > self._queue_max:
            return False
        submission.writes += writes
        self._deepen(state, writes)
        return True

    def _stop_growing(self, topic_id: int) -> None:
        grown = self.growing.pop(topic_id, None)
        if grown is not None:
            grown.seal()

    def _seal_all(self) -> None:
        growing = list(self.growing.values())
        self.growing.clear()
        for submission in growing:
            submission.seal()

    # --- out to the writer ---------------------------------------------------------------------------------------

    def queue(self, group: int) -> Sized:
        """What is to be taken, as long as the group lives: empty when there is nothing."""
        return self._groups[group].queued

    def take(self, group: int, frames_max: int, bytes_max: int) -> list[Submission]:
        """The next batch to write: at least one submission if any is queued, else within both bounds."""
        state = self._groups[group]
        queued = state.queued
        if not queued:
            return []
        state.taken += 1
        if self.growing:
            self._seal_all()
        batch: list[Submission] = []
        frames = size = 0
        while queued:
            head = queued[0]
            frames += head.frame_count
            size += head.size
            if batch and (frames > frames_max or size > bytes_max):
                break
            batch.append(queued.popleft())
        return batch

    # --- back from the writer ------------------------------------------------------------------------------------

    def written(self, group: int, batch: Sequence[Submission]) -> int:
        """The batch is in the file. Applies what needs no sync; returns how many submissions wait for one."""
        state = self._groups[group]
        state.taken -= 1
        state.written_lsn = batch[-1].end_lsn
        now_s = perf_counter()
        waiting = 0
        for submission in batch:
            ticket: CommitTicket = submission.ticket  # type: ignore[assignment]
            ticket.written_s = now_s
            if self._must_wait(state, submission, ticket):
                state.awaiting.append(submission)
                if ticket.barrier:
                    for topic_id in _topics_of(submission):
                        state.waiting[topic_id] = state.waiting.get(topic_id, 0) + 1
                waiting += 1
            else:
                state.depth -= submission.writes
                self._apply(submission, ticket)
        self._announce_room()
        return waiting

    @staticmethod
    def _must_wait(state: _Group, submission: Submission, ticket: CommitTicket) -> bool:
        if submission.durable or submission.topic_id in state.waiting:
            return True
        if submission.rider_topic_id and submission.rider_topic_id in state.waiting:
            return True
        return ticket.gate is not None and ticket.gate()

    def synced(self, group: int, lsn: int) -> None:
        """Everything up to `lsn` is on disk: apply, in order, all that waited for it."""
        state = self._groups[group]
        state.synced_lsn = max(state.synced_lsn, lsn)
        awaiting, now_s = state.awaiting, perf_counter()
        while awaiting and awaiting[0].end_lsn <= lsn:
            submission = awaiting.popleft()
            ticket: CommitTicket = submission.ticket  # type: ignore[assignment]
            ticket.synced_s = now_s
            if ticket.barrier:
                for topic_id in _topics_of(submission):
                    self._release_barrier(state, topic_id)
            state.depth -= submission.writes
            self._apply(submission, ticket)
        for tell in self.on_synced:
            guarded(tell, group, lsn)
        self._announce_room()

    @staticmethod
    def _release_barrier(state: _Group, topic_id: int) -> None:
        left = state.waiting[topic_id] - 1
        if left:
            state.waiting[topic_id] = left
        else:
            del state.waiting[topic_id]

    def synced_lsn(self, group: int) -> int:
        return self._groups[group].synced_lsn

    def written_lsn(self, group: int) -> int:
        """Everything applied so far lies below it."""
        return self._groups[group].written_lsn

    @staticmethod
    def _apply(submission: Submission, ticket: CommitTicket) -> None:
        try:
            value = ticket.finish(submission)
        except Exception as error:  # a bug, never a client's fault; the frame is in the log, so the error must be seen
            log.exception("applying a committed submission of topic %d failed", submission.topic_id)
            ticket.fail(error)
        else:
            ticket.resolve(value)

    # --- failures ------------------------------------------------------------------------------------------------

    def write_failed(self, group: int, batch: Sequence[Submission], error: CommitFailed) -> None:
        """The batch and all queued behind it fail (`docs/spec/storage.md#f2`); what was written before may still be
        synced."""
        state = self._groups[group]
        state.taken -= 1
        state.close(error.cause)
        self._count_failure("write")
        is_passing = error.cause in ("no_space", "rotate") and error.outcome == "not_committed"
        told = log_refusal(error.cause) if is_passing else error
        self._fail(state, [*batch, *self._drain(state.queued)], told)

    def refuse(self, group: int, batch: Sequence[Submission]) -> None:
        """Batches handed to a thread that found the group read-only: nothing of them was written."""
        state = self._groups[group]
        state.taken -= 1
        self._fail(state, batch, log_refusal(state.read_only or "write"))

    def sync_failed(self, group: int, error: BaseException, cause: ReadOnlyCause) -> None:
        """No sync of this group is ever trusted again (F6): fail all who wait for one, and all who are queued."""
        state = self._groups[group]
        state.close(cause)
        self._count_failure("sync")
        state.waiting.clear()
        failure = error if isinstance(error, CommitFailed) else CommitFailed("unknown", cause=cause)
        self._fail(state, [*self._drain(state.awaiting), *self._drain(state.queued)], failure)

    def close_group(self, group: int, cause: ReadOnlyCause) -> None:
        """A group that could not be opened for writing; its topics are readable."""
        self._groups[group].close(cause)

    def may_reopen(self, group: int) -> bool:
        """Nothing from before the failure is still to be written: it would come without what failed before it."""
        return not self._groups[group].taken

    def reopen(self, group: int) -> None:
        """Space is back (F5): the group accepts writes again."""
        self._groups[group].read_only = None

    def open_reserve(self, group: int) -> None:
        """There is no space, but the writer has a reserve (F5a): take what gives space back."""
        self._groups[group].reserve_open = True

    def read_only_causes(self) -> dict[int, ReadOnlyCause]:
        return {index: state.read_only for index, state in enumerate(self._groups) if state.read_only is not None}

    def _drain(self, queue: deque[Submission]) -> list[Submission]:
        self._seal_all()  # what fails now may not grow on
        drained = list(queue)
        queue.clear()
        return drained

    def _fail(self, state: _Group, submissions: Sequence[Submission], error: BaseException) -> None:
        """Give back every reservation first, newest first, then answer: a waiter may submit again at once."""
        state.depth -= sum(submission.writes for submission in submissions)
        tickets: list[CommitTicket] = [submission.ticket for submission in submissions]  # type: ignore[misc]
        for ticket in reversed(tickets):
            if ticket.on_failure is not None:
                guarded(ticket.on_failure, error)
        for ticket in tickets:
            ticket.fail(error)
        self._announce_room()

    def _count_failure(self, op: str) -> None:
        self.failures_total[op] = self.failures_total.get(op, 0) + 1

    # --- depth ---------------------------------------------------------------------------------------------------

    def depth(self, group: int | None = None) -> int:
        groups = self._groups if group is None else [self._groups[group]]
        return sum(state.depth for state in groups)

    @property
    def depth_peak(self) -> int:
        return max(state.depth_peak for state in self._groups)

    @property
    def full_total(self) -> int:
        return sum(state.full_total for state in self._groups)

    def idle(self) -> bool:
        return all(state.depth == 0 for state in self._groups)

    def _announce_room(self) -> None:
        if self.some_full:
            self.some_full = any(state.depth >= self._queue_max for state in self._groups)
        waiters = self.room_waiters
        if waiters:
            for _ in range(len(waiters)):
                guarded(waiters.popleft())


def _topics_of(submission: Submission) -> tuple[int, ...]:
    """Whose order it keeps."""
    rider = submission.rider_topic_id
    return (submission.topic_id, rider) if rider else (submission.topic_id,)
