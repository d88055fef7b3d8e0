"""Rows of group A of the fault matrix (`docs/spec/storage.md#sec-18`), through the whole engine: failing writes and
syncs.

Rows are those of `docs/fault-matrix.md`.
"""

from __future__ import annotations

import errno
import json
from random import Random
from threading import Event, Thread

import msgspec
import pytest
from tests.crash.harness import Rig
from tests.runtime.world import WAL, World

from topics.config import Settings
from topics.core.reading.walk import ReadRequest
from topics.embedded import Database
from topics.errors import CommitFailed, CorruptSegment, DiskFull, StartRefused, WalReadOnly
from topics.formats.file_names import shard_of
from topics.model.record import RecordIn, build_batch
from topics.runtime.drivers.blocking import BlockingDriver
from topics.runtime.kernel import Kernel, recover
from topics.storage.osfs import RetryingFs
from topics.testing import FOREVER, FaultFs, SimClock, SimFs, SimHost


def refused(rig: Rig, name: str, count: int = 1) -> BaseException | None:
    """Try a write; the error it was answered with."""
    _, ticket = rig.submit(name, count)
    rig.sim.pump()
    if ticket is None:
        return _refusal(rig, name)
    assert ticket.done
    return ticket.error


def _refusal(rig: Rig, name: str) -> BaseException:
    with pytest.raises(Exception) as caught:
        rig.sim.submit(lambda engine: engine.write(name, build_batch([RecordIn(data=msgspec.Raw(b"1"))])))
    return caught.value


@pytest.fixture
def world() -> World:
    world = World()
    world.rig.create("f", "fsync")
    world.rig.create("d", "disk")
    world.rig.write("f", 2)
    world.rig.write("d", 2)
    return world


def test_a_write_that_gets_nowhere_fails_and_the_head_stays(world: World) -> None:
    """Row 2."""
    world.faults.short("pwrite", WAL, keep=0, times=FOREVER)
    assert isinstance(refused(world.rig, "f"), CommitFailed)
    assert isinstance(refused(world.rig, "f"), WalReadOnly)
    assert world.seen()["f"].head == 2
    assert len(world.kill()["f"].records) == 2


def test_one_failed_write_fails_all_queued_behind_it_and_none_comes_back(world: World) -> None:
    """Row 3."""
    world.faults.fail("pwrite", WAL)
    pending = [world.rig.submit(name, 2) for name in ("f", "d", "f")]
    world.rig.sim.pump()
    assert all(ticket is not None and ticket.error is not None for _, ticket in pending)
    assert (len(world.seen()["f"].records), len(world.seen()["d"].records)) == (2, 2)
    seen = world.kill()
    assert (len(seen["f"].records), len(seen["d"].records)) == (2, 2)


def test_a_failed_group_leaves_the_topics_of_the_others_writable() -> None:
    """Row 4."""
    world = World(wal_shards=4)
    for at in range(8):
        world.rig.create(f"t{at}", "fsync")
        world.rig.write(f"t{at}")
    world.faults.fail("pwrite", "*/shard-00/*", times=FOREVER)
    group_of = world.rig.sim.engine.context.group_of
    groups = {f"t{at}": group_of(world.rig.sim.engine.state.topics[f"t{at}"].id) for at in range(8)}
    assert set(groups.values()) == {0, 1, 2, 3}
    for name, group in groups.items():
        assert (refused(world.rig, name) is None) == (group != 0), name
    for name, group in groups.items():
        assert len(world.seen()[name].records) == (1 if group == 0 else 2)
    world.kill()


def test_a_full_disk_refuses_until_there_is_space_and_goes_on_at_the_next_seq(world: World) -> None:
    """Row 5."""
    fault = world.faults.fail("pwrite", WAL, code=errno.ENOSPC, times=FOREVER)
    assert isinstance(refused(world.rig, "f"), DiskFull)
    assert isinstance(refused(world.rig, "f"), DiskFull)
    fault.lift()
    world.rig.tick(1_100)
    world.rig.tick(900)
    world.rig.write("f")
    assert world.rig.ledger.instance("f").writes[-1].first_seq == 3
    world.cut()


@pytest.mark.parametrize("known", [True, False], ids=["known to be full", "found out by the list"])
def test_topics_are_listed_while_a_full_disk_keeps_a_floor_from_being_logged(world: World, known: bool) -> None:
    """The others as they are, that one as it was: a floor that nobody has logged is shown to nobody."""
    world.rig.create("expiring", "fsync", ttl_ms=1000)
    world.rig.write("expiring", 2)
    fault = world.faults.fail("pwrite", WAL, code=errno.ENOSPC, times=FOREVER)
    if known:
        refused(world.rig, "f")
    world.clock.advance(1001)

    def listed() -> dict[str, tuple[int, int]]:
        page, _ = world.rig.sim.call(lambda engine: engine.page_of_topics())
        return {found.topic: (found.earliest_seq, found.count) for found in page}

    assert listed() == {"d": (1, 2), "expiring": (1, 2), "f": (1, 2)}
    fault.lift()
    world.rig.tick(1_100)
    world.rig.tick(900)
    assert listed()["expiring"] == (3, 0)


def test_a_batch_whose_sync_failed_is_never_acked_by_a_later_one(world: World) -> None:
    """Row 8."""
    world.faults.fail("datasync", WAL)
    error = refused(world.rig, "f")
    assert isinstance(error, CommitFailed)
    assert error.outcome == "unknown"
    world.rig.tick(5_000)
    again = refused(world.rig, "f")
    assert isinstance(again, WalReadOnly)
    assert again.cause == "sync"
    assert world.seen()["f"].head == 2
    world.cut()
    world.rig.write("f")


def test_disk_writes_acked_before_a_failed_sync_stay_readable_and_are_announced_when_lost(world: World) -> None:
    """Rows 9 and 10."""
    world.rig.sim.sync_all()
    world.rig.write("d", 3)
    assert len(world.seen()["d"].records) == 5
    world.faults.fail("datasync", WAL)
    assert isinstance(refused(world.rig, "f"), CommitFailed)
    assert len(world.seen()["d"].records) == 5
    assert world.rig.sim.kernel.store.groups[0].at_risk_frames == 3
    seen = world.cut("lose_all")
    assert len(seen["d"].records) == 2
    assert all(seen["d"].announced(seq) for seq in (3, 4, 5))


@pytest.mark.parametrize("pattern", ["lose_all", "keep_all", "keep_prefix_torn", "reorder"])
def test_after_a_failed_sync_each_write_is_whole_or_absent_and_its_seqs_are_not_reused(
    world: World, pattern: str
) -> None:
    """Rows 11 and 12."""
    world.faults.fail("datasync", WAL)
    pending = [world.rig.submit("f", 3), world.rig.submit("f", 2)]
    world.rig.sim.pump()
    assert all(isinstance(ticket.error, CommitFailed) for _, ticket in pending if ticket is not None)
    found = world.cut(pattern)["f"]
    assert len(found.records) in (2, 5, 7)
    world.rig.write("f")
    first_seq = world.rig.ledger.instance("f").writes[-1].first_seq
    assert first_seq is not None
    assert first_seq > max(found.records)
    world.cut()


def test_a_blocked_sync_in_one_group_delays_no_other_group_and_no_read() -> None:
    """Row 24: while one group's sync has not returned, nothing of it is acked and everything else goes on."""
    world = World(wal_shards=4)
    for at in range(8):
        world.rig.create(f"t{at}", "fsync")
    group_of = world.rig.sim.engine.context.group_of
    groups = {f"t{at}": group_of(world.rig.sim.engine.state.topics[f"t{at}"].id) for at in range(8)}
    slow = next(name for name, group in groups.items() if group == 0)
    other = next(name for name, group in groups.items() if group != 0)
    writer = world.rig.sim.writers[0]
    sync, writer.sync = writer.sync, lambda: False  # type: ignore[method-assign]
    _, ticket = world.rig.submit(slow, 1)
    world.rig.sim.pump()
    assert ticket is not None
    is_answered_before_the_sync = ticket.done
    assert not is_answered_before_the_sync
    world.rig.write(other, 1)
    assert world.rig.ledger.instance(other).writes[-1].acked
    assert world.seen()[slow].head == 0
    writer.sync = sync  # type: ignore[method-assign]
    world.rig.sim.pump()
    assert ticket.done
    world.cut()


@pytest.mark.parametrize("pattern", ["lose_all", "keep_all", "random"])
def test_a_timer_sync_that_fails_leaves_acked_disk_writes_readable_and_what_is_lost_is_announced(
    world: World, pattern: str
) -> None:
    """Row 10: nobody waits for the sync; the interval has passed."""
    world.rig.sim.sync_all()
    world.rig.write("d", 3)
    failing = world.faults.fail("datasync", WAL)
    world.rig.sim.sync_all()
    assert failing.hits == 1
    assert len(world.seen()["d"].records) == 5
    assert world.rig.sim.kernel.store.groups[0].at_risk_frames == 3
    error = refused(world.rig, "d")
    assert isinstance(error, WalReadOnly)
    assert error.cause == "sync"
    seen = world.cut(pattern)["d"]
    assert all(seq in seen.records or seen.announced(seq) for seq in range(1, 6))
    assert {1, 2} <= set(seen.records)


@pytest.mark.parametrize("seed", range(12))
def test_a_disk_that_lies_about_every_sync_loses_but_fabricates_and_doubles_nothing(seed: int) -> None:
    """Row 25: with segments and snapshots whose syncs were lies, too. O1 and O3 are waived."""
    world = World()
    world.faults.lie("datasync", times=FOREVER)
    world.faults.lie("fsync", times=FOREVER)
    world.faults.lie("sync_dir", times=FOREVER)
    world.rig.create("f", "fsync")
    for turn in range(6):
        world.rig.write("f", 3, size=150)
        if turn in (1, 3):
            world.rig.snapshot()
    tokens = dict(enumerate(world.rig.ledger.tokens("f"), 1))
    world.disk.power_cut(Random(seed), "random")
    disk = world.disk.reboot()
    world.host.reboot()
    try:
        rig = Rig(disk, clock=world.clock, host=world.host)
    except StartRefused:  # metadata or a log file is gone: told, and nothing is changed
        rig = Rig(disk, clock=world.clock, host=world.host, salvage=True)
    for name in rig.sim.engine.state.topics:
        found = readable(rig, name)
        assert found.items() <= tokens.items(), "a record nobody wrote, or at another seq"


def readable(rig: Rig, name: str) -> dict[int, str]:
    """Records one by one, without those that say they are damaged."""
    found: dict[int, str] = {}
    for seq in range(rig.sim.engine.state.topics[name].head):
        try:
            outcome = rig.call(lambda engine, seq=seq: engine.read(name, ReadRequest(from_seq=seq, limit=1))).outcome  # type: ignore[misc]
        except CorruptSegment:
            continue
        for run in outcome.runs:
            found |= {stored.seq: json.loads(bytes(stored.blob))["d"] for stored in run.records()}
    return found


def test_a_sync_that_hangs_delays_only_the_writes_of_its_group() -> None:
    """Row 24, with the threads of a real process: other groups, reads and followers go on while it hangs."""
    gate = Event()
    faults = FaultFs(SimFs(), record=False)
    settings = Settings.from_kwargs(data_dir="data", wal_shards=4, wal_file_bytes=4096)
    recovered = recover(RetryingFs(faults), settings=settings, clock=SimClock(), host=SimHost())
    driver = BlockingDriver(cold_threads=1)
    with Database(Kernel(recovered, settings=settings, driver=driver), driver) as database:
        topics = [database.topic(f"t{at}", durability="fsync") for at in range(8)]
        for topic in topics:
            topic.append("first")
        groups = [shard_of(recovered.state.topics[f"t{at}"].id, 4) for at in range(8)]
        slow, others = topics[groups.index(0)], [topic for topic, group in zip(topics, groups, strict=True) if group]
        faults.block("datasync", "*/shard-00/*", until=gate.wait)
        answers: list[int] = []
        writer = Thread(target=lambda: answers.append(slow.append("late").first_seq), daemon=True)
        try:
            writer.start()
            for topic in others:
                assert topic.append("second").first_seq == 2
                assert [record.value for record in topic.page().records] == ["first", "second"]
            assert [record.value for record in slow.page().records] == ["first"], "it was shown before its ack"
            assert answers == []
        finally:
            gate.set()
        writer.join(30)
        assert answers == [2]
        assert [record.value for record in slow.page().records] == ["first", "late"]
