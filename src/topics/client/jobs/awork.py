"""Work for coroutines: `async for job in queue.work()`, and workers whose functions are coroutines.

The rules are those of `work` and `worker`: a job is acked when its body or function is through, nacked with a doubling
delay when the function raised, given back when the loop is left; leases are kept by a task in the background."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from topics import limits
from topics.client.jobs.claims import IDLE_MS, PATIENCE, log, node_name
from topics.client.jobs.leases import RENEWALS
from topics.client.jobs.worker import WorkerOptions, retry_delay_ms
from topics.client.transport.retry import Attempts
from topics.errors import TopicsError
from topics.model.results import AckResult, Job, NackResult

if TYPE_CHECKING:
    from topics.client.atopic import AsyncQueue

AsyncHandler = Callable[[Job], Awaitable[object]]


class AsyncHolder:
    """What a loop and a worker share: claims that wait, and leases that are kept."""

    def __init__(self, queue: AsyncQueue, node: str | None, lease_ms: int | None) -> None:
        self.queue = queue
        self.node = node or node_name()
        self.stop = asyncio.Event()
        self._lease_ms = lease_ms
        self._held: dict[int, Job] = {}
        self._lost: set[str] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._head = 0

    async def take(self, count: int) -> list[Job]:
        """Up to `count` jobs; none if the queue is dry. Waits for a server that is away, until stopped."""
        attempts: Attempts | None = None
        while not self.stop.is_set():
            try:
                if self._keeper is None:
                    await self._begin()
                most = min(count, limits.CLAIM_MAX.high)
                claimed = (await self.queue.claim(self.node, max=most, lease_ms=self._lease_ms)).claimed
            except TopicsError as error:
                attempts = await self._pause(error, attempts)
            else:
                self._held.update((job.seq, job) for job in claimed)
                return claimed
        return []

    async def wait(self) -> None:
        """Until something was appended since the last claim, or for a moment."""
        try:
            self._head = (await self.queue.page(self._head, limit=1, max_bytes=1, wait_ms=IDLE_MS)).head_seq
        except TopicsError as error:
            await self._pause(error, None)

    async def _begin(self) -> None:
        state = await self.queue.state(touch=False)
        self._head = state.head_seq
        self._lease_ms = limits.LEASE_MS(self._lease_ms or state.config.lease_ms)
        self._keeper = asyncio.create_task(self._keep(self._lease_ms))

    async def _pause(self, error: TopicsError, attempts: Attempts | None) -> Attempts:
        now = time.monotonic()
        attempts = attempts or Attempts(PATIENCE, now=now)
        pause_s = attempts.pause_s(error, repeatable=True, now=now, chance=random.random)
        if pause_s is None:
            raise error
        try:
            async with asyncio.timeout(pause_s):
                await self.stop.wait()
        except TimeoutError:
            pass
        return attempts

    # --- leases ---------------------------------------------------------------------------------------------------

    async def _keep(self, lease_ms: int) -> None:
        while True:
            await asyncio.sleep(lease_ms / 1000 / RENEWALS)
            held = list(self._held.values())
            for at in range(0, len(held), limits.SEQS_PER_CALL_MAX):
                await self._extend(held[at : at + limits.SEQS_PER_CALL_MAX], lease_ms)

    async def _extend(self, jobs: list[Job], lease_ms: int) -> None:
        try:
            skipped = set((await self.queue.extend(jobs, node=self.node, lease_ms=lease_ms)).skipped)
        except TopicsError as error:
            log.warning("leases of queue %r were not extended: %s", self.queue.name, error)
            return
        for job in jobs:
            if job.seq in skipped and self._held.get(job.seq) is job:
                del self._held[job.seq]
                self._lost.add(job.lease_id)

    def drop(self, job: Job) -> None:
        if self._held.get(job.seq) is job:
            del self._held[job.seq]
        self._lost.discard(job.lease_id)

    def is_lost(self, job: Job) -> bool:
        return job.lease_id in self._lost

    async def end(self) -> None:
        """What is still held is ready again at once."""
        if self._keeper is not None:
            self._keeper.cancel()
            self._keeper = None  # whoever claims again gets a new one
        left = list(self._held.values())
        self._held.clear()
        try:
            for at in range(0, len(left), limits.SEQS_PER_CALL_MAX):
                await self.queue.nack(left[at : at + limits.SEQS_PER_CALL_MAX], node=self.node)
        except TopicsError as error:
            log.info("jobs of queue %r come back when their leases run out: %s", self.queue.name, error)

    def abandon(self) -> None:
        """Nobody will call `end`: the loop was left without `async with`."""
        if self._keeper is not None and not self._keeper.done() and not self._keeper.get_loop().is_closed():
            self._keeper.get_loop().call_soon_threadsafe(self._end_soon)

    def _end_soon(self) -> None:
        self._ending = asyncio.create_task(self.end())


class AsyncHeldJob:
    """A job in the hands of a loop. Settle it once; what is left open is acked by the loop."""

    def __init__(self, holder: AsyncHolder, job: Job) -> None:
        self._holder = holder
        self.job = job
        self.is_done = False

    def __repr__(self) -> str:
        return f"AsyncHeldJob(seq={self.job.seq}, deliveries={self.job.deliveries})"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.job, name)

    @property
    def is_lost(self) -> bool:
        """Somebody else has, or will get, this job: settling it changes nothing any more."""
        return self._holder.is_lost(self.job)

    async def ack(self) -> bool:
        """Done. False if the job was no longer ours."""
        self._mark_done()
        return bool((await self._holder.queue.ack([self.job], node=self._holder.node)).acked)

    async def nack(self, delay_ms: int = 0) -> bool:
        """Not done; somebody may try again after the delay. False if the job was no longer ours."""
        self._mark_done()
        done = await self._holder.queue.nack([self.job], node=self._holder.node, delay_ms=delay_ms)
        return bool(done.nacked)

    def _mark_done(self) -> None:
        self.is_done = True
        self._holder.drop(self.job)


class AsyncWork:
    """An iterator of `AsyncHeldJob`, and a context manager that gives back what is left."""

    def __init__(
        self, queue: AsyncQueue, node: str | None, *, max: int, lease_ms: int | None, until_empty: bool
    ) -> None:
        self._holder = AsyncHolder(queue, node, lease_ms)
        self._max = max
        self._until_empty = until_empty
        self._ahead: deque[Job] = deque()
        self._current: AsyncHeldJob | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncHeldJob:
        if self._current is not None and not self._current.is_done:
            await self._current.ack()
        self._current = None
        while not self._ahead:
            self._ahead.extend(await self._holder.take(self._max))
            if not self._ahead:
                if self._until_empty:
                    await self.close()
                    raise StopAsyncIteration
                await self._holder.wait()
        self._current = AsyncHeldJob(self._holder, self._ahead.popleft())
        return self._current

    async def close(self) -> None:
        """End; jobs that are not settled are ready again at once."""
        self._ahead.clear()
        await self._holder.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and issubclass(kind, Exception):
            await self._put_off()
        await self.close()

    async def _put_off(self) -> None:
        """The body failed: its job comes again after a while."""
        held = self._current
        if held is not None and not held.is_done:
            try:
                await held.nack(retry_delay_ms(WorkerOptions(), held.job.deliveries, random.random()))
            except TopicsError as error:
                log.info("job %d comes back when its lease runs out: %s", held.job.seq, error)

    def __del__(self) -> None:
        self._holder.abandon()


class AsyncWorker:
    """Made by `@queue.worker(...)` on a coroutine function; begins with `await worker.run()`.

    A stop (`stop()`, SIGTERM, SIGINT) lets running functions finish; a cancellation does not."""

    def __init__(self, queue: AsyncQueue, handler: AsyncHandler, options: WorkerOptions) -> None:
        self.handler = handler
        self._options = options
        self._holder = AsyncHolder(queue, options.node, options.lease_ms)
        self._stop = self._holder.stop
        self._running: set[asyncio.Task[None]] = set()
        self.done = 0
        self.failed = 0

    def __call__(self, job: Job) -> Awaitable[object]:
        """The function itself, as a test would call it."""
        return self.handler(job)

    def stop(self) -> None:
        """Ends the run that is under way, else the next one; running functions finish. Good from the loop's thread."""
        self._stop.set()

    async def run(self, *, signals: bool = True) -> None:
        """Work until stopped or cancelled (or, with `until_empty`, until nothing is left)."""
        loop, caught = asyncio.get_running_loop(), self._catch_signals() if signals else ()
        try:
            while not self._stop.is_set():
                if not await self._begin_some():
                    break
            if self._running:
                await asyncio.wait(self._running, timeout=self._options.grace_s)
        finally:
            for number in caught:
                loop.remove_signal_handler(number)
            for task in self._running:
                task.cancel()
            self._stop.clear()
            await self._holder.end()

    def _catch_signals(self) -> tuple[signal.Signals, ...]:
        """Only the main thread's loop hears of signals."""
        if threading.current_thread() is not threading.main_thread():
            return ()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            asyncio.get_running_loop().add_signal_handler(number, self.stop)
        return numbers

    async def _begin_some(self) -> bool:
        """Claim as many jobs as there is room for; False when everything is done."""
        room = self._options.concurrency - len(self._running)
        if room == 0:
            await asyncio.wait([*self._running], return_when=asyncio.FIRST_COMPLETED, timeout=0.1)
            return True
        jobs = await self._holder.take(room)
        for job in jobs:
            task = asyncio.create_task(self._handle(job))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        if not jobs:
            if self._options.until_empty and not self._running:
                return False
            await self._holder.wait()
        return True

    async def _handle(self, job: Job) -> None:
        try:
            await self.handler(job)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_being_cancelled():
                raise  # `end` gives the job back
            self.failed += 1
            delay_ms = retry_delay_ms(self._options, job.deliveries, random.random())
            log.exception("job %d failed, comes again in %d ms", job.seq, delay_ms)
            await self._finish_job(job, delay_ms)
        else:
            self.done += 1
            await self._finish_job(job, None)

    async def _finish_job(self, job: Job, delay_ms: int | None) -> None:
        queue, node = self._holder.queue, self._holder.node
        self._holder.drop(job)
        try:
            done: AckResult | NackResult
            if delay_ms is None:
                done = await queue.ack([job], node=node)
            else:
                done = await queue.nack([job], node=node, delay_ms=delay_ms)
        except TopicsError as error:
            log.warning("job %d of queue %r comes again: %s", job.seq, queue.name, error)
        else:
            if done.lost:
                log.warning("job %d of queue %r was lost to its cap or TTL in our hands", job.seq, queue.name)


def _is_being_cancelled() -> bool:
    """Whether this task was told to end; if not, the error came out of something that it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
