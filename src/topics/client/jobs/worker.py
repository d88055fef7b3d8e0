"""Worker and AsyncWorker: a function that is called for each job of a queue, several at a time.

Both are drivers of the one core (`worker_core`): a blocking worker has two threads for its loops, a worker of an event
loop two tasks. Where the function runs is the executor's: by default a plain one in threads, a coroutine function in
tasks of an event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from importlib import import_module
from types import FrameType, ModuleType
from typing import Any, Literal, TypedDict

import msgspec

from topics.client.blocking_handles import run
from topics.client.jobs.claims import TaskClaims, ThreadClaims, node_name
from topics.client.jobs.executors import Executor, JobCall, TaskExecutor, ThreadCall, ThreadExecutor
from topics.client.jobs.handling import After, AsyncHandler, Before, Handler, Handling
from topics.client.jobs.processes import ProcessCall, addresses
from topics.client.jobs.worker_core import LoopInbox, ThreadInbox, WorkerCore, WorkerCounts
from topics.client.queue_verbs import QueueVerbs
from topics.config import spans_are_on
from topics.errors import ConfigError
from topics.model.results import Job

ExecutorKind = Literal["threads", "processes", "asyncio"]


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`concurrency`: jobs worked on at a time. `prefetch`: jobs held beyond those. `executor`: `threads`, `processes`
    for work that keeps a processor busy, or `asyncio`; None goes by the function. `time_limit_s`: for one job; a
    process is killed then, a thread or task gets `TimeLimitPassed`. `before(job)` and `after(job, error)` are called
    around each job. `node`: its name; None makes one up. `lease_ms`: None takes the queue's. `grace_s`: for how long a
    stop waits. `until_empty`: end when nothing is ready."""

    concurrency: int = 1
    prefetch: int | None = None  # None: as many as `concurrency`
    executor: ExecutorKind | None = None
    time_limit_s: float | None = None
    before: Before | None = None
    after: After | None = None
    node: str | None = None
    lease_ms: int | None = None
    grace_s: float = 30.0
    until_empty: bool = False

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        if self.executor not in (None, "threads", "processes", "asyncio"):
            raise ValueError(f"executor must be threads, processes or asyncio, not {self.executor!r}")
        if self.time_limit_s is not None and self.time_limit_s <= 0:
            raise ValueError("time_limit_s must be above 0")

    @property
    def held_max(self) -> int:
        """Jobs that are worked on or wait for it."""
        return self.concurrency + (self.concurrency if self.prefetch is None else self.prefetch)


class WorkerFields(TypedDict, total=False):
    """The fields of `WorkerOptions` as keyword arguments."""

    concurrency: int
    prefetch: int | None
    executor: ExecutorKind | None
    time_limit_s: float | None
    before: Before | None
    after: After | None
    node: str | None
    lease_ms: int | None
    grace_s: float
    until_empty: bool


def executor_for(handling: Handling, options: WorkerOptions, queue: str) -> Executor:
    """With TOPICS_OTEL each job is a span."""
    kind = options.executor or ("asyncio" if handling.is_async else "threads")
    if handling.is_async != (kind == "asyncio"):
        raise ConfigError(f"executor {kind!r} does not run {handling.handler!r}: asyncio is for coroutine functions")
    count, limit_s = options.concurrency, options.time_limit_s
    traced = spans_are_on(os.environ)
    if kind == "asyncio":
        return TaskExecutor(count, _spans().SpanHandling(handling, queue) if traced else handling, limit_s)
    where = addresses(handling) if kind == "processes" else None

    def make_call() -> JobCall:
        plain: JobCall = ThreadCall(handling, limit_s) if where is None else ProcessCall(where, limit_s)
        return _spans().SpanCall(plain, queue) if traced else plain

    return ThreadExecutor(count, make_call, can_kill=kind == "processes")


def _spans() -> ModuleType:
    return import_module("topics.client.jobs.job_spans")


class _AnyWorker(WorkerCounts):
    """What both workers have in common."""

    def __init__(self, queue: QueueVerbs, handler: Callable[[Job], Any], options: WorkerOptions) -> None:
        self.node = options.node or node_name()
        self.handler = handler
        self._queue = queue
        self._options = options
        self._handling = Handling(handler, before=options.before, after=options.after)


class Worker(_AnyWorker):
    """Made by `@queue.worker(...)`; begins with `run`, as often as wanted."""

    def __init__(self, queue: QueueVerbs, handler: Handler, options: WorkerOptions) -> None:
        super().__init__(queue, handler, options)
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
            self._run_core()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._stop = threading.Event()  # threads that outlived their grace still see the old one

    def _run_core(self) -> None:
        options = self._options
        claims = ThreadClaims(self._queue, node=self.node, lease_ms=options.lease_ms, stop=self._stop)
        core = WorkerCore(
            claims,
            executor_for(self._handling, options, self._queue.name),
            self,
            held_max=options.held_max,
            until_empty=options.until_empty,
            outcomes=ThreadInbox(),
            freed=ThreadInbox(),
        )
        finisher = threading.Thread(target=lambda: run(core.finish_jobs()), name="topics-finisher", daemon=True)
        finisher.start()
        try:
            run(core.claim_jobs())
        finally:
            run(core.wind_up(options.grace_s))
            finisher.join(options.grace_s)
            run(core.end())

    def _catch_signals(self) -> dict[int, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}

        def on_signal(number: int, frame: FrameType | None) -> None:
            self.stop()

        return {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}


class AsyncWorker(_AnyWorker):
    """Made by `@queue.worker(...)` on a function of an asyncio client; begins with `await worker.run()`.

    A stop (`stop()`, SIGTERM, SIGINT) lets running functions finish; a cancellation does not."""

    def __init__(self, queue: QueueVerbs, handler: AsyncHandler, options: WorkerOptions) -> None:
        super().__init__(queue, handler, options)
        self._stop = asyncio.Event()

    def __call__(self, job: Job) -> Awaitable[object]:
        """The function itself, as a test would call it."""
        awaited: Awaitable[object] = self.handler(job)
        return awaited

    def stop(self) -> None:
        """Ends the run that is under way, else the next one; running functions finish. Good from the loop's thread."""
        self._stop.set()

    async def run(self, *, signals: bool = True) -> None:
        """Work until stopped or cancelled (or, with `until_empty`, until nothing is left)."""
        loop, caught = asyncio.get_running_loop(), self._catch_signals() if signals else ()
        try:
            await self._run_core()
        finally:
            for number in caught:
                loop.remove_signal_handler(number)
            self._stop = asyncio.Event()

    async def _run_core(self) -> None:
        options = self._options
        claims = TaskClaims(self._queue, node=self.node, lease_ms=options.lease_ms, stop=self._stop)
        core = WorkerCore(
            claims,
            executor_for(self._handling, options, self._queue.name),
            self,
            held_max=options.held_max,
            until_empty=options.until_empty,
            outcomes=LoopInbox(),
            freed=LoopInbox(),
        )
        finisher = asyncio.create_task(core.finish_jobs())
        grace_s = options.grace_s
        try:
            await core.claim_jobs()
        except asyncio.CancelledError:
            grace_s = 0.0
            raise
        finally:
            try:
                await core.wind_up(grace_s)
                await finisher
            finally:
                finisher.cancel()
                await core.end()

    def _catch_signals(self) -> tuple[signal.Signals, ...]:
        """Only the main thread's loop hears of signals."""
        if threading.current_thread() is not threading.main_thread():
            return ()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            asyncio.get_running_loop().add_signal_handler(number, self.stop)
        return numbers
