"""Row 143 of the fault matrix: random operations, random faults and random crashes, judged by what clients were told.

One seed is one run; a red one is repeated by its number. `make sim` tries more of them.

Rows are those of `docs/fault-matrix.md`.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from random import Random

import pytest
from tests.runtime.world import World

from topics.errors import TopicsError
from topics.testing.faultfs import Fault, Kind
from topics.testing.powercut import POWER_PATTERNS

SEEDS = 400 if "SIM_SECONDS" in os.environ else 60
LIVES, STEPS = 4, 14
KINDS: tuple[Kind, ...] = (
    "pwrite", "datasync", "fsync", "rename", "sync_dir", "unlink", "allocate", "create", "truncate", "pread", "mmap",
)  # fmt: skip
PATHS = ("*/wal-*.log", "*/wal/*", "*/meta/*", "*/topics/*", "*.idx", "*.data", "*")
CODES = (errno.EIO, errno.EIO, errno.ENOSPC, errno.EAGAIN, errno.EINTR)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def strike(world: World, rng: Random) -> Fault:
    kind, path = rng.choice(KINDS), rng.choice(PATHS)
    at, times = rng.randint(1, 4), rng.choice((1, 1, 2, 5))
    if kind == "pwrite" and rng.random() < 0.3:
        return world.faults.short("pwrite", path, keep=rng.choice((0, 1, None)), at=at, times=times)
    return world.faults.fail(kind, path, code=rng.choice(CODES), at=at, times=times)


def step(world: World, rng: Random) -> None:
    name = rng.choice(("f", "d"))
    act = rng.randrange(10)
    if act < 5:
        world.rig.write(name, rng.choice((1, 1, 3, 6)), tag=rng.choice(("a", "b", None)), size=rng.choice((4, 300)))
    elif act == 5:
        world.rig.checkpoint()
    elif act == 6:
        world.rig.snapshot()
    elif act == 7:
        world.rig.delete(name, match=rng.choice(("a", "b")))
    elif act == 8:
        world.rig.delete(name, before_seq=rng.randint(1, 9))
    else:
        world.rig.tick(rng.choice((60, 1_100, 5_100)))


def live(world: World, rng: Random) -> None:
    faults: list[Fault] = []
    for _ in range(STEPS):
        if rng.random() < 0.25:
            faults.append(strike(world, rng))
        try:
            step(world, rng)
        except (TopicsError, OSError):
            pass  # it said so: that is all a failing operation owes
        if faults and rng.random() < 0.3:
            faults.pop().lift()
    world.faults.clear()


def end(world: World, rng: Random) -> None:
    shards = rng.choice((1, 1, 2))
    if rng.random() < 0.4:
        world.kill(wal_shards=shards)
    else:
        world.disk.power_cut(rng, rng.choice(POWER_PATTERNS))
        world.restart_after_cut(wal_shards=shards)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_operations_random_faults_and_random_crashes_break_no_promise(seed: int) -> None:
    rng = Random(seed)
    world = World(rewrite_min_dead_bytes=1, rewrite_dead_ratio=0.3)
    world.rig.create("f", "fsync")
    world.rig.create("d", "disk")
    for _ in range(LIVES):
        live(world, rng)
        end(world, rng)
    before = world.seen()
    assert world.kill() == before
