"""Random histories of routers that lag behind their source, around snapshots taken in pieces: records die before their
turn, between the barrier of a snapshot and its capture, before and after a checkpoint has put them into segments.

Readers look only now and then, so a router may stand anywhere when a crash comes. After every crash a seq that a reader
was given names the same record or none, what is missing is announced, and what a reader could see after a kill, or in
`fsync` topics, is still there, if need be under another seq. The seed of a history is the parameter of its test."""

from __future__ import annotations

import os
from contextlib import ExitStack
from random import Random
from typing import Any

import pytest
from tests.engine.world import World

from topics.engine.routers import routers

DESTS = ("b", "c")
TAGS = ("x1", "x2", "y")
TIDY = ("checkpoint", "snapshot", "begin_snapshot", "begin_snapshot", "go_on", "rest")
FATES = ("keep_all", "lose_all", "keep_prefix_torn", "reorder")
STEPS = 40
HISTORIES = max(60, int(float(os.environ.get("SIM_SECONDS", 0)) * 4))  # `make sim` takes about its time


class History:
    """a -> b -> c, where the first router passes on everything and the second what has the tag `x*`."""

    def __init__(self, seed: int, *, notes_the_dead: bool) -> None:
        self.rng = rng = Random(seed)
        self.notes_the_dead = notes_the_dead
        self.world = World(
            wal_shards=rng.choice([1, 3]),
            segment_max_events=rng.choice([2, 5, 50]),
            wal_file_bytes=1 << 16,
            seq_reserve=16,
        )
        self.durability = rng.choice(["fsync", "disk", "disk", "memory"])
        self.is_queue = rng.random() < 0.3
        self.next = 0
        self.named: dict[str, dict[int, Any]] = {name: {} for name in DESTS}
        self.live: dict[str, dict[int, Any]] = {name: {} for name in DESTS}
        self.deferring: ExitStack | None = None
        self.world.topic("a", type="queue" if self.is_queue else "log", durability=self.durability)
        for name in DESTS:
            self.world.topic(name, durability=self.durability)
        self.world.router("ab", "a", "b")
        guarantee = rng.choice(["exactly_once", "at_least_once"])
        self.world.router("bc", "b", "c", filter="x*", guarantee=guarantee)

    def run(self) -> None:
        steps = (self.write, self.write, self.delete, self.ack, self.tidy, self.lag, self.look, self.crash)
        for _ in range(STEPS):
            self.rng.choice(steps)()

    # --- what clients do ------------------------------------------------------------------------------------------

    def write(self, topic: str = "") -> None:
        count = self.rng.randint(1, 4)
        self.next += count
        values = range(self.next - count, self.next)
        self.world.write(topic or self.rng.choice("aaab"), *values, tag=self.rng.choice(TAGS))

    def delete(self, topic: str = "") -> None:
        """A delete in a destination brings it up to date first, so a reader could see all of that."""
        topic = topic or self.rng.choice("aab")
        if topic in DESTS:
            self.look()
        match = self.rng.choice([*TAGS, "x*", None, None, None])
        before = max(self.world.engine.state.topic(topic).head - self.rng.randint(-1, 5), 0)
        self.world.delete(topic, match=match, before=None if match and self.rng.random() < 0.5 else before)
        if topic in DESTS:
            self.look()

    def ack(self) -> None:
        if self.is_queue:
            self.world.ack(*self.world.seqs("a", max=self.rng.randint(1, 3)), name="a")

    def look(self) -> None:
        for name in DESTS:
            self.live[name] = dict(self.world.rows(name))
            for seq, data in self.live[name].items():
                assert self.named[name].setdefault(seq, data) == data

    # --- what the engine does in the background -------------------------------------------------------------------

    def lag(self) -> None:
        """Routers are deferred, or go on."""
        if self.deferring is None:
            self.deferring = ExitStack()
            self.deferring.enter_context(self.world.routers_deferred())
            self.write("a")
            self.tidy()
            self.delete("a")
        else:
            self.deferring.close()
            self.deferring = None

    def tidy(self) -> None:
        getattr(self.world, self.rng.choice(TIDY))()

    # --- crashes --------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        self.check(self.world.killed(), keeps_all=self.notes_the_dead)
        is_kept = self.durability == "fsync" and self.notes_the_dead
        self.check(self.world.cut(self.rng.randint(0, 9), self.rng.choice(FATES)), keeps_all=is_kept)

    def check(self, after: World, *, keeps_all: bool) -> None:
        expected = {name: set(self.live[name].values()) for name in DESTS}
        for world in (after, after.killed()):
            for name in DESTS:
                rows, gaps = dict(world.rows(name)), world.gaps(name)
                for seq, data in rows.items():
                    assert self.named[name].get(seq, data) == data, f"{name} {seq}: {self.named[name][seq]}, now {data}"
                for seq, data in self.live[name].items():
                    told = seq in rows or any(lo <= seq <= hi for lo, hi, _ in gaps)
                    assert told, f"{name} {seq} ({data}) is missing in silence"
                missing = expected[name] - set(rows.values()) if keeps_all else ()
                assert not missing, f"{name}: {missing} are no more"


def make_world(durability: str, *, seal: int) -> World:
    world = World(segment_max_events=seal)
    world.topic("a", durability=durability)
    world.topic("b", durability=durability)
    world.router("r", "a", "b")
    world.write("a", 1, 2)
    return world


@pytest.fixture(params=["fsync", "disk"])
def world(request: pytest.FixtureRequest) -> World:
    return make_world(request.param, seal=2)


def renamed(world: World) -> list[int]:
    """Seqs of `b` that would hold another record after a kill or a power cut, or after a second start behind either."""
    before = dict(world.rows("b"))
    world.kernel.sync_all()
    found = []
    for after in (world.killed(), world.cut()):
        for start in (after, after.killed()):
            found += [seq for seq, data in start.rows("b") if before.get(seq, data) != data]
    return found


def test_a_record_deleted_before_its_turn_and_before_a_snapshot_was_captured_does_not_turn_up(world: World) -> None:
    """The snapshot's `delete_below` is younger than its position, so the delete by tag finds nothing in replay."""
    world.begin_snapshot()
    with world.routers_deferred():
        world.write("a", 3, tag="dead")
        world.delete("a", match="dead")
    world.write("a", 4, 5)
    world.delete("a", before=6)
    world.let_go()
    world.write("a", 6)
    assert world.data("b") == [1, 2, 4, 5, 6]
    assert renamed(world) == []


@pytest.mark.parametrize("bound", [5, 6, 7])
def test_records_deleted_before_their_turn_in_segments_without_flags_do_not_turn_up(world: World, bound: int) -> None:
    """A segment that is dead as a whole is not flagged but dropped, and that waits for the router."""
    with world.routers_deferred():
        world.write("a", 3, 4, 5, 6)
        world.checkpoint()
        world.delete("a", before=bound)
        world.snapshot()
    world.write("a", 7)
    assert world.data("b") == [1, 2, *range(bound, 8)]
    assert renamed(world) == []


@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_a_copy_whose_original_was_flagged_by_a_later_delete_comes_back(durability: str) -> None:
    """It is dead in its segment before the frame of its delete comes by: flagged by the engine, or by a start."""
    world = make_world(durability, seal=50)
    with world.routers_deferred():
        world.write("a", 3, 4, tag="x")
        world.snapshot()
    assert world.data("b") == [1, 2, 3, 4]
    world.delete("a", before=4)
    world.delete("a", match="x")
    for start in (world.killed(), world.killed().killed()):
        assert (start.rows("b"), start.gaps("b")) == ([(1, 1), (2, 2), (3, 3), (4, 4)], [])


def make_queue_world(durability: str) -> World:
    world = World()
    world.queue("a", durability=durability)
    world.topic("b", durability=durability)
    world.router("r", "a", "b")
    world.write("a", 0)
    assert world.rows("b") == [(1, 0)]
    world.ack(*world.seqs("a"), name="a")
    return world


@pytest.mark.parametrize("durability", ["disk", "memory"])
@pytest.mark.parametrize("fate", FATES)
def test_an_ack_that_a_router_has_seen_outlives_a_power_cut(durability: str, fate: str) -> None:
    """The job was acked before the router came by, which therefore passed it over. If the ack were lost now, the seqs
    of the copies behind it would belong to other records."""
    world = make_queue_world(durability)
    with world.routers_deferred():
        world.write("a", 1, 2, 3)
        world.kernel.sync_all()
        world.ack(*world.seqs("a"), name="a")
    assert world.rows("b") == [(1, 0), (2, 2), (3, 3)]
    after = world.cut(pattern=fate)
    assert after.data("a") == [2, 3], "the ack is lost"
    for start in (after, after.killed()):
        assert start.rows("b") == [(1, 0), (2, 2), (3, 3)]
        assert all(lo > 3 for lo, _, _ in start.gaps("b"))


@pytest.mark.parametrize("durability", ["disk", "memory"])
def test_an_ack_that_a_power_cut_took_before_the_router_came_by_gives_its_job_to_the_router(durability: str) -> None:
    world = make_queue_world(durability)
    with world.routers_deferred():
        world.write("a", 1, 2, 3)
        world.kernel.sync_all()
        world.ack(*world.seqs("a"), name="a")
        after = world.cut()
    assert after.data("a") == [1, 2, 3], "the ack is not lost"
    for start in (after, after.killed()):
        assert start.data("b") == [0, 1, 2, 3]


def test_a_router_gets_past_deleted_records_although_the_log_is_never_synced_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others keep writing: what counts is that a sync began after the records had died."""
    world = make_queue_world("memory")
    commit = world.engine.context.commit
    with world.routers_deferred():
        world.write("a", 1, 2, 3, 4)
        world.write("a", 5, tag="x")
        world.write("a", 6)
        world.ack(*world.seqs("a", max=3), name="a")
        world.delete("a", match="x")
        monkeypatch.setattr(commit, "synced_lsn", lambda _: -1)
    assert world.data("b") == [0, 4, 6]


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_copies_keep_their_seqs_however_far_their_router_lags(seed: int) -> None:
    History(seed, notes_the_dead=True).run()


@pytest.mark.parametrize("seed", range(HISTORIES // 2))
def test_marks_that_do_not_note_what_was_dead_cost_copies_but_no_seq_is_renamed(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of older versions."""
    monkeypatch.setattr(routers, "deleted_after", lambda topic, seq: None, raising=False)
    History(seed, notes_the_dead=False).run()
