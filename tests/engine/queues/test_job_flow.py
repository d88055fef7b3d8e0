"""Unique keys, priorities, serial tags, limits, rates, fairness and pause (`docs/spec/semantics.md#sec-16-11` and
`docs/spec/semantics.md#sec-16-13`)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.world import World, batch

from topics.core.queue.operations import LOOK_AHEAD
from topics.errors import JobExists
from topics.model.record import UniqueIn


@pytest.fixture
def world() -> World:
    world = World()
    world.queue("q")
    return world


# --- identity --------------------------------------------------------------------------------------------------------


def unique(key: str = "k", **more: Any) -> dict[str, Any]:
    return {"unique": UniqueIn(key=key, **more)}


def test_a_key_that_stands_keeps_a_second_job_out(world: World) -> None:
    world.write("q", 1, fields=unique())
    again = world.write("q", 2, fields=unique())
    assert (again.count, again.entered.seqs, again.entered.kept) == (0, [1], [0])
    world.claim()
    assert world.write("q", 3, fields=unique()).entered.seqs == [1]
    world.ack(1)
    assert world.write("q", 4, fields=unique()).entered.seqs == [2]


def test_a_key_for_a_time_outlives_its_job(world: World) -> None:
    world.write("q", 1, fields=unique(for_ms=1000))
    world.claim()
    world.ack(1)
    assert world.write("q", 2, fields=unique()).count == 0
    world.advance(1000)
    assert world.write("q", 3, fields=unique()).count == 1


def test_a_key_that_replaces_deletes_the_job_that_stands(world: World) -> None:
    world.write("q", 1, fields=unique())
    [job] = world.claim()
    done = world.write("q", 2, fields=unique(on_conflict="replace"))
    assert (done.entered.seqs, done.entered.replaced) == ([2], [1])
    assert world.rows("q") == [(2, 2)]
    assert world.ack(1, fences=[job.lease_id]).skipped == [1]
    assert world.counters() == (1, 0, 0)


def test_a_key_that_rejects_refuses_the_whole_batch(world: World) -> None:
    world.write("q", 1, fields=unique())
    with pytest.raises(JobExists) as refused:
        world.write("q", 2, 3, fields=unique(on_conflict="reject"))
    assert refused.value.detail == {"index": 0, "seq": 1}
    assert world.rows("q") == [(1, 1)]


def test_records_of_one_batch_count_for_each_other(world: World) -> None:
    done = world.write("q", 1, 2, 3, fields=unique())
    assert (done.count, done.entered.seqs, done.entered.kept) == (1, [1, 1, 1], [1, 2])
    done = world.write("q", 4, 5, fields=unique(on_conflict="replace"))
    assert (done.entered.seqs, done.entered.kept, done.entered.replaced) == ([2, 2], [0], [1])
    assert world.rows("q") == [(2, 5)]


def test_concurrent_writes_with_one_key_append_once(world: World) -> None:
    tickets = [world.engine.write("q", batch(value, fields=unique())) for value in range(5)]
    done = [world.call(ticket) for ticket in tickets]
    assert [one.entered.seqs for one in done] == [[1]] * 5
    assert sum(one.count for one in done) == 1
    assert world.rows("q") == [(1, 0)]


def test_a_write_that_creates_its_queue_knows_its_keys(world: World) -> None:
    from topics.model.config import patch_from, resolve_config

    config = resolve_config(patch_from({"type": "queue"}))
    done = world.call(world.engine.write("new", batch(1, 2, fields=unique()), config=config))
    assert (done.created, done.entered.seqs) == (True, [1, 1])
    assert world.write("new", 3, fields=unique()).count == 0


# --- order -----------------------------------------------------------------------------------------------------------


def test_priority_is_strict_and_what_waited_goes_first_within_one(world: World) -> None:
    world.write("q", 1, 2)
    world.write("q", 3, fields={"priority": -1})
    world.write("q", 4, fields={"priority": 9})
    world.write("q", 5, fields={"priority": 9})
    assert world.seqs() == [4]
    world.nack(4)
    assert [world.seqs() for _ in range(5)] == [[4], [5], [1], [2], [3]]


# --- flow ------------------------------------------------------------------------------------------------------------


def test_jobs_of_one_tag_are_handed_out_one_at_a_time_and_in_order(world: World) -> None:
    world.queue("q", serial_by="tag")
    for seq, tag in enumerate("aabab", 1):
        world.write("q", seq, tag=tag)
    world.write("q", 6, 7)
    assert world.seqs(max=9) == [1, 3, 6, 7]
    assert world.seqs(max=9) == []
    world.nack(1, delay_ms=500)
    assert world.seqs(max=9) == []
    world.ack(3)
    assert world.seqs(max=9) == [5]
    world.advance(500)
    assert world.seqs(max=9) == [1]
    world.ack(1)
    assert world.seqs(max=9) == [2]


def test_a_serial_job_that_comes_back_goes_before_others_of_its_tag(world: World) -> None:
    world.queue("q", serial_by="tag")
    world.write("q", 1, tag="a")
    world.claim()
    world.write("q", 2, tag="a", fields={"priority": 9})
    world.nack(1)
    assert world.seqs(max=9) == [1]
    world.ack(1)
    assert world.seqs(max=9) == [2]


def test_a_serial_job_whose_delay_is_over_goes_before_later_ones_of_its_tag(world: World) -> None:
    world.queue("q", serial_by="tag")
    world.write("q", 1, tag="a", fields={"delay_ms": 500})
    world.write("q", 2, 3, tag="a")
    assert world.seqs(max=9) == [2]
    world.ack(2)
    world.advance(500)
    assert world.seqs(max=9) == [1]
    world.ack(1)
    assert world.seqs(max=9) == [3]


def test_a_serial_job_whose_delay_is_over_does_not_overtake_jobs_that_no_pass_has_looked_at(world: World) -> None:
    world.queue("q", serial_by="tag")
    world.write("q", *range(LOOK_AHEAD), tag="busy")
    world.write("q", "first", tag="a")
    world.write("q", "second", tag="a", fields={"delay_ms": 500})
    world.advance(500)
    assert world.seqs(max=9) == [1]
    assert world.seqs(max=9) == [LOOK_AHEAD + 1]


@pytest.mark.parametrize("leases_durable", [False, True])
@pytest.mark.parametrize("snapshot", [False, True])
def test_serial_tags_hold_after_a_restart(leases_durable: bool, snapshot: bool) -> None:
    world = World(segment_max_events=2, recent_cache_bytes=0)
    world.queue("q", serial_by="tag", leases_durable=leases_durable)
    world.write("q", 1, 2, 3, tag="a")
    world.write("q", 4, tag="b")
    assert world.seqs() == [1]
    if snapshot:
        world.snapshot()
    world = world.killed()
    assert world.seqs(max=9) == ([4] if leases_durable else [1, 4])
    world.advance(30_001)
    assert world.seqs(max=9) == [1, 4]


def test_a_rule_about_tags_that_comes_later_knows_what_is_in_flight(world: World) -> None:
    world.write("q", 1, 2, tag="a")
    assert world.seqs() == [1]
    world.queue("q", serial_by="tag")
    assert world.seqs() == []
    world.ack(1)
    assert world.seqs() == [2]
    world.queue("q")
    world.write("q", 3, 4, tag="a")
    assert world.seqs(max=9) == [3, 4]


def test_concurrency_bounds_what_is_in_flight(world: World) -> None:
    world.queue("q", concurrency=2)
    world.write("q", 1, 2, 3)
    waiting = None
    assert world.seqs(max=9) == [1, 2]
    waiting = world.claim_later(wait_ms=10_000)
    world.rest()
    world.ack(1)
    world.rest()
    assert [job.seq for job in waiting.result().jobs] == [3]


def test_concurrency_of_a_tag_holds_up_no_other(world: World) -> None:
    world.queue("q", tag_concurrency=2)
    world.write("q", 1, 2, 3, tag="a")
    world.write("q", 4, tag="b")
    assert world.seqs(max=9) == [1, 2, 4]
    world.ack(1)
    assert world.seqs(max=9) == [3]


def test_a_rate_is_a_burst_and_then_a_pace(world: World) -> None:
    world.queue("q", rate={"jobs": 2, "per_ms": 1000})
    world.write("q", *range(6))
    assert world.seqs(max=9) == [1, 2]
    assert world.seqs(max=9) == []
    world.advance(499)
    assert world.seqs(max=9) == []
    world.advance(1)
    assert world.seqs(max=9) == [3]
    world.advance(5000)
    assert world.seqs(max=9) == [4, 5]


def test_a_rate_of_tags_wakes_who_waits_when_it_allows_more(world: World) -> None:
    world.queue("q", tag_rate={"jobs": 1, "per_ms": 1000})
    world.write("q", 1, 2, tag="a")
    world.write("q", 3, tag="b")
    assert world.seqs(max=9) == [1, 3]
    waiting = world.claim_later(wait_ms=10_000)
    world.rest()
    world.advance(999)
    assert not waiting.done
    world.advance(1)
    world.rest()
    assert [job.seq for job in waiting.result().jobs] == [2]


def test_tags_take_turns_where_that_is_asked_for(world: World) -> None:
    world.queue("q", fair_by="tag")
    world.write("q", *range(100), tag="flood")
    world.write("q", 101, 102, tag="small")
    assert [world.seqs()[0] for _ in range(5)] == [1, 101, 2, 102, 3]


def test_a_pause_stops_the_hand_out_and_nothing_else(world: World) -> None:
    world.write("q", 1, 2, 3)
    world.claim(max=2)
    world.queue("q", paused=True)
    assert world.seqs(max=9) == []
    assert world.ack(1).acked == 1
    assert world.nack(2).nacked == 1
    assert world.extend(2).skipped == [2]
    world.queue("q")
    assert world.seqs(max=9) == [2, 3]


def test_a_tag_with_very_many_blocked_jobs_does_not_hide_the_others(world: World) -> None:
    world.queue("q", serial_by="tag")
    world.write("q", *range(5000), tag="a")
    world.write("q", 5001, tag="b")
    assert world.seqs() == [1]
    assert world.seqs() == [5001]
    assert world.seqs() == []
    world.ack(1)
    assert world.seqs() == [2]
