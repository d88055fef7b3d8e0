"""AioDriver: what a flush asks for follows it in the same turn of the loop, and fails for itself."""

from __future__ import annotations

import asyncio
from typing import Any

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
