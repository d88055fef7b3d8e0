"""Claims: the jobs that one worker holds. Takes them from the queue, keeps their leases, gives back what is left.

Always holds: a claim waits in the server, which answers it in the turn in which a job may be handed out; a server that
is away is waited for; a job is extended from when it was claimed until it is dropped or its lease has passed to
somebody else. A stop is heard when a wait is over, so none is longer than `WAIT_MS`. Used by `work` and `worker_core`,
over any door: `Claims` is written once, as coroutines, and its leases are kept by a thread (`ThreadClaims`) or by a
task (`TaskClaims`).

Why not the stream of `GET .../work`: its leases end with its connection, so every broken connection would hand jobs
that are half done to somebody else. A claim's leases outlive it."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any

from topics import limits
from topics.client.blocking_handles import run
from topics.client.jobs.handling import JobOutcome, log
from topics.client.queue_verbs import QueueVerbs
from topics.client.transport.retry import Attempts, RetryPolicy
from topics.errors import TopicsError
from topics.model.config import RetryRule, TopicConfig
from topics.model.results import AckResult, Job, NackResult
from topics.model.values import ProgressReport

WAIT_MS = 500
RENEWALS = 3  # tries per lease, so that two of them may fail
PROGRESS_S = 1.0  # between two extensions that tell of progress
_FOREVER = RetryPolicy(total_s=float("inf"))


def retry_delay_ms(rule: RetryRule, deliveries: int, chance: float) -> int:
    """What the rule asks for after so many deliveries; `chance` is 0..1."""
    whole = min(rule.base_ms * rule.factor ** min(deliveries - 1, 200), rule.max_ms)
    return int(whole * (1 + rule.jitter * (2 * chance - 1)))


def node_name() -> str:
    """A name for a worker that gave none; unlike any other's."""
    return f"{socket.gethostname()[:80]}-{os.getpid()}-{secrets.token_hex(3)}"


class Claims:
    """What threads and tasks have in common. `stop` ends every wait for jobs; leases are kept until `end`."""

    def __init__(
        self, queue: QueueVerbs, *, node: str | None, lease_ms: int | None, stop: threading.Event | asyncio.Event
    ) -> None:
        self.queue = queue
        self.node = node or node_name()
        self.stop = stop
        self._lease_ms = lease_ms
        self._config = TopicConfig()  # the queue's, once it was asked
        self._begun = False  # the leases are kept
        self._held: dict[int, Job] = {}
        self._progress: dict[int, ProgressReport] = {}  # of jobs that we hold: not told yet
        self._lost: set[str] = set()
        self._lock = threading.Lock()

    # --- what differs ---------------------------------------------------------------------------------------------

    async def _stopped_within(self, seconds: float) -> bool:
        raise NotImplementedError

    def begin_keeping(self, renew_s: float) -> None:
        """Runs `_keep` from now on."""
        raise NotImplementedError

    def _tell_soon(self) -> None:
        """There is progress to tell. Good from any thread."""
        raise NotImplementedError

    async def _told_within(self, seconds: float) -> bool:
        """Waits for progress to tell, so long. False: leases are kept no longer."""
        raise NotImplementedError

    async def _ended_within(self, seconds: float) -> None:
        """Waits so long, or until leases are kept no longer."""
        raise NotImplementedError

    def end_keeping(self) -> None:
        """Leases run out by themselves from now on."""
        raise NotImplementedError

    # --- claiming -------------------------------------------------------------------------------------------------

    async def take(self, count: int, *, wait: bool) -> list[Job]:
        """Up to `count` jobs; none if there was none, for `WAIT_MS` if we wait. Waits for a server that is away, until
        stopped."""
        attempts: Attempts | None = None
        wait_ms = WAIT_MS if wait else 0
        while not self.stop.is_set():
            try:
                if not self._begun:
                    await self._begin()
                most = min(count, limits.CLAIM_MAX.high)
                asked = self.queue.claim(self.node, max=most, lease_ms=self._lease_ms, wait_ms=wait_ms)
                claimed = (await asked).claimed
            except TopicsError as error:
                attempts = await self._pause(error, attempts)
            else:
                for job in claimed:
                    job.tells(self.report)
                with self._lock:
                    self._held.update((job.seq, job) for job in claimed)
                return claimed
        return []

    async def _begin(self) -> None:
        self._config = (await self.queue.state(touch=False)).config
        self._lease_ms = limits.LEASE_MS(self._lease_ms or self._config.lease_ms)
        self._begun = True
        self.begin_keeping(self._lease_ms / 1000 / RENEWALS)

    async def _pause(self, error: TopicsError, attempts: Attempts | None) -> Attempts:
        now = time.monotonic()
        attempts = attempts or Attempts(_FOREVER, now=now)
        # A claim whose answer was lost does no harm: its jobs come back when their leases run out.
        pause_s = attempts.pause_s(error, repeatable=True, now=now, chance=random.random)
        if pause_s is None:
            raise error
        attempts.tell(error, now=now)
        await self._stopped_within(pause_s)
        return attempts

    # --- leases ---------------------------------------------------------------------------------------------------

    def drop(self, job: Job) -> None:
        """The job is done or given back: its lease is kept no longer."""
        with self._lock:
            if self._held.get(job.seq) is job:
                del self._held[job.seq]
                self._progress.pop(job.seq, None)
            self._lost.discard(job.lease_id)

    def is_lost(self, job: Job) -> bool:
        """The lease ran out or passed on: whoever has the job now will do it again."""
        with self._lock:
            return job.lease_id in self._lost

    def report(self, job: Job, progress: ProgressReport) -> None:
        """How far the work on a job is, to be told with its lease's next extension."""
        with self._lock:
            if self._held.get(job.seq) is not job:
                return
            self._progress[job.seq] = progress
        self._tell_soon()

    async def _keep(self, renew_s: float) -> None:
        """Renew every lease so often, and those of jobs with progress to tell soon, but not all the time."""
        due = time.monotonic() + renew_s
        while await self._told_within(due - time.monotonic()):
            is_due = time.monotonic() >= due
            await self._renew(told_only=not is_due)
            if is_due:
                due = time.monotonic() + renew_s
            await self._ended_within(max(min(PROGRESS_S, due - time.monotonic()), 0))

    async def _renew(self, *, told_only: bool = False) -> None:
        """All leases, or only those of jobs with progress to tell."""
        assert self._lease_ms is not None
        with self._lock:
            told, self._progress = self._progress, {}
            held = [job for job in self._held.values() if not told_only or job.seq in told]
        for jobs in _parts(held):
            progress = [told.get(job.seq) for job in jobs] if told else ()
            asked = self.queue.extend(jobs, node=self.node, lease_ms=self._lease_ms, progress=progress)
            try:
                skipped = set((await asked).skipped)
            except TopicsError as error:
                log.warning("leases of queue %r were not extended: %s", self.queue.name, error)
                continue
            with self._lock:
                for job in jobs:
                    if job.seq in skipped and self._held.get(job.seq) is job:  # else it was dropped meanwhile
                        del self._held[job.seq]
                        self._lost.add(job.lease_id)

    # --- the end of a job -----------------------------------------------------------------------------------------

    async def finish(self, outcomes: Sequence[JobOutcome]) -> None:
        """Ack what is done and give back the rest, in one call for all that end alike."""
        done: list[JobOutcome] = []
        alike: dict[tuple[str | None, int | None, bool], list[Job]] = {}
        for outcome in outcomes:
            self.drop(outcome.job)
            if outcome.is_done:
                done.append(outcome)
                continue
            delay_ms, final = self._next_step(outcome)
            alike.setdefault((outcome.error, delay_ms, final), []).append(outcome.job)
        if done:
            await self._settle([outcome.job for outcome in done], self._ack(done))
        for (error, delay_ms, final), jobs in alike.items():
            given = self.queue.nack(jobs, node=self.node, delay_ms=delay_ms, error=error, final=final)
            await self._settle(jobs, given)

    def _ack(self, done: Sequence[JobOutcome]) -> Coroutine[Any, Any, AckResult]:
        results = [outcome.result for outcome in done] if self._config.done is not None else ()
        return self.queue.ack([outcome.job for outcome in done], node=self.node, results=results)

    async def _settle(self, jobs: list[Job], asked: Coroutine[Any, Any, AckResult | NackResult]) -> None:
        name = self.queue.name
        try:
            answer = await asked
        except TopicsError as error:
            log.warning("%d jobs of queue %r come again: %s", len(jobs), name, error)
            return
        if answer.lost:
            seqs = [job.seq for job in answer.lost]
            log.warning("jobs %s of queue %r were lost to its cap or TTL in our hands", seqs, name)
        elif answer.skipped:
            log.warning("jobs %s of queue %r were no longer ours", answer.skipped, name)

    def _next_step(self, outcome: JobOutcome) -> tuple[int | None, bool]:
        """The delay and whether it is final, of a nack. When a failed job comes again is for the queue to say; one
        without a rule would hand it out at once, again and again, so it gets the pause that a new queue has."""
        job, config = outcome.job, self._config
        if outcome.error is None:
            return outcome.delay_ms, False
        if config.dead_letter is not None and (outcome.final or 0 < config.max_deliveries <= job.deliveries):
            told, step = f"goes to {config.dead_letter!r}", (0 if not outcome.final else None, outcome.final)
            told = told if outcome.final else f"was its last try; {told}"
        else:
            delay_ms = outcome.delay_ms
            if delay_ms is None and config.retry is None:
                delay_ms = retry_delay_ms(RetryRule(), job.deliveries, random.random())
            told, step = "comes again", (delay_ms, False)
        log.error("job %d of queue %r failed, %s: %s", job.seq, self.queue.name, told, outcome.trace or outcome.error)
        return step

    async def end(self) -> None:
        """Leases are kept no longer; what is still held is ready again at once."""
        self.end_keeping()
        self._begun = False  # whoever claims again begins anew
        with self._lock:
            left = list(self._held.values())
            self._held.clear()
            self._progress.clear()
        try:
            for jobs in _parts(left):
                await self.queue.nack(jobs, node=self.node, delay_ms=0)
        except TopicsError as error:
            log.info("jobs of queue %r come back when their leases run out: %s", self.queue.name, error)


def _parts(jobs: list[Job]) -> Iterator[list[Job]]:
    """As many as one call takes."""
    for at in range(0, len(jobs), limits.SEQS_PER_CALL_MAX):
        yield jobs[at : at + limits.SEQS_PER_CALL_MAX]


class ThreadClaims(Claims):
    """Leases are kept by a thread."""

    stop: threading.Event
    _keeper: threading.Thread | None = None

    async def _stopped_within(self, seconds: float) -> bool:
        return self.stop.wait(seconds)

    def begin_keeping(self, renew_s: float) -> None:
        self._ended, self._told = threading.Event(), threading.Event()
        self._keeper = threading.Thread(target=lambda: run(self._keep(renew_s)), name="topics-leases", daemon=True)
        self._keeper.start()

    async def _told_within(self, seconds: float) -> bool:
        self._told.wait(seconds)
        self._told.clear()
        return not self._ended.is_set()

    async def _ended_within(self, seconds: float) -> None:
        self._ended.wait(seconds)

    def _tell_soon(self) -> None:
        self._told.set()

    def end_keeping(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            self._ended.set()
            self._told.set()
            if threading.current_thread() is not keeper:
                keeper.join()

    def abandon(self) -> None:
        """Nobody will call `end`: the loop was left without `with`."""
        run(self.end())


class TaskClaims(Claims):
    """Leases are kept by a task."""

    stop: asyncio.Event
    _keeper: asyncio.Task[None] | None = None
    _ending: asyncio.Task[None] | None = None

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self.stop.wait()
        except TimeoutError:
            return False

    def begin_keeping(self, renew_s: float) -> None:
        self._loop, self._told = asyncio.get_running_loop(), asyncio.Event()
        self._keeper = asyncio.create_task(self._keep(renew_s))

    async def _told_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._told.wait()
        self._told.clear()
        return True

    async def _ended_within(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _tell_soon(self) -> None:
        with suppress(RuntimeError):  # the loop was closed, and nobody keeps leases any more
            self._loop.call_soon_threadsafe(self._told.set)

    def end_keeping(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()

    def abandon(self) -> None:
        """Nobody will call `end`: the loop was left without `async with`."""
        if self._keeper is not None and not self._keeper.done() and not self._keeper.get_loop().is_closed():
            self._keeper.get_loop().call_soon_threadsafe(self._end_soon)

    def _end_soon(self) -> None:
        self._ending = asyncio.create_task(self.end())
