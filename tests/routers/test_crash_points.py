"""Routers killed, or cut from power, at every call: no destination seq is renamed, no copy is silently missing."""

from copy import deepcopy
from random import Random

import pytest
from tests.queues.world import World

from topics.testing import SimClock, SimFs, SimHost, crash_states

SMALL = {"wal_file_bytes": 8192, "segment_max_events": 4, "seq_reserve": 8}
PATTERNS = ("lose_all", "reorder")
TOPICS = ("a", "b", "c")


class Story:
    """Everything that was readable at some time, by topic and seq, and what was deleted on request."""

    def __init__(self, fs, *, shards):
        self.clock = SimClock()
        self.seen = {name: {} for name in TOPICS}
        self.gone = {name: set() for name in TOPICS}
        self.world = World(fs, fs=fs, clock=self.clock, wal_shards=shards, **SMALL)

    def look(self):
        for name in TOPICS:
            for seq, data in self.world.rows(name):
                assert self.seen[name].setdefault(seq, data) == data

    def write(self, name, *values, tag=None):
        self.world.write(name, *values, tag=tag)
        self.look()

    def delete(self, name, **what):
        before = {seq for seq, _ in self.world.rows(name)}
        self.gone[name] |= before  # asked for: from here on either is right
        self.world.delete(name, **what)
        after = {seq for seq, _ in self.world.rows(name)}
        self.gone[name] -= after

    def note(self):
        return deepcopy(self.seen), deepcopy(self.gone)


def crashes(run, *, durability, shards):
    stories = []

    def go(fs):
        story = Story(fs, shards=shards)
        stories.append(story)
        for name in TOPICS:
            story.world.topic(name, durability=durability)
        story.world.router("ab", "a", "b")
        story.world.router("bc", "b", "c", guarantee="exactly_once", filter="k*")
        run(story)

    empty = ({name: {} for name in TOPICS}, {name: set() for name in TOPICS})
    note = lambda: stories[-1].note() if stories else empty  # noqa: E731
    yield from (
        (state, stories[-1]) for state in crash_states(SimFs(), go, rng=Random(7), patterns=PATTERNS, note=note)
    )


def check(state, clock, *, shards):
    seen, gone = state.note
    host = SimHost() if state.how == "kill" else SimHost("boot-after")
    world = World(state.disk, clock=clock, host=host, wal_shards=shards, **SMALL)
    shown = _check_once(world, state, seen, gone)
    disk = world.disk.clone()
    disk.kill()
    again = World(disk.reboot(), clock=clock, host=host, wal_shards=shards, **SMALL)
    assert _check_once(again, state, seen, gone) == shown, state


def _check_once(world, state, seen, gone):
    shown = {}
    world.rest()
    for name in TOPICS:
        if name not in world.engine.state.topics:
            assert not seen[name], state
            continue
        rows = dict(world.rows(name))
        gaps = world.gaps(name)
        for seq, data in rows.items():
            assert seen[name].get(seq, data) == data, f"{state}: {name} {seq} was renamed"
        for seq in seen[name]:
            lost = any(lo <= seq <= hi for lo, hi, _ in gaps)
            assert seq in rows or seq in gone[name] or lost, f"{state}: {name} {seq} is silently missing"
        if state.how == "kill":
            assert not gaps, f"{state}: {name} is told of a loss that did not happen"
        shown[name] = rows, gaps
    return shown


def forward_and_checkpoint(story):
    story.write("a", 1, 2, tag="k")
    story.world.checkpoint()
    story.write("a", 3, tag="k")
    story.write("a", 4)
    story.world.checkpoint()
    story.write("a", 5, tag="k")


def delete_the_source_meanwhile(story):
    story.write("a", 1, 2, 3, tag="k")
    story.delete("a", before=3)
    story.world.checkpoint()
    story.write("a", 4, tag="k")
    story.delete("a", match="k")
    story.write("a", 5, tag="k")
    story.world.checkpoint()


def write_directly_in_between(story):
    story.write("a", 1, tag="k")
    story.write("b", "x", tag="k")
    story.write("a", 2, tag="k")
    story.write("b", "y")
    story.write("b", "z", tag="k")
    story.world.checkpoint()
    story.write("a", 3, tag="k")
    story.write("c", "w")


def delete_copies(story):
    story.write("a", 1, 2, 3, tag="k")
    story.delete("b", before=3)
    story.write("a", 4, tag="k")
    story.delete("c", match="k")
    story.world.checkpoint()
    story.write("a", 5, tag="k")


def change_and_end_routers(story):
    story.write("a", 1, tag="k")
    story.world.router("ab", "a", "b", preserve_node=False)
    story.write("a", 2, tag="k")
    story.world.drop_router("bc")
    story.write("a", 3, tag="k")


STORIES = [
    forward_and_checkpoint,
    delete_the_source_meanwhile,
    write_directly_in_between,
    delete_copies,
    change_and_end_routers,
]


@pytest.mark.parametrize("durability", ["fsync", "disk"])
@pytest.mark.parametrize("run", STORIES)
def test_at_every_call(run, durability):
    shards = 2 if durability == "fsync" else 1
    count = 0
    for state, story in crashes(run, durability=durability, shards=shards):
        check(state, story.clock, shards=shards)
        count += 1
    assert count > 50
