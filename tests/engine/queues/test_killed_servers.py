"""Eight worker processes and the server, killed at random while producers and schedules go on.

Leases are durable and tags are serial, jobs have unique keys, a history is told of each end, and a schedule ticks each
second. In the end: each job that was produced is done, and told once; no tag had two valid leases at a time, and its
jobs were begun in order; no tick is missing and none came twice."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.engine.queues.steady_worker import LEASE_MS, call
from tests.spark.served import Served

pytestmark = pytest.mark.timeout(0)  # `make sim` lets it go on for as long as it likes

WORKERS = 8
TAGS = 5
WORKER_KILLS_MIN, SERVER_KILLS_MIN, DONE_MIN = 8, 2, 30
GRACE_S = 120  # for a busy machine
BACKLOG_MAX = 60


class SerialLease(NamedTuple):
    number: int
    seq: int
    deadline: int
    job: int


class Crew:
    """Workers that are killed and replaced, and what they said."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.leases: dict[str, list[SerialLease]] = defaultdict(list)  # by tag
        self.ended: set[int] = set()
        self.faults: list[str] = []
        self.kills = 0
        self._readers: list[threading.Thread] = []
        self._workers = [self._start(place) for place in range(WORKERS)]

    def _start(self, place: int) -> subprocess.Popen[bytes]:
        script = str(Path(__file__).with_name("steady_worker.py"))
        command = [sys.executable, "-S", script, self._address, f"w{place}"]
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        reader = threading.Thread(target=self._listen, args=(worker,), daemon=True)
        reader.start()
        self._readers.append(reader)
        return worker

    def _listen(self, worker: subprocess.Popen[bytes]) -> None:
        assert worker.stdout is not None
        assert worker.stderr is not None
        with worker:
            for line in worker.stdout:
                if line.endswith(b"\n"):
                    self._hear(*json.loads(line))
            trouble = worker.stderr.read()
        if worker.returncode != -signal.SIGKILL:
            self.faults.append(trouble.decode()[-500:])

    def _hear(self, kind: str, *event: Any) -> None:
        if kind == "got":
            seq, tag, lease_id, deadline, job = event
            self.leases[tag].append(SerialLease(_number(lease_id), seq, deadline, job))
        else:
            self.ended.add(_number(event[0]))

    def kill_one(self, place: int) -> None:
        self.kills += 1
        self._workers[place].kill()
        self._workers[place] = self._start(place)

    def kill_all(self) -> None:
        while self._workers:
            self._workers.pop().kill()
        for reader in self._readers:
            reader.join(30)

    def judge(self, delayed: set[int]) -> None:
        """A job whose delay still runs does not hold up its tag; of the others the order is that of their seqs."""
        assert self.faults == []
        for tag, leases in self.leases.items():
            leases.sort()
            assert len({lease.number for lease in leases}) == len(leases), "a lease id was handed out twice"
            begun = list(dict.fromkeys(lease.seq for lease in leases if lease.job not in delayed))
            assert begun == sorted(begun), f"jobs of tag {tag} were begun out of order"
            for one, following in pairwise(leases):
                is_over = one.number in self.ended or following.deadline - LEASE_MS > one.deadline
                assert is_over, f"tag {tag} had two valid leases: {one} and {following}"


class Producer:
    """Writes each job until it was answered: the unique key makes the second try harmless."""

    def __init__(self, address: str, chance: random.Random) -> None:
        self._address = address
        self._chance = chance
        self.produced = 0
        self.delayed: set[int] = set()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.over.wait(0.01):
            number = self.produced
            job = {"data": number, "tag": f"t{number % TAGS}", "unique": {"key": f"job-{number}", "for_ms": 86_400_000}}
            if self._chance.random() < 0.2:
                job["delay_ms"] = self._chance.randint(1, 300)
                self.delayed.add(number)
            while call(self._address, "POST", "/v0/topics/jobs", {"records": [job]}) is None:
                pass
            self.produced += 1
            if number % 10 == 0:
                self._let_them_catch_up()

    def _let_them_catch_up(self) -> None:
        while not self.over.wait(0.05):
            state = call(self._address, "GET", "/v0/topics/jobs")
            if state is not None and state["count"] < BACKLOG_MAX:
                return


def _number(lease_id: str) -> int:
    return int(lease_id.removeprefix("lease_"), 16)


def test_every_job_is_done_and_told_once_whoever_is_killed(tmp_path: Path, sim_seconds: float) -> None:
    served, chance = Served(tmp_path), random.Random(11)
    address = served.url.removeprefix("http://")
    crew = producer = None
    try:
        served.put("jobs", type="queue", leases_durable=True, serial_by="tag", done="history")
        put = served.call("PUT", "/v0/schedules/beat", {"topic": "beats", "every_ms": 1000, "missed": "all"})
        producer, crew = Producer(address, chance), Crew(address)
        began, server_kills = time.monotonic(), 0
        while time.monotonic() < began + sim_seconds or not (
            crew.kills >= WORKER_KILLS_MIN and server_kills >= SERVER_KILLS_MIN and producer.produced >= DONE_MIN
        ):
            assert time.monotonic() < began + sim_seconds + GRACE_S, "hardly anything is done"
            assert crew.faults == [], tracebacks(served)
            time.sleep(chance.uniform(0.05, 0.4))
            crew.kill_one(chance.randrange(WORKERS))
            if chance.random() < 0.25:
                served.kill()
                served.start()
                server_kills += 1
        producer.over.set()
        producer.thread.join(30)
        wait_until_done(served)
        crew.kill_all()
        crew.judge(producer.delayed)
        judge_history(served, producer.produced)
        judge_ticks(served, put["start_at"])
        assert tracebacks(served) == []
    finally:
        if producer is not None:
            producer.over.set()
        if crew is not None:
            crew.kill_all()
        served.stop()


def tracebacks(served: Served) -> list[str]:
    """What the servers wrote of mistakes of theirs."""
    return [line for line in (served.path / "log").read_text().splitlines() if "Traceback" in line]


def wait_until_done(served: Served) -> None:
    deadline = time.monotonic() + GRACE_S
    while served.call("GET", "/v0/topics/jobs")["count"]:
        assert time.monotonic() < deadline, "jobs are left that nobody does"
        time.sleep(0.1)


def judge_history(served: Served, produced: int) -> None:
    ends = [row[4] for row in served.rows("history")]
    assert {end["outcome"] for end in ends} == {"acked"}
    told = Counter(end["seq"] for end in ends)
    assert max(told.values()) == 1, f"ends that were told twice: {[seq for seq, n in told.items() if n > 1]}"
    assert Counter(end["result"] for end in ends) == dict.fromkeys(range(produced), 1), "a job twice, or not at all"


def judge_ticks(served: Served, start_at: int) -> None:
    ticks = [int(row[5]["$scheduled_at"]) for row in served.rows("beats")]
    assert ticks == [start_at + 1000 * number for number in range(1, len(ticks) + 1)]
    assert len(ticks) >= 3
