"""AioDriver: the kernel's world when an asyncio loop owns the engine.

The loop's thread is the owner. Everything a turn of the loop submitted is written by one flush at the end of that
turn. Used by the server and by `topics.aopen`."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from topics.engine.ticket import Ticket
from topics.runtime.drivers.driver import Outcome
from topics.runtime.drivers.pools import Pools


class BusyShare:
    """How busy the owner's thread is, as the governor's third signal (`docs/spec/delivery.md#sec-7`).

    That thread serves commits and live delivery, so its processor time is the use of the pool. Called on it alone."""

    def __init__(
        self, *, used_s: Callable[[], float] = time.thread_time, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._used_s = used_s
        self._now_s = now_s
        self._used = used_s()
        self._at = now_s()

    def __call__(self) -> float:
        """The busy share of the time since the last call, 0 to 1."""
        used, at = self._used_s(), self._now_s()
        spent, passed = used - self._used, at - self._at
        self._used, self._at = used, at
        return min(max(spent / passed, 0.0), 1.0) if passed > 0 else 0.0


T = TypeVar("T")

TICK_S = 0.05


class AioDriver:
    def __init__(self, loop: asyncio.AbstractEventLoop, *, cold_threads: int) -> None:
        self._loop = loop
        self._pools = Pools(cold_threads=cold_threads, post=self.post)
        self._flush: Callable[[], None] = lambda: None
        self._tick: Callable[[], None] = lambda: None
        self._flush_scheduled = False
        self._flushing = False
        self._after_flush: deque[Callable[[], None]] = deque()
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0  # uvloop gives a handle without a time where a timer is due at once

    def attach(self, *, flush: Callable[[], None], tick: Callable[[], None]) -> None:
        self._flush = flush
        self._tick = tick
        self._tick_at(self._loop.time() + TICK_S)

    def post(self, step: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(step)
        except RuntimeError:
            # The loop is closed: the process is ending, and nobody is left to be told.
            pass

    def wake(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._on_flush)

    def soon(self, step: Callable[[], None]) -> None:
        """What a flush asks for follows it at once: a delivery need not wait for another look at the sockets."""
        if self._flushing:
            self._after_flush.append(step)
        else:
            self._loop.call_soon(step)

    def later(self, delay_ms: float, step: Callable[[], None]) -> None:
        self._loop.call_later(delay_ms / 1000, step)

    def tick_in(self, seconds: float) -> None:
        """The regular tick comes forward, if it would come later than that."""
        at = self._loop.time() + seconds
        if self._timer is not None and at < self._timer_at:
            self._timer.cancel()
            self._tick_at(at)

    def run(self, job: Callable[[], T], done: Outcome[T]) -> None:
        self._pools.run(job, done)

    def run_read(self, job: Callable[[], T], done: Outcome[T]) -> None:
        self._pools.run_read(job, done)

    def run_cold(self, job: Callable[[], T], done: Outcome[T]) -> None:
        self._pools.run_cold(job, done)

    def yield_gil(self) -> None:
        self._pools.yield_gil()

    def side_by_side(self, steps: Iterable[Callable[[], None]]) -> None:
        self._pools.side_by_side(steps)

    def pause(self, seconds: float) -> None:
        self._pools.pause(seconds)

    def ask(self, step: Callable[[], Ticket[T]]) -> T:
        return self._pools.ask(step)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pools.close()

    def _on_flush(self) -> None:
        self._flush_scheduled = False
        self._flushing = True
        try:
            self._flush()
        finally:
            self._flushing = False
            while self._after_flush:
                self._guarded(self._after_flush.popleft())

    def _guarded(self, step: Callable[[], None]) -> None:
        """As the loop runs it: its failure is reported and ends nobody else's step."""
        try:
            step()
        except Exception as error:
            self._loop.call_exception_handler({"message": "a step after a flush failed", "exception": error})

    def _on_tick(self) -> None:
        self._tick_at(self._loop.time() + TICK_S)
        self._tick()

    def _tick_at(self, at: float) -> None:
        self._timer = self._loop.call_at(at, self._on_tick)
        self._timer_at = at


def future_of(ticket: Ticket[T], loop: asyncio.AbstractEventLoop) -> asyncio.Future[T]:
    """Await a ticket from a coroutine. The hot paths use `Ticket.then` and make no future."""
    future: asyncio.Future[T] = loop.create_future()

    def pass_on(done: Ticket[T]) -> None:
        if future.cancelled():
            return
        if done.error is not None:
            future.set_exception(done.error)
        else:
            future.set_result(done.value)  # type: ignore[arg-type]

    ticket.then(pass_on)
    return future
