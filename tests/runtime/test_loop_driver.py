"""AioDriver: what a flush asks for follows it in the same turn of the loop, and fails for itself; ticks come forward,
whichever loop it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from topics.runtime.drivers.aio import AioDriver


def run(flush: Any) -> tuple[list[str], list[Any]]:
    """One flush, and in what order things happened around it; what the loop was told of failures."""
    seen: list[str] = []
    failures: list[Any] = []

    async def turn() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
        driver = AioDriver(loop, cold_threads=1)
        driver.attach(flush=lambda: flush(driver, seen), tick=lambda: None)
        driver.wake()
        loop.call_soon(seen.append, "next in the loop")
        for _ in range(3):
            await asyncio.sleep(0)
        driver.close()

    asyncio.run(turn())
    return seen, failures


def test_a_step_that_a_flush_asks_for_follows_it_before_anything_else() -> None:
    def flush(driver: AioDriver, seen: list[str]) -> None:
        driver.soon(lambda: seen.append("step"))
        seen.append("flush")

    assert run(flush)[0] == ["flush", "step", "next in the loop"]


def test_a_step_that_a_step_asks_for_lets_the_loop_have_its_turn_first() -> None:
    def flush(driver: AioDriver, seen: list[str]) -> None:
        driver.soon(lambda: driver.soon(lambda: seen.append("later")))

    assert run(flush)[0] == ["next in the loop", "later"]


def test_a_step_or_a_flush_that_fails_keeps_no_step_from_running() -> None:
    mistake, other = RuntimeError("a mistake of ours"), RuntimeError("another")

    def fail() -> None:
        raise mistake

    def flush(driver: AioDriver, seen: list[str]) -> None:
        driver.soon(fail)
        driver.soon(lambda: seen.append("step"))
        raise other

    seen, failures = run(flush)
    assert seen == ["step", "next in the loop"]
    assert failures == [mistake, other]


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_tick_that_is_due_at_once_may_be_asked_for_again(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def turn() -> None:
        loop = asyncio.get_running_loop()
        driver = AioDriver(loop, cold_threads=1)
        ticked = asyncio.Event()
        driver.attach(flush=lambda: None, tick=ticked.set)
        driver.tick_in(0.001)
        driver.tick_in(0)
        driver.tick_in(0)
        await ticked.wait()
        driver.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(turn())
