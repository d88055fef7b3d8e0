"""BlockingDriver: the kernel's world when any thread may call, as in the embedded library.

Whoever holds the lock is the owner. A call takes the lock, decides, writes what it submitted, and then waits for its
ticket without the lock; so callers on several threads share one sync. A ticker thread does the periodic work."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from topics.engine.ticket import Ticket
from topics.runtime.driver import Outcome
from topics.runtime.pools import Pools

T = TypeVar("T")

TICK_S = 0.05


class BlockingDriver:
    def __init__(self, *, cold_threads: int) -> None:
        self.lock = threading.RLock()
        self._pools = Pools(cold_threads=cold_threads, post=self.post)
        self._flush: Callable[[], None] = lambda: None
        self._tick: Callable[[], None] = lambda: None
        self._flush_due = False
        self._soon: deque[Callable[[], None]] = deque()
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._stopped = threading.Event()
        self._ticker = threading.Thread(target=self._tick_forever, name="topics-tick", daemon=True)

    def attach(self, *, flush: Callable[[], None], tick: Callable[[], None]) -> None:
        self._flush = flush
        self._tick = tick
        self._ticker.start()

    def call(self, command: Callable[[], Ticket[T]], *, timeout_s: float | None = None) -> T:
        """Run `command` as the owner and wait for its ticket."""
        arrived: threading.Event | None = None
        with self.lock:
            ticket = command()
            self._flush_now()
            if not ticket.done:
                arrived = threading.Event()
                ticket.then(lambda _: arrived.set())
        if arrived is not None and not arrived.wait(timeout_s):
            raise TimeoutError("the engine did not answer in time")
        return ticket.result()

    def post(self, step: Callable[[], None]) -> None:
        with self.lock:
            step()
            self._flush_now()

    def wake(self) -> None:
        self._flush_due = True

    def soon(self, step: Callable[[], None]) -> None:
        self._soon.append(step)

    def later(self, delay_ms: float, step: Callable[[], None]) -> None:
        """To within a tick: nobody here waits for less."""
        self._later.append((time.monotonic() + delay_ms / 1000, step))

    def tick_in(self, seconds: float) -> None:
        """The ticker is never further away than its interval."""

    def run(self, job: Callable[[], T], done: Outcome[T]) -> None:
        self._pools.run(job, done)

    def run_read(self, job: Callable[[], T], done: Outcome[T]) -> None:
        self._pools.run_read(job, done)

    def run_cold(self, job: Callable[[], T], done: Outcome[T]) -> None:
        self._pools.run_cold(job, done)

    def breathe(self) -> None:
        self._pools.breathe()

    def pause(self, seconds: float) -> None:
        self._pools.pause(seconds)

    def ask(self, step: Callable[[], Ticket[T]]) -> T:
        return self._pools.ask(step)

    def close(self) -> None:
        self._stopped.set()
        if self._ticker.is_alive():
            self._ticker.join()
        self._pools.close()

    def _flush_now(self) -> None:
        while self._flush_due or self._soon:
            if self._flush_due:
                self._flush_due = False
                self._flush()
            while self._soon:
                self._soon.popleft()()

    def _tick_forever(self) -> None:
        while not self._stopped.wait(TICK_S):
            self.post(self._on_tick)

    def _on_tick(self) -> None:
        now = time.monotonic()
        due = [step for at, step in self._later if at <= now]
        self._later = [(at, step) for at, step in self._later if at > now]
        for step in due:
            step()
        self._tick()
