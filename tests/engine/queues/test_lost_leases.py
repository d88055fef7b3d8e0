"""Leased jobs that retention takes: the cap stays a cap, and the holder is told (`docs/spec/semantics.md#sec-16-1` and
`docs/spec/semantics.md#sec-16-4`)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.world import World

from topics.core.queue.queue import LOST_LEASES_MAX


def lost(answer: Any) -> list[tuple[int, str]]:
    return [(job.seq, job.reason) for job in answer.lost]


@pytest.fixture(params=["memory", "disk", "fsync", "ephemeral"])
def world(request: pytest.FixtureRequest) -> World:
    world = World()
    world.queue("q", cap_records=3, durability=request.param)
    world.write("q", 1, 2, 3)
    return world


@pytest.mark.parametrize("call", ["ack", "nack", "extend"])
def test_a_holder_hears_that_a_cap_took_its_job(world: World, call: str) -> None:
    first, second = world.claim(max=2)
    world.write("q", 4)
    assert world.state("q").count == 3
    answer = getattr(world, call)(first.seq, second.seq)
    assert (answer.skipped, lost(answer)) == ([first.seq], [(first.seq, "cap")])
    assert world.state("q").queue.lost_in_flight == 1


def test_a_stuck_worker_that_extends_for_ever_does_not_make_the_queue_grow(world: World) -> None:
    held = [job.seq for job in world.claim(max=3)]
    for _ in range(20):
        world.write("q", "more", "and more")
        world.advance(20_000)
        world.extend(*held)
        assert world.state("q").count == 3


def test_a_holder_hears_that_its_job_expired() -> None:
    world = World()
    world.queue("q", ttl_ms=1000)
    world.write("q", 1, 2)
    world.claim(max=1, lease_ms=60_000)
    world.advance(1001)
    assert lost(world.ack(1, 2)) == [(1, "ttl")]


def test_only_the_holder_is_told_and_only_until_its_lease_would_be_over(world: World) -> None:
    (job,) = world.claim(max=1, lease_ms=1000)
    world.write("q", 4, 5)  # takes 1, which is leased, and 2, which is not
    assert lost(world.ack(1, 2, node="other")) == []
    assert lost(world.ack(1, 2, fences=[job.lease_id + 1, None])) == []
    assert lost(world.ack(1, 2, fences=[job.lease_id, None])) == [(1, "cap")]
    assert lost(world.ack(1, 1, 2)) == [(1, "cap")]
    world.advance(1000)
    assert lost(world.nack(1)) == [(1, "cap")]
    world.advance(1)
    assert lost(world.nack(1)) == []


def test_a_job_that_was_deleted_on_request_is_not_lost(world: World) -> None:
    world.claim(max=2)
    world.delete("q", before=2)
    world.ack(2)
    answer = world.ack(1, 2)
    assert (answer.skipped, lost(answer)) == ([1, 2], [])
    assert world.state("q").queue.lost_in_flight == 0


def test_kept_leases_that_a_replay_takes_are_told_after_a_kill() -> None:
    world = World()
    world.queue("q", cap_records=2, durability="fsync", leases_durable=True)
    world.write("q", 1, 2)
    world.claim(max=2)
    world.write("q", 3)
    world = world.killed()
    assert lost(world.ack(1, 2)) == [(1, "cap")]


def test_what_is_remembered_of_lost_leases_is_bounded() -> None:
    world = World(recent_cache_bytes=0)
    world.queue("q", cap_records=1000)
    for _ in range(LOST_LEASES_MAX // 1000 + 1):
        world.write("q", *range(1000))
        while world.claim(max=1000, lease_ms=86_400_000):
            pass
    world.write("q", *range(1000))
    queue = world.engine.state.topic("q").queue
    assert queue is not None
    assert len(queue.lost) == LOST_LEASES_MAX
    assert queue.lost_in_flight > LOST_LEASES_MAX
