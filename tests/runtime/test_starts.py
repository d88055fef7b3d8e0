"""Rows of group H of the fault matrix, through the whole engine: a start that meets a failing call.

Every call that a start makes is failed in turn. Either the start says so, or the fault made no difference; what it
leaves behind is never taken for an empty directory, and the next start shows what was there.

Rows are those of `docs/fault-matrix.md`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest
from tests.crash.harness import Rig, survey
from tests.runtime.world import WAL, World

from topics.errors import DiskFull, TopicsError
from topics.testing import FOREVER, FaultFs, SimClock, SimFs, SimHost
from topics.testing.faultfs import CHANGING, KINDS, FsCall

LOOKING = tuple(kind for kind in KINDS if kind not in CHANGING and kind != "close")


def used() -> World:
    """Segments, active and sealed, flags, two snapshots, records in the log and a torn tail."""
    world = World()
    world.rig.create("f", "fsync")
    world.rig.create("m", "memory")
    for tag in ("a", "b"):
        world.rig.write("f", 3, tag=tag)
        world.rig.snapshot()
    world.rig.delete("f", match="a")
    world.rig.write("f", 2)
    world.rig.sim.sync_all()
    world.disk.kill()
    log = sorted(path for path in world.disk.dump() if "/wal-" in path)[-1]
    end = len(world.disk.contents(log).rstrip(b"\0"))
    world.disk.tamper(log, lambda data: data[:end] + b"\x50\0\0\0\1" + data[end + 5 :])
    return world


def start(fs: FaultFs | SimFs, world: World) -> Rig:
    return Rig(fs, clock=world.clock, host=world.host)


def calls_of_a_start(world: World) -> list[FsCall]:
    faults = FaultFs(world.disk.clone())
    start(faults, world)
    return faults.trace


def failing(world: World, calls: list[FsCall], **fault: object) -> Iterator[tuple[FsCall, SimFs, FaultFs]]:
    for call in calls:
        disk = world.disk.clone()
        faults = FaultFs(disk, record=False)
        faults.fail(at=call.number, **fault)  # type: ignore[arg-type]
        yield call, disk, faults


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EMFILE])
def test_whatever_cannot_be_looked_at_stops_the_start_and_is_never_taken_for_absent(code: int) -> None:
    """Rows 51, 98 and 103."""
    world = used()
    expected = survey(start(world.disk.clone(), world).sim)
    calls = [call for call in calls_of_a_start(world) if call.kind in LOOKING]
    assert len(calls) > 30
    stopped = 0
    for call, disk, faults in failing(world, calls, code=code):
        try:
            seen = survey(start(faults, world).sim)
        except (OSError, TopicsError):
            stopped += 1
        else:
            assert seen == expected, call
        disk.kill()
        assert survey(start(disk.reboot(), world).sim) == expected, call
    assert stopped > len(calls) // 2


def test_whatever_cannot_be_written_at_a_start_stops_it_or_makes_no_difference() -> None:
    """Row 101: a cut or its sync that fails, and every other write."""
    world = used()
    expected = survey(start(world.disk.clone(), world).sim)
    calls = [call for call in calls_of_a_start(world) if call.kind in CHANGING]
    assert {"truncate", "fsync", "sync_dir", "allocate", "pwrite"} <= {call.kind for call in calls}
    for call, disk, faults in failing(world, calls, code=errno.EIO):
        try:
            seen = survey(start(faults, world).sim)
        except (OSError, TopicsError):
            pass
        else:
            assert seen == expected, call
        twin = disk.clone()
        twin.kill()
        assert survey(start(twin.reboot(), world).sim) == expected, call
        disk.power_cut()
        after = Rig(disk.reboot(), clock=world.clock, host=SimHost("next"))
        assert survey(after.sim) == expected, call


def test_memory_that_runs_out_at_any_call_of_a_start_stops_it_and_the_next_one_works() -> None:
    """Row 104."""
    world = used()
    expected = survey(start(world.disk.clone(), world).sim)
    for call, disk, faults in failing(world, calls_of_a_start(world), error=MemoryError()):
        if call.kind == "close":
            continue
        with pytest.raises(MemoryError):
            start(faults, world)
        disk.kill()
        assert survey(start(disk.reboot(), world).sim) == expected, call


def test_without_space_to_allocate_the_log_again_reads_work_and_writes_resume_when_there_is_some() -> None:
    """Row 102."""
    world = used()
    disk = world.disk.reboot()
    faults = FaultFs(disk, record=False)
    full = faults.fail("allocate", WAL, code=errno.ENOSPC, times=FOREVER)
    rig = Rig(faults, world.rig.ledger, clock=world.clock, host=world.host)
    assert full.hits
    assert len(survey(rig.sim)["f"].records) == 5
    with pytest.raises(DiskFull) as refused:
        rig.sim.call(lambda engine: engine.drop_topic("m"))
    assert refused.value.cause == "no_space"
    full.lift()
    rig.tick(1_100)
    rig.tick(1_100)
    rig.write("f", 1)
    assert len(survey(rig.sim)["f"].records) == 6


@pytest.mark.parametrize("durability", ["disk", "memory", "ephemeral"])
@pytest.mark.parametrize("then", ["kill", "stop", "space", "snapshot"])
def test_what_a_start_without_space_found_lost_is_lost_for_the_next_start_too(durability: str, then: str) -> None:
    """Row 102 after a power cut: the marks of the loss cannot be logged, and nothing may be reused for it."""
    world = World()
    world.rig.create("t", durability)
    world.rig.write("t", 3)
    world.rig.snapshot()
    world.rig.write("t", 3)
    world.before_start = lambda faults: faults.fail("allocate", WAL, code=errno.ENOSPC, times=FOREVER)
    found = world.cut()["t"]
    assert world.rig.sim.kernel.store.groups[0].read_only == "no_space"
    if then in ("space", "snapshot"):
        world.faults.clear()
        world.rig.tick(1_100)
        assert world.rig.sim.kernel.store.groups[0].read_only is None
    if then == "snapshot":
        world.rig.tick(5_100)
        assert world.disk.contents("data/.topics.lock").endswith(b"\nboot=boot-2 sim:2\n")
        world.rig.write("t", 1)
    world.before_start = lambda _: None
    again = (world.stop() if then == "stop" else world.kill())["t"]
    assert again.head >= found.head
    assert again.announced(6)
    world.rig.write("t", 2)
    world.kill()


def test_a_snapshot_that_was_due_and_failed_is_tried_again_without_another_reason() -> None:
    world = used()
    world.kill(wal_shards=2)
    failing = world.faults.fail("rename", "*meta*", code=errno.EIO, times=FOREVER)
    world.rig.tick(100)
    assert failing.hits
    failing.lift()
    world.rig.tick(5_100)
    assert world.rig.sim.kernel.snapshotter.total == 1


def test_a_new_directory_has_a_snapshot_before_its_first_write() -> None:
    """`docs/spec/storage.md#sec-8-3`: so that a log damaged on its first day is damage, and no missing beginning."""
    disk = SimFs()
    faults = FaultFs(disk)
    rig = Rig(faults, clock=SimClock(), host=SimHost())
    assert disk.listdir("data/meta") == ["snapshot.0001.bin"]
    rig.create("t", "fsync")
    (named,) = [call.number for call in faults.trace if call.kind == "rename" and "snapshot" in call.path]
    writes = [call.number for call in faults.trace if call.kind == "pwrite" and "/wal-" in call.path]
    assert named < writes[-1]
    disk.power_cut()
    rig = Rig(disk.reboot(), clock=SimClock(), host=SimHost("next"))
    assert list(rig.sim.engine.state.topics) == ["t"]
