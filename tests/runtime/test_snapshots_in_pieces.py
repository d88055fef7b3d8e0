"""Snapshots whose pieces lie far apart: clients act between the barrier, the capture and the installation, so all that
a snapshot holds is younger than its position in the log. A kill at any time changes nothing that anyone could see.

The seed of a history is the parameter of its test."""

from __future__ import annotations

import os
from random import Random
from typing import Any

import pytest
from tests.engine.world import World

from topics.core.queue.queue_job import LEASED, READY, QueueJob

TAGS = ("x1", "x2", "y")
STEPS = 45
HISTORIES = max(50, int(float(os.environ.get("SIM_SECONDS", 0)) * 4))  # `make sim` takes about its time


class History:
    """A log `t`, a log `u` of its own config, and a queue `q` whose leases are kept."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        seal = rng.choice([2, 5, 50])
        self.world = World(wal_shards=rng.choice([1, 3]), segment_max_events=seal, wal_file_bytes=1 << 16)
        self.durability = rng.choice(["fsync", "disk"])
        self.next = 0
        for name in ("t", "u"):
            self.configure(name)
        self.world.queue("q", durability=self.durability, leases_durable=True, max_deliveries=3, dead_letter="dead")
        self.world.topic("dead", durability=self.durability)

    def run(self) -> None:
        steps = (self.write, self.write, self.delete, self.configure, self.work, self.tidy, self.tidy, self.pause)
        for _ in range(STEPS):
            self.rng.choice(steps)()
            if self.rng.random() < 0.2:
                self.check()

    # --- what clients do ------------------------------------------------------------------------------------------

    def write(self) -> None:
        count = self.rng.randint(1, 4)
        self.next += count
        values = range(self.next - count, self.next)
        self.world.write(self.rng.choice("tuq"), *values, tag=self.rng.choice(TAGS))

    def delete(self) -> None:
        topic = self.rng.choice("tu")
        match = self.rng.choice([*TAGS, "x*", None, None])
        before = max(self.world.state(topic).head_seq - self.rng.randint(-1, 5), 0)
        self.world.delete(topic, match=match, before=None if match and self.rng.random() < 0.5 else before)

    def configure(self, topic: str = "") -> None:
        limits = {
            "cap_records": self.rng.choice([0, 0, 3, 8]),
            "cap_bytes": self.rng.choice([0, 0, 6, 20]),
            "ttl_ms": self.rng.choice([0, 0, 500]),
        }
        self.world.topic(topic or self.rng.choice("tu"), durability=self.durability, **limits)

    def work(self) -> None:
        seqs = self.world.seqs("q", max=self.rng.randint(1, 3), lease_ms=self.rng.choice([200, 60_000]))
        some = seqs[: self.rng.randint(0, len(seqs))]
        doing = self.rng.choice([self.world.ack, self.world.nack, self.world.extend])
        if some:
            doing(*some)
        if seqs and self.rng.random() < 0.3:
            self.world.nack(seqs[-1], delay_ms=self.rng.choice([100, 1000]))

    def pause(self) -> None:
        self.world.advance(self.rng.choice([10, 150, 600]))

    def tidy(self) -> None:
        getattr(self.world, self.rng.choice(["checkpoint", "snapshot", "begin_snapshot", "begin_snapshot", "go_on"]))()

    # --- crashes --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        before = self.shown(self.world)
        once = self.world.killed()
        assert self.shown(once) == before
        assert self.shown(once.killed()) == before

    def shown(self, world: World) -> dict[str, Any]:
        """All that readers and workers can see; nothing here changes it, and the clock stands."""
        seen: dict[str, Any] = {}
        for name in ("t", "u", "q", "dead"):
            state = world.state(name)
            topic = world.engine.state.topic(name)
            numbers = state.head_seq, state.earliest_seq, state.count, state.bytes, topic.evict_floor
            seen[name] = numbers, world.rows(name), world.gaps(name), state.config
        queue = world.engine.state.topic("q").queue
        assert queue is not None
        seen["leases"] = world.counters(), [_held(job) for _, job in sorted(queue.jobs.items())]
        return seen


def _held(job: QueueJob) -> tuple[int, ...]:
    """A lease or a delay that is over leaves its id and its end behind, which tell nobody anything."""
    due_at = 0 if job.state == READY else job.due_at
    return job.seq, job.state, job.deliveries, due_at, job.lease_id if job.state == LEASED else 0


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_a_kill_changes_nothing_however_young_the_snapshot_is(seed: int) -> None:
    History(seed).run()
