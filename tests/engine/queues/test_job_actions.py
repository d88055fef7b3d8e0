"""Lists of jobs and workers, cancel, retry now, move, pause and redrive (`docs/spec/semantics.md#sec-16-15` and
`docs/spec/semantics.md#sec-16-16`)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.crashing import distinct_crashes, starts
from tests.engine.world import World

from topics.engine.queues.job_actions import Redrive
from topics.errors import InvalidRequest, NotAQueue, TopicNotFound
from topics.model.names import parse_match
from topics.model.results import JobProgress
from topics.model.values import ProgressReport
from topics.storage.fs import Fs
from topics.testing import SimClock


@pytest.fixture
def world() -> World:
    world = World(segment_max_events=4)
    world.queue("q")
    return world


def listed(world: World, **asked: Any) -> list[int]:
    return [job.seq for job in world.call(world.engine.queues.lists.jobs("q", **asked)).jobs]


def test_jobs_are_listed_by_state_without_being_touched(world: World) -> None:
    world.write("q", 1, 2, 3, tag="a")
    world.write("q", 4, tag="b", fields={"delay_ms": 500, "priority": 2, "unique": "k"})
    world.claim(max=2)
    world.nack(2, delay_ms=900, error="late")
    before = world.counters()
    assert listed(world) == [1, 2, 3, 4]
    assert listed(world, state="ready") == [3]
    assert listed(world, state="delayed") == [2, 4]
    assert listed(world, state="in_flight") == [1]
    assert listed(world, tag="b") == [4]
    held, late, _, put_off = world.call(world.engine.queues.lists.jobs("q")).jobs
    now = world.clock.wall_ms()
    assert (held.node, held.lease_id, held.deadline, held.deliveries) == ("w", "lease_1", now + 30_000, 1)
    assert (late.error, late.due, late.deliveries) == ("late", now + 900, 1)
    assert (put_off.priority, put_off.unique, put_off.due, put_off.tag) == (2, "k", now + 500, "b")
    assert world.counters() == before


def progress_of(world: World) -> dict[int, JobProgress]:
    jobs = world.call(world.engine.queues.lists.jobs("q")).jobs
    return {job.seq: job.progress for job in jobs if job.progress is not None}


def test_the_list_shows_how_far_holders_are_until_their_leases_end(world: World) -> None:
    world.write("q", 1, 2, 3, 4)
    world.claim(max=4, lease_ms=1000)
    half = ProgressReport(0.5, "half")
    assert world.extend(1, 2, 3, 4, lease_ms=1000, progress=[half, half, half, None]).extended == 4
    now = world.clock.wall_ms()
    assert progress_of(world) == dict.fromkeys((1, 2, 3), JobProgress(0.5, "half", ts=now))
    world.advance(10)
    world.extend(1, 2, lease_ms=1000, progress=[None, ProgressReport(text="all but one")])
    assert progress_of(world)[1] == JobProgress(0.5, "half", ts=now)
    assert progress_of(world)[2] == JobProgress(text="all but one", ts=now + 10)
    world.extend(3, node="other", progress=[ProgressReport(1.0)])
    assert progress_of(world)[3].fraction == 0.5
    world.nack(1)
    world.ack(2)
    world.advance(995)  # the lease of the third is over
    assert (progress_of(world), world.counters()) == ({}, (3, 0, 0))
    world.claim(max=3)
    assert progress_of(world) == {}


def test_progress_adds_nothing_to_the_log_and_a_restart_forgets_it() -> None:
    world = World()
    world.queue("q", leases_durable=True)
    world.write("q", 1)
    world.claim()
    groups = world.kernel.kernel.store.groups
    written = [sum(group.stats.bytes_written for group in groups)]
    for progress in ((), [ProgressReport(0.5, "half")]):
        world.extend(1, progress=progress)
        written.append(sum(group.stats.bytes_written for group in groups))
    assert written[2] - written[1] == written[1] - written[0] > 0
    world.snapshot()
    world = world.killed()
    assert (world.counters(), progress_of(world)) == ((0, 1, 0), {})


@pytest.mark.parametrize("state", [None, "ready", "delayed"])
def test_pages_of_jobs_join_without_overlap(world: World, state: Any) -> None:
    world.write("q", *range(30))
    world.write("q", *range(30), fields={"delay_ms": 500})
    world.checkpoint()
    seqs: list[int] = []
    cursor: str | None = "0"
    while cursor is not None:
        page = world.call(world.engine.queues.lists.jobs("q", state=state, after=int(cursor), page_size=7))
        seqs += [job.seq for job in page.jobs]
        cursor = page.next_cursor
    assert seqs == {None: list(range(1, 61)), "ready": list(range(1, 31)), "delayed": list(range(31, 61))}[state]


def test_workers_are_those_who_hold_wait_or_called_lately(world: World) -> None:
    world.write("q", 1, 2)
    world.claim(node="a", max=2)
    world.claim_later(node="b", wait_ms=1000)
    world.rest()
    page = world.engine.queues.lists.workers("q")
    assert [(one.node, one.in_flight, one.waiting) for one in page.workers] == [("a", 2, 0), ("b", 0, 1)]
    world.ack(1, 2, node="a")
    world.advance(300_001)
    assert world.engine.queues.lists.workers("q").workers == []


def test_a_cancelled_job_is_gone_whoever_holds_it(world: World) -> None:
    world.write("q", 1, 2, fields={"unique": "k"})
    world.claim()
    done = world.call(world.engine.queues.actions.cancel("q", [1, 9, 1]))
    assert (done.cancelled, done.skipped) == (1, [9, 1])
    assert world.rows("q") == []
    assert world.ack(1).skipped == [1]


def test_retry_now_ends_a_delay_and_outlives_a_kill(world: World) -> None:
    world.write("q", 1)
    world.write("q", 2, 3, fields={"delay_ms": 60_000})
    world.claim()
    world.nack(1, delay_ms=60_000)
    done = world.call(world.engine.queues.actions.retry("q", [1, 2, 7]))
    assert (done.retried, done.skipped) == (2, [7])
    world = world.killed()
    assert world.seqs(max=9) == [1, 2]


def test_moved_jobs_are_in_the_other_queue_once(world: World) -> None:
    world.queue("other")
    world.write("q", 1, 2, 3, tag="t", meta={"k": "v"})
    world.claim()
    done = world.call(world.engine.queues.actions.move("q", [1, 2, 3], "other"))
    assert (done.moved, done.skipped) == (2, [1])
    assert (world.data("q"), world.data("other")) == ([1], [2, 3])
    assert world.records("other")[0]["meta"] == {"k": "v"}
    with pytest.raises(InvalidRequest):
        world.engine.queues.actions.move("q", [1], "q")
    with pytest.raises(TopicNotFound):
        world.engine.queues.actions.move("q", [1], "absent")


def test_pause_and_resume_leave_the_rest_of_the_config(world: World) -> None:
    world.queue("q", lease_ms=777)
    world.write("q", 1)
    world.call(world.engine.queues.set_paused("q", True))
    assert world.seqs() == []
    world.call(world.engine.queues.set_paused("q", False))
    assert world.state("q").config.lease_ms == 777
    assert world.seqs() == [1]


# --- redrive ---------------------------------------------------------------------------------------------------------


def die(world: World, *values: int, error: str, tag: str | None = None) -> None:
    world.queue("q", max_deliveries=9, dead_letter="dead")
    world.write("q", *values, tag=tag, meta={"k": 1})
    world.nack(*world.seqs(max=9), error=error, final=True)


def redrive(world: World, **asked: Any) -> Any:
    return world.call(world.engine.queues.actions.redrive("dead", Redrive(**asked)))


def test_dead_letters_come_back_as_they_were(world: World) -> None:
    die(world, 1, 2, error="down", tag="t")
    done = redrive(world)
    assert (done.examined, done.matched, done.redriven, done.caught_up) == (2, 2, 2, True)
    assert world.data("dead") == []
    records = world.records("q")
    assert [record["data"] for record in records] == [1, 2]
    assert [(record["$tag"], record["meta"]) for record in records] == [(b"t", {"k": 1})] * 2
    assert [job.deliveries for job in world.claim(max=9)] == [1, 1]


def test_a_redrive_takes_what_its_filters_say(world: World) -> None:
    die(world, 1, error="timeout of db", tag="a")
    world.advance(1000)
    die(world, 2, error="bad address", tag="b")
    assert redrive(world, error="timeout", dry_run=True).matched == 1
    assert redrive(world, match=parse_match("b"), dry_run=True).redriven == 1
    assert redrive(world, from_ts=world.clock.wall_ms(), dry_run=True).matched == 1
    assert redrive(world, to_ts=world.clock.wall_ms() - 1, dry_run=True).matched == 1
    assert world.data("dead") == [1, 2]
    assert redrive(world, error="timeout").redriven == 1
    assert (world.data("dead"), world.data("q")) == ([2], [1])


def test_a_redrive_goes_page_by_page_and_at_a_pace(world: World) -> None:
    die(world, 1, 2, 3, error="x")
    done = redrive(world, limit=2, rate=10.0)
    assert (done.examined, done.next_from_seq, done.caught_up) == (2, 2, False)
    assert redrive(world, from_seq=2).caught_up
    assert len(world.seqs(max=9)) == 2
    world.advance(100)
    assert len(world.seqs(max=9)) == 1


def test_letters_without_a_queue_are_skipped_and_named(world: World) -> None:
    die(world, 1, error="x")
    world.drop("q")
    world.write("dead", "no letter")
    assert redrive(world).skipped == [1, 2]
    world.queue("other")
    assert redrive(world, to="other").redriven == 2
    world.topic("log")
    with pytest.raises(NotAQueue):
        redrive(world, to="log")


def take_back(fs: Fs, begun: list[bool]) -> None:
    clock = SimClock()
    begun.clear()
    world = World(fs=fs, clock=clock, wal_file_bytes=8192, segment_max_events=4, seq_reserve=8)
    world.topic("dead", durability="fsync")
    world.queue("q", durability="fsync", max_deliveries=9, dead_letter="dead")
    world.write("q", 1, 2)
    world.nack(*world.seqs(max=9), final=True)
    world.checkpoint()
    begun.append(True)
    redrive(world)
    world.snapshot()


def test_a_redrive_at_every_call_brings_each_letter_back_once(crash_states: Any) -> None:
    """After the crash the job is in one place, or in both; another redrive leaves it in the queue, once."""
    count = 0
    begun: list[bool] = []
    for number, state in enumerate(distinct_crashes(lambda fs: take_back(fs, begun), note=lambda: bool(begun))):
        for world in starts(state, number, SimClock()) if state.note else ():
            count += 1
            redrive(world)
            assert sorted(world.data("q")) == [1, 2], str(state)
            assert world.data("dead") == []
    assert count > 20
    crash_states(count)
