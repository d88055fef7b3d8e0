"""Claims: the jobs that one worker holds. Takes them from the queue, keeps their leases, gives back what is left.

Always holds: whatever was appended before a wait is claimed before it; a server that is away is waited for; a job is
extended from when it was claimed until it is dropped or its lease has passed to somebody else. Delays and leases that
run out make no sound, so no wait is longer than `IDLE_MS`. Used by `work` and `worker`, over any door: `Claims` is
written once, as coroutines, and its leases are kept by a thread (`ThreadClaims`) or by a task (`TaskClaims`).

Why not the stream of `GET .../work`: its leases end with its connection, so every broken connection would hand jobs
that are half done to somebody else. A claim's leases outlive it, and an append wakes a waiting claimer all the same."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from topics import limits
from topics.client.blocking_handles import run
from topics.client.transport.retry import Attempts, RetryPolicy
from topics.client.verbs import QueueVerbs
from topics.errors import TopicsError
from topics.model.config import TopicConfig
from topics.model.results import AckResult, Job, NackResult

log = logging.getLogger("topics.worker")

IDLE_MS = 500
RENEWALS = 3  # tries per lease, so that two of them may fail
_FOREVER = RetryPolicy(total_s=float("inf"))


class JobOutcome(NamedTuple):
    """What became of a job. `delay_ms` None: it is done; else it comes again after so long."""

    job: Job
    delay_ms: int | None


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
        self._head: int | None = None  # of the queue, seen before the last claim; None: the leases are not kept yet
        self._held: dict[int, Job] = {}
        self._lost: set[str] = set()
        self._lock = threading.Lock()

    # --- what differs ---------------------------------------------------------------------------------------------

    async def _stopped_within(self, seconds: float) -> bool:
        raise NotImplementedError

    def begin_keeping(self, renew_s: float) -> None:
        """Calls `_renew` every so many seconds from now on."""
        raise NotImplementedError

    def end_keeping(self) -> None:
        """Leases run out by themselves from now on."""
        raise NotImplementedError

    # --- claiming -------------------------------------------------------------------------------------------------

    async def take(self, count: int) -> list[Job]:
        """Up to `count` jobs; none if the queue is dry. Waits for a server that is away, until stopped."""
        attempts: Attempts | None = None
        while not self.stop.is_set():
            try:
                if self._head is None:
                    await self._begin()
                most = min(count, limits.CLAIM_MAX.high)
                claimed = (await self.queue.claim(self.node, max=most, lease_ms=self._lease_ms)).claimed
            except TopicsError as error:
                attempts = await self._pause(error, attempts)
            else:
                with self._lock:
                    self._held.update((job.seq, job) for job in claimed)
                return claimed
        return []

    async def wait(self) -> None:
        """Until something was appended since the last claim, for a moment, or until stopped."""
        if self._head is None:  # stopped before the server was reached
            return
        try:
            self._head = (await self.queue.page(self._head, limit=1, max_bytes=1, wait_ms=IDLE_MS)).head_seq
        except TopicsError as error:
            await self._pause(error, None)

    async def _begin(self) -> None:
        state = await self.queue.state(touch=False)
        self._head, self._config = state.head_seq, state.config
        self._lease_ms = limits.LEASE_MS(self._lease_ms or state.config.lease_ms)
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

    def dead_letter_of(self, job: Job) -> str | None:
        """The topic that the job goes to if it fails now; None if it comes again."""
        most = self._config.max_deliveries
        return self._config.dead_letter if 0 < most <= job.deliveries else None

    # --- leases ---------------------------------------------------------------------------------------------------

    def drop(self, job: Job) -> None:
        """The job is done or given back: its lease is kept no longer."""
        with self._lock:
            if self._held.get(job.seq) is job:
                del self._held[job.seq]
            self._lost.discard(job.lease_id)

    def is_lost(self, job: Job) -> bool:
        """The lease ran out or passed on: whoever has the job now will do it again."""
        with self._lock:
            return job.lease_id in self._lost

    async def _renew(self) -> None:
        assert self._lease_ms is not None
        with self._lock:
            held = list(self._held.values())
        for jobs in _parts(held):
            try:
                skipped = set((await self.queue.extend(jobs, node=self.node, lease_ms=self._lease_ms)).skipped)
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
        """Ack what is done and give back the rest, in one call for each delay."""
        by_delay: dict[int | None, list[Job]] = {}
        for job, delay_ms in outcomes:
            self.drop(job)
            by_delay.setdefault(delay_ms, []).append(job)
        name = self.queue.name
        for delay_ms, jobs in by_delay.items():
            try:
                done: AckResult | NackResult
                if delay_ms is None:
                    done = await self.queue.ack(jobs, node=self.node)
                else:
                    done = await self.queue.nack(jobs, node=self.node, delay_ms=delay_ms)
            except TopicsError as error:
                log.warning("%d jobs of queue %r come again: %s", len(jobs), name, error)
                continue
            if done.lost:
                seqs = [job.seq for job in done.lost]
                log.warning("jobs %s of queue %r were lost to its cap or TTL in our hands", seqs, name)
            elif done.skipped:
                log.warning("jobs %s of queue %r were no longer ours", done.skipped, name)

    async def end(self) -> None:
        """Leases are kept no longer; what is still held is ready again at once."""
        self.end_keeping()
        self._head = None  # whoever claims again begins anew
        with self._lock:
            left = list(self._held.values())
            self._held.clear()
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
        ended = self._ended = threading.Event()

        def keep() -> None:
            while not ended.wait(renew_s):
                run(self._renew())

        self._keeper = threading.Thread(target=keep, name="topics-leases", daemon=True)
        self._keeper.start()

    def end_keeping(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            self._ended.set()
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
        async def keep() -> None:
            while True:
                await asyncio.sleep(renew_s)
                await self._renew()

        self._keeper = asyncio.create_task(keep())

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
