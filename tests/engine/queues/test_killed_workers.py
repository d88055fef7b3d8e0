"""Eight worker processes, killed at random while producers go on, against a real server.

The oracle knows only what workers said before they died and what the topics hold in the end. It judges that every job
ends exactly once (acked, dead-lettered, or still there to be claimed), that no job has two valid leases at a time, and
that no ack under a superseded lease takes effect."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.engine.queues.worker import LEASE_MS
from tests.spark.served import Served

pytestmark = pytest.mark.timeout(0)  # `make sim` lets it go on for as long as it likes

WORKERS = 8
STREAMS = 2  # of them
MAX_DELIVERIES = 6
ACKED_MIN, KILLS_MIN = 40, 15
GRACE_S = 90  # for a busy machine
BACKLOG_MAX = 200  # jobs that wait before producers pause: old jobs must get their turn


class Lease(NamedTuple):
    number: int
    seq: int
    deadline: int
    life: int
    """Which life of which worker held it."""

    @property
    def start(self) -> int:
        return self.deadline - LEASE_MS


@dataclass
class Oracle:
    """What workers said. Only the lines of one pipe are in order."""

    leases: dict[int, list[Lease]] = field(default_factory=lambda: defaultdict(list))
    data: dict[int, str] = field(default_factory=dict)
    deadlines: dict[int, int] = field(default_factory=dict)  # by lease, as extended
    ended: set[int] = field(default_factory=set)  # leases whose holder asked for an end
    asked: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))  # acks asked for, by seq
    acked: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # leases, by seq
    refused: set[tuple[int, int]] = field(default_factory=set)
    streams: set[int] = field(default_factory=set)  # lives that ended with their stream
    heard: set[int] = field(default_factory=set)  # lives that said anything
    faults: list[str] = field(default_factory=list)

    def hear(self, life: int, line: bytes) -> None:
        self.heard.add(life)
        kind, *event = json.loads(line)
        if kind == "got":
            seq, lease_id, deadline, _, data = event
            lease = Lease(_number(lease_id), seq, deadline, life)
            self.leases[seq].append(lease)
            if self.data.setdefault(seq, data) != data:
                self.faults.append(f"job {seq} was {self.data[seq]!r} and then {data!r}")
        elif kind == "ask":
            verb, seq, lease_id = event
            if verb == "ack":
                self.asked[seq].add(_number(lease_id))
            if verb in ("ack", "nack"):
                self.ended.add(_number(lease_id))
        else:
            self._answered(kind, *event)

    def _answered(self, verb: str, seq: int, lease_id: str, taken: bool, deadline: int) -> None:
        number = _number(lease_id)
        if not taken:
            self.refused.add((seq, number))
        elif verb == "ack":
            self.acked[seq].append(number)
        elif verb == "extend":
            self.deadlines[number] = deadline

    # --- judging --------------------------------------------------------------------------------------------------

    def judge_leases(self) -> None:
        numbers = Counter(lease.number for leases in self.leases.values() for lease in leases)
        assert max(numbers.values()) == 1, "a lease id was handed out twice"
        for leases in self.leases.values():
            leases.sort()
            for one, next_one in pairwise(leases):
                over = one.number in self.ended or one.life in self.streams
                held_until = max(one.deadline, self.deadlines.get(one.number, 0))
                assert over or next_one.start > held_until, f"two valid leases: {one} and {next_one}"

    def judge_acks(self) -> None:
        for seq, numbers in self.acked.items():
            assert len(numbers) == 1, f"job {seq} was acked twice, under leases {numbers}"
            assert numbers[0] == self.leases[seq][-1].number, f"job {seq} was acked under a superseded lease"

    def judge_ends(self, jobs: dict[int, str], left: dict[int, str], dead: Counter[int]) -> None:
        for seq, data in jobs.items():
            is_acked, may_be_acked = seq in self.acked, seq in self.asked
            ends = is_acked + (seq in left) + (seq in dead)
            where = f"acked: {is_acked}, left: {seq in left}, dead: {seq in dead}"
            assert ends == 1 or (ends == 0 and may_be_acked), f"job {seq} ended {ends} times ({where})"
            assert dead[seq] <= 1, f"job {seq} was dead-lettered twice"
            assert self.data.get(seq, data) == data
        assert set(left) | set(dead) | set(self.acked) <= set(jobs), "a job nobody wrote"

    @property
    def superseded(self) -> int:
        """Calls that were refused because somebody else had the job by then."""
        refused = list(self.refused)  # first: other threads add to both, a lease before its refusal
        newest = {seq: max(lease.number for lease in leases) for seq, leases in list(self.leases.items())}
        return sum(number < newest[seq] for seq, number in refused)


def _number(lease_id: str) -> int:
    return int(lease_id.removeprefix("lease_"), 16)


class Crew:
    """Workers that are killed and replaced. Every life has a number."""

    def __init__(self, address: str, oracle: Oracle, chance: random.Random) -> None:
        self._address = address
        self._oracle = oracle
        self._chance = chance
        self._lives = 0
        self.kills = 0
        self._readers: list[threading.Thread] = []
        self._life_at: dict[int, int] = {}
        self._workers = [self._start(place) for place in range(WORKERS)]

    def _start(self, place: int) -> subprocess.Popen[bytes]:
        self._lives += 1
        self._life_at[place] = self._lives
        how = "stream" if place < STREAMS else "claim"
        if how == "stream":
            self._oracle.streams.add(self._lives)
        script = str(Path(__file__).with_name("worker.py"))
        command = [sys.executable, "-S", script, self._address, f"w{place}", str(self._lives), how]
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        reader = threading.Thread(target=self._listen, args=(self._lives, worker), daemon=True)
        reader.start()
        self._readers.append(reader)
        return worker

    def _listen(self, life: int, worker: subprocess.Popen[bytes]) -> None:
        assert worker.stdout is not None
        assert worker.stderr is not None
        with worker:
            for line in worker.stdout:
                if line.endswith(b"\n"):
                    self._oracle.hear(life, line)
            trouble = worker.stderr.read()
        if worker.returncode != -signal.SIGKILL:
            self._oracle.faults.append(f"worker {life} ended by itself: {trouble.decode()[-500:]}")

    def kill_one(self) -> None:
        """One that has come to work: on a busy machine the others would never get that far."""
        places = [place for place, life in self._life_at.items() if life in self._oracle.heard]
        if not places:
            return
        self.kills += 1
        place = self._chance.choice(places)
        os.kill(self._workers[place].pid, signal.SIGKILL)
        self._workers[place] = self._start(place)

    def kill_all(self) -> None:
        for worker in self._workers:
            os.kill(worker.pid, signal.SIGKILL)
        for reader in self._readers:
            reader.join(30)


class Producer:
    """Writes jobs in small batches as long as not too many of them wait."""

    def __init__(self, served: Served, name: str) -> None:
        self._served = served
        self._name = name
        self.jobs: dict[int, str] = {}
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        number = 0
        while not self.over.is_set():
            values = [f"{self._name}-{number + at}" for at in range(number % 7 + 1)]
            body = {"records": [{"data": value} for value in values]}
            answer = self._served.call("POST", "/v0/topics/jobs", body)
            self.jobs |= dict(zip(range(answer["first_seq"], answer["last_seq"] + 1), values, strict=True))
            number += len(values)
            while not self.over.wait(0.005) and self._waiting() >= BACKLOG_MAX:
                pass

    def _waiting(self) -> int:
        return int(self._served.call("GET", "/v0/topics/jobs")["count"])


def contents(served: Served, topic: str) -> list[tuple[int, Any, Any]]:
    return [(row[0], row[4], row[5]) for row in served.rows(topic)]


@pytest.mark.parametrize("leases_durable", [False, True])
def test_every_job_ends_once_whoever_is_killed(tmp_path: Path, sim_seconds: float, leases_durable: bool) -> None:
    served, oracle, chance = Served(tmp_path), Oracle(), random.Random(7)
    try:
        served.put("dead")
        served.put(
            "jobs", type="queue", max_deliveries=MAX_DELIVERIES, dead_letter="dead", leases_durable=leases_durable
        )
        producers = [Producer(served, name) for name in ("p", "q")]
        crew = Crew(served.url.removeprefix("http://"), oracle, chance)
        began = time.monotonic()
        while time.monotonic() < began + sim_seconds or not enough(crew, oracle):
            assert time.monotonic() < began + sim_seconds + GRACE_S, "hardly anything is done"
            time.sleep(chance.uniform(0.05, 0.25))
            crew.kill_one()
        for producer in producers:
            producer.over.set()
            producer.thread.join(30)
        crew.kill_all()
        judge(served, oracle, {seq: data for producer in producers for seq, data in producer.jobs.items()})
    finally:
        served.stop()


def enough(crew: Crew, oracle: Oracle) -> bool:
    """To learn anything from: some workers were late, and some were killed."""
    return len(oracle.acked) >= ACKED_MIN and crew.kills >= KILLS_MIN and oracle.superseded > 0


def judge(served: Served, oracle: Oracle, jobs: dict[int, str]) -> None:
    assert oracle.faults == []
    oracle.judge_leases()
    oracle.judge_acks()
    left, letters = settled(served)
    dead = Counter(int(meta["$dead_letter_src_seq"]) for _, _, meta in letters)
    assert all(meta["$dead_letter_deliveries"] == str(MAX_DELIVERIES) for _, _, meta in letters)
    oracle.judge_ends(jobs, left, dead)
    judge_what_is_left(served, left)


def settled(served: Served) -> tuple[dict[int, str], list[tuple[int, Any, Any]]]:
    """What is left and what is dead, once calls of workers that were killed are over. A letter is copied before its job
    is deleted, and a busy disk takes its time for each: while one is in both, the move is under way."""
    deadline = time.monotonic() + 20
    before = None
    while True:
        now = contents(served, "jobs"), contents(served, "dead")
        left = {seq: data for seq, data, _ in now[0]}
        is_moving = any(int(meta["$dead_letter_src_seq"]) in left for _, _, meta in now[1])
        if (now == before and not is_moving) or time.monotonic() > deadline:
            return left, now[1]
        before = now
        time.sleep(0.3)


def judge_what_is_left(served: Served, left: dict[int, str]) -> None:
    """When the last leases are over, every job that is left can be claimed by one worker, once, or is a dead letter."""
    before = len(contents(served, "dead"))
    claimed: list[int] = []
    deadline = time.monotonic() + 20
    while served.call("GET", "/v0/topics/jobs")["count"] > 0:
        assert time.monotonic() < deadline, "jobs are left that nobody gets"
        jobs = served.call("POST", "/v0/topics/jobs/claim", {"node": "last", "max": 1000, "lease_ms": 60_000})[
            "claimed"
        ]
        seqs = [job["$seq"] for job in jobs]
        claimed += seqs
        answer = served.call("POST", "/v0/topics/jobs/ack", {"node": "last", "seqs": seqs})
        assert answer["acked"] == len(seqs)
        time.sleep(0.05)
    moved = len(contents(served, "dead")) - before
    assert len(claimed) == len(set(claimed))
    assert set(claimed) <= set(left)
    assert len(claimed) + moved == len(left)
