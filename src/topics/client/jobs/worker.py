"""Worker and AsyncWorker: a function that is called for each job of a queue, several at a time.

    claims -> waiting jobs -> threads that run the function -> outcomes -> acks and nacks, many per call

An AsyncWorker runs its coroutine function in tasks and acks or nacks each job by itself.

Always holds: a job is acked only after its function returned; one whose function raised is nacked, with a delay that
doubles per delivery; leases are kept meanwhile. A stop (`stop()`, SIGTERM, SIGINT) lets running functions finish and
gives back the jobs that have not begun. Delivery is at least once: a function must tolerate a repeat."""

from __future__ import annotations

import asyncio
import queue as queues
import random
import signal
import threading
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any, TypedDict

import msgspec

from topics import limits
from topics.client.blocking_handles import run
from topics.client.jobs.claims import Claims, JobOutcome, TaskClaims, ThreadClaims, log, node_name
from topics.client.verbs import QueueVerbs
from topics.model.results import Job

Handler = Callable[[Job], object]
AsyncHandler = Callable[[Job], Awaitable[object]]


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`concurrency`: jobs worked on at a time. `prefetch`: jobs held beyond those. `node`: its name; None makes
    one up. `lease_ms`: None takes the queue's. `retry_ms`: pause before a failed job comes again; doubles per delivery
    up to `retry_ms_max`. `grace_s`: for how long a stop waits. `until_empty`: end when nothing is ready."""

    concurrency: int = 1
    prefetch: int | None = None  # None: as many as `concurrency`
    node: str | None = None
    lease_ms: int | None = None
    retry_ms: int = 1000
    retry_ms_max: int = 300_000
    grace_s: float = 30.0
    until_empty: bool = False

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError("concurrency must be at least 1")

    @property
    def held_max(self) -> int:
        """Jobs that are worked on or wait for it."""
        return self.concurrency + (self.concurrency if self.prefetch is None else self.prefetch)


class WorkerFields(TypedDict, total=False):
    """The fields of `WorkerOptions` as keyword arguments."""

    concurrency: int
    prefetch: int | None
    node: str | None
    lease_ms: int | None
    retry_ms: int
    retry_ms_max: int
    grace_s: float
    until_empty: bool


def retry_delay_ms(options: WorkerOptions, deliveries: int, chance: float) -> int:
    """Half to whole of a doubling delay; `chance` is 0..1."""
    whole = min(options.retry_ms * 2.0 ** min(deliveries - 1, 60), options.retry_ms_max)
    return int(whole * (0.5 + chance / 2))


class _AnyWorker:
    """What both workers have in common."""

    def __init__(self, queue: QueueVerbs, options: WorkerOptions) -> None:
        self.node = options.node or node_name()
        self.done = 0
        self.failed = 0
        self._queue = queue
        self._options = options

    def _outcome(self, claims: Claims, job: Job, *, failed: bool) -> JobOutcome:
        """Counts a job whose function is through. Called while its error is handled, if there was one."""
        if not failed:
            self.done += 1
            return JobOutcome(job, None)
        self.failed += 1
        delay_ms = retry_delay_ms(self._options, job.deliveries, random.random())
        dead_letter = claims.dead_letter_of(job)
        next_step = (
            f"comes again in {delay_ms} ms" if dead_letter is None else f"was its last try; goes to {dead_letter!r}"
        )
        log.exception("job %d of queue %r failed, %s", job.seq, self._queue.name, next_step)
        return JobOutcome(job, delay_ms if dead_letter is None else 0)


class Worker(_AnyWorker):
    """Made by `@queue.worker(...)`; begins with `run`, as often as wanted."""

    def __init__(self, queue: QueueVerbs, handler: Handler, options: WorkerOptions) -> None:
        super().__init__(queue, options)
        self.handler = handler
        self._stop = threading.Event()

    def __call__(self, job: Job) -> object:
        """The function itself, as a test would call it."""
        return self.handler(job)

    def stop(self) -> None:
        """Ends the run that is under way, else the next one. Good from any thread and from a signal handler."""
        self._stop.set()

    def run(self, *, signals: bool = True) -> None:
        """Work until stopped (or, with `until_empty`, until nothing is left). Raises what no waiting can mend."""
        before = self._catch_signals() if signals else {}
        try:
            WorkerRun(self, self._queue, self._options, stop=self._stop).run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._stop = threading.Event()  # threads that outlived their grace still see the old one

    def _catch_signals(self) -> dict[int, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}

        def on_signal(number: int, frame: FrameType | None) -> None:
            self.stop()

        return {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}


class WorkerRun:
    """One run of a worker, with threads, jobs and leases of its own."""

    def __init__(self, worker: Worker, queue: QueueVerbs, options: WorkerOptions, *, stop: threading.Event) -> None:
        self._worker = worker
        self._options = options
        self._stop = stop
        self._claims = ThreadClaims(queue, node=worker.node, lease_ms=options.lease_ms, stop=stop)
        self._waiting: queues.SimpleQueue[Job | None] = queues.SimpleQueue()
        self._outcomes: queues.SimpleQueue[JobOutcome | None] = queues.SimpleQueue()
        self._free = threading.Condition()
        self._held = 0

    def run(self) -> None:
        threads = [
            threading.Thread(target=self._handle_jobs, name=f"topics-worker-{n}", daemon=True)
            for n in range(self._options.concurrency)
        ]
        finisher = threading.Thread(target=self._finish_jobs, name="topics-finisher", daemon=True)
        for thread in (*threads, finisher):
            thread.start()
        try:
            self._claim_jobs()
        finally:
            self._wind_up(threads, finisher)

    def _wind_up(self, threads: list[threading.Thread], finisher: threading.Thread) -> None:
        self._stop.set()
        self._give_back_waiting()
        for _ in threads:
            self._waiting.put(None)
        for thread in threads:
            thread.join(self._options.grace_s)
        self._outcomes.put(None)
        finisher.join(self._options.grace_s)
        self._claims.end_keeping()  # not `end`: a function that outlived its grace may still ack

    def _give_back_waiting(self) -> None:
        try:
            while True:
                job = self._waiting.get_nowait()
                if job is not None:
                    self._outcomes.put(JobOutcome(job, 0))
        except queues.Empty:
            pass

    # --- claiming: the thread that called `run` -------------------------------------------------------------------

    def _claim_jobs(self) -> None:
        while (count := self._claimable()) and not self._stop.is_set():
            jobs = run(self._claims.take(count))
            with self._free:
                self._held += len(jobs)
            for job in jobs:
                self._waiting.put(job)
            if not jobs:
                if self._options.until_empty and self._is_idle():
                    return
                run(self._claims.wait())

    def _claimable(self) -> int:
        """How many more jobs may be held; waits until there is one, 0 once stopped."""
        with self._free:
            while self._held >= self._options.held_max and not self._stop.is_set():
                self._free.wait(0.1)  # a signal handler sets the event and cannot notify
            return 0 if self._stop.is_set() else self._options.held_max - self._held

    def _is_idle(self) -> bool:
        with self._free:
            return self._held == 0

    # --- working: one thread for each job at a time ---------------------------------------------------------------

    def _handle_jobs(self) -> None:
        while (job := self._waiting.get()) is not None:
            if self._stop.is_set():
                self._outcomes.put(JobOutcome(job, 0))
                continue
            try:
                self._worker.handler(job)
            except BaseException:  # also `sys.exit()`: it ends neither this thread nor the process
                self._outcomes.put(self._worker._outcome(self._claims, job, failed=True))
            else:
                self._outcomes.put(self._worker._outcome(self._claims, job, failed=False))

    # --- acks and nacks: one thread -------------------------------------------------------------------------------

    def _finish_jobs(self) -> None:
        while (first := self._outcomes.get()) is not None:
            batch, goes_on = self._gathered(first)
            run(self._claims.finish(batch))
            with self._free:
                self._held -= len(batch)
                self._free.notify_all()
            if not goes_on:
                return

    def _gathered(self, first: JobOutcome) -> tuple[list[JobOutcome], bool]:
        """All outcomes that are there, as many as one call takes, and whether more can come."""
        batch = [first]
        try:
            while len(batch) < limits.SEQS_PER_CALL_MAX:
                more = self._outcomes.get_nowait()
                if more is None:
                    return batch, False
                batch.append(more)
        except queues.Empty:
            pass
        return batch, True


class AsyncWorker(_AnyWorker):
    """Made by `@queue.worker(...)` on a coroutine function; begins with `await worker.run()`.

    A stop (`stop()`, SIGTERM, SIGINT) lets running functions finish; a cancellation does not."""

    def __init__(self, queue: QueueVerbs, handler: AsyncHandler, options: WorkerOptions) -> None:
        super().__init__(queue, options)
        self.handler = handler
        self._stop = asyncio.Event()
        self._claims = TaskClaims(queue, node=self.node, lease_ms=options.lease_ms, stop=self._stop)
        self._running: set[asyncio.Task[None]] = set()

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
            await self._claims.end()

    def _catch_signals(self) -> tuple[signal.Signals, ...]:
        """Only the main thread's loop hears of signals."""
        if threading.current_thread() is not threading.main_thread():
            return ()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            asyncio.get_running_loop().add_signal_handler(number, self.stop)
        return numbers

    async def _begin_some(self) -> bool:
        """Claim as many jobs as may run; False when everything is done."""
        count = self._options.concurrency - len(self._running)
        if count == 0:
            await asyncio.wait([*self._running], return_when=asyncio.FIRST_COMPLETED, timeout=0.1)
            return True
        jobs = await self._claims.take(count)
        for job in jobs:
            task = asyncio.create_task(self._handle(job))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        if not jobs:
            if self._options.until_empty and not self._running:
                return False
            await self._claims.wait()
        return True

    async def _handle(self, job: Job) -> None:
        try:
            await self.handler(job)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_being_cancelled():
                raise  # `end` gives the job back
            outcome = self._outcome(self._claims, job, failed=True)
        else:
            outcome = self._outcome(self._claims, job, failed=False)
        await self._claims.finish([outcome])


def _is_being_cancelled() -> bool:
    """Whether this task was told to end; if not, the error came out of something that it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
