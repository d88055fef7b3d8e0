"""Files that are deleted, moved or replaced under a running engine (row 144).

Rows are those of `docs/fault-matrix.md`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.runtime.world import World

import topics
from topics.api.endpoints.probes import problems_of
from topics.errors import CommitFailed, DataDirLocked, Internal, StartRefused, StorageIo, TopicsError, WalReadOnly
from topics.storage.fs import remove_tree
from topics.testing.driver import SimKernel

LOCK = "data/.topics.lock"


def active_log(world: World, group: int = 0) -> str:
    file = world.rig.sim.kernel.store.groups[group].active
    assert file is not None
    return file.path


def last_error(world: World, name: str = "t") -> BaseException | None:
    write, ticket = world.rig.submit(name)
    world.rig.sim.pump()
    if ticket is None:
        assert write.failed
        return WalReadOnly("removed")
    return ticket.error


def take_away(world: World, how: str) -> None:
    """What an operator, a clean-up job or a careless script does."""
    disk = world.disk
    path = active_log(world)
    if how == "log deleted":
        disk.unlink(path)
    elif how == "log renamed":
        disk.rename(path, path + ".old")
    elif how == "log replaced":
        disk.plant(path + ".new", disk.contents(path))
        disk.rename(path + ".new", path)
    elif how == "directory moved":
        disk.rename("data", "elsewhere")
    elif how == "directory replaced":
        disk.rename("data", "elsewhere")
        for kept in ("data/.topics.lock", path):
            disk.plant(kept, b"")
    else:
        assert how == "directory deleted"
        remove_tree(disk, "data")


WAYS = ["log deleted", "log renamed", "log replaced", "directory moved", "directory replaced", "directory deleted"]


@pytest.mark.parametrize("how", WAYS)
def test_a_write_is_not_acked_into_a_log_that_no_name_leads_to(how: str) -> None:
    world = World()
    world.rig.create("t", "fsync")
    world.rig.write("t")
    take_away(world, how)
    error = last_error(world)
    assert isinstance(error, CommitFailed)
    assert (error.outcome, error.cause) == ("unknown", "removed")
    assert isinstance(last_error(world), WalReadOnly)
    (problem,) = problems_of(world.rig.sim.kernel)
    assert "read-only (removed)" in problem


@pytest.mark.parametrize("how", [*WAYS, "lock deleted", "lock replaced"])
def test_an_engine_that_nobody_writes_to_notices_within_a_second(how: str) -> None:
    world = World()
    world.rig.create("t", "fsync")
    if how == "lock deleted":
        world.disk.unlink(LOCK)
    elif how == "lock replaced":
        world.disk.plant(LOCK + ".new", b"")
        world.disk.rename(LOCK + ".new", LOCK)
    else:
        take_away(world, how)
    world.clock.advance(1_000)
    world.rig.sim.tick()
    assert world.rig.sim.kernel.commit.read_only_causes() == {0: "removed"}
    assert problems_of(world.rig.sim.kernel)


def test_only_the_shard_whose_file_is_gone_stops() -> None:
    world = World(wal_shards=2)
    names = [f"t{at}" for at in range(8)]
    for name in names:
        world.rig.create(name, "fsync")
    world.disk.unlink(active_log(world, 1))
    outcomes = {last_error(world, name) is None for name in names}
    assert outcomes == {True, False}
    assert world.rig.sim.kernel.commit.read_only_causes() == {1: "removed"}


def test_weak_writes_stop_at_the_next_sync_and_count_as_at_risk() -> None:
    world = World()
    world.rig.create("t", "disk")
    world.rig.write("t")
    world.disk.unlink(active_log(world))
    assert last_error(world) is None, "acked by its write, as its class says"
    world.rig.sim.sync_all()
    assert isinstance(last_error(world), WalReadOnly)
    assert world.rig.sim.kernel.store.groups[0].at_risk_frames > 0


def test_the_records_are_readable_until_the_process_ends() -> None:
    world = World()
    world.rig.create("t", "fsync")
    world.rig.write("t", 3)
    remove_tree(world.disk, "data")
    last_error(world)
    assert len(world.seen()["t"].records) == 3


def test_nothing_is_written_into_a_directory_that_took_the_place_of_ours() -> None:
    world = World()
    world.rig.create("t", "fsync")
    world.rig.write("t", 3)
    world.disk.rename("data", "elsewhere")
    other = SimKernel.open(world.disk, clock=world.clock, host=world.host)
    other.close()
    before = {path: data for path, data in world.disk.dump().items() if path.startswith("data/")}
    sim = world.rig.sim
    with pytest.raises(TopicsError):
        sim.checkpoint()
    with pytest.raises(TopicsError):
        sim.snapshot()
    for _ in range(20):
        world.clock.advance(5_000)
        sim.tick()
    sim.kernel.begin_close()
    sim.pump()
    assert {path: data for path, data in world.disk.dump().items() if path.startswith("data/")} == before


def test_a_checkpoint_asks_first_even_if_nobody_looked_yet() -> None:
    world = World()
    world.rig.create("t", "disk")
    world.rig.write("t", 3)
    world.disk.unlink(LOCK)
    with pytest.raises(StorageIo, match="deleted, moved or replaced"):
        world.rig.sim.checkpoint()


def test_what_was_in_a_lost_log_file_is_announced_or_the_start_refuses() -> None:
    """The lock file must not claim that every written byte is still there: `disk` records would vanish in silence."""
    world = World()
    world.rig.create("t", "disk")
    world.rig.write("t", 3)
    world.rig.sim.snapshot()
    world.rig.write("t", 2)
    world.disk.unlink(active_log(world))
    world.rig.sim.sync_all()
    assert b"boot=-" in world.disk.contents(LOCK)
    try:
        world.kill()  # checks that each acked record is there or announced
    except StartRefused:
        pass


def segments(world: World) -> list[str]:
    return sorted(path for path in world.disk.dump() if "/seg-" in path and path.endswith((".data", ".idx")))


def test_a_segment_that_is_gone_gives_an_error_that_names_it_and_never_an_empty_read() -> None:
    world = World(recent_cache_bytes=0)
    world.rig.create("t", "fsync")
    world.rig.write("t", 6)
    world.rig.sim.snapshot()
    first = segments(world)[0].rpartition("/")[2].partition(".")[0]
    for path in segments(world):
        if first in path:
            world.disk.unlink(path)
    kernel = world.rig.sim.kernel
    (topic,) = kernel.engine.state.by_id.values()
    for segment in topic.sealed:
        segment.view.unmap()  # type: ignore[attr-defined]
    kernel.store.env.files.close_idle()
    with pytest.raises(Internal, match=first):
        world.seen()


def test_a_checkpoint_does_not_count_records_of_an_active_segment_that_is_gone_as_stored() -> None:
    """What it would have moved stays in the log, and the engine says that it cannot move it."""
    world = World()
    world.rig.create("t", "fsync")
    world.rig.write("t", 2)
    world.rig.sim.checkpoint()
    for path in segments(world):
        world.disk.unlink(path)
    world.rig.write("t", 1)
    with pytest.raises(OSError, match="seg-"):
        world.rig.sim.checkpoint()
    assert any("checkpoint" in problem for problem in problems_of(world.rig.sim.kernel))


def test_an_older_log_file_that_goes_costs_nothing_once_it_was_noticed() -> None:
    world = World()
    world.rig.create("t", "fsync")
    older = active_log(world)
    while active_log(world) == older:
        world.rig.write("t", 4, size=64)
    world.disk.unlink(older)
    world.clock.advance(1_000)
    world.rig.sim.tick()
    world.rig.sim.tick()
    assert last_error(world) is None
    world.kill()  # checks that every acked record is there


def test_a_deleted_lock_file_lets_no_second_engine_in() -> None:
    world = World()
    world.disk.unlink(LOCK)
    with pytest.raises(DataDirLocked):
        SimKernel.open(world.disk)


def test_on_a_real_disk_an_append_into_a_deleted_directory_fails(tmp_path: Path) -> None:
    with topics.open(tmp_path / "data") as database:
        topic = database.topic("t", durability="fsync")
        topic.append(1)
        shutil.rmtree(tmp_path / "data")
        with pytest.raises(Internal):
            topic.append(2)
        assert [record.value for record in topic.read()] == [1]
    assert not (tmp_path / "data").exists()


def test_on_a_real_disk_a_second_engine_stays_out_when_the_lock_file_was_deleted(tmp_path: Path) -> None:
    with topics.open(tmp_path / "data"):
        (tmp_path / "data" / ".topics.lock").unlink()
        with pytest.raises(DataDirLocked):
            topics.open(tmp_path / "data")
