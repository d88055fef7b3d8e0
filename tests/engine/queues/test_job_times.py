"""Delays, retries and waiting: the time from which a job may be handed out (`docs/spec/semantics.md#sec-16-11`,
`#sec-16-12` and `#sec-16-14`)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.world import World

from topics.core.queue.due_times import RUN_PAIRS, DueTimes
from topics.core.queue.queue_rules import retry_delay
from topics.errors import InvalidRequest, NotAQueue, TopicNotFound
from topics.limits import JOB_DELAY_MS_MAX
from topics.model.config import RetryRule

RESTARTS = ["killed", "stopped", "cut"]


@pytest.fixture
def world() -> World:
    world = World()
    world.queue("q")
    return world


def queue_state(world: World) -> Any:
    return world.state("q").queue


# --- delays of appends -----------------------------------------------------------------------------------------------


def test_a_delayed_job_is_handed_out_at_its_time_and_not_before(world: World) -> None:
    world.write("q", 1, fields={"delay_ms": 500})
    world.write("q", 2)
    assert world.seqs(max=9) == [2]
    world.advance(499)
    assert world.seqs(max=9) == []
    world.advance(1)
    assert world.seqs(max=9) == [1]


def test_deliver_at_is_a_time_and_the_past_means_at_once(world: World) -> None:
    now = world.clock.wall_ms()
    world.write("q", 1, fields={"deliver_at": now + 1000})
    world.write("q", 2, fields={"deliver_at": now - 5})
    assert world.seqs(max=9) == [2]
    world.advance(1000)
    assert world.seqs(max=9) == [1]


def test_delayed_jobs_are_counted_and_the_next_end_is_told(world: World) -> None:
    now = world.clock.wall_ms()
    world.write("q", 1, 2, fields={"delay_ms": 700})
    world.write("q", 3)
    world.advance(100)
    counters = queue_state(world)
    assert (counters.ready, counters.in_flight, counters.delayed) == (1, 0, 2)
    assert (counters.oldest_ms, counters.next_due) == (100, now + 700)
    world.advance(600)
    assert (queue_state(world).ready, queue_state(world).delayed) == (3, 0)


@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_delays_priorities_and_keys_outlive_a_restart(restart: str, snapshot: bool, durability: str) -> None:
    if restart == "cut" and durability == "disk":
        pytest.skip("a power cut may take them with their records")
    world = World(segment_max_events=2)
    world.queue("q", durability=durability)
    world.write("q", 1, fields={"delay_ms": 500})
    world.write("q", 2, 3)
    world.write("q", 4, fields={"priority": 5, "unique": "k"})
    if snapshot:
        world.snapshot()
    world.write("q", 5, fields={"delay_ms": 900, "priority": 9})
    world = getattr(world, restart)()
    counters = queue_state(world)
    assert (counters.ready, counters.delayed) == (3, 2)
    again = world.write("q", 6, fields={"unique": "k"})
    assert (again.count, again.entered.seqs) == (0, [4])
    assert world.seqs() == [4]
    assert world.seqs(max=9) == [2, 3]
    world.advance(500)
    assert world.seqs(max=9) == [1]
    world.advance(400)
    assert world.seqs(max=9) == [5]


def test_a_batch_has_job_fields_record_by_record() -> None:
    world = World()
    world.queue("q")
    for at in range(300):
        world.write("q", at, fields={"delay_ms": 1000 - at})
    assert world.seqs(max=999) == []
    world.advance(800)
    assert world.seqs(max=999) == list(range(201, 301))
    world.advance(200)
    assert world.seqs(max=999) == list(range(1, 201))


def test_a_delayed_job_that_is_deleted_is_counted_no_more(world: World) -> None:
    world.write("q", 1, 2, tag="a", fields={"delay_ms": 500})
    world.write("q", 3)
    world.delete("q", match="a")
    assert (queue_state(world).ready, queue_state(world).delayed) == (1, 0)
    world.write("q", 4, fields={"delay_ms": 500})
    world.delete("q", before=99)
    assert (queue_state(world).ready, queue_state(world).delayed) == (0, 0)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"delay_ms": -1}, "records[0].delay_ms"),
        ({"delay_ms": JOB_DELAY_MS_MAX + 1}, "records[0].delay_ms"),
        ({"deliver_at": 1 << 62}, "records[0].deliver_at"),
        ({"priority": 10}, "records[0].priority"),
        ({"priority": True}, "records[0].priority"),
        ({"unique": ""}, "records[0].unique"),
        ({"unique": "k" * 257}, "records[0].unique"),
        ({"delay_ms": 1, "deliver_at": 1}, "records[0]"),
    ],
)
def test_bad_job_fields_are_refused_by_name(world: World, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        world.write("q", 1, fields=fields)
    assert named in str(refused.value)
    assert world.rows("q") == []


def test_a_log_takes_no_job_fields_and_none_is_created(world: World) -> None:
    world.topic("log")
    for name in ("log", "new"):
        with pytest.raises(NotAQueue):
            world.write(name, 1, fields={"priority": 1})
    with pytest.raises(TopicNotFound):
        world.state("new")


# --- retries ---------------------------------------------------------------------------------------------------------

POLICY = {"base_ms": 1000, "factor": 3.0, "max_ms": 5000, "jitter": 0.0}


def test_a_nack_without_a_delay_waits_as_the_policy_says(world: World) -> None:
    world.queue("q", retry=POLICY)
    world.write("q", 1)
    for wait_ms in (1000, 3000, 5000, 5000):
        assert world.seqs() == [1]
        world.nack(1, delay_ms=None)
        world.advance(wait_ms - 1)
        assert world.seqs() == []
        world.advance(1)
    assert world.seqs() == [1]
    world.nack(1, delay_ms=0)
    assert world.seqs() == [1]


def test_a_lease_that_runs_out_is_retried_by_the_same_policy(world: World) -> None:
    world.queue("q", retry=POLICY)
    world.write("q", 1)
    world.claim(lease_ms=100)
    world.advance(101)
    assert queue_state(world).delayed == 1
    world.advance(998)
    assert world.seqs() == []
    world.advance(1)
    assert world.seqs() == [1]


def test_an_exhausted_job_is_not_delayed(world: World) -> None:
    world.queue("q", retry=POLICY, max_deliveries=1, dead_letter="dead")
    world.write("q", 1)
    world.claim()
    world.nack(1, delay_ms=None, error="no route to host")
    assert world.claim() == []
    [letter] = world.records("dead")
    assert letter["meta"]["$dead_letter_error"] == "no route to host"
    assert letter["meta"]["$dead_letter_reason"] == "max_deliveries"


@pytest.mark.parametrize("restart", ["killed", "stopped"])
@pytest.mark.parametrize("snapshot", [False, True])
def test_counts_errors_and_retries_outlive_a_restart(restart: str, snapshot: bool) -> None:
    world = World()
    world.queue("q", retry=POLICY, max_deliveries=2, dead_letter="dead")
    world.write("q", 1, 2)
    world.claim(max=2)
    world.nack(1, delay_ms=None, error="first")
    if snapshot:
        world.snapshot()
    world.nack(2, delay_ms=0, error="second")
    world = getattr(world, restart)()
    assert [(job.seq, job.deliveries) for job in world.claim(max=9)] == [(2, 2)]
    world.advance(1000)
    assert [(job.seq, job.deliveries) for job in world.claim(max=9)] == [(1, 2)]
    world.nack(1, delay_ms=0)
    assert world.claim() == []
    assert [letter["meta"]["$dead_letter_error"] for letter in world.records("dead")] == ["first"]


def test_jitter_is_spread_and_the_same_every_time() -> None:
    policy = RetryRule(base_ms=10_000, jitter=0.5)
    delays = [retry_delay(policy, topic_id=7, seq=seq, deliveries=1) for seq in range(1000)]
    assert min(delays) >= 5000
    assert max(delays) <= 15_000
    assert min(delays) < 5200 < 9500 < sum(delays) / 1000 < 10_500 < 14_800 < max(delays)
    assert delays == [retry_delay(policy, topic_id=7, seq=seq, deliveries=1) for seq in range(1000)]


def test_a_final_nack_is_a_dead_letter_at_once(world: World) -> None:
    world.queue("q", max_deliveries=9, dead_letter="dead")
    world.write("q", 1)
    world.claim()
    world.nack(1, delay_ms=None, error="bad address", final=True)
    [letter] = world.records("dead")
    assert letter["meta"]["$dead_letter_reason"] == "final"
    assert letter["meta"]["$dead_letter_error"] == "bad address"
    assert world.counters() == (0, 0, 1)


def test_a_final_nack_needs_a_place_for_dead_letters(world: World) -> None:
    world.write("q", 1)
    world.claim()
    with pytest.raises(InvalidRequest, match="dead_letter"):
        world.nack(1, final=True)
    assert world.counters() == (0, 1, 0)


# --- waiting ---------------------------------------------------------------------------------------------------------


def served(world: World, waiting: Any) -> list[int]:
    world.rest()
    return [job.seq for job in waiting.result().jobs] if waiting.done else []


def test_a_waiting_claim_is_woken_by_an_append(world: World) -> None:
    waiting = world.claim_later(wait_ms=10_000)
    assert served(world, waiting) == []
    world.write("q", 1)
    assert served(world, waiting) == [1]


def test_a_waiting_claim_is_woken_by_an_ended_delay_and_an_ended_lease(world: World) -> None:
    world.queue("q", lease_ms=100)
    world.write("q", 1, fields={"delay_ms": 300})
    first, second = (world.claim_later(wait_ms=10_000) for _ in range(2))
    world.rest()
    world.advance(299)
    assert served(world, first) == []
    world.advance(1)
    assert served(world, first) == [1]
    world.nack(1, delay_ms=50)
    world.advance(50)
    assert served(world, second) == [1]
    third = world.claim_later(wait_ms=10_000)
    world.rest()
    world.advance(101)
    assert served(world, third) == [1]


def test_a_waiting_claim_is_woken_by_a_nack_and_a_resume(world: World) -> None:
    world.write("q", 1)
    world.claim()
    waiting = world.claim_later(wait_ms=10_000)
    world.rest()
    world.nack(1)
    assert served(world, waiting) == [1]
    world.queue("q", paused=True)
    world.nack(1)
    waiting = world.claim_later(wait_ms=10_000)
    assert served(world, waiting) == []
    world.queue("q")
    assert served(world, waiting) == [1]


def test_those_who_wait_are_served_in_order_and_answered_at_their_time(world: World) -> None:
    waiting = [world.claim_later(node=node, wait_ms=1000) for node in "abc"]
    world.rest()
    world.write("q", 1, 2)
    assert [served(world, one) for one in waiting] == [[1], [2], []]
    world.advance(999)
    assert not waiting[2].done
    world.advance(1)
    world.rest()
    assert waiting[2].result().jobs == []


def test_a_claimer_who_leaves_is_given_nothing(world: World) -> None:
    queues = world.engine.queues
    claimer = queues.ask("q", node="w", wait_ms=1000)
    world.rest()
    queues.waiting.leave(claimer)
    world.write("q", 1)
    world.rest()
    assert not claimer.ticket.done
    assert world.seqs() == [1]


def test_a_deleted_queue_and_a_drain_end_all_waiting(world: World) -> None:
    waiting = world.claim_later(wait_ms=1000)
    world.rest()
    world.drop("q")
    with pytest.raises(TopicNotFound):
        waiting.result()
    world.queue("q")
    waiting = world.claim_later(wait_ms=1000)
    world.rest()
    world.engine.queues.waiting.finish_all()
    assert waiting.result().jobs == []


# --- the structure behind it -----------------------------------------------------------------------------------------


def test_due_times_come_in_order_however_they_were_added() -> None:
    due = DueTimes()
    times = [(seq * 7919) % 10_007 for seq in range(3 * RUN_PAIRS)]
    due.extend(times[:1000], range(1000))
    for seq in range(1000, 3 * RUN_PAIRS):
        due.add(times[seq], seq)
    taken = []
    while (first := due.first()) is not None:
        taken.append(first)
        due.pop()
    assert [time for time, _ in taken] == sorted(times)
    assert sorted(seq for _, seq in taken) == list(range(3 * RUN_PAIRS))
    assert due.count == 0
