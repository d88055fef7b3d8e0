"""What a restart leaves of a queue (`docs/spec/semantics.md#sec-16-8`)."""

from __future__ import annotations

import pytest
from tests.engine.world import World

from topics.core.queue.leases import ACKED, EXTENDED, RELEASED
from topics.core.queue.operations import queue_of
from topics.model.ops import LeaseEvent
from topics.testing.powercut import Aimed

RESTARTS = ["killed", "stopped"]


@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("snapshot", [False, True])
def test_without_durable_leases_every_job_that_is_not_delayed_is_claimable_at_once(
    restart: str, snapshot: bool
) -> None:
    world = World()
    world.queue("q")
    world.write("q", *range(6))
    world.claim(max=4)
    world.ack(1)
    world.nack(2, delay_ms=60_000)
    if snapshot:
        world.snapshot()
    world.nack(3)
    world = getattr(world, restart)()
    assert world.counters() == (4, 0, 0)
    jobs = world.claim(max=9)
    assert [(job.seq, job.deliveries) for job in jobs] == [
        (3, 2),
        (4, 1 + (snapshot or restart == "stopped")),
        (5, 1),
        (6, 1),
    ]
    world.advance(60_000)
    assert [(job.seq, job.deliveries) for job in world.claim(max=9)][:1] == [(2, 2)]


@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("snapshot", [False, True])
def test_durable_leases_delays_and_counts_are_kept(restart: str, snapshot: bool) -> None:
    world = World()
    world.queue("q", leases_durable=True)
    world.write("q", *range(6))
    jobs = world.claim(max=4, lease_ms=10_000)
    world.ack(1)
    world.nack(2, delay_ms=5_000)
    if snapshot:
        world.snapshot()
    world.nack(3)
    world = getattr(world, restart)()
    assert world.counters() == (3, 1, 0)
    assert [(job.seq, job.deliveries) for job in world.claim(max=9, node="v")] == [(3, 2), (5, 1), (6, 1)]
    assert world.ack(4, fences=[jobs[3].lease_id]).acked == 1
    world.advance(4_999)
    assert world.claim() == []
    world.advance(1)
    [job] = world.claim()
    assert (job.seq, job.deliveries) == (2, 2)


def test_a_kept_lease_ends_at_its_deadline() -> None:
    world = World()
    world.queue("q", leases_durable=True)
    world.write("q", 1)
    world.claim(lease_ms=1000)
    world.extend(1, lease_ms=3000)
    world = world.killed()
    world.advance(3000)
    assert world.claim() == []
    world.advance(1)
    assert world.seqs() == [1]


def test_only_the_current_lease_is_changed_by_replayed_events() -> None:
    world = World()
    world.queue("q", leases_durable=True)
    world.write("q", 1)
    world.claim(lease_ms=100)
    world.advance(101)
    [job] = world.claim(node="v", lease_ms=60_000)
    assert world.nack(1).skipped == [1]
    world = world.killed()
    assert world.counters() == (0, 1, 0)
    assert world.ack(1, node="v", fences=[job.lease_id]).acked == 1


def test_a_power_cut_keeps_what_was_answered() -> None:
    world = World()
    world.queue("q", durability="fsync", leases_durable=True)
    world.write("q", 1, 2, 3)
    jobs = world.claim(max=3)
    world.ack(2)
    world = world.cut()
    assert world.counters() == (0, 2, 0)
    assert world.ack(1, 3, fences=[jobs[0].lease_id, jobs[2].lease_id]).acked == 2


def test_leases_made_durable_later_are_kept_as_far_as_they_were_logged() -> None:
    world = World()
    world.queue("q")
    world.write("q", *range(5))
    world.claim(max=3)
    world.queue("q", leases_durable=True)
    world.claim()
    world = world.killed()
    assert world.counters() == (4, 1, 0)
    assert world.seqs(max=9) == [1, 2, 3, 5]


def test_leases_no_longer_durable_are_gone_after_a_restart() -> None:
    world = World()
    world.queue("q", leases_durable=True)
    world.write("q", 1, 2)
    world.claim()
    world.queue("q")
    assert world.counters() == (1, 1, 0)
    world = world.killed()
    assert world.counters() == (2, 0, 0)


def test_an_ephemeral_queue_logs_no_leases_and_starts_empty() -> None:
    world = World()
    world.queue("q", durability="ephemeral", leases_durable=True)
    world.write("q", 1, 2)
    [job] = world.claim()
    world.nack(1)
    world = world.killed()
    assert world.counters() == (0, 0, 0)
    world.write("q", 3)
    [new] = world.claim()
    assert new.seq > 2
    assert new.lease_id > job.lease_id


def test_jobs_in_segments_are_claimed_like_any_other() -> None:
    world = World(recent_cache_bytes=0, segment_max_events=10)
    world.queue("q")
    world.write("q", *range(35))
    world.checkpoint()
    world.claim(max=12)
    world.ack(*range(3, 9))
    world.nack(1, 2)
    world.snapshot()
    assert [job.run.record(job.at).blob for job in world.claim(max=3)] == [b'{"d":0}', b'{"d":1}', b'{"d":12}']
    world = world.killed(recent_cache_bytes=0)
    assert world.seqs(max=100) == [1, 2, *range(9, 36)]


def test_a_fed_queue_keeps_its_jobs_and_acks() -> None:
    world = World()
    world.topic("a", durability="fsync")
    world.queue("q", durability="fsync", leases_durable=True)
    world.router("r", "a", "q")
    world.write("a", *range(6))
    assert world.seqs(max=4) == [1, 2, 3, 4]
    world.ack(2, 3)
    world.nack(4)
    world = world.killed()
    assert world.rows("q") == [(1, 0), (4, 3), (5, 4), (6, 5)]
    assert world.counters() == (3, 1, 0)
    assert world.seqs(max=9) == [4, 5, 6]


@pytest.mark.parametrize("clean_before", [False, True])
@pytest.mark.parametrize("kills_after", [0, 1])
def test_a_flag_that_outlived_its_ack_is_counted_by_every_start(clean_before: bool, kills_after: int) -> None:
    """The ack of a `disk` job is not synced. A power cut may take its frame and leave the flag in the segment."""
    world = World(segment_max_events=2)
    world.queue("q", durability="disk")
    world.write("q", *range(4))
    world.snapshot()
    if clean_before:
        world = world.stopped()
    world.claim(max=1)
    world.ack(1)
    world = world.cut(pattern=Aimed("*/wal-*", lambda _: ()))
    for _ in range(kills_after):
        world = world.killed()
    assert world.data("q") == [1, 2, 3]
    assert (world.state("q").count, world.counters()) == (3, (3, 0, 0))
    assert world.seqs(max=9) == [2, 3, 4]


@pytest.mark.parametrize("event", [RELEASED, EXTENDED, ACKED])
def test_a_lease_event_of_an_earlier_lease_changes_nothing_in_replay(event: int) -> None:
    world = World()
    world.queue("q", leases_durable=True)
    world.write("q", 1)
    [first] = world.claim(lease_ms=1000)
    world.nack(1)
    [second] = world.claim(lease_ms=2000)
    topic = world.engine.state.topic("q")
    stale = LeaseEvent(
        topic_id=topic.id,
        seq=1,
        event=event,
        node="w",
        lease_id=first.lease_id,
        deadline=first.deadline + 60_000,
        deliveries=9,
        ts=first.deadline,
    )
    logged = world.engine.queues.log_leases(topic, [stale])
    world.kernel.pump()
    assert logged.done
    world = world.killed()
    job = queue_of(world.engine.state.topic("q")).jobs[1]
    assert (job.lease_id, job.deadline, job.deliveries) == (second.lease_id, second.deadline, 2)
    assert world.counters() == (0, 1, 0)
    assert world.ack(1, fences=[second.lease_id]).acked == 1


def test_a_queue_that_stopped_keeping_leases_releases_what_a_snapshot_had_of_them() -> None:
    world = World()
    world.queue("q", leases_durable=True)
    world.write("q", *range(4))
    world.claim(max=3)
    world.nack(2, delay_ms=60_000)
    world.snapshot()
    world.queue("q", leases_durable=False)
    world = world.killed()
    assert [(job.seq, job.deliveries) for job in world.claim(max=9)] == [(1, 2), (3, 2), (4, 1)]
