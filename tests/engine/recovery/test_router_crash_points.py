"""Routers killed, or cut from power, at every call: no destination seq is renamed, no copy is silently missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.engine.crashing import SMALL, distinct_crashes, starts
from tests.engine.world import World

from topics.storage.fs import Fs
from topics.testing import SimClock
from topics.testing.crashes import CrashState

TOPICS = ("a", "b", "c")


def _by_topic() -> dict[str, dict[int, Any]]:
    return {name: {} for name in TOPICS}


def _none_by_topic() -> dict[str, set[int]]:
    return {name: set() for name in TOPICS}


@dataclass
class Seen:
    """Everything that was readable at some time, by topic and seq, what was deleted on request, and the routers
    that were changed."""

    records: dict[str, dict[int, Any]] = field(default_factory=_by_topic)
    gone: dict[str, set[int]] = field(default_factory=_none_by_topic)
    changed: set[str] = field(default_factory=set)


class Story:
    """a -> b -> c; the second router copies exactly once what has a tag `k*`."""

    def __init__(self, fs: Fs, *, durability: str, shards: int) -> None:
        self.clock = SimClock()
        self.seen = Seen()
        self.world = World(fs=fs, clock=self.clock, wal_shards=shards, **SMALL)
        for name in TOPICS:
            self.world.topic(name, durability=durability)
        self.world.router("ab", "a", "b")
        self.world.router("bc", "b", "c", guarantee="exactly_once", filter="k*")

    def look(self) -> None:
        for name in TOPICS:
            for seq, data in self.world.rows(name):
                assert self.seen.records[name].setdefault(seq, data) == data

    def write(self, name: str, *values: Any, tag: str | None = None) -> None:
        self.world.write(name, *values, tag=tag)
        self.look()

    def delete(self, name: str, **what: Any) -> None:
        before = {seq for seq, _ in self.world.rows(name)}
        self.seen.gone[name] |= before  # asked for: from here on either is right
        self.world.delete(name, **what)
        after = {seq for seq, _ in self.world.rows(name)}
        self.seen.gone[name] -= after


def crashes(run: Callable[[Story], None], *, durability: str, shards: int) -> Iterator[tuple[CrashState, Seen, World]]:
    """Every start after every crash of one run, with what had been seen by then."""
    stories: list[Story] = []

    def go(fs: Fs) -> None:
        stories.clear()
        stories.append(Story(fs, durability=durability, shards=shards))
        run(stories[0])

    note: Callable[[], Seen] = lambda: deepcopy(stories[0].seen) if stories else Seen()  # noqa: E731
    for number, state in enumerate(distinct_crashes(go, note=note)):
        seen = state.note
        assert isinstance(seen, Seen)
        for world in starts(state, number, stories[0].clock, wal_shards=shards):
            yield state, seen, world


def check(seen: Seen, world: World, *, lost_nothing: bool) -> object:
    shown: dict[str, object] = {}
    world.rest()
    for name in TOPICS:
        if name not in world.engine.state.topics:
            assert not seen.records[name]
            return shown
        rows, gaps = dict(world.rows(name)), world.gaps(name)
        for seq, data in rows.items():
            assert seen.records[name].get(seq, data) == data, f"{name} {seq} was renamed"
        for seq in seen.records[name]:
            lost = any(lo <= seq <= hi for lo, hi, _ in gaps)
            assert seq in rows or seq in seen.gone[name] or lost, f"{name} {seq} is silently missing"
        assert not (lost_nothing and gaps), f"{name} is told of a loss that did not happen"
        assert world.state(name).count == len(rows)
        shown[name] = rows, gaps
    check_copies(seen, world)
    return shown


def check_copies(seen: Seen, world: World) -> None:
    """Whatever is live in a source and passes the filter is in the destination, unless its copy was deleted or is
    announced as lost; the `exactly_once` router repeats nothing."""
    for router in world.engine.state.routers:
        source, dest = router.definition.source, router.definition.dest
        match = router.definition.filter
        if router.name in seen.changed:  # what it passed over before stays out
            continue
        sent = [row["data"] for row in world.records(source) if match is None or match.matches(row["$tag"])]
        there = world.data(dest)
        if not seen.gone[dest] and not world.gaps(dest):
            assert set(sent) <= set(there), f"{router.name} has not copied everything"
    signed: dict[str, list[int]] = {}
    for record in world.records("c"):
        if record["meta"]:
            copy = record["meta"]["_topics_router"]
            signed.setdefault(copy["router"], []).append(copy["source_seq"])
    for router_name, seqs in signed.items():
        assert seqs == sorted(set(seqs)), f"{router_name} made a copy twice, or out of order"


def forward_and_checkpoint(story: Story) -> None:
    story.write("a", 1, 2, tag="k")
    story.world.checkpoint()
    story.write("a", 3, tag="k")
    story.write("a", 4)
    story.world.checkpoint()
    story.write("a", 5, tag="k")
    story.world.snapshot()
    story.write("a", 6, tag="k")


def delete_the_source_meanwhile(story: Story) -> None:
    story.write("a", 1, 2, 3, tag="k")
    story.delete("a", before=3)
    story.world.checkpoint()
    story.write("a", 4, tag="k")
    story.delete("a", match="k")
    story.write("a", 5, tag="k")
    story.world.checkpoint()


def write_directly_in_between(story: Story) -> None:
    story.write("a", 1, tag="k")
    story.write("b", "x", tag="k")
    story.write("a", 2, tag="k")
    story.write("b", "y")
    story.write("b", "z", tag="k")
    story.world.checkpoint()
    story.write("a", 3, tag="k")
    story.write("c", "w")


def delete_copies(story: Story) -> None:
    story.write("a", 1, 2, 3, tag="k")
    story.delete("b", before=3)
    story.write("a", 4, tag="k")
    story.delete("c", match="k")
    story.world.checkpoint()
    story.write("a", 5, tag="k")


def change_and_end_routers(story: Story) -> None:
    story.write("a", 1, tag="k")
    story.world.router("ab", "a", "b", preserve_node=False)
    story.write("a", 2, tag="k")
    story.write("a", 3, tag="z")
    story.seen.changed.add("bc")
    story.world.router("bc", "b", "c", guarantee="exactly_once", filter="z*")
    story.write("a", 4, tag="z")
    story.write("c", "x")
    story.world.drop_router("bc")
    story.write("a", 5, tag="z")


def feed_one_from_two(story: Story) -> None:
    """Two routers into one destination: only the copies themselves tell how far each had come, and those that were in
    no segment yet come back above the ceiling."""
    story.world.router("bc2", "b", "c", guarantee="exactly_once", filter="kk*")
    story.write("a", 1, 2, tag="k")
    story.write("a", 3, tag="kk")
    story.world.checkpoint()
    story.write("a", 4, tag="kk")
    story.world.snapshot()
    story.write("a", 5, tag="k")


STORIES = [
    forward_and_checkpoint,
    delete_the_source_meanwhile,
    write_directly_in_between,
    delete_copies,
    change_and_end_routers,
    feed_one_from_two,
]


@pytest.mark.parametrize("durability", ["fsync", "disk"])
@pytest.mark.parametrize("run", STORIES)
def test_at_every_call(run: Callable[[Story], None], durability: str, crash_states: Callable[[int], None]) -> None:
    shards = 2 if durability == "fsync" else 1
    met: dict[int, object] = {}
    count = 0
    for state, seen, world in crashes(run, durability=durability, shards=shards):
        count += 1
        try:
            shown = check(seen, world, lost_nothing=state.how == "kill" and run is not feed_one_from_two)
            assert met.setdefault(id(state), shown) == shown, "the second start shows something else"
        except AssertionError as error:
            error.add_note(str(state))
            raise
        met = {id(state): shown}
    assert count > 50
    crash_states(count)
