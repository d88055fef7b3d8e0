"""Claims: jobs of a queue as they come. An idle claimer waits for the next append instead of asking over and over.

Always holds: whatever was appended before a wait is claimed before it; a server that is away is waited for. Delays and
leases that run out make no sound, so no wait is longer than `IDLE_MS`. Used by `work` and `worker`, over any door.

Why not the stream of `GET .../work`: its leases end with its connection, so every broken connection would hand jobs
that are half done to somebody else. A claim's leases outlive it, and an append wakes a waiting claimer all the same."""

from __future__ import annotations

import logging
import os
import random
import secrets
import socket
import threading
import time

from topics import limits
from topics.client.transport.retry import Attempts, RetryPolicy
from topics.errors import TopicsError
from topics.model.doors import QueueDoor
from topics.model.results import Job

log = logging.getLogger("topics.worker")

IDLE_MS = 500
PATIENCE = RetryPolicy(total_s=float("inf"))


def node_name() -> str:
    """A name for a worker that gave none; unlike any other's."""
    return f"{socket.gethostname()[:80]}-{os.getpid()}-{secrets.token_hex(3)}"


class Claims:
    def __init__(self, queue: QueueDoor, *, node: str, lease_ms: int | None, stop: threading.Event) -> None:
        self._queue = queue
        self._node = node
        self._lease_ms = lease_ms
        self._stop = stop
        self._head: int | None = None  # seen before the last claim

    def take(self, count: int) -> list[Job]:
        """Up to `count` jobs; none if the queue is dry. Waits for a server that is away, until stopped."""
        attempts: Attempts | None = None
        while not self._stop.is_set():
            try:
                if self._head is None:
                    self._head = self._queue.state(touch=False).head_seq
                return self._queue.claim(
                    self._node, max=min(count, limits.CLAIM_MAX.high), lease_ms=self._lease_ms
                ).claimed
            except TopicsError as error:
                attempts = self._pause(error, attempts)
        return []

    def wait(self) -> None:
        """Until something was appended since the last claim, for a moment, or until stopped."""
        assert self._head is not None
        try:
            self._head = self._queue.page(self._head, limit=1, max_bytes=1, wait_ms=IDLE_MS).head_seq
        except TopicsError as error:
            self._pause(error, None)

    def _pause(self, error: TopicsError, attempts: Attempts | None) -> Attempts:
        now = time.monotonic()
        attempts = attempts or Attempts(PATIENCE, now=now)
        # A claim whose answer was lost does no harm: its jobs come back when their leases run out.
        pause_s = attempts.pause_s(error, repeatable=True, now=now, chance=random.random)
        if pause_s is None:
            raise error
        log.info("queue %r is away: %s", self._queue.name, error)
        self._stop.wait(pause_s)
        return attempts
