"""Batching: records of many topics, gathered into batches. Knows no thread, no loop and no socket.

    add -> the topic's open batch -> (full, old enough, or sealed) -> due -> sent -> resolved

Always holds: per topic, batches come out in the order their records went in; a batch is open, full, being sent or
resolved; every record is resolved once, with its seq or an error. Driven by `producer`: under a lock, or on its loop.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Literal, TypedDict

import msgspec

from topics import limits
from topics.errors import RequestRefused, TopicsError
from topics.limits import KIB, MIB

log = logging.getLogger("topics.producer")

WhenFull = Literal["block", "raise"]
_AT_ONCE = 64  # records between two looks at the bounds in bytes
_PER_RECORD = frozenset((400, 413))  # refusals that one record of a batch can be the cause of


class Delivery(msgspec.Struct, frozen=True):
    """What became of one record: its seq, or the error (and seq 0)."""

    topic: str
    seq: int
    error: TopicsError | None = None


Report = Callable[[Delivery], None]


class ProducerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`linger_ms`: how long a record waits for company. `buffer_bytes`: what may be unanswered before `when_full`; a
    producer that is faster than the server fills it, and its records are then this many bytes away from their ack."""

    linger_ms: float = 5.0
    batch_records: int = limits.RECORDS_PER_WRITE_MAX
    batch_bytes: int = 256 * KIB  # larger ones cost a server no less per record, and their acks come later
    buffer_bytes: int = 8 * MIB
    when_full: WhenFull = "block"

    def __post_init__(self) -> None:
        if not 0 < self.batch_records <= limits.RECORDS_PER_WRITE_MAX:
            raise ValueError(f"batch_records must be 1..{limits.RECORDS_PER_WRITE_MAX}")
        if min(self.batch_bytes, self.buffer_bytes) <= 0 or self.linger_ms < 0:
            raise ValueError("batch_bytes and buffer_bytes must be positive, linger_ms not negative")


class ProducerFields(TypedDict, total=False):
    """The fields of `ProducerOptions` as keyword arguments."""

    linger_ms: float
    batch_records: int
    batch_bytes: int
    buffer_bytes: int
    when_full: WhenFull


class Batch:
    """Records of one topic that go into one write."""

    __slots__ = ("bytes", "is_done", "pieces", "reports", "since", "topic")

    def __init__(self, topic: str, since: float = 0.0) -> None:
        self.topic = topic
        self.since = since
        self.pieces: list[bytes] = []
        self.bytes = 0
        self.reports: list[tuple[int, Report]] = []  # index of a piece, and whom to tell of it
        self.is_done = False

    def halves(self) -> tuple[Batch, Batch]:
        middle = len(self.pieces) // 2
        left, right = Batch(self.topic), Batch(self.topic)
        left.pieces, right.pieces = self.pieces[:middle], self.pieces[middle:]
        left.reports = [(at, tell) for at, tell in self.reports if at < middle]
        right.reports = [(at - middle, tell) for at, tell in self.reports if at >= middle]
        return left, right

    def is_worth_halving(self, error: TopicsError) -> bool:
        """Nothing of it was stored, and one record may be at fault: it must not take the others with it."""
        return isinstance(error, RequestRefused) and error.status in _PER_RECORD and len(self.pieces) > 1

    # --- telling --------------------------------------------------------------------------------------------------

    def committed(self, first_seq: int) -> None:
        for at, tell in self.reports:
            _tell(tell, Delivery(self.topic, first_seq + at))

    def failed(self, error: TopicsError) -> bool:
        """Whether there were records that nobody asked a report of."""
        for _, tell in self.reports:
            _tell(tell, Delivery(self.topic, 0, error))
        return len(self.reports) < len(self.pieces)


def _tell(report: Report, delivery: Delivery) -> None:
    try:
        report(delivery)
    except Exception:
        log.exception("a delivery report failed")


class Batches:
    """All batches of one producer that are not resolved yet."""

    __slots__ = ("_batch_bytes", "_batch_records", "_full", "_linger_s", "_now", "_open", "_sending", "bytes")

    def __init__(self, options: ProducerOptions, *, now: Callable[[], float] = time.monotonic) -> None:
        self._linger_s = options.linger_ms / 1000
        self._batch_records = options.batch_records
        self._batch_bytes = options.batch_bytes
        self._now = now
        self._open: dict[str, Batch] = {}  # oldest first
        self._full: deque[Batch] = deque()
        self._sending: Batch | None = None
        self.bytes = 0
        """Of all records that are not resolved."""

    def add(self, topic: str, piece: bytes, report: Report | None) -> bool:
        """Whether there is something new for the sender to look at."""
        batch = self._open.get(topic)
        news = batch is None
        if batch is None:
            batch = self._open[topic] = Batch(topic, self._now())
        if report is not None:
            batch.reports.append((len(batch.pieces), report))
        batch.pieces.append(piece)
        size = len(piece) + 1
        batch.bytes += size
        self.bytes += size
        if batch.bytes >= self._batch_bytes or len(batch.pieces) >= self._batch_records:
            self._seal(batch)
            return True
        return news

    def add_some(self, topic: str, pieces: list[bytes], at: int, report: Report | None) -> int:
        """Some of the pieces from `at` on; where the rest begins. The sender has something to look at."""
        batch = self._open.get(topic)
        if batch is None:
            batch = self._open[topic] = Batch(topic, self._now())
        count = len(batch.pieces)
        some = pieces[at : at + min(self._batch_records - count, _AT_ONCE)]
        if report is not None:
            batch.reports += [(index, report) for index in range(count, count + len(some))]
        batch.pieces += some
        size = sum(map(len, some)) + len(some)
        batch.bytes += size
        self.bytes += size
        if batch.bytes >= self._batch_bytes or len(batch.pieces) >= self._batch_records:
            self._seal(batch)
        return at + len(some)

    def _seal(self, batch: Batch) -> None:
        del self._open[batch.topic]
        self._full.append(batch)

    def seal_all(self) -> list[Batch]:
        """Nothing lingers any more; everything that is not resolved now."""
        for batch in list(self._open.values()):
            self._seal(batch)
        return [*self._full] + ([] if self._sending is None else [self._sending])

    def due(self) -> Batch | None:
        """The next batch to send, which is then under way."""
        if not self._full:
            oldest = next(iter(self._open.values()), None)
            if oldest is None or oldest.since + self._linger_s > self._now():
                return None
            self._seal(oldest)
        self._sending = self._full.popleft()
        return self._sending

    def wait_s(self) -> float | None:
        """When a batch that lingers will be due; None: nothing lingers."""
        oldest = next(iter(self._open.values()), None)
        return None if oldest is None else max(oldest.since + self._linger_s - self._now(), 0.0)

    def finished(self, batch: Batch) -> None:
        batch.is_done = True
        self._sending = None
        self.bytes -= batch.bytes
