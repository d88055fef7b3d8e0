"""Worker: a function that is called for each job of a queue, by several threads at a time.

    claims -> waiting jobs -> threads that run the function -> outcomes -> acks and nacks, many per call

Always holds: a job is acked only after its function returned; one whose function raised is nacked, with a delay that
doubles per delivery; leases are kept meanwhile. A stop (`stop()`, SIGTERM, SIGINT) lets running functions finish and
gives back the jobs that have not begun. Delivery is at least once: a function must tolerate a repeat."""

from __future__ import annotations

import queue as queues
import random
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import msgspec

from topics import limits
from topics.client.jobs.claims import Claims, log, node_name
from topics.client.jobs.leases import Leases
from topics.errors import TopicsError
from topics.model.doors import QueueDoor
from topics.model.results import AckResult, Job, NackResult

Handler = Callable[[Job], object]


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


class JobOutcome(NamedTuple):
    """`delay_ms` None: the job is done."""

    job: Job
    delay_ms: int | None


def retry_delay_ms(options: WorkerOptions, deliveries: int, chance: float) -> int:
    """Half to whole of a doubling delay; `chance` is 0..1."""
    whole = min(options.retry_ms * 2.0 ** min(deliveries - 1, 60), options.retry_ms_max)
    return int(whole * (0.5 + chance / 2))


class Worker:
    """Made by `@queue.worker(...)`; begins with `run`, as often as wanted."""

    def __init__(self, queue: QueueDoor, handler: Handler, options: WorkerOptions) -> None:
        self.handler = handler
        self.node = options.node or node_name()
        self._queue = queue
        self._options = options
        self._stop = threading.Event()
        self.done = 0
        self.failed = 0

    def __call__(self, job: Job) -> object:
        """The function itself, as a test would call it."""
        return self.handler(job)

    def stop(self) -> None:
        """Ends the run that is under way, else the next one. Good from any thread and from a signal handler."""
        self._stop.set()

    def run(self, *, signals: bool = True) -> None:
        """Work until stopped (or, with `until_empty`, until nothing is left). Raises what no waiting can mend."""
        lease_ms = self._options.lease_ms or self._queue.state(touch=False).config.lease_ms
        before = self._catch_signals() if signals else {}
        try:
            WorkerRun(self, self._queue, self._options, lease_ms=lease_ms, stop=self._stop).run()
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

    def __init__(
        self, worker: Worker, queue: QueueDoor, options: WorkerOptions, *, lease_ms: int, stop: threading.Event
    ) -> None:
        self._worker = worker
        self._queue = queue
        self._options = options
        self._stop = stop
        self._leases = Leases(queue, node=worker.node, lease_ms=lease_ms)
        self._waiting: queues.SimpleQueue[Job | None] = queues.SimpleQueue()
        self._outcomes: queues.SimpleQueue[JobOutcome | None] = queues.SimpleQueue()
        self._free = threading.Condition()
        self._held = 0

    def run(self) -> None:
        threads = [
            threading.Thread(target=self._handle_jobs, name=f"topics-worker-{n}", daemon=True)
            for n in range(self._options.concurrency)
        ]
        finisher = threading.Thread(target=self._finish_jobs, name="topics-settler", daemon=True)
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
        self._leases.close()

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
        claims = Claims(self._queue, node=self._worker.node, lease_ms=self._options.lease_ms, stop=self._stop)
        while (room := self._room()) and not self._stop.is_set():
            jobs = claims.take(room)
            self._leases.add(jobs)
            with self._free:
                self._held += len(jobs)
            for job in jobs:
                self._waiting.put(job)
            if not jobs:
                if self._options.until_empty and self._is_idle():
                    return
                claims.wait()

    def _room(self) -> int:
        """How many more jobs may be held; waits until there is room, 0 once stopped."""
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
                self._worker.failed += 1
                delay_ms = retry_delay_ms(self._options, job.deliveries, random.random())
                log.exception("job %d of queue %r failed, comes again in %d ms", job.seq, self._queue.name, delay_ms)
                self._outcomes.put(JobOutcome(job, delay_ms))
            else:
                self._worker.done += 1
                self._outcomes.put(JobOutcome(job, None))

    # --- settling: one thread -------------------------------------------------------------------------------------

    def _finish_jobs(self) -> None:
        while (first := self._outcomes.get()) is not None:
            batch, goes_on = self._gathered(first)
            for outcome in batch:
                self._leases.drop(outcome.job)
            self._mark_done(batch)
            with self._free:
                self._held -= len(batch)
                self._free.notify_all()
            if not goes_on:
                return

    def _gathered(self, first: JobOutcome) -> tuple[list[JobOutcome], bool]:
        """Everything that waits to be settled, and whether more can come."""
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

    def _mark_done(self, batch: list[JobOutcome]) -> None:
        by_delay: dict[int | None, list[Job]] = {}
        for outcome in batch:
            by_delay.setdefault(outcome.delay_ms, []).append(outcome.job)
        for delay_ms, jobs in by_delay.items():
            try:
                done: AckResult | NackResult
                if delay_ms is None:
                    done = self._queue.ack(jobs, node=self._worker.node)
                else:
                    done = self._queue.nack(jobs, node=self._worker.node, delay_ms=delay_ms)
            except TopicsError as error:
                log.warning("%d jobs of queue %r come again: %s", len(jobs), self._queue.name, error)
                continue
            if done.lost:
                seqs = [job.seq for job in done.lost]
                log.warning("jobs %s of queue %r were lost to its cap or TTL in our hands", seqs, self._queue.name)
            elif done.skipped:
                log.warning("jobs %s of queue %r were no longer ours", done.skipped, self._queue.name)
