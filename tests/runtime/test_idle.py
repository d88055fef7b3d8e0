"""A server without work comes to rest, and its log takes no more space than it needs."""

from __future__ import annotations

import errno
from typing import Any

from tests.runtime.world import World

from topics.testing import FOREVER, SimFs

STEP_MS = 5_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
FILE_BYTES = 1 << 16


def pass_time(world: World, ms: int) -> None:
    for _ in range(ms // STEP_MS):
        world.rig.tick(STEP_MS)


def files_of(disk: SimFs) -> dict[str, Any]:
    return dict(disk.dump())


def log_files(world: World) -> list[str]:
    return [name for name in world.disk.listdir("data/wal") if name.startswith("wal-")]


def log_bytes(world: World) -> int:
    return sum(world.disk.stat_len(f"data/wal/{name}") for name in world.disk.listdir("data/wal") if "." in name)


def snapshots(world: World) -> int:
    return world.rig.sim.kernel.snapshotter.total


def written(world: World) -> World:
    world.rig.create("d", "disk")
    world.rig.create("f", "fsync", cap_records=5)
    world.rig.write("d", 3)
    world.rig.write("f", 9)
    return world


def test_an_idle_server_takes_no_second_snapshot_and_writes_nothing_for_an_hour() -> None:
    world = written(World(wal_shards=2, wal_file_bytes=FILE_BYTES))
    pass_time(world, 2 * MINUTE_MS)
    assert snapshots(world) == 1
    before = files_of(world.disk)
    pass_time(world, HOUR_MS - 4 * MINUTE_MS)
    assert snapshots(world) == 1
    assert files_of(world.disk) == before


def test_an_idle_segment_is_sealed_by_its_age_and_then_there_is_rest_again() -> None:
    world = written(World(wal_file_bytes=FILE_BYTES))
    pass_time(world, HOUR_MS + 4 * MINUTE_MS)
    topic = world.rig.sim.engine.state.topics["d"]
    assert [(segment.first_seq, segment.count) for segment in topic.sealed] == [(1, 3)]
    before, taken = files_of(world.disk), snapshots(world)
    pass_time(world, 2 * HOUR_MS)
    assert snapshots(world) == taken
    assert files_of(world.disk) == before


def test_a_write_to_an_idle_server_is_worth_one_snapshot() -> None:
    world = written(World(wal_file_bytes=FILE_BYTES))
    pass_time(world, 10 * MINUTE_MS)
    world.rig.write("d", 1)
    pass_time(world, 10 * MINUTE_MS)
    assert snapshots(world) == 2


def test_what_a_start_replayed_is_worth_one_snapshot() -> None:
    world = written(World(wal_file_bytes=FILE_BYTES))
    world.kill()
    assert snapshots(world) == 0
    pass_time(world, 10 * MINUTE_MS)
    assert snapshots(world) == 1
    before = files_of(world.disk)
    pass_time(world, 20 * MINUTE_MS)
    assert files_of(world.disk) == before


# --- space ------------------------------------------------------------------------------------------------------------


def half_filled(world: World) -> World:
    """More than half of the log's first file is in use, and the next one is prepared."""
    world.rig.create("d", "disk")
    group = world.rig.sim.kernel.store.groups[0]
    while not group.half_full:
        world.rig.write("d", 4, size=500)
    world.rig.sim.sync_all()  # behind a sync, the next file is prepared
    return world


def test_the_log_of_a_small_store_shrinks_after_a_checkpoint() -> None:
    world = half_filled(World(wal_file_bytes=FILE_BYTES))
    first = log_files(world)
    pass_time(world, 4 * MINUTE_MS)
    assert len(log_files(world)) == 1
    assert log_files(world) != first
    assert log_bytes(world) <= FILE_BYTES + 100
    before = files_of(world.disk)
    pass_time(world, 20 * MINUTE_MS)
    assert files_of(world.disk) == before
    seen = world.kill()
    assert seen["d"].count == seen["d"].head


def test_a_checkpoint_that_would_free_little_does_not_rotate() -> None:
    world = World(wal_file_bytes=FILE_BYTES)
    world.rig.create("d", "disk")
    for _ in range(20):
        world.rig.write("d", 1)
        world.rig.checkpoint()
    assert world.rig.sim.kernel.store.groups[0].stats.rotations == 0
    assert len(log_files(world)) == 1


def test_a_rotated_log_is_worth_no_checkpoint_of_its_own() -> None:
    world = half_filled(World(wal_file_bytes=FILE_BYTES))
    world.rig.tick(STEP_MS)
    kernel = world.rig.sim.kernel
    assert kernel.store.groups[0].stats.rotations == 1
    assert kernel.checkpointer.runs_total == 1
    for _ in range(3):
        world.rig.tick(STEP_MS)
    assert kernel.checkpointer.runs_total == 1


def test_without_space_for_the_next_file_a_checkpoint_does_not_rotate_and_writes_go_on() -> None:
    world = World(wal_file_bytes=FILE_BYTES)
    world.faults.fail("allocate", "*prealloc.tmp", code=errno.ENOSPC, times=FOREVER)
    half_filled(world)
    world.rig.checkpoint()
    group = world.rig.sim.kernel.store.groups[0]
    assert group.read_only is None
    assert group.stats.rotations == 0
    world.rig.write("d", 2)
    assert world.rig.ledger.instance("d").writes[-1].acked
    world.faults.clear()
    world.rig.write("d", 2)
    world.rig.checkpoint()
    world.rig.checkpoint()
    assert group.stats.rotations == 1
    seen = world.kill()
    assert seen["d"].count == seen["d"].head
