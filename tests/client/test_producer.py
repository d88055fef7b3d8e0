"""The batching producer: order, bounds, reports, and failures that reach somebody."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from typing import Any

import msgspec
import pytest
from tests.client.peer import Peer, read_request, response

import topics
from topics import Event
from topics.client.client import Client
from topics.client.producing.batching import Delivery, ProducerOptions
from topics.errors import InvalidRequest, RecordTooLarge, Throttled, TopicFull, TopicsError, Unreachable

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with topics.connect(url, timeout=20, retry_s=5) as made:
        yield made


def values(client: Client, topic: str) -> list[Any]:
    return [record.value for record in client.topic(topic).read()]


def test_records_arrive_in_order_and_in_few_batches(client: Client, name: str) -> None:
    with client.topic(name, cap_records=0).producer(linger_ms=50) as producer:
        for number in range(5000):
            producer.append(number)
        producer.append_many(range(5000, 25_000))
    records = list(client.topic(name).read())
    assert [record.value for record in records] == list(range(25_000))


def test_a_batch_is_one_write(name: str) -> None:
    bodies: list[Any] = []
    with Peer(appender(bodies)) as peer, topics.connect(peer.url, timeout=5) as client:
        producer = client.topic("a", cap_records=5).producer(linger_ms=10_000, batch_records=100)
        producer.append_many(range(250))
        producer.close()
    assert [len(body["records"]) for body in bodies] == [100, 100, 50]
    assert len({body["idempotency_key"] for body in bodies}) == 3
    assert bodies[0]["config"] == {"cap_records": 5}


def appender(bodies: list[Any]) -> Any:
    """A server that takes every write and says so."""

    def script(connection: socket.socket, _: int) -> None:
        while request := read_request(connection):
            bodies.append(msgspec.json.decode(request.partition(b"\r\n\r\n")[2]))
            count = len(bodies[-1]["records"])
            connection.sendall(
                response(b'{"topic":"a","first_seq":1,"last_seq":%d,"head_seq":%d,"count":%d}' % (count, count, count))
            )

    return script


def test_a_batch_goes_when_it_has_lingered(client: Client, name: str) -> None:
    with client.topic(name).producer(linger_ms=1) as producer:
        assert producer.submit("alone").result(10) == 1


def test_batches_are_bounded_in_bytes() -> None:
    bodies: list[Any] = []
    with Peer(appender(bodies)) as peer, topics.connect(peer.url, timeout=5) as client:
        producer = client.topic("a").producer(linger_ms=10_000, batch_bytes=10_000)
        for _ in range(100):
            producer.append("x" * 1000)
        producer.close()
    assert [len(body["records"]) for body in bodies] == [10] * 10


def test_every_record_is_reported_with_its_seq(client: Client, name: str) -> None:
    told: list[Delivery] = []
    with client.producer() as producer:
        producer.append("a", topic=name, report=told.append)
        producer.append_many(["b", Event("c", tag="t")], topic=name, report=told.append)
        future = producer.submit("d", topic=name, tag="t", node="n", meta={"k": 1})
    assert [(delivery.topic, delivery.seq, delivery.error) for delivery in told] == [(name, n, None) for n in (1, 2, 3)]
    assert future.result(0) == 4


def test_one_producer_serves_many_topics(client: Client, name: str) -> None:
    with client.producer(linger_ms=1) as producer:
        for number in range(3000):
            producer.append(number, topic=f"{name}-{number % 3}")
    for remainder in range(3):
        assert values(client, f"{name}-{remainder}") == list(range(remainder, 3000, 3))
    with client.producer() as producer, pytest.raises(InvalidRequest):
        producer.append(1)


def test_threads_keep_their_own_order(client: Client, name: str) -> None:
    with client.topic(name).producer(linger_ms=1, batch_records=97) as producer:

        def give(thread: int) -> None:
            for number in range(1000):
                producer.append([thread, number])

        threads = [threading.Thread(target=give, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    got = values(client, name)
    assert len(got) == 4000
    for thread_number in range(4):
        assert [n for t, n in got if t == thread_number] == list(range(1000))


def test_a_record_that_is_refused_does_not_take_the_others_with_it(client: Client, name: str) -> None:
    told: list[Delivery] = []
    with client.topic(name).producer(linger_ms=10_000) as producer:
        for number in range(20):
            producer.append("x" * (2 << 20) if number == 13 else number, report=told.append)
    assert values(client, name) == [number for number in range(20) if number != 13]
    assert [at for at, delivery in enumerate(told) if delivery.error is not None] == [13]
    assert isinstance(told[13].error, RecordTooLarge)


def test_a_failure_without_a_report_is_raised_by_flush(client: Client, name: str) -> None:
    producer = client.topic(name, cap_records=2, discard="reject").producer(batch_records=2)
    producer.append_many([1, 2])
    producer.flush()
    producer.append(3)
    with pytest.raises(TopicFull):
        producer.flush()
    producer.flush()  # told once
    future = producer.submit(4)
    producer.close()
    assert isinstance(future.exception(0), TopicFull)
    assert values(client, name) == [1, 2]


def held_up(go_on: threading.Event, bodies: list[Any]) -> Any:
    take = appender(bodies)

    def script(connection: socket.socket, number: int) -> None:
        go_on.wait(10)
        take(connection, number)

    return script


def test_a_full_buffer_makes_the_giver_wait() -> None:
    go_on, bodies = threading.Event(), list[Any]()
    with Peer(held_up(go_on, bodies)) as peer, topics.connect(peer.url, timeout=20) as client:
        producer = client.topic("a").producer(linger_ms=0, buffer_bytes=5000)
        giver = threading.Thread(target=lambda: list(map(producer.submit, ["x" * 100] * 200)))
        giver.start()
        giver.join(0.2)
        assert giver.is_alive()
        go_on.set()
        giver.join(10)
        producer.close()
    assert sum(len(body["records"]) for body in bodies) == 200


def test_a_full_buffer_is_an_error_if_wanted() -> None:
    go_on, bodies, taken = threading.Event(), list[Any](), 0
    with Peer(held_up(go_on, bodies)) as peer, topics.connect(peer.url, timeout=20) as client:
        producer = client.topic("a").producer(linger_ms=0, buffer_bytes=5000, when_full="raise")
        try:
            for taken in range(100):  # noqa: B007 - how many were taken
                producer.append("x" * 100)
        except Throttled:
            go_on.set()
        producer.close()
    assert 0 < taken == sum(len(body["records"]) for body in bodies) < 99


def test_a_server_that_stays_away_fails_every_record_in_the_end() -> None:
    with topics.connect("http://127.0.0.1:1", timeout=1, retry_s=0.1) as client:
        producer = client.topic("a").producer()
        futures = [producer.submit(number) for number in range(10)]
        done, _ = wait(futures, 10)
        assert all(isinstance(future.exception(0), Unreachable) for future in done)
        assert len(done) == 10
        producer.close()
        with pytest.raises(TopicsError, match="closed"):
            producer.append(1)


def test_whoever_waits_for_a_server_that_is_away_reads_why(caplog: pytest.LogCaptureFixture) -> None:
    with topics.connect("http://127.0.0.1:1", timeout=1, retry_s=4) as client:
        producer = client.topic("a").producer()
        producer.append(1)
        with pytest.raises(Unreachable):
            producer.flush()
        (told,) = caplog.records
        assert "cannot connect to http://127.0.0.1:1" in told.getMessage()
        caplog.clear()
        with pytest.raises(Unreachable):
            next(client.topic("a").follow())
        assert "cannot connect to http://127.0.0.1:1" in caplog.records[0].getMessage()


def test_a_report_that_fails_harms_nobody(client: Client, name: str) -> None:
    def report(delivery: Delivery) -> None:
        raise RuntimeError("mine")

    with client.topic(name).producer() as producer:
        producer.append(1, report=report)
        assert producer.submit(2).result(10) == 2


def test_closing_the_client_sends_what_its_producers_have(url: str, name: str) -> None:
    client = topics.connect(url)
    client.topic(name).producer(linger_ms=60_000).append_many(range(10))
    client.close()
    with topics.connect(url) as another:
        assert values(another, name) == list(range(10))


@pytest.mark.parametrize(
    "wrong", [{"batch_records": 0}, {"batch_records": 10_001}, {"linger_ms": -1}, {"buffer_bytes": 0}]
)
def test_options_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        ProducerOptions(**wrong)


def test_a_producer_that_fails_does_not_keep_the_others_from_sending(url: str, name: str) -> None:
    client = topics.connect(url)
    for number, topic in enumerate(("no topic name", name, "none either")):
        client.producer(linger_ms=60_000).append(number, topic=topic)
    with pytest.raises(InvalidRequest):
        client.close()
    with topics.connect(url) as other:
        assert values(other, name) == [1]


def test_a_report_may_give_more_also_when_the_buffer_is_full(client: Client, name: str) -> None:
    done = threading.Event()

    def give_more(delivery: Delivery) -> None:
        if delivery.seq == 5:
            done.set()
        else:
            producer.append("x" * 100, report=give_more)

    with client.topic(name).producer(linger_ms=0, buffer_bytes=1) as producer:
        producer.append("x" * 100, report=give_more)
        assert done.wait(10)


def test_a_report_may_close_its_producer_but_not_wait_for_it(client: Client, name: str) -> None:
    refused, closed = list[TopicsError](), threading.Event()

    def close(delivery: Delivery) -> None:
        try:
            producer.flush()
        except TopicsError as error:
            refused.append(error)
        producer.append("last")
        producer.close()
        closed.set()

    producer = client.topic(name).producer(linger_ms=0)
    producer.append("first", report=close)
    assert closed.wait(10)
    producer._thread.join(10)
    assert "cannot wait" in str(refused[0])
    assert values(client, name) == ["first", "last"]


def test_a_signal_that_came_to_another_thread_ends_the_wait_for_a_flush() -> None:
    go_on = threading.Event()

    def interrupt() -> None:
        while not producer._batch_done._waiters:  # type: ignore[attr-defined]
            pass
        signal.raise_signal(signal.SIGINT)  # to the thread that calls it

    with Peer(held_up(go_on, [])) as peer, topics.connect(peer.url, timeout=30) as client:
        producer = client.topic("a").producer(linger_ms=0)
        thread = threading.Thread(target=interrupt)
        thread.start()
        producer.append(1)
        with pytest.raises(KeyboardInterrupt):
            producer.flush()
        go_on.set()
        thread.join()
