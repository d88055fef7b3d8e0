"""Producer: records of many topics, gathered into batches and sent by one thread of its own.

    append -> the topic's open batch -> (full, old enough, or flushed) -> one write -> reports

Always holds: per topic, records are committed in the order they were given, one batch at a time; a batch carries one
idempotency key and is repeated under it until the server answers or time is up; the buffer is bounded, and who fills it
waits or is told. Every record is settled exactly once: committed with its seq, or failed; a failure that nobody asked a
report of is raised by `flush` and `close`. Good for any thread."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Literal, NoReturn, Self

import msgspec

from topics import limits
from topics.client import calls
from topics.client.bodies import piece_of, record_piece
from topics.client.calls import Keys
from topics.client.transport import Transport
from topics.errors import InvalidRequest, RequestRefused, Throttled, TopicsError, Unreachable
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
    """`linger_ms`: how long a record waits for company. `buffer_bytes`: what may be unsettled before `when_full`; a
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


class Batch:
    """Records of one topic that go into one write."""

    __slots__ = ("bytes", "is_settled", "pieces", "reports", "since", "topic")

    def __init__(self, topic: str, since: float) -> None:
        self.topic = topic
        self.since = since
        self.pieces: list[bytes] = []
        self.bytes = 0
        self.reports: list[tuple[int, Report]] = []  # index of a piece, and whom to tell of it
        self.is_settled = False


class Producer:
    """Made by `client.producer()` or, for one topic, `topic.producer()`."""

    def __init__(
        self,
        transport: Transport,
        keys: Keys,
        options: ProducerOptions,
        *,
        topic: str | None = None,
        config: bytes | None = None,
    ) -> None:
        self._transport = transport
        self._keys = keys
        self._linger_s = options.linger_ms / 1000
        self._batch_records = options.batch_records
        self._batch_bytes = options.batch_bytes
        self._buffer_bytes = options.buffer_bytes
        self._when_full = options.when_full
        self._topic = topic
        self._config = config
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # the sender waits here
        self._settled = threading.Condition(self._lock)  # those who flush, or need room
        self._open: dict[str, Batch] = {}  # oldest first
        self._full: deque[Batch] = deque()
        self._sending: Batch | None = None
        self._bytes = 0
        self._error: TopicsError | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="topics-producer", daemon=True)
        self._thread.start()
        transport.before_close[self] = self.close
        atexit.register(self._at_exit)

    # --- giving ---------------------------------------------------------------------------------------------------

    def append(
        self,
        data: Any,
        *,
        topic: str | None = None,
        tag: str | None = None,
        node: str | None = None,
        meta: Any = None,
        report: Report | None = None,
    ) -> None:
        """Give one record. `report` is called with its `Delivery`, on the producer's thread."""
        piece = record_piece(data, tag=tag, node=node, meta=meta)
        name = topic or self._topic or self._no_topic()
        size = len(piece) + 1
        with self._lock:
            batch = self._open.get(name)
            if batch is None or self._bytes >= self._buffer_bytes:
                batch = self._batch_for(name)
            if report is not None:
                batch.reports.append((len(batch.pieces), report))
            batch.pieces.append(piece)
            batch.bytes += size
            self._bytes += size
            if batch.bytes >= self._batch_bytes or len(batch.pieces) >= self._batch_records:
                self._seal(batch)

    def append_many(self, records: Iterable[Any], *, topic: str | None = None, report: Report | None = None) -> None:
        """Give values or `Event`s, in order. They need not end up in one batch."""
        pieces = list(map(piece_of, records))
        name, at = topic or self._topic or self._no_topic(), 0
        with self._lock:
            while at < len(pieces):
                batch = self._batch_for(name)
                count = len(batch.pieces)
                some = pieces[at : at + min(self._batch_records - count, _AT_ONCE)]
                if report is not None:
                    batch.reports += [(index, report) for index in range(count, count + len(some))]
                batch.pieces += some
                size = sum(map(len, some)) + len(some)
                batch.bytes += size
                self._bytes += size
                at += len(some)
                if batch.bytes >= self._batch_bytes or len(batch.pieces) >= self._batch_records:
                    self._seal(batch)

    def submit(
        self,
        data: Any,
        *,
        topic: str | None = None,
        tag: str | None = None,
        node: str | None = None,
        meta: Any = None,
    ) -> Future[int]:
        """Give one record; the future has its seq once it is committed."""
        future: Future[int] = Future()

        def report(delivery: Delivery) -> None:
            if delivery.error is None:
                future.set_result(delivery.seq)
            else:
                future.set_exception(delivery.error)

        self.append(data, topic=topic, tag=tag, node=node, meta=meta, report=report)
        return future

    def _no_topic(self) -> NoReturn:
        raise InvalidRequest("a producer of no topic in particular needs `topic`")

    def _batch_for(self, topic: str) -> Batch:
        """The batch that the next record goes into, once there is room."""
        if self._bytes >= self._buffer_bytes:
            self._wait_for_room()
        return self._open.get(topic) or self._new_batch(topic)

    def _new_batch(self, topic: str) -> Batch:
        batch = self._open[topic] = Batch(topic, time.monotonic())
        if len(self._open) == 1:
            self._work.notify()
        return batch

    def _seal(self, batch: Batch) -> None:
        del self._open[batch.topic]
        self._full.append(batch)
        self._work.notify()

    def _wait_for_room(self) -> None:
        if self._when_full == "raise" and not self._closing:
            raise Throttled("the producer's buffer is full")
        while self._bytes >= self._buffer_bytes and not self._closing:
            self._settled.wait()
        if self._closing:
            raise TopicsError("the producer is closed")

    # --- sending: the producer's own thread -----------------------------------------------------------------------

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            self._send(batch.topic, batch.pieces, batch.reports)
            with self._lock:
                batch.is_settled = True
                self._sending = None
                self._bytes -= batch.bytes
                self._settled.notify_all()

    def _next(self) -> Batch | None:
        """The next batch to send; None at the end."""
        with self._lock:
            while True:
                if self._full:
                    self._sending = self._full.popleft()
                    return self._sending
                oldest = next(iter(self._open.values()), None)
                if oldest is None:
                    if self._closing:
                        return None
                    self._work.wait()
                    continue
                left_s = oldest.since + self._linger_s - time.monotonic()
                if left_s <= 0 or self._closing:
                    self._seal(oldest)
                else:
                    self._work.wait(left_s)

    def _send(self, topic: str, pieces: list[bytes], reports: list[tuple[int, Report]]) -> None:
        try:
            call = calls.append(topic, pieces, key=self._keys.next(), config=self._config)
            first_seq = self._transport.run(call).first_seq
        except RequestRefused as error:
            if error.status not in _PER_RECORD or len(pieces) == 1:
                self._failed(topic, len(pieces), reports, error)
            else:  # nothing of it was stored; the record at fault must not take the others with it
                middle = len(pieces) // 2
                self._send(topic, pieces[:middle], [(at, tell) for at, tell in reports if at < middle])
                self._send(topic, pieces[middle:], [(at - middle, tell) for at, tell in reports if at >= middle])
        except TopicsError as error:
            self._failed(topic, len(pieces), reports, error)
        except Exception as error:  # our own mistake must not leave callers waiting for ever
            log.exception("a batch of topic %r could not be sent", topic)
            self._failed(topic, len(pieces), reports, TopicsError(f"the producer failed: {error!r}"))
        else:
            for at, tell in reports:
                _tell(tell, Delivery(topic, first_seq + at))

    def _failed(self, topic: str, count: int, reports: list[tuple[int, Report]], error: TopicsError) -> None:
        if len(reports) < count:
            with self._lock:
                self._error = self._error or error
        for _, tell in reports:
            _tell(tell, Delivery(topic, 0, error))

    # --- the end --------------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything given so far is settled. Raises the first failure that had no report of its own."""
        with self._lock:
            for batch in list(self._open.values()):
                self._seal(batch)
            waited_for = [*self._full] + ([] if self._sending is None else [self._sending])
            if not self._settled.wait_for(lambda: all(batch.is_settled for batch in waited_for), timeout_s):
                raise Unreachable(f"records were still unsettled after {timeout_s:g} s", sent=True)
            error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self, timeout_s: float | None = None) -> None:
        """Settle everything, then end. Raises as `flush` does."""
        try:
            self.flush(timeout_s)
        finally:
            with self._lock:
                self._closing = True
                self._buffer_bytes = 0  # nothing fits any more
                self._work.notify()
                self._settled.notify_all()
            self._transport.before_close.pop(self, None)
            atexit.unregister(self._at_exit)
            if threading.current_thread() is not self._thread:
                self._thread.join(timeout_s)

    def _at_exit(self) -> None:
        try:
            self.close()
        except TopicsError as error:
            log.error("records were lost when the process ended: %s", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _tell(report: Report, delivery: Delivery) -> None:
    try:
        report(delivery)
    except Exception:
        log.exception("a delivery report failed")
