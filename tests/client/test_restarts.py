"""A server that is killed and started again under a producer, a follower and workers: nothing acked is lost, nothing
comes out of order, every job is done."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.spark.served import Served

import topics
from topics.client.producing.batching import Delivery
from topics.model.results import Job, Record

pytestmark = pytest.mark.timeout(0)  # `make sim` lets it go on for as long as it likes

KILLS_MIN = 6
EVERY_S = 1.0  # from kill to kill; where a start takes longer, the server still lives for LIFE_S_MIN
LIFE_S_MIN = 0.4
WORKERS = 4


class Scene:
    """Everything that goes on while the server comes and goes."""

    def __init__(self, url: str) -> None:
        self.client = topics.connect(url, timeout=5, retry_s=60)
        self.client.topic("log").configure()
        self.client.queue("jobs").configure()
        self.acked: dict[int, int] = {}
        self.failed: list[Delivery] = []
        self.followed: list[Record] = []
        self.done: Counter[int] = Counter()
        self.jobs = 0
        self.over = threading.Event()
        workers = [self.client.queue("jobs").worker(lease_ms=2000, node=f"worker-{n}") for n in range(WORKERS)]
        self.workers = [made(self._do) for made in workers]
        self.producing = threading.Thread(target=self._produce, daemon=True)
        self.following = threading.Thread(target=self._follow, daemon=True)
        self.working = [
            threading.Thread(target=worker.run, kwargs={"signals": False}, daemon=True) for worker in self.workers
        ]
        for thread in self.threads:
            thread.start()

    @property
    def threads(self) -> list[threading.Thread]:
        return [self.producing, self.following, *self.working]

    def _produce(self) -> None:
        with self.client.producer(linger_ms=1, batch_records=50) as producer:
            number = 0
            while not self.over.is_set():
                producer.append(number, topic="log", report=self._report(number))
                if number % 10 == 0:
                    producer.append(number, topic="jobs", report=self._job_report)
                number += 1
                time.sleep(0.0005)

    def _report(self, number: int) -> Any:
        def told(delivery: Delivery) -> None:
            if delivery.error is not None:
                self.failed.append(delivery)
            else:
                assert delivery.seq not in self.acked
                self.acked[delivery.seq] = number

        return told

    def _job_report(self, delivery: Delivery) -> None:
        self.jobs += 1
        if delivery.error is not None:
            self.failed.append(delivery)

    def _follow(self) -> None:
        for item in self.client.topic("log").follow():
            assert isinstance(item, Record)
            self.followed.append(item)

    def _do(self, job: Job) -> None:
        self.done[job.value] += 1

    def wind_up(self) -> None:
        self.over.set()
        self.producing.join(60)
        head = self.client.topic("log").state().head_seq
        wait_for(lambda: bool(self.followed) and self.followed[-1].seq >= head)
        wait_for(lambda: self.client.queue("jobs").state().count == 0)
        for worker, thread in zip(self.workers, self.working, strict=True):
            worker.stop()
            thread.join(30)


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < deadline, "it did not come to an end"
        time.sleep(0.05)


def kill_every_second(served: Served, *, seconds: float) -> int:
    """How often the server was killed. The moment within its second differs from kill to kill."""
    chance, end, kills = random.Random(9), time.monotonic() + seconds, 0
    next_kill = time.monotonic()
    while kills < KILLS_MIN or time.monotonic() < end:
        next_kill = max(next_kill + EVERY_S * (0.8 + 0.4 * chance.random()), time.monotonic() + LIFE_S_MIN)
        time.sleep(next_kill - time.monotonic())
        served.kill()
        served.start()
        kills += 1
    return kills


def test_a_server_killed_every_second_costs_nothing_that_was_acked(tmp_path: Path, sim_seconds: float) -> None:
    served = Served(tmp_path)
    try:
        scene = Scene(served.url)
        kills = kill_every_second(served, seconds=sim_seconds)
        scene.wind_up()
        log = {record.seq: record.value for record in scene.client.topic("log").read() if isinstance(record, Record)}
        scene.client.close()
        scene.following.join(30)
    finally:
        served.stop()
    again = sum(scene.done.values()) - len(scene.done)
    twice = len(log) - len(scene.acked)
    print(f"{kills} kills, {len(scene.acked)} acked, {twice} twice, {len(scene.done)} jobs done, {again} again")
    assert scene.failed == []
    assert len(scene.acked) > 100
    assert {seq: log.get(seq) for seq in scene.acked} == scene.acked
    # A batch whose answer a crash swallowed may be there twice; it is never moved.
    assert list(dict.fromkeys(log.values())) == list(range(len(scene.acked)))
    assert [(record.seq, record.value) for record in scene.followed] == list(log.items())
    assert set(scene.done) == set(range(0, len(scene.acked), 10))
    assert not any(thread.is_alive() for thread in scene.threads)
