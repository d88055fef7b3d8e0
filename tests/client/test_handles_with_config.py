"""A handle with config: its first use creates what is missing, and says what an existing topic has otherwise."""

from __future__ import annotations

import threading
from itertools import islice
from typing import get_type_hints

import pytest

import topics
from topics.client import Client
from topics.client.jobs.worker import WorkerFields, WorkerOptions
from topics.client.producing.batching import ProducerFields, ProducerOptions
from topics.errors import InvalidRequest, TopicNotFound, TopicsWarning
from topics.model.config import ConfigFields, ConfigPatch

pytestmark = pytest.mark.timeout(30)


def test_a_claim_may_come_before_the_first_job(door: Client, name: str) -> None:
    assert door.queue(name).claim("w").claimed == []


def test_a_follower_and_a_reader_may_come_before_the_first_record(door: Client, name: str) -> None:
    topic = door.topic(name, ttl_ms=3_600_000)
    assert list(topic.read()) == []
    threading.Timer(0.1, topic.append, ["first"]).start()
    followed = door.topic(name, cap_records=0).follow()
    assert [record.value for record in islice(followed, 1)] == ["first"]
    assert topic.state().config.ttl_ms == 3_600_000


def test_without_config_nothing_is_created(door: Client, name: str) -> None:
    with pytest.raises(TopicNotFound):
        list(door.topic(name).read())
    with pytest.raises(TopicNotFound):
        next(iter(door.topic(name).follow()))


def test_a_topic_that_was_deleted_meanwhile_is_created_again(door: Client, name: str) -> None:
    queue = door.queue(name, lease_ms=5000)
    assert queue.claim("w").claimed == []
    queue.drop()
    assert queue.claim("w").claimed == []
    assert queue.state().config.lease_ms == 5000


@pytest.mark.parametrize("use", ["append", "claim"])
def test_config_that_an_existing_topic_does_not_take_is_told_once(door: Client, name: str, use: str) -> None:
    door.queue(name, max_deliveries=5, dead_letter=f"{name}.dead").append(1)
    queue = door.queue(name, max_deliveries=9)
    with pytest.warns(TopicsWarning, match=f"'{name}' exists with max_deliveries=5 and keeps it; max_deliveries=9"):
        queue.append(2) if use == "append" else queue.claim("w")
    queue.append(3)
    assert queue.state().config.max_deliveries == 5


def test_config_that_means_the_same_is_not_told(door: Client, name: str) -> None:
    door.topic(name, durable=True).append(1)
    door.topic(name, durability="fsync").append(2)
    door.topic(name).configure(lease_ms=1)  # raised to the least there is
    door.topic(name, lease_ms=1).append(3)


def test_bytes_are_refused_because_they_may_be_json_text(door: Client, name: str) -> None:
    topic = door.topic(name)
    for wrong in (b'{"x":1}', bytearray(b"1"), memoryview(b"1")):
        with pytest.raises(InvalidRequest, match=r"topics\.Json"):
            topic.append(wrong)
        with pytest.raises(InvalidRequest, match=r"topics\.Json"):
            topic.append_many([1, wrong])
    topic.append(topics.Json(b'{"x":1}'))
    assert [record.value for record in topic.read()] == [{"x": 1}]


def test_records_and_jobs_are_shown_with_their_data(door: Client, name: str) -> None:
    queue = door.queue(name)
    queue.append({"id": 1}, tag="a", meta={"m": 2})
    (record,) = queue.read()
    assert str(record) == f'Record(seq=1, ts={record.ts}, tag=\'a\', data={{"id":1}}, meta={{"m":2}})'
    (job,) = queue.claim("w").claimed
    assert repr(job) == 'Job(seq=1, deliveries=1, tag=\'a\', data={"id":1}, meta={"m":2})'


@pytest.mark.parametrize(
    ("fields", "struct"),
    [(ConfigFields, ConfigPatch), (WorkerFields, WorkerOptions), (ProducerFields, ProducerOptions)],
)
def test_what_a_type_checker_takes_is_what_the_call_takes(fields: type, struct: type) -> None:
    """That the checker refuses anything else is held by `typed_user.py`, whose wrong lines must be wrong."""
    assert get_type_hints(fields).keys() == set(struct.__struct_fields__)  # type: ignore[attr-defined]
