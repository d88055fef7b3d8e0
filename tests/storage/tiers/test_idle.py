"""A server whose cold store does not answer comes to rest all the same."""

from __future__ import annotations

from tests.storage.tiers.world import World

SNAPSHOT_EVERY_MS = 60_000


def test_a_delete_that_waits_for_the_cold_store_is_no_reason_for_a_snapshot_every_minute() -> None:
    """Each snapshot logs it once more; that is no news."""
    world = World(store="folder", rewrite_dead_ratio=0).prepared().tick()
    world.delete(match="odd").tick().snapshot()
    world.store_down()
    world = world.restart(boot="boot-2")
    world.delete(match="even")
    snapshotter = world.sim.kernel.snapshotter
    for _ in range(5):
        world.tick(SNAPSHOT_EVERY_MS)
    taken = snapshotter.total
    assert taken >= 1
    assert any(world.sim.engine.state.topic("t").awaiting.values())
    for _ in range(30):
        world.tick(SNAPSHOT_EVERY_MS)
    assert snapshotter.total == taken
