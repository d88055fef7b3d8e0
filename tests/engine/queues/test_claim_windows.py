"""The coalescing window: even shares, by the clock (`docs/spec/semantics.md#sec-16-6`)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.world import World

from topics.core.queue.operations import deal
from topics.errors import TopicNotFound


def shares(world: World, wants: Sequence[int], *, jobs: int) -> list[list[int]]:
    world.write("q", *range(jobs))
    tickets = [world.claim_later(node=f"n{at}", max=want) for at, want in enumerate(wants)]
    world.kernel.pump()
    assert not any(ticket.done for ticket in tickets)
    world.advance(world.state("q").config.claim_jitter_ms)
    return [[job.seq for job in ticket.result().jobs] for ticket in tickets]


@pytest.fixture
def world() -> World:
    world = World()
    world.queue("q", claim_jitter_ms=20)
    return world


def test_fifty_jobs_for_ten_claimers_are_five_each(world: World) -> None:
    assert [len(share) for share in shares(world, [10] * 10, jobs=50)] == [5] * 10


def test_nine_jobs_for_a_small_and_a_large_claimer(world: World) -> None:
    assert [len(share) for share in shares(world, [2, 100], jobs=9)] == [2, 7]


def test_jobs_are_dealt_in_seq_order_around_the_cohort(world: World) -> None:
    assert shares(world, [10, 10, 10], jobs=12) == [[1, 4, 7, 10], [2, 5, 8, 11], [3, 6, 9, 12]]


def test_a_window_closes_in_time_when_the_wall_clock_is_turned_back(world: World) -> None:
    world.write("q", 1)
    claim = world.claim_later()
    world.clock.set_wall_ms(world.clock.wall_ms() - 3_600_000)
    world.advance(20)
    assert claim.done


def test_a_window_closes_by_the_clock_and_the_next_claim_opens_another(world: World) -> None:
    world.write("q", 1, 2)
    first = world.claim_later()
    world.kernel.pump()
    world.advance(19)
    assert not first.done
    world.advance(1)
    assert [job.seq for job in first.result().jobs] == [1]
    second = world.claim_later()
    world.kernel.pump()
    world.rest()
    assert not second.done
    world.advance(20)
    assert [job.seq for job in second.result().jobs] == [2]


def test_a_claim_behind_the_close_does_not_join_a_window_nobody_has_closed_yet(world: World) -> None:
    world.write("q", 1)
    first = world.claim_later()
    world.clock.advance(25)
    second = world.claim_later()
    world.kernel.pump()
    assert [job.seq for job in first.result().jobs] == [1]
    assert not second.done
    world.advance(20)
    assert second.result().jobs == []


def test_each_claimer_keeps_its_own_lease(world: World) -> None:
    world.write("q", 1, 2)
    short = world.engine.queues.claim("q", node="a", lease_ms=100)
    long = world.engine.queues.claim("q", node="b", lease_ms=9000)
    world.kernel.pump()
    world.advance(20)
    now = world.clock.wall_ms()
    assert [ticket.result().jobs[0].deadline - now for ticket in (short, long)] == [100, 9000]


def test_reclaimed_jobs_are_dealt_before_fresh_ones(world: World) -> None:
    world.queue("q")
    world.write("q", *range(4))
    world.claim(max=2)
    world.nack(1, 2)
    world.queue("q", claim_jitter_ms=20)
    tickets = [world.claim_later(node=node) for node in "ab"]
    world.kernel.pump()
    world.advance(20)
    assert [ticket.result().jobs[0].seq for ticket in tickets] == [1, 2]


def test_a_claimer_that_leaves_a_window_takes_no_share_of_it(world: World) -> None:
    world.write("q", *range(4))
    claimers = [world.engine.queues.ask("q", node=node, max=10) for node in "ab"]
    world.kernel.pump()
    claimers[0].leave()
    world.advance(20)
    gone, kept = [claimer.ticket.result().jobs for claimer in claimers]
    assert gone == []
    assert [(job.seq, job.deliveries) for job in kept] == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert world.counters() == (0, 4, 0)


def test_a_window_that_everyone_has_left_leases_nothing(world: World) -> None:
    world.write("q", 1)
    world.engine.queues.ask("q", node="a").leave()
    world.advance(20)
    assert world.counters() == (1, 0, 0)
    again = world.claim_later()
    world.advance(20)
    assert [(job.seq, job.deliveries) for job in again.result().jobs] == [(1, 1)]


def test_deleting_the_queue_answers_everyone_who_waits(world: World) -> None:
    ticket = world.claim_later()
    world.kernel.pump()
    world.drop("q")
    assert isinstance(ticket.error, TopicNotFound)


@given(st.integers(0, 60), st.lists(st.integers(1, 20), min_size=1, max_size=8))
def test_shares_differ_by_more_than_one_only_if_the_smaller_is_full(count: int, wants: list[int]) -> None:
    shares = deal(count, wants)
    dealt = [place for share in shares for place in share]
    assert sorted(dealt) == list(range(min(count, sum(wants))))
    for small, want in zip(shares, wants, strict=True):
        assert len(small) <= want
        for other in shares:
            assert len(other) - len(small) <= 1 or len(small) == want
