"""What a queue can be asked beyond claim and ack, over the embedded library and both clients."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from topics import Event, Unique
from topics.client import Client
from topics.errors import InvalidRequest, JobExists, NotAQueue, TopicNotFound

pytestmark = pytest.mark.timeout(30)


def values(queue: Any, node: str = "w") -> list[Any]:
    """What a claim hands out, in the order of their seqs."""
    return [job.value for job in queue.claim(node, max=100).claimed]


# --- a new queue -----------------------------------------------------------------------------------------------------


def test_a_new_queue_bounds_deliveries_and_has_dead_letters_and_pauses(door: Client, name: str) -> None:
    door.queue(name).append(1)
    config = door.queue(name).state().config
    assert (config.max_deliveries, config.dead_letter) == (20, f"{name}.dead")
    assert config.retry is not None
    assert (config.retry.base_ms, config.retry.factor, config.retry.max_ms) == (1000, 2.0, 3_600_000)


def test_what_is_said_of_a_new_queue_stands(door: Client, name: str) -> None:
    config = door.queue(name, max_deliveries=3, retry=None, dead_letter="else").configure(max_deliveries=3, retry=None)
    assert (config.max_deliveries, config.dead_letter, config.retry) == (3, f"{name}.dead", None)
    config = door.queue(name).configure(dead_letter=None)
    assert (config.max_deliveries, config.dead_letter) == (0, None)


def test_a_queue_that_was_made_otherwise_is_not_complained_of(door: Client, name: str) -> None:
    door.topic(name).configure(type="queue")  # as raw HTTP would; a TopicsWarning is an error here
    door.queue(name).append(1)
    assert door.queue(name).state().config.max_deliveries == 0


# --- time, order, identity -------------------------------------------------------------------------------------------


def test_a_job_may_be_put_off(door: Client, name: str) -> None:
    queue = door.queue(name)
    queue.append("delay", delay=3600)
    queue.append("delta", delay=timedelta(hours=1))
    queue.append("moment", deliver_at=datetime.now(UTC) + timedelta(hours=1))
    queue.append("unix", deliver_at=time.time() + 3600)
    queue.append("past", deliver_at=time.time() - 3600)
    queue.append_many([Event("event", delay=3600), "now"])
    assert values(queue) == ["past", "now"]
    delayed = list(queue.jobs(state="delayed"))
    assert [job.seq for job in delayed] == [1, 2, 3, 4, 6]
    for job in delayed:
        assert job.due is not None
        assert abs(job.due - (job.ts + 3_600_000)) < 60_000
    counters = queue.state().queue
    assert counters is not None
    assert (counters.delayed, counters.in_flight, counters.ready) == (5, 2, 0)


def test_a_short_delay_ends_while_a_claim_waits(door: Client, name: str) -> None:
    queue = door.queue(name)
    queue.append("soon", delay=0.05)
    (job,) = queue.claim("w", wait_ms=20_000).claimed
    assert job.value == "soon"


def test_higher_priorities_go_first(door: Client, name: str) -> None:
    queue = door.queue(name)
    queue.append("usual")
    queue.append("low", priority=-9)
    queue.append("high", priority=9)
    assert [queue.claim("w").claimed[0].value for _ in range(3)] == ["high", "usual", "low"]


def test_a_unique_key_keeps_the_job_that_stands(door: Client, name: str) -> None:
    queue = door.queue(name)
    first = queue.append(1, unique="k")
    second = queue.append(2, unique="k")
    assert (first.count, first.kept, list(first.seqs)) == (1, [], [1])
    assert (second.count, second.kept, list(second.seqs), second.first_seq) == (0, [0], [1], 1)
    several = queue.append_many([Event(3, unique="k"), Event(4, unique="l"), 5])
    assert (list(several.seqs), several.count, several.kept) == ([1, 2, 3], 2, [0])
    queue.ack(queue.claim("w").claimed, node="w")
    assert queue.append(6, unique="k").count == 1


def test_a_unique_key_may_replace_reject_or_outlive_its_job(door: Client, name: str) -> None:
    queue = door.queue(name)
    queue.append("old", unique="k")
    assert queue.append("new", unique=Unique("k", on_conflict="replace")).replaced == [1]
    with pytest.raises(JobExists):
        queue.append("never", unique=Unique("k", on_conflict="reject"))
    assert values(queue) == ["new"]
    queue.append("hourly", unique=Unique("h", period=timedelta(hours=1)))
    queue.ack(queue.claim("w").claimed, node="w")
    assert queue.append("hourly", unique=Unique("h", period=3600)).count == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay": -1},
        {"delay": "1"},
        {"delay": float("nan")},
        {"delay": timedelta(days=365 * 101)},
        {"delay": 1, "deliver_at": 1},
        {"deliver_at": datetime(2030, 1, 1)},
        {"deliver_at": "tomorrow"},
        {"priority": 10},
        {"priority": "high"},
        {"unique": 5},
        {"unique": ""},
        {"unique": "\ud800"},
        {"unique": Unique("k", period=0)},
        {"unique": Unique("k", on_conflict="explode")},  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_a_wrong_field_is_refused_and_creates_nothing(door: Client, name: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        door.queue(name).append(1, **wrong)
    assert any(field in str(refused.value) for field in [*wrong, "period", "for_ms", "on_conflict", "Unicode"])
    with pytest.raises(TopicNotFound):
        door.topic(name).state()


def test_a_log_takes_no_jobs(door: Client, name: str) -> None:
    door.topic(name).append(1)
    with pytest.raises(NotAQueue):
        door.topic(name).append_many([Event(1, delay=1)])


# --- looking and acting ----------------------------------------------------------------------------------------------


def test_jobs_and_workers_are_listed_without_consuming_any(door: Client, name: str) -> None:
    queue = door.queue(name)
    queue.append_many([Event(at, tag="even" if at % 2 == 0 else "odd") for at in range(5)])
    queue.append("later", delay=60)
    (job,) = queue.claim("w1").claimed
    queue.nack([job], node="w1", delay_ms=60_000, error="no such host")
    (held,) = queue.claim("w1").claimed
    assert [(info.seq, info.state) for info in queue.jobs()] == [
        (1, "delayed"),
        (2, "in_flight"),
        *((seq, "ready") for seq in (3, 4, 5)),
        (6, "delayed"),
    ]
    assert [info.seq for info in queue.jobs(tag="odd")] == [2, 4]
    assert [(info.seq, info.error) for info in queue.jobs(state="delayed")] == [(1, "no such host"), (6, None)]
    (flying,) = queue.jobs(state="in_flight")
    assert (flying.node, flying.lease_id, flying.deadline) == ("w1", held.lease_id, held.deadline)
    (worker,) = queue.workers()
    assert (worker.node, worker.in_flight, worker.first_deadline) == ("w1", 1, held.deadline)


def test_a_list_of_jobs_has_more_than_one_page(door: Client, name: str) -> None:
    queue = door.queue(name)
    queue.append_many(range(1500))
    assert [job.seq for job in queue.jobs(state="ready")] == list(range(1, 1501))


def test_jobs_are_cancelled_retried_and_moved(door: Client, name: str) -> None:
    queue, other = door.queue(name), door.queue(f"{name}.other")
    other.configure()
    queue.append_many([Event("a", delay=60), Event("b", delay=60), "c", "d"])
    assert queue.cancel([1, 99]).skipped == [99]
    assert queue.retry(list(queue.jobs(state="delayed"))).retried == 1
    done = queue.move([4], to=other.name)
    assert (done.moved, done.skipped) == (1, [])
    assert (sorted(values(queue)), values(other)) == (["b", "c"], ["d"])
    odd: Any = 4
    with pytest.raises(InvalidRequest, match="brackets"):
        queue.cancel(odd)


def test_a_queue_is_paused_resumed_and_purged(door: Client, name: str) -> None:
    queue = door.queue(name)
    queue.append_many(range(3))
    assert queue.pause() is True
    assert values(queue) == []
    assert queue.resume() is False
    assert len(queue.claim("w").claimed) == 1
    assert queue.purge().deleted == 3
    assert queue.state().count == 0


# --- dead letters ----------------------------------------------------------------------------------------------------


def test_a_final_nack_is_a_dead_letter_with_its_error(door: Client, name: str) -> None:
    queue = door.queue(name)
    queue.append("bad", tag="t")
    queue.nack(queue.claim("w").claimed, node="w", error="not a number", final=True)
    (letter,) = queue.dead_letters().read()
    assert (letter.value, letter.tag) == ("bad", "t")
    assert letter.headers["$dead_letter_reason"] == "final"
    assert letter.headers["$dead_letter_error"] == "not a number"


def test_dead_letters_come_back_by_tag_error_and_time(door: Client, name: str) -> None:
    queue = door.queue(name)
    for number, (tag, error) in enumerate([("a:1", "timeout"), ("b:1", "timeout"), ("a:2", "refused")]):
        queue.append(number, tag=tag)
        queue.nack(queue.claim("w").claimed, node="w", error=error, final=True)
    letters = queue.dead_letters()
    assert letters.redrive(dry_run=True).matched == 3
    assert letters.redrive(until=time.time() - 3600).matched == 0
    assert letters.redrive(since=datetime.now(UTC) + timedelta(hours=1)).matched == 0
    assert letters.redrive(match="a:*", error="time").redriven == 1
    assert values(queue) == [0]
    assert letters.redrive(limit=1, match="b:1").redriven == 1
    assert door.dead_letters(f"{name}.dead").redrive().redriven == 1
    assert values(queue, "v") == [1, 2]
    assert letters.state().count == 0


def test_a_rate_goes_on_over_the_calls_of_a_redrive(door: Client, name: str) -> None:
    queue = door.queue(name)
    queue.append_many(range(1200))
    while claimed := queue.claim("w", max=1000).claimed:
        queue.nack(claimed, node="w", final=True)
    assert queue.dead_letters().redrive(rate=0.001).redriven == 1200
    due = [job.due for job in queue.jobs(state="delayed") if job.due is not None]
    assert len(due) == 1199  # the first is ready at once
    apart = [later - earlier for earlier, later in pairwise(due)]
    assert min(apart) > 500_000


def test_a_queue_without_dead_letters_says_so(door: Client, name: str) -> None:
    queue = door.queue(name, dead_letter=None)
    queue.append(1)
    with pytest.raises(InvalidRequest, match="dead_letter"):
        queue.dead_letters()
