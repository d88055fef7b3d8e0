"""Producer and AsyncProducer: records of many topics, gathered into batches (`batching`) and sent in the background, by
a thread of the producer's own or by a task of the loop it was made on.

Always holds: per topic, records are committed in the order they were given, one batch at a time; a batch carries one
idempotency key and is repeated under it until the server answers or time is up; the buffer is bounded, and whoever
fills it waits or is told. A failure that nobody asked a report of is raised by `flush` and `close`.
"""

from __future__ import annotations

import asyncio
import atexit
import math
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from topics.client.blocking_handles import run
from topics.client.http_door import HttpDoor
from topics.client.producing.batching import Batch, Batches, Delivery, ProducerOptions, Report, log
from topics.client.routes import append_call, piece_of, record_piece
from topics.client.transport.forks import tell_of_forks
from topics.errors import InvalidRequest, Throttled, TopicsError, Unreachable
from topics.limits import SIGNAL_LOOK_S
from topics.model.values import Event, several

CLOSED = "the producer is closed"
CANCELLED = "the producer's task was cancelled"
FULL = "the producer's buffer is full"


class Sender:
    """What both producers have in common: the batches, and how one of them is sent."""

    def __init__(self, door: HttpDoor, options: ProducerOptions, topic: str | None, config: bytes | None) -> None:
        self._door = door
        self._buffer_bytes = options.buffer_bytes
        self._when_full = options.when_full
        self._topic = topic
        self._config = config
        self._batches = Batches(options)
        self._lock = threading.Lock()
        self._error: TopicsError | None = None
        self._closing = False

    async def _send(self, batch: Batch) -> None:
        """Sends a batch and tells what became of its records. Never raises, unless the task is cancelled."""
        try:
            call = append_call(batch.topic, batch.pieces, key=self._door.keys.next(), config=self._config)
            batch.committed((await self._door.transport.run(call)).first_seq)
        except TopicsError as error:
            if batch.is_worth_halving(error):
                await self._send_halves(*batch.halves())
            else:
                self._failed(batch, error)
        except asyncio.CancelledError:
            self._failed(batch, TopicsError(CANCELLED))
            raise
        except Exception as error:  # our own mistake must not leave callers waiting for ever
            log.exception("a batch of topic %r could not be sent", batch.topic)
            self._failed(batch, TopicsError(f"the producer failed: {error!r}"))

    async def _send_halves(self, left: Batch, right: Batch) -> None:
        try:
            await self._send(left)
        except asyncio.CancelledError:
            self._failed(right, TopicsError(CANCELLED))
            raise
        await self._send(right)

    def _failed(self, batch: Batch, error: TopicsError) -> None:
        if batch.failed(error):
            with self._lock:
                self._error = self._error or error

    def _raise_failure(self) -> None:
        """The first failure that had no report of its own, once."""
        with self._lock:
            error, self._error = self._error, None
        if error is not None:
            raise error


def _piece_of(value: Any) -> bytes:
    if type(value) is Event and value.unique is not None:  # a job that is kept out has no seq to report
        raise InvalidRequest("a producer takes no unique keys; `queue.append_many` does")
    return piece_of(value)


def _no_topic() -> str:
    raise InvalidRequest("a producer of no topic in particular needs `topic`")


def _report_to(future: Future[int] | asyncio.Future[int]) -> Report:
    def report(delivery: Delivery) -> None:
        if future.cancelled():
            return
        if delivery.error is None:
            future.set_result(delivery.seq)
        else:
            future.set_exception(delivery.error)

    return report


class Producer(Sender):
    """Made by `client.producer()` or, for one topic, `topic.producer()`. Good for any thread.

    A report runs on the producer's own thread, which can wait for nothing that it has to do itself: what is given
    there is taken although the buffer is full, and `close` leaves the rest to be sent after it."""

    def __init__(
        self, door: HttpDoor, options: ProducerOptions, *, topic: str | None = None, config: bytes | None = None
    ) -> None:
        super().__init__(door, options, topic, config)
        self._why_closed = CLOSED
        self._to_send = threading.Condition(self._lock)  # the sending thread waits here
        self._batch_done = threading.Condition(self._lock)  # those who flush, or wait for space in the buffer
        self._thread = threading.Thread(target=self._run, name="topics-producer", daemon=True)
        self._thread.start()
        door.transport.before_close[self] = self._finish
        atexit.register(self._at_exit)
        tell_of_forks(self)

    def forked(self) -> None:
        """The parent sends what was given so far; here is no thread that would."""
        self._lock = threading.Lock()
        self._to_send, self._batch_done = threading.Condition(self._lock), threading.Condition(self._lock)
        self._why_closed = "the producer belongs to the process that made it, and this is a forked child of it"
        self._closing, self._buffer_bytes = True, 0
        self._batches = Batches(ProducerOptions())
        self._deregister()

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
                self._wait_for_space()
            if self._batches.add(name or _no_topic(), piece, report):
                self._to_send.notify()

    def append_many(self, records: Iterable[Any], *, topic: str | None = None, report: Report | None = None) -> None:
        """Give values or `Event`s, in order. They need not end up in one batch."""
        pieces = list(map(_piece_of, several(records)))
        name, at = topic or self._topic or _no_topic(), 0
        with self._lock:
            while at < len(pieces):
                if self._batches.bytes >= self._buffer_bytes:
                    self._wait_for_space()
                at = self._batches.add_some(name, pieces, at, report)
                self._to_send.notify()

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
        self.append(data, topic=topic, tag=tag, node=node, meta=meta, report=_report_to(future))
        return future

    def _wait_for_space(self) -> None:
        if self._when_full == "raise" and not self._closing:
            raise Throttled(FULL)
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
            self._batch_done.wait(min(left_s, SIGNAL_LOOK_S))
        return True

    # --- sending: the producer's own thread -----------------------------------------------------------------------

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            run(self._send(batch))
            with self._lock:
                self._batches.finished(batch)
                self._batch_done.notify_all()

    def _next(self) -> Batch | None:
        """The next batch to send; None at the end."""
        with self._lock:
            while True:
                if self._closing:
                    self._batches.seal_all()
                batch = self._batches.due()
                if batch is not None or self._closing:
                    return batch
                self._to_send.wait(self._batches.wait_s())

    # --- the end --------------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything given so far is committed or failed. Raises the first failure that had no report of
        its own."""
        if self._is_sender():
            raise TopicsError("a report cannot wait for its own producer")
        with self._lock:
            waited_for = self._batches.seal_all()
            self._to_send.notify()
            wait_s = math.inf if timeout_s is None else timeout_s
            if not self._wait_until(lambda: all(batch.is_done for batch in waited_for), wait_s):
                raise Unreachable(f"records were still unanswered after {timeout_s:g} s", sent=True)
        self._raise_failure()

    def close(self, timeout_s: float | None = None) -> None:
        """Flush, then end. Raises as `flush` does."""
        try:
            if not self._is_sender():
                self.flush(timeout_s)
        finally:
            with self._lock:
                self._closing = True
                self._buffer_bytes = 0  # nothing fits any more
                self._to_send.notify()
                self._batch_done.notify_all()
            self._deregister()
            if not self._is_sender():
                self._thread.join(timeout_s)

    async def _finish(self) -> None:
        self.close()

    def _deregister(self) -> None:
        self._door.transport.before_close.pop(self, None)
        atexit.unregister(self._at_exit)

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


class AsyncProducer(Sender):
    """Made by `client.producer()` or `topic.producer()`; ended by `async with` or `await close()`.

    Whoever fills the buffer waits in `append`. Reports are called on the loop."""

    def __init__(
        self, door: HttpDoor, options: ProducerOptions, *, topic: str | None = None, config: bytes | None = None
    ) -> None:
        super().__init__(door, options, topic, config)
        self._to_send = asyncio.Event()
        self._batch_done = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        door.transport.before_close[self] = self.close

    # --- giving ---------------------------------------------------------------------------------------------------

    async def append(
        self,
        data: Any,
        *,
        topic: str | None = None,
        tag: str | None = None,
        node: str | None = None,
        meta: Any = None,
        report: Report | None = None,
    ) -> None:
        """Give one record; waits only while the buffer is full. `report` is called with its `Delivery`."""
        piece = record_piece(data, tag=tag, node=node, meta=meta)
        name = topic or self._topic or _no_topic()
        if self._task is None or self._batches.bytes >= self._buffer_bytes:
            await self._wait_for_space()
        if self._batches.add(name, piece, report):
            self._to_send.set()

    async def append_many(
        self, records: Iterable[Any], *, topic: str | None = None, report: Report | None = None
    ) -> None:
        """Give values or `Event`s, in order. They need not end up in one batch."""
        pieces = list(map(_piece_of, several(records)))
        name, at = topic or self._topic or _no_topic(), 0
        while at < len(pieces):
            await self._wait_for_space()
            at = self._batches.add_some(name, pieces, at, report)
            self._to_send.set()

    async def submit(
        self,
        data: Any,
        *,
        topic: str | None = None,
        tag: str | None = None,
        node: str | None = None,
        meta: Any = None,
    ) -> asyncio.Future[int]:
        """Give one record; awaiting the future gives its seq once it is committed."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        await self.append(data, topic=topic, tag=tag, node=node, meta=meta, report=_report_to(future))
        return future

    async def _wait_for_space(self) -> None:
        if self._closing:
            raise TopicsError(CLOSED)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="topics-producer")
        if self._batches.bytes < self._buffer_bytes:
            return
        if self._when_full == "raise":
            raise Throttled(FULL)
        await self._wait_until(lambda: self._batches.bytes < self._buffer_bytes or self._closing)
        if self._closing:
            raise TopicsError(CLOSED)

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._batch_done.clear()
            await self._batch_done.wait()

    # --- sending: the producer's own task -------------------------------------------------------------------------

    async def _run(self) -> None:
        while (batch := await self._next()) is not None:
            try:
                await self._send(batch)
            finally:
                self._batches.finished(batch)
                self._batch_done.set()

    async def _next(self) -> Batch | None:
        """The next batch to send; None at the end."""
        while True:
            self._to_send.clear()
            batch = self._batches.due()
            if batch is not None or self._closing:
                return batch
            try:
                async with asyncio.timeout(self._batches.wait_s()):
                    await self._to_send.wait()
            except TimeoutError:
                pass

    # --- the end --------------------------------------------------------------------------------------------------

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything given so far is committed or failed. Raises the first failure that had no report of
        its own."""
        waited_for = self._batches.seal_all()
        self._to_send.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._wait_until(lambda: all(batch.is_done for batch in waited_for))
        except TimeoutError:
            raise Unreachable(f"records were still unanswered after {timeout_s:g} s", sent=True) from None
        self._raise_failure()

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush, then end. Raises as `flush` does; what is not committed after the timeout fails."""
        try:
            await self.flush(timeout_s)
        finally:
            self._closing = True
            self._buffer_bytes = 0  # nothing fits any more
            self._door.transport.before_close.pop(self, None)
            self._to_send.set()
            self._batch_done.set()
            await self._end_task()

    async def _end_task(self) -> None:
        if self._task is None:
            return
        unfinished = self._batches.seal_all()
        if unfinished:
            self._task.cancel()
        await asyncio.wait([self._task])
        for batch in unfinished:
            if not batch.is_done:
                self._failed(batch, TopicsError("the producer was closed before the record was sent"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
