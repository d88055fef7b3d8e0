"""Rows of groups A, C and D of the fault matrix that need a whole engine: queue, thread, frames nobody expects.

Rows are those of `docs/fault-matrix.md`.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.crash.harness import Rig, read_all
from tests.crash.ledger import Seen
from tests.runtime.world import WAL, World

from topics.config import Settings
from topics.embedded import Database
from topics.errors import CommitFailed, WalFull, WalReadOnly
from topics.formats.wal.frame import FrameType, encode_frame
from topics.runtime.drivers.blocking import BlockingDriver
from topics.runtime.kernel import Kernel, recover
from topics.storage.osfs import RetryingFs
from topics.testing import FaultFs, SimClock, SimFs, SimHost

LOG = "data/wal/wal-0000000000000001.log"


def test_while_the_writer_is_blocked_a_full_queue_refuses_the_next_write_whole() -> None:
    """Row 21."""
    world = World(wal_queue=4)
    world.rig.create("f", "fsync")
    (writer,) = world.rig.sim.writers
    pump, writer.pump = writer.pump, lambda: None  # type: ignore[method-assign]
    taken = [world.rig.submit("f", 2) for _ in range(4)]
    late, ticket = world.rig.submit("f", 5)
    world.rig.tick(1_001)
    assert ticket is not None
    assert isinstance(ticket.error, WalFull)
    assert ticket.error.retryable
    writer.pump = pump  # type: ignore[method-assign]
    world.rig.sim.driver.wake()
    world.rig.sim.pump()
    assert all(write.acked for write, _ in taken)
    log = world.disk.contents(LOG)
    assert not [token for token in late.tokens if token.encode() in log]
    assert len(world.cut()["f"].records) == 8
    world.rig.write("f")
    assert world.rig.ledger.instance("f").writes[-1].first_seq == 9


def test_a_sync_thread_that_dies_fails_every_waiter_and_leaves_the_group_read_only() -> None:
    """Row 22, with the threads of a real process."""
    disk = SimFs()
    faults = FaultFs(disk, record=False)
    with threaded(faults) as database:
        database.topic("t", durability="fsync").append("kept")
        faults.fail("datasync", WAL, error=SystemExit("the thread was told to die"))
        with pytest.raises(CommitFailed):
            database.topic("t").append("lost")
        with pytest.raises(WalReadOnly) as refused:
            database.topic("t").append("refused")
        assert refused.value.cause == "writer_dead"
        assert [record.value for record in database.topic("t").page().records] == ["kept"]
        faults.clear()
    with threaded(disk.reboot()) as database:
        assert [record.value for record in database.topic("t").page().records][:1] == ["kept"]
        assert database.topic("t").append("again").first_seq > 1


def threaded(fs: Any) -> Database:
    """The embedded library on a simulated disk: real threads, simulated time."""
    settings = Settings.from_kwargs(data_dir="data", wal_shards=1, wal_file_bytes=4096)
    recovered = recover(RetryingFs(fs), settings=settings, clock=SimClock(), host=SimHost())
    driver = BlockingDriver(cold_threads=1)
    return Database(Kernel(recovered, settings=settings, driver=driver), driver)


@pytest.mark.parametrize("pattern", ["lose_all", "keep_all", "random"])
def test_a_clean_stop_with_a_full_queue_keeps_every_write_of_every_persistent_class(pattern: str) -> None:
    """Row 23."""
    world = World(wal_queue=12)
    for durability in ("fsync", "disk", "memory"):
        world.rig.create(durability, durability)
    given = [world.rig.submit(name, 2) for name in ("fsync", "disk", "memory") * 4]
    world.rig.sim.close()
    assert all(ticket is not None and ticket.done for _, ticket in given), "somebody still waits"
    assert all(write.acked for write, _ in given)
    seen = world.cut(pattern)
    for name in ("fsync", "disk", "memory"):
        assert (seen[name].head, len(seen[name].records), seen[name].gaps) == (8, 8, [])


# --- frames nobody expects --------------------------------------------------------------------------------------------


def stopped(**config: Any) -> tuple[World, int]:
    """Three records of an fsync topic in the log, and the end of that log; the process is gone."""
    world = World()
    world.rig.create("t", "fsync", **config)
    world.rig.write("t", 3)
    world.disk.kill()
    return world, len(world.disk.contents(LOG).rstrip(b"\0"))


def frame(world: World, seq: int, *, topic_id: int = 1, text: bytes = b'"planted"') -> bytes:
    ts = world.clock.wall_ms()
    return encode_frame(FrameType.APPEND, topic_id=topic_id, seq=seq, ts=ts, data=b'{"d":%b}' % text)


def planted(world: World, end: int, *frames: bytes) -> Rig:
    """Put frames behind the end of the log and start."""
    world.disk.tamper(LOG, lambda data: (data[:end] + b"".join(frames)).ljust(len(data), b"\0"))
    world.disk = world.disk.reboot()
    return Rig(world.disk, clock=world.clock, host=world.host)


def again(world: World, rig: Rig, name: str) -> Seen:
    """What a second start shows, which must be what the first one did."""
    before = read_all(rig.sim, name)
    world.disk.kill()
    world.disk = world.disk.reboot()
    rig = Rig(world.disk, clock=world.clock, host=world.host)
    assert read_all(rig.sim, name) == before
    return before


def test_a_frame_far_ahead_is_held_and_the_real_ones_behind_it_are_applied() -> None:
    """Row 47."""
    world, end = stopped()
    frames = [frame(world, seq) for seq in (900, 4, 5)]
    seen = again(world, planted(world, end, *frames), "t")
    assert sorted(seen.records) == [1, 2, 3, 4, 5, 900]
    assert seen.gaps == [(6, 899)], "what lies between is announced and not skipped in silence"
    assert seen.head == 900


def test_the_frames_of_a_log_that_come_twice_make_no_second_record() -> None:
    """Row 48."""
    world, end = stopped()
    whole = world.disk.contents(LOG)[:end]
    seen = again(world, planted(world, end, whole), "t")
    assert (sorted(seen.records), seen.head, seen.gaps) == ([1, 2, 3], 3, [])
    assert list(seen.records.values()) == world.rig.ledger.tokens("t")


def test_records_whose_topic_was_never_created_are_kept_under_a_name_of_their_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Row 49."""
    world, end = stopped()
    rig = planted(world, end, *(frame(world, seq, topic_id=0x2A) for seq in (1, 2)))
    (name,) = [name for name in rig.sim.engine.state.topics if name.startswith("recovered:")]
    assert int(name.removeprefix("recovered:"), 16) == 0x2A
    assert name in caplog.text
    assert read_all(rig.sim, "t").head == 3
    seen = again(world, rig, name)
    assert seen.records == {1: "planted", 2: "planted"}


def test_a_sync_that_failed_before_a_kill_counts_as_a_reboot() -> None:
    """Row 55: the boot line no longer vouches for what was written."""
    world = World()
    world.rig.create("disk", "disk")
    world.rig.write("disk", 1)
    world.rig.write("disk", 1)
    world.faults.fail("datasync", WAL)
    world.rig.sim.sync_all()
    assert b"boot=-" in world.disk.contents("data/.topics.lock")
    world.faults.clear()
    seen = world.kill()["disk"]
    assert seen.head > 2
    assert seen.gaps == [(3, seen.head)]
