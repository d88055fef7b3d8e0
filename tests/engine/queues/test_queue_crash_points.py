"""A queue killed, or cut from power, at every call to the disk: nothing acked comes back, nothing unacked is lost.

`Told` says what workers were told by the moment of the crash. What was asked and not answered then may have happened or
not; everything else has to be as it was told, as far as the queue's class and `leases_durable` keep it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.engine.crashing import SMALL, distinct_crashes, starts
from tests.engine.world import JobList, World

from topics.core.queue.operations import queue_of
from topics.core.queue.queue_job import DELAYED, LEASED
from topics.model.record import UniqueIn
from topics.storage.fs import Fs
from topics.testing import SimClock
from topics.testing.crashes import CrashState

Count = Callable[[int], None]


@dataclass
class Told:
    """What was answered so far, by seq. `asked` is what a call that was not answered yet may have changed."""

    jobs: dict[int, str] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    moved: set[int] = field(default_factory=set)
    leases: dict[int, tuple[int, int]] = field(default_factory=dict)  # lease id and deadline
    delays: dict[int, int] = field(default_factory=dict)  # ready at
    deliveries: dict[int, int] = field(default_factory=dict)
    ids: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)


class Story:
    """One queue `q`, and everything its producers and workers were told."""

    def __init__(self, fs: Fs, config: dict[str, Any]) -> None:
        self.told = Told()
        self.clock = SimClock()
        self.world = World(fs=fs, clock=self.clock, **SMALL)
        self.world.topic("dead", durability=config["durability"])
        self.world.queue("q", **config)

    def write(self, *values: str) -> None:
        done = self.world.write("q", *values)
        self.told.jobs |= dict(zip(range(done.first_seq, done.last_seq + 1), values, strict=True))

    def claim(self, count: int, *, lease_ms: int = 30_000) -> list[int]:
        told = self.told
        told.asked = set(told.jobs) - set(told.leases)
        jobs = self.world.claim(max=count, lease_ms=lease_ms)
        told.asked = set()
        for job in jobs:
            assert job.lease_id not in told.ids
            told.ids.add(job.lease_id)
            told.leases[job.seq] = job.lease_id, job.deadline
            told.deliveries[job.seq] = job.deliveries
            told.delays.pop(job.seq, None)
        return [job.seq for job in jobs]

    def ack(self, *seqs: int) -> None:
        self.told.asked = set(seqs)
        assert self.world.ack(*seqs).acked == len(seqs)
        self.told.asked = set()
        self.told.acked |= set(seqs)

    def nack(self, *seqs: int, delay_ms: int = 0) -> None:
        self.told.asked = set(seqs)
        assert self.world.nack(*seqs, delay_ms=delay_ms).nacked == len(seqs)
        self.told.asked = set()
        for seq in seqs:
            del self.told.leases[seq]
            if delay_ms:
                self.told.delays[seq] = self.clock.wall_ms() + delay_ms

    def extend(self, *seqs: int, lease_ms: int) -> None:
        self.told.asked = set(seqs)
        deadlines = self.world.extend(*seqs, lease_ms=lease_ms).deadlines
        self.told.asked = set()
        assert set(deadlines) == set(seqs)
        for seq, deadline in deadlines.items():
            self.told.leases[seq] = self.told.leases[seq][0], deadline

    def move(self) -> None:
        """A claim that finds nothing but exhausted jobs."""
        left = set(self.told.jobs) - self.told.acked
        assert self.claim(10) == []
        self.told.moved |= left


def crashes(run: Callable[[Story], None], config: dict[str, Any]) -> Iterator[tuple[CrashState, Told, World]]:
    """Every start after every crash of one run, with what had been told by then. The clock stands still."""
    stories: list[Story] = []

    def go(fs: Fs) -> None:
        stories.clear()
        stories.append(Story(fs, config))
        run(stories[0])

    note: Callable[[], Told] = lambda: deepcopy(stories[0].told) if stories else Told()  # noqa: E731
    for number, state in enumerate(distinct_crashes(go, note=note)):
        told = state.note
        assert isinstance(told, Told)
        for world in starts(state, number, SimClock(stories[0].clock.wall_ms())):
            yield state, told, world


def keeps(config: dict[str, Any], state: CrashState) -> bool:
    """Does the queue's class keep everything in this crash?"""
    return bool(config["durability"] == "fsync" or state.how == "kill")


def check(told: Told, world: World, *, keeps_all: bool, killed: bool = False) -> bool:
    """Jobs, leases, counters and ids; False if the queue was not born yet."""
    if "q" not in world.engine.state.topics:
        assert not told.jobs
        return False
    rows = dict(world.rows("q"))
    gone = told.acked | told.moved
    for seq, value in rows.items():
        assert told.jobs.get(seq, value) == value, f"{seq} was renamed"
    if keeps_all:
        assert set(told.jobs) - gone - told.asked <= set(rows), "a job is lost"
        assert not gone & set(rows), "a job came back"
    topic = world.engine.state.topic("q")
    check_leases(told, world, set(rows), keeps_all=keeps_all and topic.config.keeps_leases)
    ready, in_flight, _ = world.counters()
    delayed = queue_of(topic).delayed
    assert ready + in_flight + delayed == len(rows)
    if not topic.config.keeps_leases:
        assert in_flight == 0, "every job that is not delayed is claimable at once"
        if killed:
            check_counts_and_delays(told, world, set(rows))
    return True


def check_counts_and_delays(told: Told, world: World, alive: set[int]) -> None:
    """What a kill leaves of leases that are not kept."""
    held = queue_of(world.engine.state.topic("q")).jobs
    for seq in (alive - told.asked) & set(told.delays):
        assert held[seq].deliveries == told.deliveries[seq]
        assert held[seq].due_at == told.delays[seq]  # the clock may have passed it


def check_leases(told: Told, world: World, alive: set[int], *, keeps_all: bool) -> None:
    if not keeps_all:
        return
    held = queue_of(world.engine.state.topic("q")).jobs
    certain = alive - told.asked
    for seq in certain & set(told.deliveries):
        assert held[seq].deliveries == told.deliveries[seq]
    for seq in certain & set(told.leases):
        assert (held[seq].state, held[seq].lease_id, held[seq].deadline) == (LEASED, *told.leases[seq])
    for seq in certain & set(told.delays):
        assert (held[seq].state, held[seq].due_at) == (DELAYED, told.delays[seq])
    for seq in certain - set(told.leases) - set(told.delays):
        assert seq not in held or held[seq].state not in (LEASED, DELAYED)


def check_next_claims(told: Told, world: World) -> None:
    """Every job there is can be had, once, under an id that nobody ever saw."""
    world.advance(100_000)
    jobs = sorted(seq for seq, _ in world.rows("q"))
    claimed = world.claim(node="later", max=100)
    assert [job.seq for job in claimed] == jobs
    assert not {job.lease_id for job in claimed} & told.ids, "a lease id was handed out twice"
    assert world.claim(node="much later", max=100) == [], "a job has two holders"


def work(story: Story) -> None:
    story.write("a", "b", "c", "d")
    story.claim(3)
    story.ack(1)
    story.nack(2)
    story.nack(3, delay_ms=60_000)
    story.world.checkpoint()
    story.write("e")
    story.claim(2)
    story.extend(2, lease_ms=90_000)
    story.world.snapshot()
    story.ack(2, 4)
    story.claim(1)
    story.ack(5)


@pytest.mark.parametrize("durability", ["fsync", "disk"])
@pytest.mark.parametrize("leases_durable", [False, True])
def test_claims_acks_nacks_and_extends_at_every_call(
    durability: str, leases_durable: bool, crash_states: Count
) -> None:
    config = {"durability": durability, "leases_durable": leases_durable}
    count = 0
    for state, told, world in crashes(work, config):
        count += 1
        try:
            if check(told, world, keeps_all=keeps(config, state), killed=state.how == "kill"):
                check_next_claims(told, world)
        except AssertionError as error:
            error.add_note(str(state))
            raise
    assert count > 50
    crash_states(count)


def exhaust(story: Story) -> None:
    story.write("a", "b")
    for _ in range(2):
        story.claim(2)
        story.nack(1, 2)
    story.world.checkpoint()
    story.move()
    story.write("c")
    story.world.snapshot()
    story.claim(1)


@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_dead_letters_at_every_call(durability: str, crash_states: Count) -> None:
    """A job is in the queue or in the dead-letter topic, at every moment; the move goes on after the crash."""
    config = {"durability": durability, "leases_durable": True, "max_deliveries": 2, "dead_letter": "dead"}
    count = 0
    for state, told, world in crashes(exhaust, config):
        count += 1
        try:
            kept = keeps(config, state)
            if check(told, world, keeps_all=kept) and kept:
                check_letters(told, world)
        except AssertionError as error:
            error.add_note(str(state))
            raise
    assert count > 50
    crash_states(count)


def check_letters(told: Told, world: World) -> None:
    left = {seq for seq, _ in world.rows("q")}
    letters = world.data("dead")
    for seq, value in told.jobs.items():
        assert seq in left or value in letters, f"job {seq} is nowhere"
    for _ in range(4):
        world.advance(30_001)
        world.claim(node="later", max=10)
    assert world.rows("q") == []
    records = world.records("dead")
    assert {record["data"] for record in records} >= set(told.jobs.values())
    for record in records:
        meta = record["meta"]
        assert (meta["$dead_letter_from"], meta["$dead_letter_deliveries"]) == ("q", "2")
        assert told.jobs.get(int(meta["$dead_letter_src_seq"]), record["data"]) == record["data"]


def serve_a_stream(story: Story) -> None:
    """Leases of a work stream end with the process, whatever was kept of the others."""
    world, told = story.world, story.told
    story.write("a", "b", "c")
    story.claim(1)
    told.asked = {2, 3}
    stream = world.engine.queues.open_stream("q", node="s", max=2)
    stream.start(JobList())
    world.rest()
    world.checkpoint()
    world.snapshot()
    stream.close()
    world.rest()
    story.claim(1)


def test_work_streams_at_every_call(crash_states: Count) -> None:
    config = {"durability": "fsync", "leases_durable": True}
    count = 0
    for state, told, world in crashes(serve_a_stream, config):
        count += 1
        try:
            if check(told, world, keeps_all=True):
                held = queue_of(world.engine.state.topic("q")).jobs
                assert not any(job.node == "s" and job.state == LEASED for job in held.values())
                check_next_claims(told, world)
        except AssertionError as error:
            error.add_note(str(state))
            raise
    crash_states(count)


def enter(story: Story) -> None:
    """Jobs with a time, a priority and a unique key; the key passes to a new job, twice."""
    world, told = story.world, story.told

    def write(value: str, fields: dict[str, Any], *, replaces: int = 0) -> None:
        told.asked = {replaces}
        done = world.write("q", value, fields=unique(fields))
        told.asked = set()
        told.jobs[done.first_seq] = value
        told.acked |= {replaces} if replaces else set()

    story.write("plain")
    write("delayed", {"delay_ms": 60_000})
    write("k1", {"unique": "k", "priority": 3})
    world.checkpoint()
    write("k2", {"unique": {"key": "k", "on_conflict": "replace"}, "delay_ms": 60_000}, replaces=3)
    world.snapshot()
    write("k3", {"unique": {"key": "k", "on_conflict": "replace"}}, replaces=4)


def unique(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: UniqueIn(**given) if isinstance(given, dict) else given for name, given in fields.items()}


@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_job_fields_and_replaced_keys_at_every_call(durability: str, crash_states: Count) -> None:
    config = {"durability": durability, "leases_durable": False}
    count = 0
    for state, told, world in crashes(enter, config):
        count += 1
        try:
            if check(told, world, keeps_all=keeps(config, state)):
                check_fields(world)
        except AssertionError as error:
            error.add_note(str(state))
            raise
    assert count > 50
    crash_states(count)


def check_fields(world: World) -> None:
    """A record that is there has its fields, and of the key there is one job, to which it leads."""
    rows = {value: seq for seq, value in world.rows("q")}
    queue = queue_of(world.engine.state.topic("q"))
    assert {value for value in rows if value in ("delayed", "k2")} == {
        value for value, seq in rows.items() if (row := queue.fields.get(seq)) is not None and row.ready_at
    }
    standing = [seq for value, seq in rows.items() if value.startswith("k")]
    assert len(standing) <= 1, "two jobs have one key"
    found = queue.unique.find("k", world.clock.wall_ms())
    assert ([] if found is None else [found.seq]) == standing
    again = world.write("q", "k4", fields={"unique": "k"})
    assert again.entered.seqs == (standing or [again.first_seq])
