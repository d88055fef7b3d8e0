"""The background threads of a real process, and of the embedded library."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Barrier, Event

import pytest

from topics.runtime.drivers.blocking import BlockingDriver
from topics.runtime.drivers.pools import SYNC_THREADS, Pools


@pytest.fixture
def pools() -> Iterator[Pools]:
    pools = Pools(cold_threads=1, post=lambda step: step())
    yield pools
    pools.close()


def test_steps_wait_side_by_side(pools: Pools) -> None:
    all_there = Barrier(SYNC_THREADS, timeout=30)

    def meet() -> None:
        all_there.wait()

    pools.side_by_side([meet] * SYNC_THREADS)


def test_all_steps_are_over_when_one_has_failed(pools: Pools) -> None:
    failed, over = Event(), []

    def fail() -> None:
        failed.set()
        raise OSError("no")

    def go_on() -> None:
        assert failed.wait(30)
        over.append(True)

    with pytest.raises(OSError):
        pools.side_by_side([fail, go_on, go_on])
    assert over == [True, True]


def test_no_steps_and_one_step_need_nobody(pools: Pools) -> None:
    done: list[int] = []
    pools.side_by_side([])
    pools.side_by_side([lambda: done.append(1)])
    assert done == [1]


def test_a_tick_that_fails_is_reported_and_ends_no_ticking(caplog: pytest.LogCaptureFixture) -> None:
    driver = BlockingDriver(cold_threads=1)
    ticks, flushes, again = [], [], Event()

    def tick() -> None:
        ticks.append(True)
        driver.wake()
        if len(ticks) == 1:
            raise RuntimeError("a mistake of ours")
        again.set()

    driver.attach(flush=lambda: flushes.append(True), tick=tick)
    try:
        assert again.wait(30)
    finally:
        driver.close()
    assert "a mistake of ours" in caplog.text
    assert len(flushes) == len(ticks)


def test_what_a_background_job_reports_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    driver = BlockingDriver(cold_threads=1)

    def fail() -> None:
        raise RuntimeError("a mistake of ours")

    driver.post(fail)
    assert "a mistake of ours" in caplog.text
    driver.close()
