"""A server that is killed and started again under a producer, a follower and workers: nothing acked is lost, nothing
comes out of order, every job is done."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.spark.served import Served

import topics
from topics.client.producer import Delivery
from topics.model.results import Job, Record

pytestmark = pytest.mark.timeout(0)  # `make sim` lets it go on for as long as it likes

KILLS_MIN = 3
PAUSE_S = 0.5


class Scene:
    """Everything that goes on while the server comes and goes."""

    def __init__(self, url: str) -> None:
        self.client = topics.connect(url, timeout=5, retry_s=60)
        self.client.topic("log").configure()
        self.client.queue("jobs").configure()
        self.acked: dict[int, int] = {}
        self.failed: list[Delivery] = []
        self.followed: list[Record] = []
        self.done: set[int] = set()
        self.jobs = 0
        self.over = threading.Event()
        self.worker = self.client.queue("jobs").worker(concurrency=4, lease_ms=2000)(self._do)
        self.threads = [
            threading.Thread(target=target, daemon=True) for target in (self._produce, self._follow, self._work)
        ]
        for thread in self.threads:
            thread.start()

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

    def _work(self) -> None:
        self.worker.run(signals=False)

    def _do(self, job: Job) -> None:
        self.done.add(job.value)

    def wind_up(self) -> None:
        self.over.set()
        self.threads[0].join(60)
        head = self.client.topic("log").state().head_seq
        wait_for(lambda: bool(self.followed) and self.followed[-1].seq >= head)
        wait_for(lambda: self.client.queue("jobs").state().count == 0)
        self.worker.stop()
        self.threads[2].join(30)


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < deadline, "it did not come to an end"
        time.sleep(0.05)


def test_a_server_killed_again_and_again_costs_nothing_that_was_acked(tmp_path: Path, sim_seconds: float) -> None:
    served = Served(tmp_path)
    try:
        scene, end, kills = Scene(served.url), time.monotonic() + sim_seconds, 0
        while kills < KILLS_MIN or time.monotonic() < end:
            time.sleep(PAUSE_S)
            served.kill()
            served.start()
            kills += 1
        time.sleep(PAUSE_S)
        scene.wind_up()
        log = {record.seq: record.value for record in scene.client.topic("log").read() if isinstance(record, Record)}
        scene.client.close()
        scene.threads[1].join(30)
    finally:
        served.stop()
    assert scene.failed == []
    assert len(scene.acked) > 100
    assert {seq: log.get(seq) for seq in scene.acked} == scene.acked
    # A batch whose answer a crash swallowed may be there twice; it is never moved.
    assert list(dict.fromkeys(log.values())) == list(range(len(scene.acked)))
    assert [(record.seq, record.value) for record in scene.followed] == list(log.items())
    assert scene.done == set(range(0, len(scene.acked), 10))
    assert not any(thread.is_alive() for thread in scene.threads)
