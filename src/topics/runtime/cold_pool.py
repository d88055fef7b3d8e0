"""ColdPool: threads for everything that may wait for the cold store.

They are started when there is work and are daemons: a job that hangs in a store must not keep the process from ending.
Used by `Pools` alone."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread

JOIN_S = 0.2
"""How long the end waits for each thread; one that hangs is left behind."""


class ColdPool:
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
