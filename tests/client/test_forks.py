"""A process that forks while it has clients: parent and child go their own ways."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

import topics
from topics.client import Client
from topics.client.http_door import IdempotencyKeys
from topics.client.transport.connection import SocketStream
from topics.model.results import Record

pytestmark = pytest.mark.timeout(30)


def told_by_a_child(step: Callable[[], object]) -> str:
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(tell, str(step()).encode())
        except BaseException as error:
            os.write(tell, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(tell)
    os.waitpid(pid, 0)
    with open(told, "rb") as answer:
        return answer.read().decode()


def test_keys_of_a_child_are_its_own() -> None:
    keys = IdempotencyKeys()
    assert told_by_a_child(keys.next) != keys.next()


def test_parent_and_children_lose_nothing_of_each_other(url: str, name: str) -> None:
    with topics.connect(url) as client:
        topic = client.topic(name)
        topic.append("before")
        told = [told_by_a_child(lambda: topic.append("child").first_seq) for _ in range(2)]
        assert [*told, topic.append("parent").first_seq] == ["2", "3", 4]
        values = [record.value for record in topic.read() if isinstance(record, Record)]
    assert values == ["before", "child", "child", "parent"]


def port_of(client: Client) -> int:
    stream = client._transport._idle[0].stream
    assert isinstance(stream, SocketStream)
    return int(stream.socket.getsockname()[1])


def test_a_child_does_not_use_the_connections_of_its_parent(url: str) -> None:
    with topics.connect(url) as client:
        client.health()
        (link,) = client._transport._idle
        port = port_of(client)
        child = told_by_a_child(lambda: [client.health(), port_of(client)][1])
        assert child not in ("", str(port))
        client.health()
        assert client._transport._idle == [link]


def test_a_producer_is_closed_in_a_child_and_goes_on_in_its_parent(url: str, name: str) -> None:
    with topics.connect(url) as client, client.topic(name).producer(linger_ms=60_000) as producer:
        producer.append("parent")
        with producer._lock:  # held by another thread when the process forks
            said = told_by_a_child(lambda: producer.append("child"))
            closed = told_by_a_child(client.close)
        assert said.startswith("TopicsError: the producer belongs to the process that made it")
        assert closed == "None"
        producer.flush()
        assert client.topic(name).state().count == 1
