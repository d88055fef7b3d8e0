"""Work: `for job in queue.work(): ...` — one job at a time, its lease kept while the loop's body runs.

A job is acked when the loop comes back for the next one, unless the body settled it itself. Leaving the loop (by
`break` or an exception) gives back what is not settled, so finish a last job with `job.ack()` before a `break`. Inside
`with queue.work() as jobs:` a job whose body raised comes again after a pause, as with a worker."""

from __future__ import annotations

import random
import threading
from collections import deque
from types import TracebackType
from typing import Any, Self

from topics.client.jobs.claims import Claims, log, node_name
from topics.client.jobs.leases import Leases
from topics.client.jobs.worker import WorkerOptions, retry_delay_ms
from topics.errors import TopicsError
from topics.model.doors import QueueDoor
from topics.model.results import Job


class HeldJob:
    """A job in the hands of a worker. Settle it once: `ack` or `nack`; what is left open is acked by the loop.

    It does not know its loop: a loop that is left must not be kept alive by its last job."""

    def __init__(self, queue: QueueDoor, node: str, leases: Leases, job: Job) -> None:
        self._queue = queue
        self._node = node
        self._leases = leases
        self.job = job
        self.is_done = False

    def __repr__(self) -> str:
        return f"HeldJob(seq={self.job.seq}, deliveries={self.job.deliveries})"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.job, name)

    @property
    def value(self) -> Any:
        """The payload as a Python value."""
        return self.job.value

    @property
    def is_lost(self) -> bool:
        """Somebody else has, or will get, this job: settling it changes nothing any more."""
        return self._leases.is_lost(self.job)

    def ack(self) -> bool:
        """Done. False if the job was no longer ours."""
        self._mark_done()
        return bool(self._queue.ack([self.job], node=self._node).acked)

    def nack(self, delay_ms: int = 0) -> bool:
        """Not done; somebody may try again after the delay. False if the job was no longer ours."""
        self._mark_done()
        return bool(self._queue.nack([self.job], node=self._node, delay_ms=delay_ms).nacked)

    def _mark_done(self) -> None:
        self.is_done = True
        self._leases.drop(self.job)


class Work:
    """An iterator of `HeldJob`, and a context manager that gives back what is left."""

    def __init__(
        self,
        queue: QueueDoor,
        node: str | None = None,
        *,
        max: int = 1,
        lease_ms: int | None = None,
        until_empty: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        self.queue = queue
        self.node = node or node_name()
        self.stop = stop or threading.Event()
        self._max = max
        self._until_empty = until_empty
        self._claims = Claims(queue, node=self.node, lease_ms=lease_ms, stop=self.stop)
        self._lease_ms = lease_ms
        self._leases: Leases | None = None
        self._ahead: deque[Job] = deque()
        self._current: HeldJob | None = None

    @property
    def leases(self) -> Leases:
        """What keeps the leases; begins with the first job."""
        if self._leases is None:
            lease_ms = self._lease_ms or self.queue.state(touch=False).config.lease_ms
            self._leases = Leases(self.queue, node=self.node, lease_ms=lease_ms)
        return self._leases

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> HeldJob:
        if self._current is not None and not self._current.is_done:
            self._current.ack()
        self._current = None
        while not self._ahead and not self.stop.is_set():
            self._fetch()
        if self.stop.is_set():
            self.close()
            raise StopIteration
        self._current = HeldJob(self.queue, self.node, self.leases, self._ahead.popleft())
        return self._current

    def _fetch(self) -> None:
        jobs = self._claims.take(self._max)
        self.leases.add(jobs)
        self._ahead.extend(jobs)
        if not jobs and self._until_empty:
            self.stop.set()
        elif not jobs:
            self._claims.wait()

    def close(self) -> None:
        """End; jobs that are not settled are ready again at once."""
        self.stop.set()
        left = list(self._ahead)
        self._ahead.clear()
        if self._current is not None and not self._current.is_done:
            self._current.is_done = True
            left.append(self._current.job)
        if self._leases is not None:
            self._leases.close()
        if left:
            try:
                self.queue.nack(left, node=self.node)
            except TopicsError as error:
                log.info("jobs of queue %r come back when their leases run out: %s", self.queue.name, error)

    def _put_off(self) -> None:
        """The body failed: its job comes again after a while."""
        held = self._current
        if held is not None and not held.is_done:
            try:
                held.nack(retry_delay_ms(WorkerOptions(), held.job.deliveries, random.random()))
            except TopicsError as error:
                log.info("job %d of queue %r comes back when its lease runs out: %s", held.seq, self.queue.name, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and issubclass(kind, Exception):
            self._put_off()
        self.close()

    def __del__(self) -> None:
        if not self.stop.is_set() and (self._current is not None or self._ahead):
            self.close()
        elif self._leases is not None:
            self._leases.close()  # it holds nothing, but its thread would go on
