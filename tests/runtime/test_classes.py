"""Rows of group D of the fault matrix: ceilings and durability classes, through the whole engine.

Rows are those of `docs/fault-matrix.md`.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.runtime.world import WAL, World

from topics.errors import CommitFailed
from topics.testing.faultfs import SimCrash
from topics.testing.powercut import POWER_PATTERNS


def world_of(*classes: str, **settings: Any) -> World:
    world = World(**settings)
    for durability in classes:
        world.rig.create(durability, durability)
        if durability == "ephemeral":
            world.rig.ledger.instance(durability).ephemeral = True
        world.rig.write(durability, 2)
    return world


@pytest.mark.parametrize("pattern", POWER_PATTERNS)
def test_after_a_power_cut_a_disk_burst_ends_early_announced_and_its_seqs_are_not_reused(pattern: str) -> None:
    """Row 53."""
    world = world_of("disk")
    for _ in range(20):
        world.rig.write("disk", 3)
    seen = world.cut(pattern)["disk"]
    world.rig.write("disk")
    assert world.rig.ledger.instance("disk").writes[-1].first_seq == seen.head + 1 > 62
    world.cut()


def test_after_a_kill_on_the_same_boot_nothing_is_missing_and_no_range_is_opened() -> None:
    """Row 54."""
    world = world_of("disk", "memory")
    for _ in range(5):
        world.rig.write("disk", 3)
        world.rig.write("memory", 3)
    seen = world.kill()
    for name in ("disk", "memory"):
        assert (seen[name].head, len(seen[name].records), seen[name].gaps) == (17, 17, [])


@pytest.mark.parametrize("pattern", POWER_PATTERNS)
def test_a_file_system_that_dies_and_comes_back_on_the_same_boot_counts_as_a_power_cut(pattern: str) -> None:
    """Row 53."""
    world = world_of("disk", "memory", seq_reserve=100)
    for _ in range(5):
        world.rig.write("disk", 3)
        world.rig.write("memory", 3)
    seen = world.lose_file_system(pattern)
    for name in ("disk", "memory"):
        world.rig.write(name)
        first_seq = world.rig.ledger.instance(name).writes[-1].first_seq
        assert first_seq == seen[name].head + 1 > 17
    world.kill()


def test_after_the_start_that_follows_a_dead_file_system_a_kill_announces_nothing_more() -> None:
    world = world_of("disk", seq_reserve=100)
    world.rig.write("disk", 3)
    first = world.lose_file_system()["disk"]
    assert first.announced(3)
    world.rig.write("disk", 3)
    again = world.kill()["disk"]
    assert (again.head, again.gaps) == (first.head + 3, first.gaps)


@pytest.mark.parametrize("text", [b"", b"garbage\xff", b"pid=1\nboot=-\n", b"pid=1\n"])
def test_a_boot_line_that_says_nothing_counts_as_a_reboot(text: bytes) -> None:
    """Row 55."""
    world = world_of("disk")
    world.disk.tamper("data/.topics.lock", lambda _: text)
    seen = world.kill()["disk"]
    assert seen.head > 2
    assert seen.gaps == [(3, seen.head)]


def test_a_gap_that_was_reported_stays_as_it_was_reported() -> None:
    """Rows 56 and 59."""
    world = world_of("disk")
    first = world.cut()["disk"]
    again = world.kill()["disk"]
    assert (again.head, again.gaps) == (first.head, first.gaps)
    world.rig.write("disk", 3)
    world.rig.sim.sync_all()
    behind = world.cut()["disk"]
    assert len(behind.records) == len(first.records) + 3
    assert behind.gaps[0] == first.gaps[0]


def test_a_ceiling_that_cannot_be_synced_fails_the_write_that_needs_it() -> None:
    """Row 57."""
    world = World()
    world.rig.create("disk", "disk")
    world.faults.fail("datasync", WAL)
    _, ticket = world.rig.submit("disk", 2)
    world.rig.sim.pump()
    assert ticket is not None
    assert isinstance(ticket.error, CommitFailed)
    assert world.seen()["disk"].head == 0
    world.cut()


@pytest.mark.parametrize("pattern", POWER_PATTERNS)
def test_a_ceiling_whose_sync_never_came_leaves_the_write_unacked_and_unseen(pattern: str) -> None:
    """Row 57: the power is cut while the sync is under way."""
    world = World()
    world.rig.create("disk", "disk")
    seen_before: list[int] = []

    def at_sync() -> None:
        seen_before.append(world.rig.sim.engine.state.topics["disk"].head)
        raise SimCrash("the power is cut here")

    world.faults.block("datasync", WAL, until=at_sync)
    write, _ = world.rig.submit("disk", 2)
    with pytest.raises(SimCrash):
        world.rig.sim.pump()
    assert seen_before == [0]
    assert not write.acked
    world.cut(pattern)
    world.rig.write("disk", 1)
    world.cut()


def test_a_snapshot_in_the_middle_of_a_block_lets_no_seq_be_used_twice() -> None:
    """Row 58."""
    world = world_of("disk")
    world.rig.snapshot()
    world.rig.write("disk", 3)
    world.cut("lose_all")
    world.rig.write("disk")
    first_seq = world.rig.ledger.instance("disk").writes[-1].first_seq
    assert first_seq is not None
    assert first_seq > 5
    world.cut()


@pytest.mark.parametrize("how", ["kill", "cut", "stop"])
def test_an_ephemeral_topic_is_empty_after_any_end_and_its_old_cursors_are_told(how: str) -> None:
    """Row 60."""
    world = world_of("ephemeral")
    seen = getattr(world, how)()["ephemeral"]
    assert not seen.records
    assert seen.announced(1)
    assert seen.announced(2)
    world.rig.write("ephemeral")
    first_seq = world.rig.ledger.instance("ephemeral").writes[-1].first_seq
    assert first_seq is not None
    assert first_seq > 2


@pytest.mark.parametrize("pattern", POWER_PATTERNS)
def test_a_memory_topic_may_lose_its_end_in_a_power_cut_but_not_its_config_or_seqs(pattern: str) -> None:
    """Row 61."""
    world = world_of("memory")
    for _ in range(4):
        world.rig.write("memory", 3)
    world.cut(pattern)
    assert world.rig.sim.engine.state.topics["memory"].config.durability == "memory"
    world.rig.write("memory")
    world.cut()


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("reboot", [False, True])
def test_a_clean_stop_leaves_no_gap_in_any_persistent_class(reboot: bool, shards: int) -> None:
    """Row 62, also where the machine was started anew in between."""
    world = world_of("fsync", "disk", "memory", wal_shards=shards)
    for _ in range(3):
        world.rig.write("disk", 3)
    world.rig.sim.close()
    seen = world.cut("random") if reboot else world.kill()
    for name, count in (("fsync", 2), ("disk", 11), ("memory", 2)):
        assert (seen[name].head, len(seen[name].records), seen[name].gaps) == (count, count, [])


@pytest.mark.parametrize("at", range(4))
def test_each_write_is_judged_by_the_class_it_was_made_under(at: int) -> None:
    """Row 63."""
    world = world_of("fsync")
    for durability in ("disk", "fsync", "disk", "ephemeral")[: at + 1]:
        world.rig.configure("fsync", durability)
        world.rig.write("fsync", 2)
    world.cut()
    world.rig.write("fsync")
    world.cut()


def test_a_keyed_write_that_is_retried_after_a_crash_is_found_or_appended_afresh() -> None:
    """Row 64."""
    import msgspec

    from topics.model.record import RecordIn, build_batch

    world = World()
    world.rig.create("t", "fsync")
    batch = build_batch([RecordIn(data=msgspec.Raw(b'"once"'))] * 3, idempotency_key="k")
    first = world.rig.call(lambda engine: engine.write("t", batch))
    world.disk.power_cut()
    world.host.reboot()
    world.disk = world.disk.reboot()
    from tests.crash.harness import Rig

    rig = Rig(world.disk, clock=world.clock, host=world.host)
    again = rig.call(lambda engine: engine.write("t", batch))
    assert (again.first_seq, again.count) in ((first.first_seq, 3), (4, 3))
    assert again.deduped == (again.first_seq == first.first_seq)
