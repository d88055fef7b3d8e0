"""Work loops and workers, over the embedded library and over the blocking client."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.api.server import LiveServer

import topics
from topics.client.client import Client
from topics.client.jobs.claims import retry_delay_ms
from topics.errors import NotAQueue, TopicsError, TopicsWarning
from topics.model.config import RetryRule
from topics.model.results import Job

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(params=["embedded", "blocking"], scope="module")
def door(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path: Path = tmp_path_factory.mktemp("work")
    if request.param == "embedded":
        with topics.open(str(path), wal_shards=1) as db:
            yield db
    else:
        with LiveServer(path) as live, topics.connect(f"http://127.0.0.1:{live.port}", retry_s=5) as client:
            yield client


def counters(queue: Any) -> tuple[int, int, int]:
    state = queue.state()
    return state.queue.ready, state.queue.in_flight, state.count


# --- for job in queue.work() -----------------------------------------------------------------------------------------


def test_a_loop_acks_each_job_when_it_comes_back_for_the_next(door: Client, name: str) -> None:
    queue = door.queue(name)
    queue.append_many(range(5))
    assert [job.value for job in queue.work("w", max=2, until_empty=True)] == [0, 1, 2, 3, 4]
    assert counters(queue) == (0, 0, 0)


def test_an_empty_queue_is_an_empty_loop(door: Client, name: str) -> None:
    door.queue(name).configure()
    assert list(door.queue(name).work(until_empty=True)) == []


def test_leaving_a_loop_gives_back_what_is_not_settled(door: Client, name: str) -> None:
    queue = door.queue(name)
    queue.append_many(range(5))
    with queue.work("w", max=5) as jobs:
        for job in jobs:
            if job.value == 1:
                break
    assert counters(queue) == (4, 0, 4)
    with pytest.raises(RuntimeError), queue.work("w", max=5) as jobs:
        raise RuntimeError(f"in the middle of {next(jobs)}")
    assert counters(queue) == (3, 0, 4)  # the one that failed is put off


def test_a_loop_that_is_left_by_an_exception_holds_nothing(door: Client, name: str) -> None:
    queue = door.queue(name)
    queue.append_many(range(3))

    def fail() -> None:
        for job in queue.work("w", max=3):
            raise RuntimeError(str(job.value))

    gc.disable()  # it must not take a collection to notice
    try:
        with pytest.raises(RuntimeError, match="0"):
            fail()
        assert counters(queue) == (3, 0, 3)
    finally:
        gc.enable()


def test_a_loop_that_is_dropped_without_a_job_ends_its_thread(door: Client, name: str) -> None:
    queue = door.queue(name)
    queue.append("job")

    def work() -> threading.Thread:
        jobs = queue.work("w")
        next(jobs).ack()
        queue.drop()
        door.topic(name).append("no job")
        with pytest.raises(NotAQueue):
            next(jobs)
        keeper = jobs._claims._keeper
        assert isinstance(keeper, threading.Thread)
        return keeper

    thread = work()
    gc.collect()  # an error holds the frames it came through
    assert not thread.is_alive()


def test_a_worker_that_cannot_begin_leaves_signals_alone(door: Client, name: str) -> None:
    before = signal.getsignal(signal.SIGTERM)
    door.topic(name).append(1)
    with pytest.raises(NotAQueue), pytest.warns(TopicsWarning, match="type='log'"):
        door.queue(name).worker()(print).run()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_function_that_wants_to_exit_has_failed(door: Client, name: str) -> None:
    queue = door.queue(name, retry={"base_ms": 1})
    queue.append("only")

    @queue.worker()
    def work(job: Job) -> None:
        if job.deliveries == 1:
            sys.exit(3)
        work.stop()

    work.run()
    assert (work.done, work.failed) == (1, 1)
    assert counters(queue) == (0, 0, 0)


def test_a_job_may_be_settled_by_hand(door: Client, name: str) -> None:
    queue = door.queue(name)
    queue.append_many(["keep", "done"])
    for job in queue.work(max=2, until_empty=True):
        assert job.nack(delay_ms=60_000) if job.value == "keep" else job.ack()
    assert counters(queue) == (0, 0, 1)


def test_a_waiting_loop_gets_a_job_as_soon_as_it_is_there(door: Client, name: str) -> None:
    queue = door.queue(name)
    queue.configure()
    at: list[float] = []

    def later() -> None:
        time.sleep(0.2)
        at.append(time.monotonic())
        queue.append("late")

    threading.Thread(target=later).start()
    with queue.work() as jobs:
        job = next(jobs)
        assert time.monotonic() - at[0] < 0.4  # well before the next look at delays
        job.ack()


def test_a_lease_is_kept_while_the_body_runs(door: Client, name: str) -> None:
    queue = door.queue(name, lease_ms=600)
    queue.append("long")
    with queue.work("w") as jobs:
        job = next(jobs)
        time.sleep(1.5)  # more than two leases long
        assert queue.claim("thief").claimed == []
        assert not job.is_lost
        assert job.ack()


def test_a_lost_lease_is_told(door: Client, name: str) -> None:
    queue = door.queue(name, lease_ms=150)
    queue.append("x")
    with queue.work("w") as jobs:
        job = next(jobs)
        queue.nack([job.seq], node="w", delay_ms=0)
        (stolen,) = queue.claim("thief", lease_ms=60_000).claimed
        deadline = time.monotonic() + 5
        while not job.is_lost and time.monotonic() < deadline:
            time.sleep(0.02)
        assert job.is_lost
        assert not job.ack()
    assert queue.ack([stolen], node="thief").acked == 1


def test_a_stop_event_ends_a_waiting_loop(door: Client, name: str) -> None:
    queue, stop = door.queue(name), threading.Event()
    queue.configure()
    threading.Timer(0.1, stop.set).start()
    assert list(queue.work(stop=stop)) == []


def test_working_on_what_is_no_queue_is_told(door: Client, name: str) -> None:
    door.topic(name).append(1)
    with pytest.raises(NotAQueue), pytest.warns(TopicsWarning, match="type='log'"):
        next(door.queue(name).work())


# --- @queue.worker ---------------------------------------------------------------------------------------------------


def test_a_worker_may_come_before_the_first_job(door: Client, name: str) -> None:
    queue, seen = door.queue(name, max_deliveries=3), []

    @queue.worker()
    def work(job: Job) -> None:
        seen.append(job.value)
        work.stop()

    threading.Timer(0.1, queue.append, ["first"]).start()
    work.run()
    assert seen == ["first"]
    assert queue.state().config.max_deliveries == 3


def test_a_loop_may_come_before_the_first_job(door: Client, name: str) -> None:
    assert list(door.queue(name).work(until_empty=True)) == []


def test_a_worker_does_every_job_once(door: Client, name: str) -> None:
    queue, seen = door.queue(name), []
    queue.append_many(range(300))

    @queue.worker(concurrency=8, until_empty=True)
    def work(job: Job) -> None:
        seen.append(job.value)

    work.run()
    assert sorted(seen) == list(range(300))
    assert (work.done, work.failed) == (300, 0)
    assert counters(queue) == (0, 0, 0)


def test_a_worker_runs_jobs_side_by_side(door: Client, name: str) -> None:
    queue, together = door.queue(name), threading.Barrier(4, timeout=10)
    queue.append_many(range(4))

    @queue.worker(concurrency=4, until_empty=True)
    def work(job: Job) -> None:
        together.wait()

    work.run()
    assert work.done == 4


def test_a_job_that_fails_comes_back_after_a_while(door: Client, name: str) -> None:
    queue, tries = door.queue(name, retry={"base_ms": 40}), []
    queue.append("flaky")

    @queue.worker()
    def work(job: Job) -> None:
        tries.append((job.deliveries, time.monotonic()))
        if job.deliveries < 3:
            raise RuntimeError("not yet")
        work.stop()

    work.run()
    assert [deliveries for deliveries, _ in tries] == [1, 2, 3]
    assert tries[1][1] - tries[0][1] >= 0.02
    assert (work.done, work.failed) == (1, 2)
    assert counters(queue) == (0, 0, 0)


def test_a_job_that_fails_for_the_last_time_is_said_to_go_to_the_dead_letters(
    door: Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = door.queue(name, max_deliveries=2, dead_letter=f"{name}.dead", retry={"base_ms": 1})
    queue.append("poison")

    @queue.worker()
    def work(job: Job) -> None:
        if job.deliveries == 2:
            work.stop()
        raise RuntimeError("never")

    work.run()
    first, last = (record.getMessage() for record in caplog.records if record.name == "topics.worker")
    assert "failed, comes again: " in first
    assert f"failed, was its last try; goes to '{name}.dead': " in last
    assert last.endswith("RuntimeError: never\n")
    assert queue.claim("w").claimed == []
    assert [letter.value for letter in door.topic(f"{name}.dead").read()] == ["poison"]


def test_leases_are_kept_while_functions_run(door: Client, name: str) -> None:
    queue, runs = door.queue(name, lease_ms=600), []
    queue.append("long")

    @queue.worker(concurrency=2, until_empty=True)
    def work(job: Job) -> None:
        runs.append(job.seq)
        time.sleep(1.5)

    work.run()
    assert runs == [1]


def test_sigterm_lets_running_jobs_finish_and_gives_back_the_rest(door: Client, name: str) -> None:
    queue, finished = door.queue(name), []
    queue.append_many(range(10))

    @queue.worker(concurrency=2, prefetch=8)
    def work(job: Job) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
        finished.append(job.value)

    before = signal.getsignal(signal.SIGTERM)
    work.run()
    assert signal.getsignal(signal.SIGTERM) is before
    assert 1 <= len(finished) <= 2
    assert counters(queue) == (10 - len(finished), 0, 10 - len(finished))


def test_a_worker_may_run_again(door: Client, name: str) -> None:
    queue, seen = door.queue(name), []

    @queue.worker(until_empty=True)
    def work(job: Job) -> None:
        seen.append(job.value)
        if job.value == "last":
            work.stop()

    for value in ("first", "last", "after a stop"):
        queue.append(value)
        work.run()
    assert seen == ["first", "last", "after a stop"]
    assert counters(queue) == (0, 0, 0)


def test_a_worker_that_is_stopped_before_its_run_does_nothing_in_it(door: Client, name: str) -> None:
    queue = door.queue(name)
    queue.append(1)
    work = queue.worker(until_empty=True)(lambda job: None)
    work.stop()
    work.run()
    assert (work.done, counters(queue)) == (0, (1, 0, 1))


def test_a_job_that_outlives_its_run_does_not_disturb_the_next(door: Client, name: str) -> None:
    queue, seen, go_on = door.queue(name), [], threading.Event()
    queue.append("slow")

    @queue.worker(grace_s=0.05, until_empty=True)
    def work(job: Job) -> None:
        seen.append(job.value)
        if job.value == "slow":
            work.stop()
            go_on.wait(10)

    work.run()
    queue.append("quick")
    go_on.set()
    work.run()
    assert seen == ["slow", "quick"]


def test_a_worker_is_still_a_function(door: Client, name: str) -> None:
    queue = door.queue(name)
    queue.append(4)

    @queue.worker()
    def double(job: Job) -> int:
        return 2 * int(job.value)

    assert double(queue.claim("w").claimed[0]) == 8


def test_delays_double_with_jitter_up_to_a_bound() -> None:
    rule = RetryRule(base_ms=1000, max_ms=5000, jitter=0.5)
    assert [retry_delay_ms(rule, n, 0.5) for n in (1, 2, 3, 4, 5000)] == [1000, 2000, 4000, 5000, 5000]
    assert [retry_delay_ms(rule, 1, chance) for chance in (0.0, 1.0)] == [500, 1500]


def test_a_worker_of_a_closed_database_ends(tmp_path: Path) -> None:
    db = topics.open(str(tmp_path), wal_shards=1)
    queue = db.queue("q")
    queue.configure()

    @queue.worker(until_empty=False)
    def work(job: Job) -> None:
        raise AssertionError("there is no job")

    threading.Timer(0.2, db.close).start()
    with pytest.raises(TopicsError, match="closed"):
        work.run()
