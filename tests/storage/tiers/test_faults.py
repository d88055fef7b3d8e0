"""A cold store or a hot disk that fails at one call: hot stays in charge, deletes reach both copies, it is tried again
(fault matrix rows 126 and 128).

Rows are those of `docs/fault-matrix.md`.
"""

from __future__ import annotations

import errno
from typing import Any

import pytest
from tests.storage.tiers.world import OPENERS, World

from topics.testing import FOREVER

both = pytest.mark.parametrize("store", list(OPENERS))
DATA = "cold/topics/00000001/seg-0000000000000001.data"


@both
@pytest.mark.parametrize("kind", ["create", "pwrite", "fsync", "rename", "sync_dir"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.ESTALE])
def test_a_put_that_fails_is_counted_and_tried_again(store: str, kind: str, code: int) -> None:
    world = World(store=store).prepared()
    world.faults.fail(kind, "cold/topics*", code=code)  # type: ignore[arg-type]
    world.tick()
    counters = world.sim.kernel.store.env.counters
    assert counters.relocation_failures == 1
    assert "hot" in (world.tiers()[1], world.tiers()[5], world.tiers()[9])
    world.check().tick().check()
    assert [world.tiers()[first] for first in (1, 5, 9)] == ["cold"] * 3
    world.restart().check()


@both
def test_a_copy_that_reads_back_differently_is_put_again(store: str) -> None:
    world = World(store=store).prepared()

    def strike(call: Any) -> None:
        if call.kind == "sync_dir" and world.disk.exists(DATA):
            world.faults.hook = None
            world.disk.tamper(DATA, lambda data: data[:-1] + b"?")

    world.faults.hook = strike
    world.tick()
    assert world.tiers()[1] == "hot"
    world.check().tick().check()
    assert world.tiers()[1] == "cold"


@both
def test_hot_files_that_cannot_be_removed_are_removed_later_and_deletes_reach_both(store: str) -> None:
    world = World(store=store, rewrite_dead_ratio=0).prepared()
    world.faults.fail("unlink", "data/topics/*", times=FOREVER)
    world.tick()
    assert world.tiers()[1] == "cold"
    assert world.disk.exists("data/topics/00000001/seg-0000000000000001.data")
    world.delete(match="odd").tick().snapshot()
    world.restart(boot="boot-2").check()


@both
def test_remnants_go_at_the_next_sweep(store: str) -> None:
    world = World(store=store).prepared()
    world.faults.fail("unlink", "data/topics/*", times=FOREVER)
    world.tick()
    world.faults.clear()
    world.tick()
    assert not world.disk.exists("data/topics/00000001/seg-0000000000000001.data")
    world.check()


@both
def test_a_drop_that_the_store_refuses_is_tried_again(store: str) -> None:
    world = World(store=store).prepared().tick()
    world.faults.fail("unlink", "cold/*")
    world.delete(before_seq=9).tick().tick()
    assert not [path for path in world.files() if path.endswith(("0001.data", "0005.data"))]
    world.check()
