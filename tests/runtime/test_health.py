"""A log that takes no more writes says so where operators look."""

from __future__ import annotations

import errno

from tests.runtime.world import WAL, World

from topics.api.endpoints.probes import problems_of


def test_a_healthy_engine_has_nothing_to_say() -> None:
    world = World()
    world.rig.create("t")
    world.rig.write("t")
    assert problems_of(world.rig.sim.kernel) == []


def test_a_failed_sync_is_a_problem_until_the_restart() -> None:
    world = World()
    world.rig.create("t", "fsync")
    world.faults.fail("datasync", WAL)
    world.rig.write("t")
    (problem,) = problems_of(world.rig.sim.kernel)
    assert "read-only (sync)" in problem
    assert "restart" in problem
    world.faults.clear()
    world.kill()
    assert problems_of(world.rig.sim.kernel) == []


def test_a_full_disk_is_a_problem_until_there_is_space_again() -> None:
    world = World()
    world.rig.create("t", "fsync")
    world.faults.fail("pwrite", WAL, error=OSError(errno.ENOSPC, "no space"))
    world.rig.write("t")
    (problem,) = problems_of(world.rig.sim.kernel)
    assert "read-only (no_space)" in problem
    assert "free some space" in problem
