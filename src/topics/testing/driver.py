"""SimDriver and SimWriter: the kernel on one thread and virtual time, for tests that own every step.

Nothing happens by itself: `pump` carries out everything that is due right now (writes, syncs, jobs, posted steps), in a
fixed order, until nothing is left; time moves only when the test moves the clock and calls `tick`. So a run is a
function of its inputs, and every file-system call of it is a crash point with a number.

    sim = SimKernel.open(disk, data_dir="data", wal_shards=2)
    sim.call(lambda engine: engine.write("a", batch))
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from topics.clock import Clock, Host
from topics.config import Settings
from topics.core.lineage import EPOCH_CHANCE_BITS
from topics.engine.engine import Engine
from topics.engine.ticket import Ticket
from topics.engine.writing.commit import Commit
from topics.errors import CommitFailed
from topics.runtime.drivers.driver import Driver, Outcome
from topics.runtime.kernel import Kernel, recover
from topics.runtime.log_writers import Writers
from topics.runtime.recovery.recover import OpenCold, Recovered
from topics.storage.checkpoint.absorb import one_by_one
from topics.storage.fs import Fs
from topics.storage.osfs import RetryingFs
from topics.storage.tiers.cold_tier import open_cold_root
from topics.storage.wal.group import WalGroup
from topics.testing.clock import SimClock, SimHost

T = TypeVar("T")

INSTANCE = "5eed" * 8
PUMP_STEPS_MAX = 100_000


class SimDriver:
    """Jobs and posted steps in the order they came; no threads."""

    def __init__(self) -> None:
        self._steps: deque[Callable[[], None]] = deque()
        self._flush: Callable[[], None] = lambda: None
        self._sync: Callable[[], bool] = lambda: False
        self._flush_due = False
        self.hold_cold = False
        """While set, cold jobs wait: a cold store that does not answer."""
        self._cold: deque[Callable[[], None]] = deque()
        self.hold_background = False
        """While set, background jobs wait: a checkpoint or a snapshot stands still between its pieces while clients go
        on."""
        self._background: deque[Callable[[], None]] = deque()
        self.clock: Clock = SimClock()
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def attach(self, *, flush: Callable[[], None], sync: Callable[[], bool]) -> None:
        self._flush = flush
        self._sync = sync

    def post(self, step: Callable[[], None]) -> None:
        self._steps.append(step)

    def wake(self) -> None:
        self._flush_due = True

    def soon(self, step: Callable[[], None]) -> None:
        self._steps.append(step)

    def later(self, delay_ms: float, step: Callable[[], None]) -> None:
        self._timers.append((self.clock.monotonic() * 1000 + delay_ms, step))

    def run_timers(self) -> None:
        """Whatever is due by the clock, in order of time."""
        now = self.clock.monotonic() * 1000
        due = sorted((timer for timer in self._timers if timer[0] <= now), key=lambda timer: timer[0])
        self._timers = [timer for timer in self._timers if timer[0] > now]
        for _, step in due:
            step()

    def tick_in(self, seconds: float) -> None:
        return  # time moves when the test says so

    def run(self, job: Callable[[], T], done: Outcome[T]) -> None:
        queue = self._background if self.hold_background else self._steps
        queue.append(lambda: _carry_out(job, done))

    def run_read(self, job: Callable[[], T], done: Outcome[T]) -> None:
        self._steps.append(lambda: _carry_out(job, done))

    def run_cold(self, job: Callable[[], T], done: Outcome[T]) -> None:
        self._cold.append(lambda: _carry_out(job, done))

    def yield_gil(self) -> None:
        return

    def side_by_side(self, steps: Iterable[Callable[[], None]]) -> None:
        one_by_one(steps)

    def pause(self, seconds: float) -> None:
        return

    def ask(self, step: Callable[[], Ticket[T]]) -> T:
        """A job waits for the owner: everything else goes on meanwhile."""
        ticket = step()
        for _ in range(PUMP_STEPS_MAX):
            if ticket.done:
                return ticket.result()
            assert self.turn(), "a job waits for something that never happens"
        raise AssertionError("the simulation does not come to rest")

    def step_background(self) -> bool:
        """Carry out one job that is held. False if there is none."""
        if not self._background:
            return False
        self._background.popleft()()
        return True

    def turn(self) -> bool:
        """The next thing that is due: a flush, else a step, else a sync. False when nothing is."""
        if self._flush_due:
            self._flush_due = False
            self._flush()
            return True
        if self._steps:
            self._steps.popleft()()
            return True
        if self._background and not self.hold_background:
            self._background.popleft()()
            return True
        if self._cold and not self.hold_cold:
            self._cold.popleft()()
            return True
        return self._sync()

    def pump(self) -> None:
        for _ in range(PUMP_STEPS_MAX):
            if not self.turn():
                return
        raise AssertionError("the simulation does not come to rest")


def _carry_out(job: Callable[[], T], done: Outcome[T]) -> None:
    try:
        value = job()
    except Exception as error:  # a simulated crash is no Exception and passes through
        done(None, error)
    else:
        done(value, None)


class SimWriter:
    """Writes at `pump`; syncs when the driver has nothing else to do, or when asked."""

    def __init__(self, index: int, wal: WalGroup, commit: Commit, settings: Settings) -> None:
        self._index = index
        self._wal = wal
        self._commit = commit
        self._settings = settings
        self._sync_wanted = False
        self.window_s = 0.0

    def start(self) -> None:
        return

    def stop(self) -> None:
        self.pump()
        self.sync()

    def pump(self) -> None:
        frames, size = self._settings.wal_max_batch_frames, self._settings.wal_max_batch_bytes
        while batch := self._commit.take(self._index, frames, size):
            try:
                self._wal.write(batch)
            except CommitFailed as error:
                self._commit.write_failed(self._index, batch, error)
                self._sync_wanted = True
            else:
                self._sync_wanted |= self._commit.written(self._index, batch) > 0

    def request_sync(self) -> None:
        self._sync_wanted = True

    def sync(self) -> bool:
        """One sync, if somebody waits for it."""
        if not self._sync_wanted:
            return False
        self._sync_wanted = False
        try:
            lsn = self._wal.sync()
        except CommitFailed as error:
            self._commit.sync_failed(self._index, error, error.cause)
        else:
            self._commit.synced(self._index, lsn)
            self._wal.prepare_next()
        return True


class SimKernel:
    """A kernel under test, with its clock and its disk."""

    def __init__(self, kernel: Kernel, driver: SimDriver, writers: list[SimWriter], clock: Clock) -> None:
        self.kernel = kernel
        self.driver = driver
        self.writers = writers
        self.clock = clock

    @classmethod
    def open(
        cls,
        fs: Fs,
        *,
        clock: SimClock | None = None,
        host: Host | None = None,
        settings: Settings | None = None,
        open_cold: OpenCold = open_cold_root,
        **kwargs: Any,
    ) -> SimKernel:
        """Recover the directory and start a kernel on it; keywords are settings."""
        clock = clock or SimClock()
        settings = settings or Settings.from_kwargs(
            **{"data_dir": "data", "wal_shards": 1, "wal_file_bytes": 1 << 16, **kwargs}
        )
        recovered = recover(
            RetryingFs(fs, sleep=lambda _: None),
            settings=settings,
            clock=clock,
            host=host or SimHost(),
            instance=lambda: INSTANCE,
            chance=partial(random.Random(clock.wall_ms()).getrandbits, EPOCH_CHANCE_BITS),
            open_cold=open_cold,
        )
        driver = SimDriver()
        driver.clock = clock
        writers: list[SimWriter] = []

        def make(commit: Commit, recovered: Recovered, settings: Settings, _: Driver) -> Writers:
            groups = recovered.store.groups
            writers.extend(SimWriter(index, group, commit, settings) for index, group in enumerate(groups))
            return Writers(writers)

        kernel = Kernel(recovered, settings=settings, driver=driver, make_writers=make)
        driver.attach(flush=kernel.flush, sync=lambda: sum(writer.sync() for writer in writers) > 0)
        return cls(kernel, driver, writers, clock)

    @property
    def engine(self) -> Engine:
        return self.kernel.engine

    def submit(self, command: Callable[[Engine], Ticket[T]]) -> Ticket[T]:
        """Give a command without carrying anything out yet."""
        return command(self.kernel.engine)

    def call(self, command: Callable[[Engine], Ticket[T]]) -> T:
        """Give a command and carry out everything until it is answered and the kernel is at rest."""
        ticket = self.submit(command)
        self.driver.pump()
        assert ticket.done, "a command was never answered"
        return ticket.result()

    def pump(self) -> None:
        self.driver.pump()

    def tick(self) -> None:
        """Let time's work happen."""
        self.driver.run_timers()
        self.kernel.tick()
        self.driver.pump()

    def sync_all(self) -> None:
        """What the sync timer does in a real process."""
        for writer in self.writers:
            writer.request_sync()
        self.driver.pump()

    def checkpoint(self) -> None:
        self._wait(self.kernel.checkpointer.run())

    def snapshot(self) -> None:
        self._wait(self.kernel.snapshotter.run())

    def close(self) -> None:
        """A clean stop."""
        self._wait(self.kernel.begin_close())
        self.kernel.finish_close()

    def _wait(self, ticket: Ticket[Any]) -> None:
        self.driver.pump()
        assert ticket.done, "background work did not end"
        ticket.result()
