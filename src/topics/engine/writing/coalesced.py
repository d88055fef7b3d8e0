"""CoalescedWrite: small writes of one topic and one moment that travel as one submission.

On a busy topic the writes of a turn differ in nothing but their records, so they are encoded, written, applied and
published together; each is still a run of its own in the log and is answered for itself. Always holds: the seqs of its
writes are consecutive, in order of arrival, and their times do not fall; all have one class and one config. Opened and
filled by `engine.writes`, sealed by `engine.commit`."""

from __future__ import annotations

from array import array
from time import perf_counter
from typing import Protocol

from topics.core.append import Reservation, make_append
from topics.core.topic import TopicLog
from topics.engine.ticket import Ticket, callback_failed, guarded
from topics.engine.writing.commit import CommitTicket
from topics.formats.wal.frame import encode_appends
from topics.limits import KIB
from topics.model.ops import Append
from topics.model.record import WriteBatch, joined
from topics.model.results import Appended
from topics.model.submission import Submission

WRITES_MAX = 1024
BYTES_MAX = 256 * KIB
"""What grows must end before it holds up the turn that writes it."""
RECORDS_EACH_MAX = 256
"""Of one write that travels with others; a larger one gains nothing by it."""


class AppendWaiter(Protocol):
    """Whoever waits for one of the writes, or for several that came together."""

    def written(self, first_seq: int, count: int, *, epoch: int, written_s: float, sync_ms: float) -> None:
        """They are committed and published."""

    def fail(self, error: BaseException) -> None:
        """They are not, for all that is known."""

    def abandon(self, error: BaseException) -> None:
        """As `fail`, for those that are not answered."""


class WriteTicket(Ticket[Appended]):
    """The ticket of one of the writes."""

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


class CoalescedWrite(Submission):
    __slots__ = (
        "_batches",
        "_moments",
        "_runs",
        "_writers",
        "bytes",
        "config",
        "count",
        "first_seq",
        "group",
        "topic",
        "ts",
    )

    def __init__(self, topic: TopicLog, *, group: int, first_seq: int, ts: int, durable: bool, writes: int = 1) -> None:
        super().__init__([], frame_count=0, durable=durable, topic_id=topic.id, size=0)
        self.writes = writes
        self.topic = topic
        self.group = group
        self.config = topic.config
        self.first_seq = first_seq
        self.ts = ts  # of the last write
        self.count = 0  # records
        self.bytes = 0  # accounted
        self._moments = [(ts, 0)]  # times, and the number of records before each
        self._batches: list[WriteBatch] = []
        self._runs: list[int] = []  # records of each write
        self._writers: list[tuple[AppendWaiter, int]] = []  # with the number of records each waits for

    def takes(self, writes: int, size: int) -> bool:
        """Whether more writes can be like the others: all that would differ is checked here."""
        is_alike = self.config is self.topic.config
        return is_alike and self.bytes + size <= BYTES_MAX and self.writes + writes <= WRITES_MAX

    def move_on(self, ts: int) -> None:
        """Whatever is added from now on has this time."""
        self.ts = ts
        self._moments.append((ts, self.count))

    def add(self, batch: WriteBatch, writer: AppendWaiter, *, runs: list[int]) -> None:
        """Take in writes, `runs` of records, whose seqs are the next ones."""
        assert not self.ops, "a write was added to a submission that is sealed"
        self.count += batch.count
        self.bytes += batch.total_bytes
        self._batches.append(batch)
        self._runs += runs
        self._writers.append((writer, batch.count))

    def reservation(self) -> Reservation:
        return Reservation(self.first_seq, self.count, self.bytes, self.ts, None)

    def seal(self) -> None:
        """All are there: encode them. The op is `ops[0]` from now on."""
        batch, ts = self._batch(), self._times()
        encoded = encode_appends(
            topic_id=self.topic_id,
            first_seq=self.first_seq,
            ts=self.ts if ts is None else ts,
            datas=batch.blobs,
            nodes=batch.nodes,
            tags=batch.tags,
            durable=self.durable,
            runs=self._runs,
        )
        op = make_append(
            self.topic,
            self.reservation(),
            batch,
            frames=encoded.buffer,
            offs=array("I", encoded.offsets),
            lens=array("I", encoded.lengths),
            ts=ts,
        )
        self.ops.append(op)
        self.frames.append(encoded.buffer)
        self.size = len(encoded.buffer)
        self.frame_count = self.client_frames = self.count

    def _times(self) -> array[int] | None:
        """The time of each record; None if all have the same."""
        if len(self._moments) == 1:
            return None
        ends = [at for _, at in self._moments[1:]] + [self.count]
        times: array[int] = array("Q")
        for (ts, at), end in zip(self._moments, ends, strict=True):
            times += array("Q", (ts,)) * (end - at)
        return times

    def _batch(self) -> WriteBatch:
        return self._batches[0] if len(self._batches) == 1 else joined(self._batches)

    @property
    def op(self) -> Append:
        op = self.ops[0]
        assert isinstance(op, Append)
        return op

    def answer(self, done: Ticket[float]) -> None:
        """It is committed, or failed: so are all of its writes."""
        commit: CommitTicket = self.ticket  # type: ignore[assignment]
        self.ticket = None  # the ticket knows us: a cycle would be left to the collector
        if done.error is not None:
            for writer, _ in self._writers:
                guarded(writer.fail, done.error)
            return
        written_s, sync_ms = commit.written_s, done.value or 0.0
        seq, epoch = self.first_seq, self.topic.epoch
        for writer, count in self._writers:
            try:
                writer.written(seq, count, epoch=epoch, written_s=written_s, sync_ms=sync_ms)
            except Exception as error:
                callback_failed(error, writer.abandon)
            seq += count
