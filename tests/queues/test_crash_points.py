"""A queue killed, or cut from power, at every call to the disk: nothing acked comes back, nothing unacked is lost.

The ledger says what workers were told. After each crash the engine is started twice; both starts must agree with it."""

from copy import deepcopy
from dataclasses import dataclass, field
from random import Random

import pytest
from tests.queues.world import World

from topics.testing import SimClock, SimFs, SimHost, crash_states

SMALL = {"wal_file_bytes": 8192, "segment_max_events": 4, "seq_reserve": 8}
PATTERNS = ("lose_all", "reorder")


@dataclass
class Told:
    """What was answered so far."""

    jobs: set = field(default_factory=set)
    asked: set = field(default_factory=set)  # acks and letters that were asked for, answered or not
    acked: set = field(default_factory=set)
    leases: dict = field(default_factory=dict)  # seq -> lease id of a durable claim that was answered
    ids: set = field(default_factory=set)


class Story:
    def __init__(self, fs, *, durability, durable_leases, **config):
        self.told = Told()
        self.clock = SimClock()
        self.world = World(fs, fs=fs, clock=self.clock, **SMALL)
        self.durable_leases = durable_leases
        self.world.queue("q", durability=durability, leases_durable=durable_leases, **config)

    def write(self, *values):
        done = self.world.write("q", *values)
        self.told.jobs |= set(range(done.first_seq, done.last_seq + 1))

    def claim(self, count):
        jobs = self.world.claim(max=count)
        for job in jobs:
            assert job.lease_id not in self.told.ids
            self.told.ids.add(job.lease_id)
            self.told.leases[job.seq] = job.lease_id
        return [job.seq for job in jobs]

    def ack(self, *seqs):
        self.told.asked |= set(seqs)
        assert self.world.ack(*seqs).acked == len(seqs)
        self.told.acked |= set(seqs)
        for seq in seqs:
            del self.told.leases[seq]

    def nack(self, *seqs):
        for seq in seqs:
            self.told.leases.pop(seq, None)
        self.world.nack(*seqs)

    def checkpoint(self):
        self.world.checkpoint()


def crashes(run, **config):
    """Every crash of one run, with what had been told by then."""
    stories = []

    def go(fs):
        story = Story(fs, **config)
        stories.append(story)
        run(story)

    for state in crash_states(
        SimFs(), go, rng=Random(5), patterns=PATTERNS, note=lambda: deepcopy(stories[-1].told) if stories else Told()
    ):
        yield state, stories[-1]


def start(disk, how, clock):
    host = SimHost() if how == "kill" else SimHost("boot-after")
    return World(disk, clock=clock, host=host, **SMALL)


def check(state, told, clock, *, durability, durable_leases):
    keeps_all = durability == "fsync" or state.how == "kill"
    world = start(state.disk, state.how, clock)
    for again in (False, True):
        if "q" not in world.engine.state.topics:
            assert not told.jobs, state
            return None
        seqs = {seq for seq, _ in world.rows("q")}
        if keeps_all:
            assert told.jobs - told.asked <= seqs, state
            assert not told.acked & seqs, state
        if durable_leases:
            held = world.engine.state.topic("q").queue.jobs
            for seq, lease_id in told.leases.items():
                if seq in seqs and seq not in told.asked:
                    assert held[seq].lease_id == lease_id, state
        elif not again:
            assert world.counters()[:2] == (len(seqs), 0), state
        if not again:
            disk = world.disk.clone()
            disk.kill()
            world = start(disk.reboot(), state.how, clock)
    fresh = {job.lease_id for job in world.claim(node="later", max=100)}
    assert not fresh & told.ids, state
    return world


@pytest.mark.parametrize("durability", ["fsync", "disk"])
@pytest.mark.parametrize("durable_leases", [False, True])
def test_claims_and_acks_at_every_call(durability, durable_leases):
    def run(story):
        story.write("a", "b", "c")
        story.claim(2)
        story.ack(1)
        story.nack(2)
        story.checkpoint()
        story.write("d")
        story.claim(3)
        story.ack(2, 3)
        story.checkpoint()
        story.ack(4)

    config = {"durability": durability, "durable_leases": durable_leases}
    count = 0
    for state, story in crashes(run, **config):
        check(state, state.note, story.clock, **config)
        count += 1
    assert count > 50


@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_dead_letters_at_every_call(durability):
    def run(story):
        story.world.topic("dead", durability=durability)
        story.write("a", "b")
        for _ in range(2):
            story.claim(2)
            story.nack(1, 2)
        story.told.asked |= {1, 2}
        story.checkpoint()
        assert story.claim(2) == []
        story.checkpoint()

    config = {"durability": durability, "durable_leases": True, "max_deliveries": 2, "dead_letter": "dead"}
    for state, story in crashes(run, **config):
        told = state.note
        world = check(state, told, story.clock, durability=durability, durable_leases=True)
        if world is None or (durability == "disk" and state.how != "kill"):
            continue
        data = {1: "a", 2: "b"}
        letters = world.data("dead") if "dead" in world.engine.state.topics else []
        left = {seq for seq, _ in world.rows("q")}
        for seq in told.jobs:
            assert seq in left or data[seq] in letters, state
        for _ in range(3):
            world.advance(30_001)
            world.claim(node="later", max=10)
        if "dead" in world.engine.state.topics:
            gone = world.data("dead")
            assert set(gone) >= {data[seq] for seq in told.jobs}, state
            assert world.rows("q") == [], state
