"""Pools: the background threads of a real process.

Always holds: work that may wait for the cold store never shares a thread with work that may not, so a cold store that
hangs delays nothing but the reads that need it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TypeVar

from topics.engine.ticket import Ticket, failed
from topics.errors import ShuttingDown
from topics.runtime.drivers.driver import Outcome

JOIN_S = 0.2
"""How long the end waits for each thread; one that hangs is left behind."""


class ColdPool:
    """Threads for everything that may wait for the cold store.

    They are started when there is work and are daemons: a job that hangs in a store must not keep the process from
    ending. Used by `Pools` alone."""

    def __init__(self, threads_max: int) -> None:
        self._threads_max = threads_max
        self._threads: list[Thread] = []
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def submit(self, job: Callable[[], None]) -> None:
        """From the owner. Jobs begin in the order of submission."""
        self._jobs.put(job)
        if len(self._threads) < self._threads_max:
            thread = Thread(target=self._work, name=f"topics-cold-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def close(self) -> None:
        """Jobs that did not begin are dropped."""
        try:
            while True:
                self._jobs.get_nowait()
        except Empty:
            pass
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(JOIN_S)


T = TypeVar("T")

BACKGROUND_THREADS = 2
"""One long job (a checkpoint, a rewrite) and one for short reads beside it."""
SYNC_THREADS = 4
"""Syncs at a time: one commit of the file system's journal then serves several, and the log's own still get through."""
BREATH_S = 0.0002
CLOSED_CHECK_S = 0.5
"""How soon a job that waits for the owner learns that there is none any more."""


class Pools:
    def __init__(self, *, cold_threads: int, post: Callable[[Callable[[], None]], None]) -> None:
        self._background = ThreadPoolExecutor(BACKGROUND_THREADS, thread_name_prefix="topics-bg")
        self._reads = ThreadPoolExecutor(BACKGROUND_THREADS, thread_name_prefix="topics-read")
        self._cold = ColdPool(cold_threads)
        self._syncs = ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="topics-sync")
        self._post = post
        self._closed = False

    def run(self, job: Callable[[], T], done: Outcome[T]) -> None:
        self._background.submit(self._carry_out, job, done)

    def run_read(self, job: Callable[[], T], done: Outcome[T]) -> None:
        self._reads.submit(self._carry_out, job, done)

    def run_cold(self, job: Callable[[], T], done: Outcome[T]) -> None:
        self._cold.submit(lambda: self._carry_out(job, done))

    @staticmethod
    def yield_gil() -> None:
        """A thread that computes in Python keeps the interpreter until it is asked for; give it away unasked."""
        time.sleep(BREATH_S)

    def side_by_side(self, steps: Iterable[Callable[[], None]]) -> None:
        """From a job: all steps are over when it returns, also when it raises what one of them did."""
        waiting = list(steps)
        if len(waiting) == 1:
            waiting[0]()
            return
        started = [self._syncs.submit(step) for step in waiting]
        wait(started)
        for step in started:
            step.result()

    @staticmethod
    def pause(seconds: float) -> None:
        time.sleep(seconds)

    def ask(self, step: Callable[[], Ticket[T]]) -> T:
        """From a job: run `step` as the owner and wait for its ticket. ShuttingDown once the pools are closed."""
        answered = Event()
        answers: list[Ticket[T]] = []

        def over(ticket: Ticket[T]) -> None:
            answers.append(ticket)
            answered.set()

        def begin() -> None:
            try:
                ticket = step()
            except Exception as error:
                ticket = failed(error)
            ticket.then(over)

        self._post(begin)
        while not answered.wait(CLOSED_CHECK_S):
            if self._closed:
                raise ShuttingDown()
        return answers[0].result()

    def _carry_out(self, job: Callable[[], T], done: Outcome[T]) -> None:
        value: T | None = None
        failure: BaseException | None = None
        try:
            value = job()
        except BaseException as error:  # handed to the owner, who decides
            failure = error
        self._post(lambda: done(value, failure))

    def close(self) -> None:
        """Ends idle threads; a job that hangs in a cold store is left behind."""
        self._closed = True
        self._background.shutdown(wait=True)
        self._reads.shutdown(wait=True)
        self._syncs.shutdown(wait=True)
        self._cold.close()
