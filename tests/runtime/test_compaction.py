"""Topics that keep the newest record of each tag (`docs/spec/readers.md#sec-7`), on a whole engine."""

from __future__ import annotations

from typing import Any

import pytest
from tests.crash.harness import read_all
from tests.runtime.world import World

from topics.engine.reading.latest import LatestRequest
from topics.runtime.background import compactor

GRACE_MS = 5_000


def table(world: World, name: str = "t") -> dict[str, int]:
    page = world.rig.call(lambda engine: engine.latest.page(name, LatestRequest(limit=1000)))
    return {(stored.tag or b"").decode(): stored.seq for run in page.runs for stored in run.records()}


def seqs(world: World, name: str = "t") -> list[int]:
    return sorted(read_all(world.rig.sim, name).records)


def let_pass(world: World, ms: int) -> None:
    """The background works all the time."""
    for _ in range(0, ms, 500):
        world.rig.tick(500)


def begin(durability: str = "disk", grace_ms: int = 0, world: World | None = None, **config: Any) -> World:
    world = world or World()
    world.rig.create("t", durability, compact="tag", compact_grace_ms=grace_ms, **config)
    world.rig.ledger.instance("t").deleting |= set(range(1, 1000))  # compaction takes them at times of its own
    return world


@pytest.mark.parametrize("is_sealed", [False, True])
def test_nothing_goes_before_the_newer_record_is_as_old_as_the_grace_time(is_sealed: bool) -> None:
    world = begin(grace_ms=GRACE_MS)
    world.rig.write("t", tag="a")
    let_pass(world, 3 * GRACE_MS)
    for _ in range(5):
        world.rig.write("t", tag="a")
    if is_sealed:
        world.rig.checkpoint()
    let_pass(world, GRACE_MS - 500)
    assert seqs(world) == [1, 2, 3, 4, 5, 6]
    let_pass(world, 2_500)
    assert seqs(world) == [6]


def test_superseded_is_not_lost() -> None:
    world = begin()
    for tag in "abab":
        world.rig.write("t", 3, tag=tag)
    world.rig.write("t", 2)
    world.rig.compact("t")
    seen = read_all(world.rig.sim, "t")
    assert (sorted(seen.records), seen.gaps, seen.floor, seen.head) == ([9, 12, 13, 14], [], 1, 14)


def test_a_null_hides_its_tag_at_once_and_goes_after_the_grace_time() -> None:
    world = begin(grace_ms=GRACE_MS)
    world.rig.write("t", tag="a")
    world.rig.write("t", tag="b")
    world.rig.remove_tag("t", "a")
    assert table(world) == {"b": 2}
    let_pass(world, GRACE_MS - 500)
    assert seqs(world) == [1, 2, 3]
    let_pass(world, 2_500)
    assert seqs(world) == [2]
    world.rig.write("t", tag="a")
    assert table(world) == {"a": 4, "b": 2}


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_every_class_is_compacted(durability: str) -> None:
    world = begin(durability)
    for tag in "abcab":
        world.rig.write("t", 2, tag=tag)
    world.rig.compact("t")
    assert seqs(world) == [6, 8, 10]
    assert table(world) == {"a": 8, "b": 10, "c": 6}


def test_a_start_goes_on_where_a_kill_came() -> None:
    world = begin()
    for tag in "abcabc":
        world.rig.write("t", 3, tag=tag)
    world.kill()
    world.rig.write("t", tag="a")
    world.rig.compact("t")
    world.kill()
    assert seqs(world) == [15, 18, 19]
    world.stop()
    world.rig.write("t", tag="b")
    world.rig.compact("t")
    assert seqs(world) == [18, 19, 20]


def test_a_segment_goes_when_all_in_it_is_superseded() -> None:
    world = begin(world=World(rewrite_min_dead_bytes=1, rewrite_dead_ratio=0.3))
    for at in range(40):
        world.rig.write("t", tag=f"k{at % 8}", size=50)
    world.rig.checkpoint()
    world.rig.compact("t")
    let_pass(world, 10_000)
    world.rig.snapshot()
    topic = world.rig.sim.engine.state.topics["t"]
    assert [segment.first_seq for segment in topic.sealed] == [33, 37]
    assert seqs(world) == list(range(33, 41))


def test_a_cold_segment_loses_what_is_superseded() -> None:
    tiers = {"cold_dir": "cold", "hot_retain_segments": 1, "relocate_interval_ms": 1000}
    world = begin(world=World(**tiers))
    world.rig.configure("t")
    for at in range(24):
        world.rig.write("t", tag=f"k{at % 6}")
    world.rig.snapshot()
    let_pass(world, 5_000)
    topic = world.rig.sim.engine.state.topics["t"]
    assert any(segment.view.tier == "cold" for segment in topic.sealed)
    world.stop()
    world.rig.configure("t", compact="tag", compact_grace_ms=0)
    world.rig.compact("t")
    assert seqs(world) == list(range(19, 25))
    world.kill()
    assert seqs(world) == list(range(19, 25))


def test_caps_take_what_they_take_and_say_so() -> None:
    world = begin(cap_records=5)
    for at in range(12):
        world.rig.write("t", tag=f"k{at % 4}")
    world.rig.compact("t")
    assert seqs(world) == [9, 10, 11, 12]
    world.rig.write("t", 3)
    seen = read_all(world.rig.sim, "t")
    assert (sorted(seen.records), seen.gaps) == ([11, 12, 13, 14, 15], [(1, 10)])


def test_copies_of_a_router_count_once_a_checkpoint_has_them() -> None:
    world = World(checkpoint_interval_ms=3_600_000)
    world.rig.create("a", "disk")
    begin(world=world)
    world.rig.router("r", "a", "t")
    for tag in "xyx":
        world.rig.write("a", 2, tag=tag)
    world.rig.look("t")
    let_pass(world, 3_000)
    assert len(seqs(world)) == 6
    world.rig.checkpoint()
    world.rig.compact("t")
    assert seqs(world) == [4, 6]


def test_a_topic_that_is_no_longer_compacted_keeps_everything() -> None:
    world = begin()
    world.rig.write("t", 3, tag="a")
    world.rig.configure("t")
    let_pass(world, 5_000)
    assert seqs(world) == [1, 2, 3]


def test_a_tag_that_is_written_without_end_is_taken_in_bounded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.engine.compaction.BATCH_SEQS", 10)
    monkeypatch.setattr("topics.engine.compaction.PAGE_TAGS", 3)
    world = begin(world=World(segment_max_events=50))
    for at in range(200):
        world.rig.write("t", tag="hot" if at % 2 else f"k{at % 7}")
    world.rig.checkpoint()
    world.rig.compact("t")
    assert table(world) == {"hot": 200} | {f"k{at % 7}": at + 1 for at in range(186, 200, 2)}
    assert len(seqs(world)) == 8


def test_a_full_log_ends_a_pass_and_the_next_one_does_the_rest() -> None:
    world = begin()
    for tag in "abab":
        world.rig.write("t", tag=tag)
    world.rig.sim.engine.context.commit.close_group(0, "no_space")
    let_pass(world, 2_000)
    assert seqs(world) == [1, 2, 3, 4]
    world.rig.sim.engine.context.commit.reopen(0)
    let_pass(world, compactor.AGAIN_MS + 2_000)
    assert seqs(world) == [3, 4]
