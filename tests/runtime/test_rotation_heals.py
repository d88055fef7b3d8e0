"""A log that cannot begin its next file: what is refused meanwhile, and that it goes on by itself."""

from __future__ import annotations

import errno

import pytest
from tests.runtime.test_commit import _refusal
from tests.runtime.world import World

from topics.api.endpoints.probes import refusals_of
from topics.errors import NotReady, WalReadOnly
from topics.testing.faultfs import FOREVER


def make(durability: str) -> World:
    world = World(wal_file_bytes=1 << 14)
    world.rig.create("t", durability)
    world.rig.write("t", 4)
    return world


def refusal(world: World) -> BaseException | None:
    """What a write is answered; None if it was acked."""
    write, ticket = world.rig.submit("t", 4, size=64)
    world.rig.sim.pump()
    if ticket is None:
        return _refusal(world.rig, "t") if write.failed else None
    return ticket.error


def refused(world: World) -> BaseException:
    """Write until the log has to rotate."""
    for _ in range(1000):
        error = refusal(world)
        if error is not None:
            return error
    raise AssertionError("the log never rotated")


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EIO])
@pytest.mark.parametrize(
    ("kind", "path"), [("create", "*prealloc.tmp"), ("rename", "*.log"), ("create", "*CURRENT.tmp")]
)
def test_a_rotation_that_failed_heals_without_a_restart_and_nothing_acked_is_lost(
    kind: str, path: str, code: int, durability: str
) -> None:
    world = make(durability)
    fault = world.faults.fail(kind, path, code=code, times=FOREVER)  # type: ignore[arg-type]
    error = refused(world)
    assert isinstance(error, NotReady)
    assert (error.status, error.retryable, error.retry_after_s) == (503, True, 1)
    assert isinstance(refusal(world), NotReady)
    assert any("rotate" in sentence for sentence in refusals_of(world.rig.sim.kernel))
    fault.lift()
    world.clock.advance(1001)
    world.rig.tick()
    assert refusals_of(world.rig.sim.kernel) == []
    world.rig.write("t", 4)
    acked = len(world.seen()["t"].records)
    world.rig.sim.sync_all()
    assert len(world.cut("lose_all")["t"].records) == acked


@pytest.mark.parametrize(("kind", "path"), [("fsync", "*prealloc.tmp"), ("sync_dir", "*")])
def test_a_sync_that_failed_at_a_rotation_is_not_tried_again(kind: str, path: str) -> None:
    world = make("fsync")
    world.faults.fail(kind, path, code=errno.EIO)  # type: ignore[arg-type]
    refused(world)
    for _ in range(3):
        world.clock.advance(60_000)
        world.rig.tick()
    error = refusal(world)
    assert isinstance(error, WalReadOnly)
    assert error.cause == "sync"
