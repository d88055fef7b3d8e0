"""The batching producer of the asyncio client: as the blocking one, and never a blocked loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.client.peer import Peer
from tests.client.test_producer import appender, held_up

import topics
from topics import Event
from topics.client.client import AsyncClient
from topics.client.producing.batching import Delivery
from topics.client.transport.http_messages import ClientCall
from topics.errors import InvalidRequest, RecordTooLarge, Throttled, TopicFull, TopicsError, Unreachable
from topics.model.results import AppendResult

pytestmark = pytest.mark.timeout(60)

Story = Callable[[AsyncClient], Awaitable[None]]


def tell(url: str, story: Story, *, retry_s: float = 5) -> None:
    async def with_client() -> None:
        async with topics.aconnect(url, timeout=20, retry_s=retry_s) as client, asyncio.timeout(40):
            await story(client)

    asyncio.run(with_client())


async def values(client: AsyncClient, topic: str) -> list[Any]:
    return [record.value async for record in client.topic(topic).read()]


def test_records_arrive_in_order(url: str, name: str) -> None:
    async def story(client: AsyncClient) -> None:
        async with client.topic(name).producer(linger_ms=20) as producer:
            for number in range(2000):
                await producer.append(number)
            await producer.append_many(range(2000, 15_000))
        assert await values(client, name) == list(range(15_000))

    tell(url, story)


def test_a_batch_is_one_write_with_a_key_of_its_own() -> None:
    bodies: list[Any] = []

    async def story(client: AsyncClient) -> None:
        producer = client.topic("a", cap_records=5).producer(linger_ms=10_000, batch_records=100)
        await producer.append_many(range(250))
        await producer.close()

    with Peer(appender(bodies)) as peer:
        tell(peer.url, story)
    assert [len(body["records"]) for body in bodies] == [100, 100, 50]
    assert len({body["idempotency_key"] for body in bodies}) == 3
    assert bodies[0]["config"] == {"cap_records": 5}


def test_reports_futures_and_many_topics(url: str, name: str) -> None:
    async def story(client: AsyncClient) -> None:
        told: list[Delivery] = []
        async with client.producer(linger_ms=1) as producer:
            await producer.append("a", topic=name, report=told.append)
            await producer.append_many(["b", Event("c", tag="t")], topic=name, report=told.append)
            future = await producer.submit("d", topic=name, tag="t", node="n", meta={"k": 1})
            assert await asyncio.wait_for(future, 10) == 4
            await producer.append("elsewhere", topic=f"{name}-2")
            with pytest.raises(InvalidRequest):
                await producer.append(1)
        assert [(delivery.topic, delivery.seq) for delivery in told] == [(name, 1), (name, 2), (name, 3)]
        assert await values(client, f"{name}-2") == ["elsewhere"]

    tell(url, story)


def test_a_refused_record_does_not_take_the_others_with_it(url: str, name: str) -> None:
    async def story(client: AsyncClient) -> None:
        told: list[Delivery] = []
        async with client.topic(name).producer(linger_ms=10_000) as producer:
            for number in range(20):
                await producer.append("x" * (2 << 20) if number == 13 else number, report=told.append)
        assert await values(client, name) == [number for number in range(20) if number != 13]
        assert [at for at, delivery in enumerate(told) if delivery.error is not None] == [13]
        assert isinstance(told[13].error, RecordTooLarge)

    tell(url, story)


def test_a_failure_without_a_report_is_raised_by_flush_once(url: str, name: str) -> None:
    async def story(client: AsyncClient) -> None:
        producer = client.topic(name, cap_records=2, discard="reject").producer()
        await producer.append_many([1, 2])
        await producer.flush()
        await producer.append(3)
        with pytest.raises(TopicFull):
            await producer.flush()
        future = await producer.submit(4)
        await producer.close()
        assert isinstance(future.exception(), TopicFull)
        with pytest.raises(TopicsError, match="closed"):
            await producer.append(5)

    tell(url, story)


def test_a_full_buffer_makes_the_giver_wait_and_not_the_loop() -> None:
    go_on, bodies = threading.Event(), list[Any]()

    async def story(client: AsyncClient) -> None:
        producer = client.topic("a").producer(linger_ms=0, buffer_bytes=5000)
        giver = asyncio.create_task(producer.append_many(["x" * 100] * 200))
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert not giver.done()
        go_on.set()
        await giver
        await producer.close()

    with Peer(held_up(go_on, bodies)) as peer:
        tell(peer.url, story)
    assert sum(len(body["records"]) for body in bodies) == 200


def test_a_full_buffer_is_an_error_if_wanted() -> None:
    go_on, bodies = threading.Event(), list[Any]()

    async def story(client: AsyncClient) -> None:
        producer = client.topic("a").producer(linger_ms=0, buffer_bytes=500, when_full="raise")
        with pytest.raises(Throttled):
            await producer.append_many(["x" * 100] * 1000)
        go_on.set()
        await producer.close()

    with Peer(held_up(go_on, bodies)) as peer:
        tell(peer.url, story)
    assert 0 < sum(len(body["records"]) for body in bodies) < 999


def test_a_server_that_stays_away_fails_every_record_in_the_end() -> None:
    async def story(client: AsyncClient) -> None:
        producer = client.topic("a").producer()
        futures = [await producer.submit(number) for number in range(10)]
        done, _ = await asyncio.wait(futures, timeout=10)
        assert len(done) == 10
        assert all(isinstance(future.exception(), Unreachable) for future in done)

    tell("http://127.0.0.1:1", story, retry_s=0.1)


def test_what_a_hurried_close_leaves_behind_is_told() -> None:
    go_on, bodies, told = threading.Event(), list[Any](), list[Delivery]()

    async def story(client: AsyncClient) -> None:
        producer = client.topic("a").producer(linger_ms=0, batch_records=5)
        await producer.append_many(range(12), report=told.append)
        with pytest.raises(Unreachable, match="unanswered"):
            await producer.close(timeout_s=0.2)
        assert len(told) == 12
        assert all(delivery.error is not None for delivery in told)
        go_on.set()

    with Peer(held_up(go_on, bodies)) as peer:
        tell(peer.url, story)


def test_every_record_of_a_batch_in_halves_is_told_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is refused, its first half is committed, and the second is under way when the producer is closed."""
    told, under_way = list[Delivery](), asyncio.Event()
    answers = iter([InvalidRequest("one of them"), AppendResult("a", 1, 1, 1, 1, False, False)])

    async def run(call: ClientCall[Any]) -> Any:
        answer = next(answers, None)
        if answer is None:
            under_way.set()
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def story(client: AsyncClient) -> None:
        monkeypatch.setattr(client._transport, "run", run)
        producer = client.topic("a").producer(linger_ms=0)
        await producer.append_many([1, 2], report=told.append)
        await under_way.wait()
        with pytest.raises(Unreachable, match="unanswered"):
            await producer.close(timeout_s=0)

    tell(url, story)
    assert [(delivery.seq, delivery.error is None) for delivery in told] == [(1, True), (0, False)]


def test_closing_the_client_sends_what_its_producers_have(url: str, name: str) -> None:
    async def story(client: AsyncClient) -> None:
        await client.topic(name).producer(linger_ms=60_000).append_many(range(10))

    async def look(client: AsyncClient) -> None:
        assert await values(client, name) == list(range(10))

    tell(url, story)
    tell(url, look)


def test_a_producer_that_fails_does_not_keep_the_others_from_sending(url: str, name: str) -> None:
    async def story(client: AsyncClient) -> None:
        for number, topic in enumerate(("no topic name", name, "none either")):
            await client.producer(linger_ms=60_000).append(number, topic=topic)
        with pytest.raises(InvalidRequest):
            await client.close()

    async def look(client: AsyncClient) -> None:
        assert await values(client, name) == [1]

    tell(url, story)
    tell(url, look)
