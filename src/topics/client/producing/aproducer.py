"""Producer for coroutines: the batches of `batching`, sent by a task of the loop it was made on.

The rules are those of `producer`: per topic one batch at a time and in order, one key per batch, a bounded buffer. Who
fills it waits in `append`. Reports are called on the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from topics.client.producing.batching import Batch, Batches, Delivery, ProducerOptions, Report, log
from topics.client.producing.producer import no_topic
from topics.client.transport import calls
from topics.client.transport.atransport import AsyncTransport
from topics.client.transport.calls import IdempotencyKeys
from topics.client.transport.request_bodies import piece_of, record_piece
from topics.errors import Throttled, TopicsError, Unreachable
from topics.model.values import several

CANCELLED = "the producer's task was cancelled"


class AsyncProducer:
    """Made by `client.producer()` or `topic.producer()`; ended by `async with` or `await close()`."""

    def __init__(
        self,
        transport: AsyncTransport,
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
        self._work = asyncio.Event()
        self._finish_job = asyncio.Event()
        self._error: TopicsError | None = None
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        transport.before_close[self] = self.close

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
        name = topic or self._topic or no_topic()
        if self._task is None or self._batches.bytes >= self._buffer_bytes:
            await self._room()
        if self._batches.add(name, piece, report):
            self._work.set()

    async def append_many(
        self, records: Iterable[Any], *, topic: str | None = None, report: Report | None = None
    ) -> None:
        """Give values or `Event`s, in order. They need not end up in one batch."""
        pieces = list(map(piece_of, several(records)))
        name, at = topic or self._topic or no_topic(), 0
        while at < len(pieces):
            await self._room()
            at = self._batches.add_some(name, pieces, at, report)
            self._work.set()

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

        def report(delivery: Delivery) -> None:
            if future.cancelled():
                return
            if delivery.error is None:
                future.set_result(delivery.seq)
            else:
                future.set_exception(delivery.error)

        await self.append(data, topic=topic, tag=tag, node=node, meta=meta, report=report)
        return future

    async def _room(self) -> None:
        if self._closing:
            raise TopicsError("the producer is closed")
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="topics-producer")
        if self._batches.bytes < self._buffer_bytes:
            return
        if self._when_full == "raise":
            raise Throttled("the producer's buffer is full")
        await self._until(lambda: self._batches.bytes < self._buffer_bytes or self._closing)
        if self._closing:
            raise TopicsError("the producer is closed")

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._finish_job.clear()
            await self._finish_job.wait()

    # --- sending: the producer's own task -------------------------------------------------------------------------

    async def _run(self) -> None:
        while (batch := await self._next()) is not None:
            try:
                await self._send(batch)
            finally:
                self._batches.finished(batch)
                self._finish_job.set()

    async def _next(self) -> Batch | None:
        """The next batch to send; None at the end."""
        while True:
            self._work.clear()
            batch = self._batches.due()
            if batch is not None or self._closing:
                return batch
            try:
                async with asyncio.timeout(self._batches.wait_s()):
                    await self._work.wait()
            except TimeoutError:
                pass

    async def _send(self, batch: Batch) -> None:
        try:
            call = calls.append(batch.topic, batch.pieces, key=self._keys.next(), config=self._config)
            batch.committed((await self._transport.run(call)).first_seq)
        except TopicsError as error:
            if batch.is_worth_halving(error):
                await self._send_halves(batch)
            else:
                self._failed(batch, error)
        except asyncio.CancelledError:
            self._failed(batch, TopicsError(CANCELLED))
            raise
        except Exception as error:  # our own mistake must not leave callers waiting for ever
            log.exception("a batch of topic %r could not be sent", batch.topic)
            self._failed(batch, TopicsError(f"the producer failed: {error!r}"))

    async def _send_halves(self, batch: Batch) -> None:
        left, right = batch.halves()
        try:
            await self._send(left)
        except asyncio.CancelledError:
            self._failed(right, TopicsError(CANCELLED))
            raise
        await self._send(right)

    def _failed(self, batch: Batch, error: TopicsError) -> None:
        if batch.failed(error):
            self._error = self._error or error

    # --- the end --------------------------------------------------------------------------------------------------

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything given so far is settled. Raises the first failure that had no report of its own."""
        waited_for = self._batches.seal_all()
        self._work.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._until(lambda: all(batch.is_done for batch in waited_for))
        except TimeoutError:
            raise Unreachable(f"records were still unsettled after {timeout_s:g} s", sent=True) from None
        error, self._error = self._error, None
        if error is not None:
            raise error

    async def close(self, timeout_s: float | None = None) -> None:
        """Settle everything, then end. Raises as `flush` does; what is unsettled after the timeout fails."""
        try:
            await self.flush(timeout_s)
        finally:
            self._closing = True
            self._buffer_bytes = 0  # nothing fits any more
            self._transport.before_close.pop(self, None)
            self._work.set()
            self._finish_job.set()
            await self._end_task()

    async def _end_task(self) -> None:
        if self._task is None:
            return
        unsettled = self._batches.seal_all()
        if unsettled:
            self._task.cancel()
        await asyncio.wait([self._task])
        for batch in unsettled:
            if not batch.is_done:
                self._failed(batch, TopicsError("the producer was closed before the record was sent"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
