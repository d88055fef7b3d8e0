"""Work and AsyncWork: `for job in queue.work(): ...` — one job at a time, its lease kept while the loop's body runs.

A job is acked when the loop comes back for the next one, unless the body has acked or nacked it itself. Leaving the
loop (by `break` or an exception) gives back what is open, so finish a last job with `job.ack()` before a `break`.
Inside `with queue.work() as jobs:` a job whose body raised is given back with its error, as by a worker."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from types import TracebackType
from typing import Any, Self

from topics.client.blocking_handles import BlockingQueue, run
from topics.client.jobs.claims import Claims, TaskClaims, ThreadClaims
from topics.client.jobs.handling import failed
from topics.client.queue_verbs import QueueVerbs
from topics.model.results import Job
from topics.model.values import Span, span_ms


class OpenJob:
    """A job in the hands of a loop. It does not know its loop, which must not be kept alive by its last job."""

    def __init__(self, claims: Claims, job: Job) -> None:
        self._claims = claims
        self.job = job
        self.is_done = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}(seq={self.job.seq}, deliveries={self.job.deliveries})"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.job, name)

    @property
    def value(self) -> Any:
        """The payload as a Python value."""
        return self.job.value

    @property
    def is_lost(self) -> bool:
        """Somebody else has, or will get, this job: to ack or nack it changes nothing any more."""
        return self._claims.is_lost(self.job)

    async def _ack(self, result: object = None) -> bool:
        self._close()
        results = () if result is None else (result,)
        return bool((await self._claims.queue.ack([self.job], node=self._claims.node, results=results)).acked)

    async def _nack(self, delay_ms: int | None, delay: Span | None, error: str | None, final: bool) -> bool:
        self._close()
        if delay is not None:
            delay_ms = span_ms(delay, "delay")
        node = self._claims.node
        done = await self._claims.queue.nack([self.job], node=node, delay_ms=delay_ms, error=error, final=final)
        return bool(done.nacked)

    def _close(self) -> None:
        self.is_done = True
        self._claims.drop(self.job)


class HeldJob(OpenJob):
    """A job in the hands of a loop. Finish it once, by `ack` or `nack`; what is left open is acked by the loop."""

    def ack(self, result: object = None) -> bool:
        """Done; the result goes to the history of a queue with `done`. False if the job was no longer ours."""
        return run(self._ack(result))

    def nack(
        self,
        delay_ms: int | None = None,
        *,
        delay: Span | None = None,
        error: str | None = None,
        final: bool = False,
    ) -> bool:
        """Not done; somebody may try again after the delay, or when the queue's `retry` says. `final`: it goes to the
        dead letters at once. False if the job was no longer ours."""
        return run(self._nack(delay_ms, delay, error, final))


class AsyncHeldJob(OpenJob):
    """A job in the hands of a loop. Finish it once, by `ack` or `nack`; what is left open is acked by the loop."""

    async def ack(self, result: object = None) -> bool:
        """Done; the result goes to the history of a queue with `done`. False if the job was no longer ours."""
        return await self._ack(result)

    async def nack(
        self,
        delay_ms: int | None = None,
        *,
        delay: Span | None = None,
        error: str | None = None,
        final: bool = False,
    ) -> bool:
        """Not done; somebody may try again after the delay, or when the queue's `retry` says. `final`: it goes to the
        dead letters at once. False if the job was no longer ours."""
        return await self._nack(delay_ms, delay, error, final)


class WorkLoop:
    """What both loops do, as coroutines."""

    def __init__(self, claims: ThreadClaims | TaskClaims, *, max: int, until_empty: bool) -> None:
        self.node = claims.node
        self._claims = claims
        self._max = max
        self._until_empty = until_empty
        self._claimed: deque[Job] = deque()  # and not yet handed out
        self._current: OpenJob | None = None

    async def _next(self) -> Job | None:
        """Ack the last job, unless that was done; then the next one, or None at the end."""
        if self._current is not None and not self._current.is_done:
            await self._current._ack()
        self._current = None
        stop = self._claims.stop
        while not self._claimed and not stop.is_set():
            jobs = await self._claims.take(self._max, wait=not self._until_empty)
            self._claimed.extend(jobs)
            if not jobs and self._until_empty:
                stop.set()
        if stop.is_set():
            await self._end()
            return None
        return self._claimed.popleft()

    async def _fail(self, error: Exception) -> None:
        """The body failed: its job comes again when its queue says."""
        held = self._current
        if held is not None and not held.is_done:
            held.is_done = True
            await self._claims.finish([failed(held.job, error)])

    async def _end(self) -> None:
        self._claims.stop.set()
        self._claimed.clear()
        if self._current is not None:
            self._current.is_done = True
        await self._claims.end()

    def __del__(self) -> None:
        self._claims.abandon()


class Work(WorkLoop):
    """An iterator of `HeldJob`, and a context manager that gives back what is left."""

    def __init__(
        self,
        queue: BlockingQueue,
        node: str | None,
        *,
        max: int,
        lease_ms: int | None,
        until_empty: bool,
        stop: threading.Event | None,
    ) -> None:
        self.queue = queue
        self.stop = stop or threading.Event()
        claims = ThreadClaims(queue._verbs, node=node, lease_ms=lease_ms, stop=self.stop)
        super().__init__(claims, max=max, until_empty=until_empty)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> HeldJob:
        job = run(self._next())
        if job is None:
            raise StopIteration
        self._current = held = HeldJob(self._claims, job)
        return held

    def close(self) -> None:
        """End; jobs that are open are ready again at once."""
        run(self._end())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            run(self._fail(error))
        self.close()


class AsyncWork(WorkLoop):
    """An iterator of `AsyncHeldJob`, and a context manager that gives back what is left."""

    def __init__(
        self, queue: QueueVerbs, node: str | None, *, max: int, lease_ms: int | None, until_empty: bool
    ) -> None:
        claims = TaskClaims(queue, node=node, lease_ms=lease_ms, stop=asyncio.Event())
        super().__init__(claims, max=max, until_empty=until_empty)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncHeldJob:
        job = await self._next()
        if job is None:
            raise StopAsyncIteration
        self._current = held = AsyncHeldJob(self._claims, job)
        return held

    async def close(self) -> None:
        """End; jobs that are open are ready again at once."""
        await self._end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            await self._fail(error)
        await self.close()
