"""A stream that is killed at random points and goes on from its checkpoint delivers each record once."""

from __future__ import annotations

import os
import random
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
KILLS = 20 if LONG else 6
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
    found = Counter((row.topic, row.seq) for row in spark.read.parquet(str(folder / "out")).collect())
    expected = {(topic, row[0]) for topic in TOPICS for row in served.rows(topic)}
    assert len(expected) > 600
    assert [key for key, count in found.items() if count > 1] == []
    assert set(found) == expected


def workers(spark: SparkSession) -> list[int]:
    """Python workers of this session: grandchildren of its Java process."""
    java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    return [worker for daemon in children(java) for worker in children(daemon)]


def run_on(query: StreamingQuery, *, batches: int, then_s: float) -> None:
    """Let a query do so many batches, and a little more."""
    deadline = time.monotonic() + 60
    while query.isActive and len(query.recentProgress) < batches and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(then_s)


@pytest.mark.timeout(400)
def test_stops_and_dead_workers_lose_and_double_nothing(spark: SparkSession, served: Served, tmp_path: Path) -> None:
    rng = random.Random(20)
    failed = 0
    with writing(served):
        for kill in range(KILLS):
            query = start(spark, served.url, tmp_path, once=False)
            run_on(query, batches=rng.choice((0, 1, 1, 2)), then_s=rng.uniform(0, 0.6))
            deadline = time.monotonic() + 30
            while kill % 2 and query.isActive and time.monotonic() < deadline:
                for pid in workers(spark):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.05)
            failed += query.exception() is not None
            query.stop()
    start(spark, served.url, tmp_path, once=True).awaitTermination(120)
    assert failed >= KILLS // 4  # killing workers did fail queries
    check(spark, served, tmp_path)


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
    start(spark, served.url, tmp_path, once=True).awaitTermination(120)
    check(spark, served, tmp_path)
