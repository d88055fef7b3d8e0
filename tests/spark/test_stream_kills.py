"""A stream that is killed at random points and goes on from its checkpoint delivers each record once.

Twenty starts of Java take minutes, so most kills are made without one: the process of the driver is frozen, what it has
on disk at that instant is kept, and when the query has been stopped its folder is put back to that: exactly what a
`kill -9` there would have left. Some rounds kill Python workers instead, and SPARK_LONG=1 kills twenty real drivers.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.served import ROOT, Served
from tests.spark.stream_job import start
from tests.spark.test_cluster import children

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LONG = "SPARK_LONG" in os.environ
KILLS = 20
TOPICS = ("k-a", "k-b", "k-later")


@contextmanager
def writing(served: Served) -> Iterator[None]:
    """Records come in all the time; a third topic appears on the way."""
    over = threading.Event()

    def write() -> None:
        begun = time.monotonic()
        while not over.wait(0.2):
            for topic in TOPICS[: 3 if time.monotonic() - begun > 4 else 2]:
                served.write(topic, *range(5), tag="t")

    for topic in TOPICS[:2]:
        served.write(topic, *range(300))
    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)


def check(spark: SparkSession, served: Served, folder: Path) -> None:
    """The rest is read, and then everything is there once."""
    assert start(spark, served.url, folder, once=True).awaitTermination(300), "the last run did not come to its end"
    found = Counter((row.topic, row.seq) for row in spark.read.parquet(str(folder / "out")).collect())
    expected = {(topic, row[0]) for topic in TOPICS for row in served.rows(topic)}
    assert len(expected) > 600
    assert [key for key, count in found.items() if count > 1] == []
    assert set(found) == expected
    assert cursors(served) == {topic: served.rows(topic)[-1][0] for topic in TOPICS}


def cursors(served: Served) -> dict[str, int]:
    """Where the query's cursor stands in each topic."""
    listed = served.call("GET", "/v0/cursors?prefix=k-")["cursors"]
    assert all(each["meta"] == {"kind": "spark", "query": "kills"} for each in listed)
    return {each["topic"]: each["seq"] for each in listed}


def committed(folder: Path) -> dict[str, int]:
    """The last seq of each topic that the checkpoint has as done; of a query that has done nothing, where it starts."""
    batch = commits(folder)
    if batch < 0:
        return dict.fromkeys(TOPICS, 0)
    offset = json.loads((folder / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()[2])
    return {topic: point["seq"] - 1 for topic, point in offset.items()}


# --- kills without a new Java process ---------------------------------------------------------------------------------


def java_pid(spark: SparkSession) -> int:
    pid: int = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    return pid


def workers(spark: SparkSession) -> list[int]:
    """Python workers of this session: grandchildren of its Java process."""
    return [worker for daemon in children(java_pid(spark)) for worker in children(daemon)]


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """No thread of the process runs."""
    os.kill(pid, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 10
        while not _is_stopped(pid):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _is_stopped(pid: int) -> bool:
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def as_if_killed(spark: SparkSession, query: StreamingQuery, served: Served, folder: Path) -> None:
    """Ends a query and leaves of it what a `kill -9` of the driver at this instant would have left. No cursor is ahead
    of that."""
    left = folder.with_name(f"{folder.name}-left")
    with frozen(java_pid(spark)):
        shutil.copytree(folder, left)
        found = cursors(served)
    done = committed(left)
    assert {topic: seq for topic, seq in found.items() if seq > done.get(topic, 0)} == {}
    query.stop()
    put_back(left, folder)


def put_back(left: Path, folder: Path) -> None:
    """Tasks of a stopped query write on for a moment, as those of a lost executor would: what they leave counts for
    nothing, as no log of the query names it, but one of them may make the folder anew."""
    for attempt in range(100):
        with suppress(FileNotFoundError):
            folder.rename(folder.with_name(f"{left.name}-over-{time.monotonic_ns()}"))
        with suppress(OSError):
            left.rename(folder)
            return
        time.sleep(0.01 * attempt)
    raise AssertionError(f"{folder} cannot be put back")


def kill_workers(spark: SparkSession, query: StreamingQuery) -> None:
    """Until the query has failed of it."""
    deadline = time.monotonic() + 30
    while query.isActive and time.monotonic() < deadline:
        for pid in workers(spark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    query.stop()


def run_on(query: StreamingQuery, *, batches: int, then_s: float) -> None:
    """Let a query do so many batches, and a little more."""
    deadline = time.monotonic() + 60
    while query.isActive and len(query.recentProgress) < batches and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(then_s)


@pytest.mark.timeout(400)
def test_twenty_kills_lose_and_double_nothing(spark: SparkSession, served: Served, tmp_path: Path) -> None:
    rng = random.Random(20)
    folder = tmp_path / "stream"
    folder.mkdir()
    failed = torn = 0
    with writing(served):
        for kill in range(KILLS):
            query = start(spark, served.url, folder, once=False)
            run_on(query, batches=rng.choice((0, 1, 1, 2)), then_s=rng.uniform(0, 0.6))
            if kill % 4 == 3:
                kill_workers(spark, query)
                failed += query.exception() is not None
            else:
                as_if_killed(spark, query, served, folder)
                torn += offsets(folder) > commits(folder)
    assert failed >= KILLS // 8  # killing workers did fail queries
    assert torn >= KILLS // 8  # and some kills hit the middle of a batch
    check(spark, served, folder)


def offsets(folder: Path) -> int:
    return _newest(folder / "checkpoint" / "offsets")


def commits(folder: Path) -> int:
    return _newest(folder / "checkpoint" / "commits")


def _newest(log: Path) -> int:
    """The last batch that a log of the checkpoint tells of."""
    return max((int(path.name) for path in log.glob("[0-9]*")), default=-1)


# --- real ones --------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(1800)
@pytest.mark.skipif(not LONG, reason="twenty starts of Java: SPARK_LONG=1 runs it")
def test_killed_drivers_lose_and_double_nothing(spark: SparkSession, served: Served, tmp_path: Path) -> None:
    rng = random.Random(9)
    command = [sys.executable, str(ROOT / "tests" / "spark" / "stream_job.py"), served.url, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with writing(served):
        for _ in range(KILLS):
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True)
            assert process.stdout is not None
            assert process.stdout.readline() == b"started\n"
            time.sleep(rng.uniform(0.5, 6))
            os.killpg(process.pid, signal.SIGKILL)
            process.stdout.close()
            process.wait(30)
    check(spark, served, tmp_path)
