"""Kernel: engine and storage joined, driven by whoever owns the loop or the lock.

`flush` writes what a turn submitted; `tick` does what time asks for. Always holds: every submission accepted is
answered; closing writes, syncs and snapshots what is there, so that the next start replays nothing."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable

from topics.clock import BELIEVE_MS, JUMP_MS, Clock, EngineClock, Host
from topics.config import Settings
from topics.core.lineage import EPOCH_CHANCE_BITS
from topics.engine.engine import Engine
from topics.engine.ticket import Ticket
from topics.engine.writing.commit import Commit
from topics.errors import ShuttingDown
from topics.runtime.background.checkpointer import Checkpointer
from topics.runtime.background.compactor import Compactor
from topics.runtime.background.janitor import Janitor
from topics.runtime.background.scheduler import Scheduler
from topics.runtime.background.snapshotter import Snapshotter
from topics.runtime.background.tiers import Tiers
from topics.runtime.directory_guard import DirectoryGuard
from topics.runtime.drivers.driver import Driver
from topics.runtime.file_work import FileWork
from topics.runtime.log_writers import GroupRunner, Writers
from topics.runtime.recovery.look import Progress
from topics.runtime.recovery.recover import OpenCold, Recovered, Recovery
from topics.storage.fs import Fs
from topics.storage.tiers.cold_tier import open_cold_root

log = logging.getLogger("topics.kernel")


class ClockWatch:
    """Says once that the engine does not follow the wall clock, and once that it does again.

    How the two are held together is `EngineClock`'s; this only tells operators, in the log and in the probes."""

    def __init__(self, clock: EngineClock) -> None:
        self._clock = clock
        self._told = False

    @property
    def sentence(self) -> str | None:
        """What an operator should know as long as it lasts."""
        behind_ms = self._clock.behind_ms()
        if behind_ms < -JUMP_MS:
            return (
                f"the wall clock is {-behind_ms // 1000} s ahead of the time that has passed: "
                f"it is believed once it has stayed there for {BELIEVE_MS // 60_000} minutes"
            )
        if behind_ms > JUMP_MS:
            return (
                f"the wall clock is {behind_ms // 1000} s behind stored times: time goes on from those, a little slower"
            )
        return None

    def look(self) -> None:
        """Called about once per second."""
        sentence = self.sentence
        if sentence is not None and not self._told:
            log.error("%s", sentence)
        elif sentence is None and self._told:
            log.info("stored times agree with the wall clock again")
        self._told = sentence is not None


MakeWriters = Callable[[Commit, Recovered, Settings, Driver], Writers]


class Kernel:
    def __init__(
        self,
        recovered: Recovered,
        *,
        settings: Settings,
        driver: Driver,
        make_writers: MakeWriters | None = None,
    ) -> None:
        self.settings = settings
        self.recovered = recovered
        self.store = recovered.store
        self.driver = driver
        shards = recovered.store.layout.shards
        self.commit = Commit(shards, queue_max=settings.wal_queue, wake=self._wake)
        # FileWork, Engine and the background work know each other in a circle: those that are made later are reached
        # through `self`, when the work is asked for.
        self.jobs = FileWork(
            self.store,
            driver,
            removed=lambda topic, effect: self.engine.context.removed(topic, effect),
            checkpoint_soon=lambda: self.scheduler.checkpoint_soon(),
            checkpoint=lambda: self.checkpointer.run(),
        )
        self.engine = Engine(
            state=recovered.state,
            commit=self.commit,
            clock=recovered.clock,
            settings=settings,
            shards=shards,
            files=self.jobs,
            chance=recovered.chance,
            wake_at=self._tick_at,
        )
        self.writers = (make_writers or threaded_writers)(self.commit, recovered, settings, driver)
        self._make_background()
        self.before_turn: list[Callable[[], bool]] = []
        """Whoever keeps the commands of a turn, to give them all at once when it ends; True if not just yet."""
        self._is_flushing = False
        self._closing: Ticket[None] | None = None
        for index, group in enumerate(self.store.groups):
            if group.read_only is not None:
                self.commit.close_group(index, group.read_only)
        self.writers.start()
        if recovered.wants_snapshot:
            self.scheduler.snapshot_soon()

    def _make_background(self) -> None:
        """Everything that works on files beside the engine."""
        self.directory_guard = DirectoryGuard(
            self.store, self.commit, self.driver, rescue=lambda: self.scheduler.snapshot_soon()
        )
        self.checkpointer = Checkpointer(
            self.engine,
            self.store,
            self.driver,
            self.jobs,
            self.settings,
            directory_guard=self.directory_guard,
        )
        self.snapshotter = Snapshotter(self.engine, self.store, self.driver, self.checkpointer, self.directory_guard)
        self.tiers = Tiers(
            self.engine,
            self.store,
            self.driver,
            self.settings,
            self.recovered,
            index_came=self.jobs.index_came,
            is_dropping=lambda key: self.janitor.is_dropping(key),
            is_named=lambda: self.recovered.has_snapshot or self.snapshotter.total > 0,
        )
        self.janitor = Janitor(
            self.engine,
            self.store,
            self.driver,
            self.jobs,
            self.settings,
            self.recovered.retired,
            self.tiers,
            after_checkpoint=self.checkpointer.after_run,
        )
        self.compactor = Compactor(self.engine, self.settings)
        self.clock_watch = ClockWatch(self.recovered.clock)
        self.scheduler = Scheduler(self, self.settings)
        self.scheduler.every_tick.append(self.engine.tick)

    # --- called by the driver -------------------------------------------------------------------------------------

    def flush(self) -> None:
        """End a turn: let the routers and work streams of dirty topics act, then write everything that was submitted
        since the last flush."""
        self._is_flushing = True
        try:
            wait = [True for submit in self.before_turn if submit()]
        finally:
            self._is_flushing = False
        if wait:
            self.driver.wake()
        self.engine.turn()
        self.writers.pump()

    def _wake(self) -> None:
        if not self._is_flushing:  # what is submitted then is written by the flush that is under way
            self.driver.wake()

    def tick(self) -> None:
        """Do what is due; called about every 50 ms, or as often as a simulator likes."""
        self.scheduler.tick()

    def _tick_at(self, at_ms: int) -> None:
        self.driver.tick_in(max(at_ms - self.recovered.clock.now_ms(), 0) / 1000)

    # --- the end --------------------------------------------------------------------------------------------------

    @property
    def closing(self) -> bool:
        return self._closing is not None

    def check_open(self) -> None:
        if self._closing is not None:
            raise ShuttingDown()

    def begin_close(self) -> Ticket[None]:
        """Take no more commands; snapshot what is there. The files are let go by `finish_close`, once this is done."""
        if self._closing is None:
            self._closing = Ticket()
            closing = self._closing
            self.scheduler.stop()
            self.checkpointer.throttle.closing = True
            self.tiers.stop()
            self.snapshotter.run(clean=True).then(lambda done: self._snapshot_over(done, closing), closing.abandon)
        return self._closing

    @staticmethod
    def _snapshot_over(done: Ticket[None], closing: Ticket[None]) -> None:
        if done.error is not None:
            log.error("the last snapshot failed, the next start replays the log instead: %s", done.error)
        closing.resolve(None)

    def finish_close(self) -> None:
        """End the threads and give the directory back. Not on a thread of the pools."""
        self.writers.stop()
        self.store.close()


def threaded_writers(commit: Commit, recovered: Recovered, settings: Settings, driver: Driver) -> Writers:
    """The writers of a real process: one thread per group."""
    return Writers(
        [
            GroupRunner(
                index,
                wal=group,
                commit=commit,
                post=driver.post,
                sync_interval_ms=settings.sync_interval_ms,
                window_us=settings.commit_window_us,
                batch_frames_max=settings.wal_max_batch_frames,
                batch_bytes_max=settings.wal_max_batch_bytes,
            )
            for index, group in enumerate(recovered.store.groups)
        ]
    )


def recover(
    fs: Fs,
    *,
    settings: Settings,
    clock: Clock,
    host: Host,
    progress: Progress = lambda _: None,
    instance: Callable[[], str] = lambda: secrets.token_hex(16),
    chance: Callable[[], int] = lambda: secrets.randbits(EPOCH_CHANCE_BITS),
    open_cold: OpenCold = open_cold_root,
) -> Recovered:
    """Everything up to the point where the kernel can start; may run on any one thread."""
    return Recovery(
        fs,
        clock=EngineClock(clock),
        host=host,
        settings=settings,
        instance=instance,
        chance=chance,
        progress=progress,
        open_cold=open_cold,
    ).run()
