"""CoalescedWrite: plain writes of one topic and one turn as one submission, and those who wait for them."""

from __future__ import annotations

from array import array
from time import perf_counter
from typing import Protocol

from msgspec import field

from topics.core.append import Reservation
from topics.core.topic import TopicLog
from topics.engine.ticket import Ticket, callback_failed, guarded
from topics.engine.writing.commit import CommitTicket
from topics.engine.writing.encode import encode_append
from topics.limits import KIB
from topics.model.config import TopicConfig
from topics.model.record import WriteBatch, joined
from topics.model.results import Appended
from topics.model.submission import Submission

WRITES_MAX = 1024
BYTES_MAX = 256 * KIB
"""Of one coalesced submission: what grows must end before it holds up the turn that writes it."""


class AppendWaiter(Protocol):
    """Whoever waits for one of the writes of a submission, or for several that came together."""

    def written(self, first_seq: int, count: int, *, epoch: int, written_s: float, sync_ms: float) -> None:
        """They are committed and published."""

    def fail(self, error: BaseException) -> None:
        """They are not, for all that is known."""

    def abandon(self, error: BaseException) -> None:
        """As `fail`, for those that are not answered."""


class WriteTicket(Ticket[Appended]):
    """The ticket of one of the writes of a submission: an `AppendWaiter`."""

    __slots__ = ("submitted_s",)

    def __init__(self) -> None:
        self.done = False
        self.value = None
        self.error = None
        self._waiters = None
        self.submitted_s = perf_counter()

    def written(self, first_seq: int, count: int, *, epoch: int, written_s: float, sync_ms: float) -> None:
        append_ms = (written_s - self.submitted_s) * 1e3
        self.resolve(Appended(first_seq, count, first_seq + count - 1, epoch, append_ms=append_ms, sync_ms=sync_ms))


class CoalescedWrite(Submission, kw_only=True, eq=False):
    """Plain writes of one topic and one turn as one submission: encoded, written, applied and published together. Each
    is still a run of its own in the log and is answered for itself.

    Always holds: the seqs of its writes are consecutive, in order of arrival, and their times do not fall; all have one
    class and one config. Opened and filled by `Writes`, sealed by `Commit` when it is taken to be written."""

    topic: TopicLog
    config: TopicConfig
    group: int
    first_seq: int
    ts: int
    """Of the last write."""
    moments: list[tuple[int, int]]
    """Times, and the number of records before each."""
    count: int = 0
    """Records."""
    bytes: int = 0
    """Accounted."""
    batches: list[WriteBatch] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    """Records of each write."""
    waiters: list[tuple[AppendWaiter, int]] = field(default_factory=list)
    """With the number of records each waits for."""

    def takes(self, writes: int, size: int) -> bool:
        """Whether more writes can be like the others: all that would differ is checked here."""
        is_alike = self.config is self.topic.config
        return is_alike and self.bytes + size <= BYTES_MAX and self.writes + writes <= WRITES_MAX

    def move_on(self, ts: int) -> None:
        """Whatever is added from now on has this time."""
        self.ts = ts
        self.moments.append((ts, self.count))

    def add(self, batch: WriteBatch, waiter: AppendWaiter, runs: list[int]) -> None:
        """Take in writes, `runs` of records, whose seqs are the next ones."""
        assert not self.ops, "a write was added to a submission that is sealed"
        self.count += batch.count
        self.bytes += batch.total_bytes
        self.batches.append(batch)
        self.runs += runs
        self.waiters.append((waiter, batch.count))

    def reservation(self) -> Reservation:
        return Reservation(self.first_seq, self.count, self.bytes, self.ts, None)

    def seal(self) -> None:
        """All are there: encode them. The op is `ops[0]` from now on."""
        batch = self.batches[0] if len(self.batches) == 1 else joined(self.batches)
        times = None if len(self.moments) == 1 else self._times()
        op = encode_append(self.topic, batch, self.reservation(), durable=self.durable, times=times, runs=self.runs)
        assert op.frames is not None
        self.ops.append(op)
        self.frames.append(op.frames)
        self.size = len(op.frames)
        self.frame_count = self.client_frames = self.count

    def _times(self) -> array[int]:
        """The time of each record."""
        ends = [at for _, at in self.moments[1:]] + [self.count]
        times: array[int] = array("Q")
        for (ts, at), end in zip(self.moments, ends, strict=True):
            times += array("Q", (ts,)) * (end - at)
        return times

    def answer(self, done: Ticket[float]) -> None:
        """It is committed, or failed: so are all of its writes."""
        commit: CommitTicket = self.ticket  # type: ignore[assignment]
        self.ticket = None  # the ticket knows us: a cycle would be left to the collector
        if done.error is not None:
            for waiter, _ in self.waiters:
                guarded(waiter.fail, done.error)
            return
        written_s, sync_ms = commit.written_s, done.value or 0.0
        seq, epoch = self.first_seq, self.topic.epoch
        for waiter, count in self.waiters:
            try:
                waiter.written(seq, count, epoch=epoch, written_s=written_s, sync_ms=sync_ms)
            except Exception as error:
                callback_failed(error, waiter.abandon)
            seq += count
