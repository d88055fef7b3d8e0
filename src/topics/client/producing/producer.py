"""Producer: records of many topics, gathered into batches and sent by one thread of its own.

Always holds: per topic, records are committed in the order they were given, one batch at a time; a batch carries one
idempotency key and is repeated under it until the server answers or time is up; the buffer is bounded, and who fills it
waits or is told. A failure that nobody asked a report of is raised by `flush` and `close`. Good for any thread. A
report runs on the producer's own thread, which can wait for nothing that it has to do itself: what is given there finds
room, and `close` leaves the rest to be sent behind it."""

from __future__ import annotations

import atexit
import math
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from topics.client.producing.batching import Batch, Batches, Delivery, ProducerOptions, Report, log
from topics.client.transport import calls
from topics.client.transport.calls import IdempotencyKeys
from topics.client.transport.forks import tell_of_forks
from topics.client.transport.request_bodies import piece_of, record_piece
from topics.client.transport.transport import Transport
from topics.errors import InvalidRequest, Throttled, TopicsError, Unreachable
from topics.limits import SIGNAL_LOOK_S
from topics.model.values import several


class Producer:
    """Made by `client.producer()` or, for one topic, `topic.producer()`."""

    def __init__(
        self,
        transport: Transport,
        keys: IdempotencyKeys,
        options: ProducerOptions,
        *,
        topic: str | None = None,
        config: bytes | None = None,
    ) -> None:
        self._transport = transport
        self._keys = keys
        self._buffer_bytes = options.buffer_bytes
        self._when_full = options.when_full
        self._topic = topic
        self._config = config
        self._batches = Batches(options)
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # the sender waits here
        self._finish_job = threading.Condition(self._lock)  # those who flush, or need room
        self._error: TopicsError | None = None
        self._closing = False
        self._why_closed = "the producer is closed"
        self._thread = threading.Thread(target=self._run, name="topics-producer", daemon=True)
        self._thread.start()
        transport.before_close[self] = self.close
        atexit.register(self._at_exit)
        tell_of_forks(self)

    def forked(self) -> None:
        """The parent sends what was given so far; here is no thread that would."""
        self._lock = threading.Lock()
        self._work, self._finish_job = threading.Condition(self._lock), threading.Condition(self._lock)
        self._why_closed = "the producer belongs to the process that made it, and this is a forked child of it"
        self._closing, self._buffer_bytes = True, 0
        self._batches = Batches(ProducerOptions())
        self._transport.before_close.pop(self, None)
        atexit.unregister(self._at_exit)

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
        name = topic or self._topic
        with self._lock:
            if self._batches.bytes >= self._buffer_bytes:
                self._wait_for_room()
            if self._batches.add(name or no_topic(), piece, report):
                self._work.notify()

    def append_many(self, records: Iterable[Any], *, topic: str | None = None, report: Report | None = None) -> None:
        """Give values or `Event`s, in order. They need not end up in one batch."""
        pieces = list(map(piece_of, several(records)))
        name, at = topic or self._topic or no_topic(), 0
        with self._lock:
            while at < len(pieces):
                if self._batches.bytes >= self._buffer_bytes:
                    self._wait_for_room()
                at = self._batches.add_some(name, pieces, at, report)
                self._work.notify()

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

    def _wait_for_room(self) -> None:
        if self._when_full == "raise" and not self._closing:
            raise Throttled("the producer's buffer is full")
        if not self._is_sender():
            self._wait_until(lambda: self._batches.bytes < self._buffer_bytes or self._closing)
        if self._closing:
            raise TopicsError(self._why_closed)

    def _is_sender(self) -> bool:
        return threading.current_thread() is self._thread

    def _wait_until(self, condition: Callable[[], bool], timeout_s: float = math.inf) -> bool:
        """Looks up now and then: a signal that the system gave to another thread does not end a wait."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            self._finish_job.wait(min(left_s, SIGNAL_LOOK_S))
        return True

    # --- sending: the producer's own thread -----------------------------------------------------------------------

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            self._send(batch)
            with self._lock:
                self._batches.finished(batch)
                self._finish_job.notify_all()

    def _next(self) -> Batch | None:
        """The next batch to send; None at the end."""
        with self._lock:
            while True:
                if self._closing:
                    self._batches.seal_all()
                batch = self._batches.due()
                if batch is not None or self._closing:
                    return batch
                self._work.wait(self._batches.wait_s())

    def _send(self, batch: Batch) -> None:
        try:
            call = calls.append(batch.topic, batch.pieces, key=self._keys.next(), config=self._config)
            batch.committed(self._transport.run(call).first_seq)
        except TopicsError as error:
            if batch.is_worth_halving(error):
                for half in batch.halves():
                    self._send(half)
            else:
                self._failed(batch, error)
        except Exception as error:  # our own mistake must not leave callers waiting for ever
            log.exception("a batch of topic %r could not be sent", batch.topic)
            self._failed(batch, TopicsError(f"the producer failed: {error!r}"))

    def _failed(self, batch: Batch, error: TopicsError) -> None:
        if batch.failed(error):
            with self._lock:
                self._error = self._error or error

    # --- the end --------------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything given so far is settled. Raises the first failure that had no report of its own."""
        if self._is_sender():
            raise TopicsError("a report cannot wait for its own producer")
        with self._lock:
            waited_for = self._batches.seal_all()
            self._work.notify()
            wait_s = math.inf if timeout_s is None else timeout_s
            if not self._wait_until(lambda: all(batch.is_done for batch in waited_for), wait_s):
                raise Unreachable(f"records were still unsettled after {timeout_s:g} s", sent=True)
            error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self, timeout_s: float | None = None) -> None:
        """Settle everything, then end. Raises as `flush` does."""
        try:
            if not self._is_sender():
                self.flush(timeout_s)
        finally:
            with self._lock:
                self._closing = True
                self._buffer_bytes = 0  # nothing fits any more
                self._work.notify()
                self._finish_job.notify_all()
            self._transport.before_close.pop(self, None)
            atexit.unregister(self._at_exit)
            if not self._is_sender():
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


def no_topic() -> str:
    raise InvalidRequest("a producer of no topic in particular needs `topic`")
