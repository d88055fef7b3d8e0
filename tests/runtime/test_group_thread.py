"""The thread of a WAL group: what nobody waits for is synced all the same, and rarely has to be announced."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from threading import Semaphore
from typing import Any

import pytest

from topics.clock import SystemClock
from topics.config import Settings
from topics.embedded.database import Database
from topics.runtime import log_writers as group_runner
from topics.runtime.drivers.blocking import BlockingDriver
from topics.runtime.kernel import Kernel, recover
from topics.runtime.log_writers import GroupRunner
from topics.storage.osfs import RetryingFs
from topics.testing.clock import SimHost
from topics.testing.faultfs import FaultFs
from topics.testing.simfs import SimFs

WAIT_S = 30.0


class Lab:
    """An embedded database with one group, and each of its syncs."""

    def __init__(self, database: Database, runner: GroupRunner, synced: Semaphore) -> None:
        self.topic = database.topic("t", durability="disk")
        self.runner: Any = runner
        self.synced = synced
        self.told = 0
        condition: Any = runner._cond
        tell = condition.notify

        def telling() -> None:
            self.told += 1
            tell()

        condition.notify = telling

    def write_and_see_it_synced(self) -> int:
        """How often the thread was told of it."""
        told = self.told
        self.topic.append(1)
        told = self.told - told  # whoever asks for a sync later does not count
        while self.runner.wal.written_lsn > self.runner._commit.synced_lsn(0):
            assert self.synced.acquire(timeout=WAIT_S), "nobody synced what was written"
        return told

    def wait_until(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < until
            time.sleep(0.0005)


@pytest.fixture
def lab() -> Iterator[Lab]:
    faults, synced = FaultFs(SimFs(), record=False), Semaphore(0)
    settings = Settings.from_kwargs(data_dir="data", wal_shards=1, sync_interval_ms=2)
    recovered = recover(RetryingFs(faults), settings=settings, clock=SystemClock(), host=SimHost())
    driver = BlockingDriver(cold_threads=1)
    kernel = Kernel(recovered, settings=settings, driver=driver)
    kernel.commit.on_synced.append(lambda group, lsn: synced.release())
    runner = kernel.writers._writers[0]
    assert isinstance(runner, GroupRunner)
    with Database(kernel, driver) as database:
        yield Lab(database, runner, synced)


def test_a_thread_that_is_about_to_look_is_not_told_of_a_write_and_syncs_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_runner, "LOOKS_AFTER_SYNC", sys.maxsize)
    lab.write_and_see_it_synced()
    for _ in range(3):
        lab.wait_until(lambda: lab.runner._looks_soon)
        assert lab.write_and_see_it_synced() == 0


def test_a_thread_that_has_looked_in_vain_for_long_sleeps_and_is_told(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_runner, "LOOKS_AFTER_SYNC", 2)
    lab.write_and_see_it_synced()
    for _ in range(3):
        lab.wait_until(lambda: not lab.runner._looks_left and not lab.runner._looks_soon)
        assert lab.write_and_see_it_synced() == 1
