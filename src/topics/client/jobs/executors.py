"""Executors: where the functions of a worker run. Threads, child processes, or tasks of an event loop.

An executor takes jobs and reports one outcome for each, from whatever thread. `stop` lets what has begun go on and
gives back what has not; `close` ends what can be ended. A child process is run by a thread that waits for it
(`processes`), so threads and processes are one executor with two ways to make a call."""

from __future__ import annotations

import asyncio
import ctypes
import queue as queues
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from topics.client.jobs.handling import Handling, JobOutcome, TimeLimitPassed, failed, given_back
from topics.model.results import Job

Report = Callable[[JobOutcome], None]


class Executor(Protocol):
    def start(self, report: Report, stop: threading.Event | asyncio.Event) -> None:
        """Once `stop` is set, no further job begins."""

    def submit(self, job: Job) -> None: ...
    def stop(self) -> None:
        """Called once, after `stop` was set: jobs that have not begun are reported as given back."""

    def close(self) -> bool:
        """No further report comes. True if no function is running any more."""


class JobCall(Protocol):
    """How one thread of a `ThreadExecutor` runs a job."""

    def call(self, job: Job) -> JobOutcome: ...
    def close(self) -> None:
        """Ends a call that is under way, if that is possible."""


class ThreadExecutor:
    """So many threads, each with a way to run a job. `can_kill`: closing a call ends it."""

    def __init__(self, concurrency: int, make_call: Callable[[], JobCall], *, can_kill: bool = False) -> None:
        self._concurrency = concurrency
        self._make_call = make_call
        self._can_kill = can_kill
        self._waiting: queues.SimpleQueue[Job | None] = queues.SimpleQueue()
        self._stop: threading.Event | asyncio.Event = threading.Event()
        self._calls: list[JobCall] = []
        self._running = 0
        self._lock = threading.Lock()
        self._report: Report | None = None

    def start(self, report: Report, stop: threading.Event | asyncio.Event) -> None:
        self._report, self._stop = report, stop
        for number in range(self._concurrency):
            self._calls.append(self._make_call())
            name = f"topics-worker-{number}"
            threading.Thread(target=self._run, args=(self._calls[-1],), name=name, daemon=True).start()

    def submit(self, job: Job) -> None:
        self._waiting.put(job)

    def stop(self) -> None:
        for _ in range(self._concurrency):
            self._waiting.put(None)

    def close(self) -> bool:
        with self._lock:
            self._report = None
            is_idle = self._running == 0
        for call in self._calls:
            call.close()
        return is_idle or self._can_kill

    def _run(self, call: JobCall) -> None:
        while (job := self._waiting.get()) is not None:
            if self._stop.is_set():
                self._tell(given_back(job))
                continue
            with self._lock:
                self._running += 1
            try:
                outcome = call.call(job)
            except Exception as error:  # our own mistake must not cost a thread
                outcome = failed(job, error)
            with self._lock:
                self._running -= 1
            self._tell(outcome)

    def _tell(self, outcome: JobOutcome) -> None:
        report = self._report
        if report is not None:
            report(outcome)


class ThreadCall:
    """Runs the function in the thread itself. A time limit raises `TimeLimitPassed` in it, at its next step of Python:
    a wait inside the C library is not interrupted, which is what processes are for."""

    def __init__(self, handling: Handling, time_limit_s: float | None) -> None:
        self._handling = handling
        self._limit_s = time_limit_s
        self._lock = threading.Lock()
        self._timed: int | None = None  # the thread whose time runs

    def call(self, job: Job) -> JobOutcome:
        if self._limit_s is None:
            return self._handling.call(job)
        timer = threading.Timer(self._limit_s, self._interrupt)
        timer.daemon = True
        try:
            try:
                self._timed = threading.get_ident()
                timer.start()
                outcome = self._handling.call(job)
            finally:
                self._end()
        except TimeLimitPassed as late:  # it came when the function had just returned
            self._end()
            outcome = failed(job, late)
        timer.cancel()
        return outcome

    def _interrupt(self) -> None:
        with self._lock:
            if self._timed is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._timed), ctypes.py_object(TimeLimitPassed)
                )

    def _end(self) -> None:
        """No limit is raised from now on, nor one that is on its way."""
        with self._lock:
            timed, self._timed = self._timed, None
            if timed is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(timed), None)

    def close(self) -> None:
        pass


class TaskExecutor:
    """Tasks of the event loop that it is started on or, started elsewhere, of one in a thread of its own."""

    def __init__(self, concurrency: int, handling: Handling, time_limit_s: float | None) -> None:
        self._handling = handling
        self._limit_s = time_limit_s
        self._concurrency = concurrency
        self._waiting: deque[Job] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._own: threading.Thread | None = None

    def start(self, report: Report, stop: threading.Event | asyncio.Event) -> None:
        self._report, self._stop = report, stop
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = asyncio.new_event_loop()
            self._own = threading.Thread(target=self._loop.run_forever, name="topics-tasks", daemon=True)
            self._own.start()

    def submit(self, job: Job) -> None:
        self._soon(self._take, job)

    def stop(self) -> None:
        self._soon(self._begin)

    def close(self) -> bool:
        if self._own is None:
            self._cancel()
            return True
        self._loop.call_soon_threadsafe(self._cancel)
        deadline = time.monotonic() + 5.0
        while self._tasks and time.monotonic() < deadline:  # a task may clean up on its way out
            time.sleep(0.005)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._own.join(5.0)
        if not self._own.is_alive():
            self._loop.close()
        return not self._tasks

    def _soon(self, step: Callable[..., None], *args: Job) -> None:
        if self._own is None:
            step(*args)
        else:
            self._loop.call_soon_threadsafe(step, *args)

    # --- on the loop ----------------------------------------------------------------------------------------------

    def _take(self, job: Job) -> None:
        self._waiting.append(job)
        self._begin()

    def _begin(self) -> None:
        while self._waiting and (self._stop.is_set() or len(self._tasks) < self._concurrency):
            job = self._waiting.popleft()
            if self._stop.is_set():
                self._report(given_back(job))
                continue
            task = self._loop.create_task(self._handle(job))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._begin()

    def _cancel(self) -> None:
        self._begin()
        for task in self._tasks:
            task.cancel()

    async def _handle(self, job: Job) -> None:
        self._report(await self._handling.acall(job, self._limit_s))
