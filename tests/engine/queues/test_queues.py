"""Claim, ack, nack, extend: the rules of `docs/spec/semantics.md#sec-16`, one sentence each."""

from __future__ import annotations

import pytest
from tests.engine.world import World

from topics.core.topic import TopicLog
from topics.errors import BatchTooLarge, CommitFailed, InvalidRequest, NotAQueue, TopicNotFound, TopicsError


@pytest.fixture(params=[False, True], ids=["leases-in-memory", "leases-durable"])
def world(request: pytest.FixtureRequest) -> World:
    world = World()
    world.queue("q", leases_durable=request.param)
    return world


# --- claim -----------------------------------------------------------------------------------------------------------


def test_a_claim_leases_the_oldest_jobs(world: World) -> None:
    world.write("q", "a", "b", "c", tag="t", meta={"k": 1})
    jobs = world.claim(max=2)
    assert [(job.seq, job.lease_id, job.deliveries) for job in jobs] == [(1, 1, 1), (2, 2, 1)]
    assert jobs[0].deadline == world.clock.wall_ms() + 30_000
    record = jobs[1].run.record(jobs[1].at)
    assert (record.seq, record.blob, record.tag) == (2, b'{"d":"b","m":{"k":1}}', b"t")
    assert world.counters() == (1, 2, 0)


def test_an_empty_queue_gives_nothing_and_no_error(world: World) -> None:
    assert world.claim(max=5) == []
    world.write("q", 1)
    assert world.seqs(max=5) == [1]
    assert world.claim(max=5) == []


def test_max_and_lease_are_clamped(world: World) -> None:
    world.write("q", *range(3))
    assert world.seqs(max=0) == [1]
    [job] = world.claim(lease_ms=1)
    assert job.deadline == world.clock.wall_ms() + 100
    [job] = world.claim(lease_ms=10**12)
    assert job.deadline == world.clock.wall_ms() + 86_400_000


def test_calls_on_logs_and_absent_topics_are_refused(world: World) -> None:
    world.topic("log")
    for call in (world.claim, lambda name: world.ack(1, name=name), lambda name: world.nack(1, name=name)):
        with pytest.raises(NotAQueue):
            call("log")
        with pytest.raises(TopicNotFound):
            call("absent")
    assert "absent" not in world.engine.state.topics


def test_a_node_is_needed_and_bounded(world: World) -> None:
    for node in ("", "n" * 129):
        with pytest.raises(InvalidRequest):
            world.claim(node=node)
    with pytest.raises(InvalidRequest):
        world.ack(1, node="")


def test_reads_do_not_touch_leases(world: World) -> None:
    world.write("q", 1, 2)
    world.claim()
    assert world.data("q") == [1, 2]
    assert world.counters() == (1, 1, 0)


# --- ack, nack, extend -----------------------------------------------------------------------------------------------


def test_an_ack_deletes_the_job_and_nothing_is_announced(world: World) -> None:
    world.write("q", 1, 2)
    world.claim(max=2)
    acked = world.ack(1)
    assert (acked.acked, acked.skipped, acked.ready, acked.in_flight) == (1, [], 0, 1)
    assert world.data("q") == [2]
    assert world.gaps("q") == []


def test_repeats_strangers_and_unknown_seqs_are_skipped_in_request_order(world: World) -> None:
    world.write("q", 1, 2, 3)
    world.claim(max=2)
    world.claim(node="other")
    acked = world.ack(9, 2, 3, 2, 1)
    assert (acked.acked, acked.skipped) == (2, [9, 3, 2])
    assert world.ack(1, 2).skipped == [1, 2]


def test_an_empty_call_is_answered_with_zeros(world: World) -> None:
    assert world.ack().acked == 0
    assert world.nack().nacked == 0
    assert world.extend().deadlines == {}


def test_too_many_seqs_and_uneven_fences_are_refused(world: World) -> None:
    with pytest.raises(BatchTooLarge):
        world.ack(*range(1001))
    with pytest.raises(InvalidRequest):
        world.ack(1, 2, fences=[1])


def test_a_nacked_job_is_ready_at_once_and_keeps_its_count(world: World) -> None:
    world.write("q", 1, 2)
    world.claim()
    assert world.nack(1).ready == 2
    [job] = world.claim()
    assert (job.seq, job.deliveries, job.lease_id) == (1, 2, 2)


def test_a_delayed_nack_is_ready_when_its_time_is_over_and_not_before(world: World) -> None:
    world.write("q", 1)
    world.claim()
    nacked = world.nack(1, delay_ms=1000)
    assert (nacked.ready, nacked.in_flight) == (0, 0)
    world.advance(999)
    assert world.claim() == []
    assert world.counters() == (0, 0, 0)
    world.advance(1)
    assert world.seqs() == [1]


def test_extend_counts_from_now_and_keeps_id_and_count(world: World) -> None:
    world.write("q", 1)
    [job] = world.claim(lease_ms=1000)
    world.advance(500)
    extended = world.extend(1, lease_ms=2000)
    assert extended.deadlines == {1: world.clock.wall_ms() + 2000}
    world.advance(2000)
    assert world.counters() == (0, 1, 0)
    assert world.ack(1, fences=[job.lease_id]).acked == 1


def test_extend_may_shorten_a_lease(world: World) -> None:
    world.write("q", 1)
    world.claim(lease_ms=60_000)
    world.extend(1, lease_ms=100)
    world.advance(101)
    assert world.seqs(node="other") == [1]


# --- expiry ----------------------------------------------------------------------------------------------------------


def test_a_lease_holds_at_its_deadline_and_not_after_it(world: World) -> None:
    world.write("q", 1)
    world.claim(lease_ms=1000)
    world.advance(1000)
    assert world.counters() == (0, 1, 0)
    assert world.claim(node="other") == []
    world.advance(1)
    assert world.counters() == (1, 0, 0)
    [job] = world.claim(node="other")
    assert (job.seq, job.deliveries) == (1, 2)


def test_an_expired_lease_can_neither_be_acked_nor_extended(world: World) -> None:
    world.write("q", 1)
    world.claim(lease_ms=1000)
    world.advance(1001)
    assert world.ack(1).skipped == [1]
    assert world.extend(1).skipped == [1]
    assert world.data("q") == [1]


def test_reclaimed_work_goes_ahead_of_new_work_lowest_first(world: World) -> None:
    world.write("q", *range(6))
    world.claim(max=3)
    world.nack(3)
    world.nack(1)
    assert world.seqs(max=4) == [1, 3, 4, 5]


def test_an_expired_delay_and_an_expired_lease_join_one_line(world: World) -> None:
    world.write("q", 1, 2, 3)
    world.claim(max=2, lease_ms=500)
    world.nack(2, delay_ms=400)
    world.advance(501)
    assert world.seqs(max=3) == [1, 2, 3]


# --- fencing ---------------------------------------------------------------------------------------------------------


def test_a_superseded_token_changes_nothing(world: World) -> None:
    world.write("q", 1)
    [old] = world.claim(lease_ms=100)
    world.advance(101)
    [new] = world.claim()
    for call in (world.ack, world.nack, world.extend):
        assert call(1, fences=[old.lease_id]).skipped == [1]
    assert world.counters() == (0, 1, 0)
    assert world.ack(1, fences=[new.lease_id]).acked == 1


def test_an_empty_token_means_no_token(world: World) -> None:
    world.write("q", 1, 2)
    world.claim(max=2)
    assert world.ack(1, 2, fences=[None, 77]).skipped == [2]


def test_lease_ids_are_never_used_twice(world: World) -> None:
    world.write("q", *range(4))
    seen = []
    for restart in ("killed", "stopped", "cut", "killed"):
        seen += [job.lease_id for job in world.claim(max=2)]
        world.nack(*[1, 2, 3, 4])
        world = getattr(world, restart)()
    seen += [job.lease_id for job in world.claim(max=4)]
    assert len(set(seen)) == len(seen)
    assert seen == sorted(seen)
    assert seen[0] == 1


# --- death of jobs ---------------------------------------------------------------------------------------------------


def test_a_deleted_job_loses_its_lease_and_its_place(world: World) -> None:
    world.write("q", 1, 2, 3, tag="t")
    world.claim(max=2)
    world.nack(2)
    world.delete("q", match="t")
    assert world.counters() == (0, 0, 0)
    assert world.ack(1).skipped == [1]
    world.write("q", 4)
    assert world.seqs(max=9) == [4]


def test_an_evicted_job_is_gone_leased_or_not() -> None:
    world = World()
    world.queue("q", cap_records=2)
    world.write("q", 1, 2)
    world.claim(max=2)
    world.write("q", 3, 4)
    assert world.counters() == (2, 0, 0)
    assert world.ack(1, 2).skipped == [1, 2]
    assert world.seqs(max=9) == [3, 4]


def test_an_expired_record_is_not_claimable() -> None:
    world = World()
    world.queue("q", ttl_ms=1000)
    world.write("q", 1)
    world.claim(lease_ms=5000)
    world.advance(1001)
    assert world.counters() == (0, 0, 0)
    assert world.claim() == []
    assert world.ack(1).skipped == [1]


# --- configuration ---------------------------------------------------------------------------------------------------


def test_a_config_change_keeps_leases(world: World) -> None:
    durable = world.state("q").config.leases_durable
    world.write("q", 1, 2)
    world.claim()
    world.queue("q", leases_durable=not durable, lease_ms=500)
    assert world.counters() == (1, 1, 0)
    [job] = world.claim()
    assert job.deadline == world.clock.wall_ms() + 500
    assert world.ack(1, 2).acked == 2


def test_a_topic_deleted_and_created_again_starts_from_nothing(world: World) -> None:
    world.write("q", 1)
    world.claim()
    world.drop("q")
    world.queue("q")
    world.write("q", 2)
    [job] = world.claim()
    assert (job.seq, job.lease_id, job.deliveries) == (1, 1, 1)


# --- failure ---------------------------------------------------------------------------------------------------------


def test_jobs_of_a_failed_ack_are_ready_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.queue("q", durability="fsync")
    world.write("q", 1, 2)
    world.claim(max=2)
    ticket = world.engine.queues.ack("q", node="w", seqs=[1, 2])
    group = world.kernel.kernel.store.groups[0]
    monkeypatch.setattr(group, "sync", _failing_sync)
    world.kernel.pump()
    assert isinstance(ticket.error, CommitFailed)
    assert world.counters() == (2, 0, 0)


def test_a_refused_claim_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.queue("q", durability="fsync", leases_durable=True)
    world.write("q", 1)
    ticket = world.claim_later()
    monkeypatch.setattr(world.kernel.kernel.store.groups[0], "sync", _failing_sync)
    world.kernel.pump()
    assert isinstance(ticket.error, TopicsError)
    assert world.counters() == (1, 0, 0)
    again = world.claim_later()
    world.kernel.pump()
    assert isinstance(again.error, TopicsError)


@pytest.mark.callbacks_fail
def test_a_claim_that_failed_as_it_began_to_wait_is_given_nothing_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(world.engine.queues.waker, "plan", _failing_plan)
        waiting = world.claim_later(node="gone", wait_ms=10_000)
        world.rest()
    assert isinstance(waiting.error, OSError)
    world.write("q", 1)
    world.rest()
    assert world.seqs() == [1]


def _failing_plan(topic: TopicLog) -> None:
    raise OSError("no timer")


def _failing_sync() -> None:
    raise CommitFailed("unknown", cause="sync")
