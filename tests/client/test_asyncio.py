"""What only the asyncio client has: many calls at once, async loops and workers, cancellation."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import topics
from topics.client.client import AsyncClient
from topics.errors import TopicsError, Unreachable
from topics.model.results import Job, TopicState

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def run(url: str) -> Callable[[Callable[[AsyncClient], Awaitable[None]]], None]:
    async def with_client(story: Callable[[AsyncClient], Awaitable[None]]) -> None:
        async with topics.aconnect(url, timeout=20, retry_s=5) as client, asyncio.timeout(40):
            await story(client)

    return lambda story: asyncio.run(with_client(story))


def test_many_calls_go_on_at_once(run: Any, name: str) -> None:
    async def story(client: AsyncClient) -> None:
        done = await asyncio.gather(*(client.topic(name).append(number) for number in range(300)))
        assert sorted(append.first_seq for append in done) == list(range(1, 301))
        assert len([record async for record in client.topic(name).read()]) == 300

    run(story)


def test_a_loop_over_jobs(run: Any, name: str) -> None:
    async def story(client: AsyncClient) -> None:
        queue = client.queue(name, lease_ms=600)
        await queue.append_many(range(3))
        seen = []
        async for job in queue.work(max=3, until_empty=True):
            seen.append(job.value)
            await asyncio.sleep(0.7)
        assert seen == [0, 1, 2]
        assert (await queue.state()).count == 0
        await queue.append_many(["a", "b"])
        async with queue.work(max=2) as jobs:
            await anext(jobs)
        counters = (await queue.state()).queue
        assert counters is not None
        assert counters.ready == 2

    run(story)


def _counts(state: TopicState) -> tuple[int, int]:
    assert state.queue is not None
    return state.queue.ready, state.queue.in_flight


def test_a_loop_that_is_left_by_an_exception_holds_nothing(run: Any, name: str) -> None:
    async def story(client: AsyncClient) -> None:
        queue = client.queue(name, lease_ms=60_000)
        await queue.append_many(["a", "b"])

        async def fail() -> None:
            async for job in queue.work(max=2):
                raise RuntimeError(job.value)

        with pytest.raises(RuntimeError):
            await fail()
        async with asyncio.timeout(10):
            while _counts(await queue.state()) != (2, 0):
                await asyncio.sleep(0.01)
        with pytest.raises(RuntimeError):
            async with queue.work(max=2) as jobs:
                raise RuntimeError((await anext(jobs)).value)
        assert _counts(await queue.state()) == (1, 0)  # one is put off

    run(story)


def test_a_worker_of_coroutines(run: Any, name: str) -> None:
    async def story(client: AsyncClient) -> None:
        queue = client.queue(name, retry={"base_ms": 1})
        await queue.append_many(range(50))
        tries: dict[int, int] = {}

        @queue.worker(concurrency=8, until_empty=True)
        async def work(job: Job) -> None:
            tries[job.value] = job.deliveries
            await asyncio.sleep(0.01)
            if job.value == 7 and job.deliveries == 1:
                raise RuntimeError("once")

        await work.run()
        while (await queue.state()).count:
            await work.run()
        assert sorted(tries) == list(range(50))
        assert (work.done, work.failed, tries[7]) == (50, 1, 2)

    run(story)


def test_a_job_whose_function_met_a_cancelled_task_comes_again(run: Any, name: str) -> None:
    async def story(client: AsyncClient) -> None:
        queue = client.queue(name, retry={"base_ms": 1})
        await queue.append("job")
        deliveries = []

        @queue.worker()
        async def work(job: Job) -> None:
            deliveries.append(job.deliveries)
            if job.deliveries == 1:
                inner = asyncio.ensure_future(asyncio.sleep(10))
                asyncio.get_running_loop().call_soon(inner.cancel)
                await inner
            work.stop()

        await work.run(signals=False)
        assert deliveries == [1, 2]
        assert (work.failed, work.done) == (1, 1)
        assert (await queue.state()).count == 0

    run(story)


def test_a_worker_that_runs_again_keeps_its_leases_again(run: Any, name: str) -> None:
    async def story(client: AsyncClient) -> None:
        queue = client.queue(name, lease_ms=300)
        deliveries = []

        @queue.worker(until_empty=True)
        async def work(job: Job) -> None:
            await asyncio.sleep(0.7)  # more than two leases long
            deliveries.append(job.deliveries)

        for _ in range(2):
            await queue.append("job")
            await work.run(signals=False)
        assert deliveries == [1, 1]

    run(story)


def test_a_worker_that_was_stopped_may_run_again(run: Any, name: str) -> None:
    async def story(client: AsyncClient) -> None:
        queue, seen = client.queue(name), []

        @queue.worker()
        async def work(job: Job) -> None:
            seen.append(job.value)
            work.stop()

        for value in ("first", "second"):
            await queue.append(value)
            await work.run(signals=False)
        assert seen == ["first", "second"]

    run(story)


def test_a_cancelled_worker_gives_its_jobs_back(run: Any, name: str) -> None:
    async def story(client: AsyncClient) -> None:
        queue = client.queue(name)
        await queue.append_many(range(4))

        @queue.worker(concurrency=4)
        async def work(job: Job) -> None:
            await asyncio.sleep(60)

        task = asyncio.create_task(work.run())
        while (await queue.state()).queue.in_flight < 4:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await queue.state()).queue.ready == 4  # type: ignore[union-attr]

    run(story)


def test_sigterm_lets_running_jobs_finish(run: Any, name: str) -> None:
    async def story(client: AsyncClient) -> None:
        queue = client.queue(name)
        await queue.append_many(range(5))
        began = asyncio.Event()

        @queue.worker(concurrency=2)
        async def work(job: Job) -> None:
            began.set()
            await asyncio.sleep(0.2)

        task = asyncio.create_task(work.run())
        await began.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(task, 10)
        assert work.done == 2
        state = await queue.state()
        assert (state.count, state.queue and state.queue.ready) == (3, 3)

    run(story)


def test_sigterm_ends_a_worker_whose_server_is_away() -> None:
    async def story() -> None:
        async with topics.aconnect("http://127.0.0.1:1", timeout=1, retry_s=0.05) as client:

            @client.queue("jobs").worker()
            async def work(job: Job) -> None:
                raise AssertionError("there is no job")

            task = asyncio.create_task(work.run())
            await asyncio.sleep(0.3)
            assert not task.done()
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(task, 10)

    asyncio.run(story())


def test_closing_ends_a_waiting_follower(run: Any, name: str) -> None:
    async def story(client: AsyncClient) -> None:
        await client.topic(name).append(1)

        async def follow() -> list[Any]:
            return [record.value async for record in client.topic(name).follow()]

        task = asyncio.create_task(follow())
        await asyncio.sleep(0.3)
        await client.close()
        assert await asyncio.wait_for(task, 5) == [1]
        with pytest.raises(TopicsError, match="closed"):
            await client.health()

    run(story)


def test_nobody_listens_and_nobody_answers() -> None:
    async def story() -> None:
        async with topics.aconnect("http://127.0.0.1:1", timeout=1, retry_s=0.05) as client:
            with pytest.raises(Unreachable) as caught:
                await client.topic("a").append(1)
            assert not caught.value.sent
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            async with topics.aconnect(url, timeout=0.2, retry_s=0) as client:
                start = time.monotonic()
                with pytest.raises(Unreachable, match="timed out"):
                    await client.health()
                assert time.monotonic() - start < 3

    asyncio.run(story())
