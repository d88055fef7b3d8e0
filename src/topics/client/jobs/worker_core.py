"""WorkerCore: the one worker behind every kind. Claims jobs, gives them to an executor, and acks or nacks what became
of them, many per call.

    claims -> executor (threads, processes or tasks) -> outcomes -> acks and nacks

Two loops, written once as coroutines: `claim_jobs` and `finish_jobs`. A blocking worker runs each in a thread, where
nothing suspends; a worker of an event loop runs them as tasks. They share two inboxes and nothing else.

Always holds: a job is acked only after its function returned; one whose function raised is nacked with its error, and
when it comes again is for its queue to say; leases are kept meanwhile. A stop lets running functions finish and gives
back the jobs that have not begun. Delivery is at least once: a function must tolerate a repeat."""

from __future__ import annotations

import asyncio
import queue as queues
import threading
import time
from collections import deque
from typing import Generic, Protocol, TypeVar

from topics import limits
from topics.client.jobs.claims import Claims
from topics.client.jobs.executors import Executor
from topics.client.jobs.handling import JobOutcome

T = TypeVar("T")


class Inbox(Protocol[T]):
    """Things that one loop leaves for another. `put` is good for any thread."""

    def put(self, item: T) -> None: ...
    def end(self) -> None:
        """Nothing comes any more."""

    async def take(self, timeout_s: float | None = None) -> list[T] | None:
        """All that is there, as many as one call of a server takes; waits for the first. None at the end."""


class ThreadInbox(Generic[T]):
    def __init__(self) -> None:
        self._items: queues.SimpleQueue[T | None] = queues.SimpleQueue()

    def put(self, item: T) -> None:
        self._items.put(item)

    def end(self) -> None:
        self._items.put(None)

    async def take(self, timeout_s: float | None = None) -> list[T] | None:
        taken: list[T] = []
        try:
            item = self._items.get(timeout=timeout_s)
            while item is not None:
                taken.append(item)
                if len(taken) == limits.SEQS_PER_CALL_MAX:
                    return taken
                item = self._items.get_nowait()
        except queues.Empty:
            return taken
        if not taken:
            return None
        self._items.put(None)  # for the next call
        return taken


class LoopInbox(Generic[T]):
    """Made on the loop that takes from it."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._ended = False
        self._came = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def put(self, item: T) -> None:
        self._items.append(item)
        if threading.get_ident() == self._thread:
            self._came.set()
        else:
            self._loop.call_soon_threadsafe(self._came.set)

    def end(self) -> None:
        self._ended = True
        self._came.set()

    async def take(self, timeout_s: float | None = None) -> list[T] | None:
        if not self._items and not self._ended:
            self._came.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._came.wait()
            except TimeoutError:
                return []
        if not self._items:
            return None if self._ended else []
        return [self._items.popleft() for _ in range(min(len(self._items), limits.SEQS_PER_CALL_MAX))]


class WorkerCounts:
    """What a worker has done so far, over all its runs."""

    done = 0
    failed = 0


class WorkerCore:
    """One run of a worker: `claim_jobs` beside `finish_jobs`, then `wind_up`."""

    def __init__(
        self,
        claims: Claims,
        executor: Executor,
        counts: WorkerCounts,
        *,
        held_max: int,
        until_empty: bool,
        outcomes: Inbox[JobOutcome],
        freed: Inbox[int],
    ) -> None:
        self._claims = claims
        self._executor = executor
        self._counts = counts
        self._held_max = held_max
        self._until_empty = until_empty
        self._outcomes = outcomes
        self._freed = freed
        self._all_ended = True
        self._held = 0  # touched by the loop that claims alone

    async def claim_jobs(self) -> None:
        """Until stopped or, with `until_empty`, until nothing is ready and nothing is worked on."""
        stop = self._claims.stop
        self._executor.start(self._outcomes.put, stop)
        while not stop.is_set():
            if self._held >= self._held_max:
                await self._take_freed(limits.SIGNAL_LOOK_S)
                continue
            await self._take_freed(0)
            jobs = await self._claims.take(self._held_max - self._held, wait=not self._until_empty)
            self._held += len(jobs)
            for job in jobs:
                self._executor.submit(job)
            if not jobs and self._until_empty:
                if self._held == 0:
                    return
                await self._take_freed(limits.SIGNAL_LOOK_S)

    async def _take_freed(self, timeout_s: float) -> None:
        self._held -= sum(await self._freed.take(timeout_s) or ())

    async def finish_jobs(self) -> None:
        """Until the run was wound up."""
        while (batch := await self._outcomes.take()) is not None:
            self._counts.done += sum(outcome.is_done for outcome in batch)
            self._counts.failed += sum(outcome.error is not None for outcome in batch)
            await self._claims.finish(batch)
            self._freed.put(len(batch))

    async def wind_up(self, grace_s: float) -> None:
        """Wait for what runs, so long; what has not begun goes back. `finish_jobs` ends after this."""
        self._claims.stop.set()
        self._executor.stop()
        deadline = time.monotonic() + grace_s
        while self._held > 0 and (left_s := deadline - time.monotonic()) > 0:
            await self._take_freed(min(left_s, limits.SIGNAL_LOOK_S))
        self._all_ended = self._executor.close()
        self._outcomes.end()

    async def end(self) -> None:
        """After both loops. A function that outlived its grace keeps its job until the lease runs out."""
        if self._all_ended:
            await self._claims.end()
        else:
            self._claims.end_keeping()
