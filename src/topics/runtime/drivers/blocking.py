"""BlockingDriver: the kernel's world when any thread may call, as in the embedded library.

Whoever holds the lock is the owner. A call takes the lock, decides, writes what it submitted, and then waits for its
ticket without the lock; so callers on several threads share one sync. A ticker thread does the periodic work.

Always holds: what the owner begins it ends, whatever signals come; only the wait for a ticket can be interrupted. A
step of a background thread that fails is reported, as by an event loop, and ends neither the ticker nor a log's thread.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # without the enums of `signal`, which cost 6 µs a call
import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import FrameType
from typing import TypeVar

from topics.engine.ticket import Ticket
from topics.limits import SIGNAL_LOOK_S
from topics.runtime.drivers.driver import Outcome
from topics.runtime.drivers.pools import Pools

T = TypeVar("T")

SIGNALS: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
"""Those that programs handle with something that may raise."""

Handler = Callable[[int, FrameType | None], object]


def undisturbed(step: Callable[[], T]) -> T:
    """Run a step that no signal handler can break into.

    Python runs signal handlers on the main thread, between any two instructions. One that raises, as Ctrl-C does, would
    leave the engine half changed; one that uses the database would enter it in the middle of a change. So a step of the
    main thread has these signals remembered; their handlers are called when it is over.

    What `step` gives. Signals that came meanwhile are handled behind it, and may raise then."""
    if threading.get_ident() != threading.main_thread().ident:
        return step()
    held: dict[int, Handler] = {}
    came: list[tuple[int, FrameType | None]] = []
    try:
        for number in SIGNALS:
            handler = _signal.getsignal(number)
            if callable(handler):
                held[number] = handler  # first: to put back what was not replaced does no harm
                _signal.signal(number, lambda *signal_and_frame: came.append(signal_and_frame))
        return step()
    finally:
        for number, handler in held.items():
            _signal.signal(number, handler)
        for number, frame in came:
            held[number](number, frame)


log = logging.getLogger("topics.kernel")


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

    def call(self, command: Callable[[], Ticket[T]]) -> T:
        """Run `command` as the owner and wait for its ticket."""
        ticket, answer = undisturbed(lambda: self._begin(command))
        while answer is not None and not answer.acquire(timeout=SIGNAL_LOOK_S):
            pass
        return ticket.result()

    def _begin(self, command: Callable[[], Ticket[T]]) -> tuple[Ticket[T], threading.Lock | None]:
        """The command's ticket, and what is released by its answer if that is still to come.

        A bare lock, not an event: one whose `wait` was interrupted may keep its inner lock, and with it the thread of
        the engine that wants to set it."""
        with self.lock:
            ticket = command()
            self._flush_now()
            if ticket.done:
                return ticket, None
            answer = threading.Lock()
            answer.acquire()
            ticket.then(lambda _: answer.release())
            return ticket, answer

    def post(self, step: Callable[[], None]) -> None:
        undisturbed(lambda: self._post(step))

    def _post(self, step: Callable[[], None]) -> None:
        with self.lock:
            for act in (step, self._flush_now):
                try:
                    act()
                except Exception:  # our own mistake, and nobody is there to be told; the thread has other work to do
                    log.exception("a step of the engine failed")

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

    def yield_gil(self) -> None:
        self._pools.yield_gil()

    def side_by_side(self, steps: Iterable[Callable[[], None]]) -> None:
        self._pools.side_by_side(steps)

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
