"""Leases: keeps the leases of jobs that are being worked on, in the background, and knows which were lost.

Always holds: a job is extended from when it is added until it is dropped or its lease has passed to somebody else; one
thread does it for all jobs of a worker. Used by `work` and `worker`, over any queue door."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from topics import limits
from topics.errors import TopicsError
from topics.model.doors import QueueDoor
from topics.model.results import Job

log = logging.getLogger("topics.worker")

RENEWALS = 3  # tries per lease, so that two of them may fail


class Leases:
    def __init__(self, queue: QueueDoor, *, node: str, lease_ms: int) -> None:
        self._queue = queue
        self._node = node
        self._lease_ms = limits.LEASE_MS(lease_ms)
        self._held: dict[int, Job] = {}
        self._lost: set[str] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="topics-leases", daemon=True)
        self._thread.start()

    def add(self, jobs: Iterable[Job]) -> None:
        with self._lock:
            self._held.update((job.seq, job) for job in jobs)

    def drop(self, job: Job) -> None:
        with self._lock:
            if self._held.get(job.seq) is job:
                del self._held[job.seq]
            self._lost.discard(job.lease_id)

    def is_lost(self, job: Job) -> bool:
        """The lease ran out or passed on: whoever has the job now will do it again."""
        with self._lock:
            return job.lease_id in self._lost

    def close(self) -> None:
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._lease_ms / 1000 / RENEWALS):
            with self._lock:
                held = list(self._held.values())
            for at in range(0, len(held), limits.SEQS_PER_CALL_MAX):
                self._extend(held[at : at + limits.SEQS_PER_CALL_MAX])

    def _extend(self, jobs: list[Job]) -> None:
        try:
            skipped = set(self._queue.extend(jobs, node=self._node, lease_ms=self._lease_ms).skipped)
        except TopicsError as error:
            log.warning("leases of queue %r were not extended: %s", self._queue.name, error)
            return
        with self._lock:
            for job in jobs:
                if job.seq in skipped and self._held.get(job.seq) is job:  # else it was settled meanwhile
                    del self._held[job.seq]
                    self._lost.add(job.lease_id)
