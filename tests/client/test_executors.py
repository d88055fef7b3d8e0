"""One worker, three places where its function runs: threads, child processes, tasks of an event loop."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.client import job_functions

import topics
from topics.client.jobs.handling import TimeLimitPassed
from topics.client.jobs.worker import ExecutorKind, WorkerOptions
from topics.embedded import Database
from topics.errors import ConfigError, InvalidRequest
from topics.model.results import Job

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with topics.open(tmp_path_factory.mktemp("executors"), wal_shards=1) as opened:
        yield opened


@pytest.mark.parametrize("executor", ["threads", "processes", "asyncio"])
def test_every_executor_does_every_job_once_and_calls_the_hooks(
    db: Database, name: str, tmp_path: Path, executor: ExecutorKind
) -> None:
    queue = db.queue(name)
    queue.append_many([{"n": n, "dir": str(tmp_path)} for n in range(4)])
    function: Any = job_functions.anote if executor == "asyncio" else job_functions.note
    work = queue.worker(
        executor=executor,
        concurrency=2,
        until_empty=True,
        before=job_functions.before,
        after=job_functions.after,
    )(function)
    work.run(signals=False)
    assert (work.done, work.failed, queue.state().count) == (4, 0, 0)
    hooks = [f"{hook}-{seq}" for hook in ("after", "before") for seq in range(1, 5)]
    assert job_functions.names(tmp_path) == sorted([*map(str, range(4)), *hooks])
    processes = {int((tmp_path / str(n)).read_text()) for n in range(4)}
    assert (processes == {os.getpid()}) == (executor != "processes")


@pytest.mark.parametrize("fate", ["die_once", "sleep_once"])
def test_a_process_that_dies_or_takes_too_long_costs_one_delivery(
    db: Database, name: str, tmp_path: Path, fate: str
) -> None:
    queue = db.queue(name, retry={"base_ms": 1})
    queue.append({"n": 1, "dir": str(tmp_path)})
    work = queue.worker(executor="processes", time_limit_s=2.0, prefetch=0)(getattr(job_functions, fate))
    threading.Thread(target=stop_when, args=(work, lambda: work.done == 1)).start()
    work.run(signals=False)
    assert (work.done, work.failed) == (1, 1)
    assert job_functions.names(tmp_path) == ["1"]


def stop_when(work: Any, is_reached: Any) -> None:
    deadline = time.monotonic() + 30
    while not is_reached() and time.monotonic() < deadline:
        time.sleep(0.01)
    work.stop()


@pytest.mark.parametrize("executor", ["threads", "processes", "asyncio"])
def test_progress_that_a_function_reports_is_seen_in_the_list_of_jobs(
    db: Database, name: str, tmp_path: Path, executor: ExecutorKind
) -> None:
    queue = db.queue(name)
    queue.append({"dir": str(tmp_path)})
    function: Any = job_functions.areport if executor == "asyncio" else job_functions.report
    work = queue.worker(executor=executor, until_empty=True)(function)
    running = threading.Thread(target=work.run, kwargs={"signals": False})
    running.start()
    try:
        deadline = time.monotonic() + 30
        while (seen := next(iter(queue.jobs())).progress) is None or seen.fraction != 0.25:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert seen.text == "a quarter"
    finally:
        (tmp_path / "seen").touch()
        running.join(30)
    assert (work.done, work.failed) == (1, 0)


def test_progress_while_leases_are_short_does_not_cost_another_lease(db: Database, name: str) -> None:
    queue = db.queue(name)
    queue.append_many([1, 2])

    @queue.worker(concurrency=2, lease_ms=2000, until_empty=True)  # a busy machine stands still for half a second
    def work(job: Job) -> None:
        until = time.monotonic() + 4.5
        while time.monotonic() < until:
            if job.value == 1:
                job.progress(0.5)
            time.sleep(0.02)

    work.run(signals=False)
    assert (work.done, work.failed, queue.state().count) == (2, 0, 0)


def test_progress_outside_a_worker_is_checked_and_ignored(db: Database, name: str) -> None:
    queue = db.queue(name)
    queue.append(1)
    (job,) = queue.claim("w").claimed
    job.progress(0.5, "ä" * 1000)
    with pytest.raises(InvalidRequest, match="0 to 1, not 2"):
        job.progress(2)
    assert next(iter(queue.jobs())).progress is None


def test_a_function_of_a_process_must_be_importable(db: Database, name: str) -> None:
    work = db.queue(name).worker(executor="processes")(lambda job: None)
    with pytest.raises(ConfigError, match="imports its function by name"):
        work.run(signals=False)


def test_an_executor_that_does_not_fit_the_function_is_told(db: Database, name: str) -> None:
    with pytest.raises(ConfigError, match="coroutine"):
        db.queue(name).worker(executor="threads")(job_functions.anote).run(signals=False)
    with pytest.raises(ValueError, match="threads, processes or asyncio"):
        WorkerOptions(executor="fibres")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="above 0"):
        WorkerOptions(time_limit_s=0)


def test_a_thread_that_takes_too_long_is_interrupted(db: Database, name: str) -> None:
    queue, met = db.queue(name, max_deliveries=1), []

    @queue.worker(time_limit_s=0.05, until_empty=True)
    def work(job: Job) -> None:
        try:
            while True:
                time.sleep(0.001)
        except TimeLimitPassed as limit:
            met.append(type(limit))
            raise

    queue.append(1)
    work.run(signals=False)
    assert (met, work.failed) == ([TimeLimitPassed], 1)
    queue.claim("w")
    (letter,) = queue.dead_letters().read()
    assert letter.headers["$dead_letter_error"].startswith("TimeLimitPassed")


def test_a_task_that_takes_too_long_is_cancelled(db: Database, name: str) -> None:
    queue, met = db.queue(name), []

    @queue.worker(time_limit_s=0.05, until_empty=True)
    async def work(job: Job) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            met.append("cancelled")
            raise

    queue.append(1)
    work.run(signals=False)
    assert (met, work.failed) == (["cancelled"], 1)
    (info,) = queue.jobs()
    assert info.error == "TimeLimitPassed: more than 0.05 s"


def test_a_job_that_is_given_up_is_a_dead_letter_at_once(db: Database, name: str) -> None:
    queue = db.queue(name)
    queue.append("bad")
    queue.worker(until_empty=True)(job_functions.give_up).run(signals=False)
    (letter,) = queue.dead_letters().read()
    assert letter.headers["$dead_letter_error"] == "GiveUp: no such customer"
    assert queue.state().count == 0


def test_a_function_may_say_when_its_job_comes_again(db: Database, name: str) -> None:
    queue = db.queue(name)
    queue.append("pay")
    work = queue.worker(until_empty=True)(job_functions.later)
    work.run(signals=False)
    (info,) = queue.jobs()
    assert (info.state, info.error) == ("delayed", "RetryLater: the bank is closed")
    assert info.due is not None
    assert info.due - info.ts > 3_500_000


def test_what_a_function_returns_is_its_result_in_the_history(db: Database, name: str) -> None:
    queue = db.queue(name, done=f"{name}.done")
    queue.append(20)
    queue.append("x")

    @queue.worker(until_empty=True)
    def double(job: Job) -> object:
        return 2 * job.value if job.value == 20 else {1, object()}  # a set of objects is no JSON

    double.run(signals=False)
    assert [record.value.get("result") for record in db.topic(f"{name}.done").read()] == [40, None]


def test_a_hook_that_raises_fails_the_job(db: Database, name: str) -> None:
    queue = db.queue(name)
    queue.append(1)

    def refuse(job: Job) -> None:
        raise PermissionError("not today")

    work = queue.worker(until_empty=True, before=refuse)(lambda job: None)
    work.run(signals=False)
    (info,) = queue.jobs()
    assert (work.failed, info.error) == (1, "PermissionError: not today")


def test_a_queue_without_a_retry_rule_is_not_worked_in_circles(db: Database, name: str) -> None:
    db.topic(name).configure(type="queue")
    queue = db.queue(name)
    queue.append(1)

    def fail(job: Job) -> None:
        raise RuntimeError("always")

    work = queue.worker(until_empty=True)(fail)
    work.run(signals=False)
    assert (work.failed, [info.state for info in queue.jobs()]) == (1, ["delayed"])


def test_an_idle_worker_makes_one_call_for_a_wait(db: Database, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No polling: a job that comes after half the wait is done at once, and the wait was one claim."""
    queue = db.queue(name)
    queue.configure()
    claims: list[int] = []
    real = db._door.run

    async def counted(route: Any, topic: str, request: Any) -> Any:
        if getattr(request, "wait_ms", 0):
            claims.append(request.wait_ms)
        return await real(route, topic, request)

    monkeypatch.setattr(db._door, "run", counted)
    took: list[float] = []

    @queue.worker()
    def work(job: Job) -> None:
        took.append(time.time() - job.value)
        work.stop()

    threading.Timer(0.25, lambda: queue.append(time.time())).start()
    work.run(signals=False)
    assert len(claims) <= 3
    assert took[0] < 0.2
