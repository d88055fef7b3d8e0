"""Crash at every disk call of a move, a cold flag, a promotion with rewrite, a drop and a store's first use: whole
engine, both stores, as a kill and as power cuts; every promise is checked after the restart and, for every fourth
state, after another one, after the tiers have gone on, and after a third with other shards
(fault matrix rows 125, 127, 132, 141).

Rows are those of `docs/fault-matrix.md`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from tests.storage.tiers.world import OPENERS, Promises, World

from topics.testing.crashes import CrashPoints, CrashState
from topics.testing.order_fs import OrderFs
from topics.testing.order_monitor import OrderMonitor
from topics.testing.powercut import POWER_PATTERNS

Story = Callable[[World], object]


def _moved(world: World) -> World:
    return world.prepared().tick().snapshot()


def _first_use(world: World) -> None:
    world.tick()


def _relocate(world: World) -> None:
    world.tick().write(2).snapshot()


def _delete_then_relocate(world: World) -> None:
    world.delete(match="odd").tick().write(1).tick().snapshot()


def _flag(world: World) -> None:
    world.delete(match="odd").tick().snapshot().tick()


def _maintain(world: World) -> None:
    world.delete(match="odd").tick().tick(700_000).tick().tick().snapshot()


def _rewrite(world: World) -> None:
    world.delete(match="even").tick().tick().tick().snapshot()


def _drop(world: World) -> None:
    world.delete(before_seq=9).tick().tick().write(1).snapshot()


STORIES: dict[str, tuple[Story, Story, dict[str, Any]]] = {
    "first use": (lambda world: world.prepared(), _first_use, {}),
    "relocate": (lambda world: world.prepared().tick().write(8).checkpoint(), _relocate, {}),
    "delete then relocate": (lambda world: world.prepared(26).snapshot(), _delete_then_relocate, {}),
    "flag": (_moved, _flag, {"rewrite_dead_ratio": 0}),
    "maintain": (_moved, _maintain, {"rewrite_dead_ratio": 0}),
    "rewrite": (_moved, _rewrite, {"wal_shards": 2}),
    "drop": (_moved, _drop, {}),
}


def _points(before: Story, story: Story, store: str, settings: dict[str, Any]) -> CrashPoints:
    world = World(store=store, wrap=lambda disk: OrderFs(disk, OrderMonitor()), **settings)
    before(world)
    points = CrashPoints(world.disk, note=world.told.copy)
    world.faults.hook = points.before
    story(world)
    points.end()
    return points


def _chosen(state: CrashState) -> bool:
    """Every point as a kill and every second one as a power cut, the patterns taking turns; all if CRASH_ALL is set."""
    pattern = POWER_PATTERNS[state.point // 2 % len(POWER_PATTERNS)]
    return state.how == "kill" or (state.how == pattern and state.point % 2 == 1) or "CRASH_ALL" in os.environ


@pytest.mark.parametrize("store", list(OPENERS))
@pytest.mark.parametrize("name", list(STORIES))
def test_a_crash_at_every_call_keeps_every_promise(name: str, store: str) -> None:
    before, story, settings = STORIES[name]
    states = 0
    for state in _points(before, story, store, settings).states(rng=Random(7)):
        if not _chosen(state):
            continue
        states += 1
        boot = "boot-1" if state.how == "kill" else "boot-2"
        assert isinstance(state.note, Promises)
        try:
            world = World(
                state.disk, store=store, told=state.note.copy(), boot=boot, wall_ms=1_755_001_000_000, **settings
            )
            found = world.read_all()
            world.told.check(found)
            if states % 4:
                continue
            world = world.restart(boot=boot)
            assert world.read_all() == found, "the second start shows other records"
            world.tick().tick().snapshot()
            assert world.read_all() == found, "the tiers changed what is read"
            assert set(world.tiers().values()) <= {"cold", "hot"}
            world.restart(boot="boot-3", wal_shards=3).check()
        except BaseException as error:
            error.add_note(f"{name}: {state}")
            raise
    assert states > 20
    print(f"{name}, {store}: {states} states")


@pytest.mark.parametrize("store", list(OPENERS))
def test_a_crash_at_every_call_of_a_snapshot_keeps_a_delete_that_waits_for_the_store(store: str) -> None:
    world = World(store=store, rewrite_dead_ratio=0).prepared().tick()
    world.delete(match="odd").tick().snapshot()
    world.store_down()
    world = world.restart(boot="boot-2")
    world = world.delete(match="even").restart(boot="boot-2")
    points = CrashPoints(world.disk, note=world.told.copy)
    world.faults.hook = points.before
    world.write(30).snapshot().write(30).snapshot()
    points.end()
    states = 0
    for state in points.states(rng=Random(7)):
        if not _chosen(state):
            continue
        states += 1
        boot = "boot-2" if state.how == "kill" else "boot-3"
        assert isinstance(state.note, Promises)
        try:
            told, wall_ms = state.note.copy(), 1_755_001_000_000
            world = World(state.disk, store=store, told=told, boot=boot, wall_ms=wall_ms, down=states % 2 == 0)
            if world.is_down:
                world = world.snapshot().write(30).snapshot().restart(down=False)
            world.tick(2_000).tick().check()
        except BaseException as error:
            error.add_note(f"{state}")
            raise
    assert states > 20
