"""A queue under random calls, against a model of its rules: time, priorities, unique keys, serial tags, a limit, the
history, and a schedule that feeds it; with kills and snapshots in between.

The model does not say which job comes next. It says of each hand-out whether it was allowed, and when nothing is handed
out, that nothing may be."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest
from tests.engine.world import World

from topics.model.record import UniqueIn
from topics.model.schedules.schedule import ScheduleRule

LEASE_MS = 5000
EVERY_MS = 7000
LIMIT = 2


@dataclass
class ModelJob:
    seq: int
    tag: str
    ready_at: int
    priority: int = 0
    key: str | None = None
    held_until: int = 0
    begun: bool = False


@dataclass
class Rules:
    """What the queue promises of its jobs (`docs/spec/semantics.md#sec-16-13`)."""

    jobs: dict[int, ModelJob] = field(default_factory=dict)
    ended: dict[int, str] = field(default_factory=dict)

    def in_flight(self, now: int) -> int:
        return sum(job.held_until >= now for job in self.jobs.values())

    def may_be_handed_out(self, job: ModelJob, now: int) -> bool:
        if job.held_until >= now or job.ready_at > now:
            return False
        return job.begun or not any(other.begun for other in self.jobs.values() if other.tag == job.tag)

    def hand_out(self, seqs: list[int], wanted: int, now: int) -> None:
        room = min(wanted, LIMIT - self.in_flight(now))
        assert len(seqs) <= max(room, 0), "more than the limit"
        ready = [job for job in self.jobs.values() if self.may_be_handed_out(job, now)]
        chosen = [self.jobs[seq] for seq in seqs]
        for job in chosen:
            assert job in ready, f"{job} may not be handed out at {now}"
        tags = Counter(job.tag for job in chosen)
        assert max(tags.values(), default=1) == 1, "two jobs of one tag"
        left = [job for job in ready if job not in chosen and job.tag not in tags]
        for job in chosen:
            rivals = [other for other in ready if other.tag == job.tag and not job.begun]
            assert (-job.priority, job.seq) == min([(-o.priority, o.seq) for o in rivals] or [(-job.priority, job.seq)])
            assert not any(other.priority > job.priority for other in left), f"{job} went before one of {left}"
        assert len(seqs) == room or not left, f"{left} might have been handed out"
        for job in chosen:
            job.held_until, job.begun = now + LEASE_MS, True


class Machine:
    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.world = World(wal_shards=2)
        self.rules = Rules()
        self.world.queue("q", serial_by="tag", concurrency=LIMIT, leases_durable=True, done="history")
        rule = ScheduleRule(every_ms=EVERY_MS, missed="all", tag="tick", priority=1)
        self.start_at = self.world.call(self.world.engine.schedules.put("s", "q", rule)).start_at
        self.ticks = 0

    @property
    def now(self) -> int:
        return self.world.clock.wall_ms()

    def step(self) -> None:
        calls = [self.write, self.write, self.claim, self.claim, self.ack, self.nack, self.cancel, self.wait]
        self.chance.choice(calls)()
        if self.chance.random() < 0.03:
            self.world = self.world.killed()
            self.look_for_ticks()
        elif self.chance.random() < 0.05:
            self.world.snapshot()

    def write(self) -> None:
        chance = self.chance
        job = ModelJob(0, chance.choice("abc"), self.now, chance.choice([-1, 0, 0, 0, 2]))
        fields: dict[str, object] = {"priority": job.priority} if job.priority else {}
        if chance.random() < 0.3:
            fields["delay_ms"] = chance.randint(1, 8000)
            job.ready_at = self.now + int(str(fields["delay_ms"]))
        if chance.random() < 0.3:
            job.key = chance.choice(["k1", "k2"])
            fields["unique"] = UniqueIn(key=job.key)
        standing = [other for other in self.rules.jobs.values() if job.key is not None and other.key == job.key]
        done = self.world.write("q", "x", tag=job.tag, fields=fields)
        if standing:
            assert done.entered.seqs == [standing[0].seq], "a second job with a key that stands"
        else:
            job.seq = done.first_seq
            self.rules.jobs[job.seq] = job

    def claim(self) -> None:
        wanted = self.chance.randint(1, 3)
        seqs = self.world.seqs(max=wanted, lease_ms=LEASE_MS)
        self.rules.hand_out(seqs, wanted, self.now)

    def held(self) -> list[ModelJob]:
        return [job for job in self.rules.jobs.values() if job.held_until >= self.now]

    def ack(self) -> None:
        for job in self.held()[:1]:
            assert self.world.ack(job.seq).acked == 1
            self.end(job.seq, "acked")

    def nack(self) -> None:
        for job in self.held()[-1:]:
            delay_ms = self.chance.choice([0, 3000])
            self.world.nack(job.seq, delay_ms=delay_ms)
            job.held_until, job.ready_at = 0, self.now + delay_ms

    def cancel(self) -> None:
        for seq in self.chance.sample(sorted(self.rules.jobs), min(len(self.rules.jobs), 1)):
            self.world.call(self.world.engine.queues.actions.cancel("q", [seq]))
            self.end(seq, "cancelled")

    def end(self, seq: int, outcome: str) -> None:
        del self.rules.jobs[seq]
        self.rules.ended[seq] = outcome

    def wait(self) -> None:
        self.world.advance(self.chance.randint(1, 4000))
        self.look_for_ticks()

    def look_for_ticks(self) -> None:
        """Each tick that is due is a job now, once."""
        self.world.rest()
        due = (self.now - self.start_at) // EVERY_MS
        ticks = [record for record in self.world.records("q") if record["$tag"] == b"tick"]
        known = {job.seq for job in self.rules.jobs.values() if job.tag == "tick"}
        new = [record for record in ticks if record["$seq"] not in known]
        assert {record["$seq"] for record in ticks} >= known
        expected = [self.start_at + EVERY_MS * number for number in range(self.ticks + 1, due + 1)]
        assert [int(record["meta"]["$scheduled_at"]) for record in new] == expected
        self.ticks = due
        for record in new:
            self.rules.jobs[record["$seq"]] = ModelJob(record["$seq"], "tick", self.now, 1)

    def judge_the_history(self) -> None:
        told = [(record["seq"], record["outcome"]) for record in self.world.data("history")]
        assert len(told) == len(self.rules.ended)
        assert dict(told) == self.rules.ended


@pytest.mark.parametrize("seed", range(6))
def test_every_hand_out_is_one_that_the_rules_allow(seed: int) -> None:
    machine = Machine(seed)
    for _ in range(120):
        machine.step()
    machine.judge_the_history()
    assert machine.rules.ended
