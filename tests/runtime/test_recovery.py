"""Rows of groups E, G, H, I and K of the fault matrix that need a whole engine: full disks, races, clocks, layouts.

Rows are those of `docs/fault-matrix.md`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
from tests.runtime.world import WAL, World

from topics.api.endpoints.probes import problems_of
from topics.engine.engine import Engine
from topics.engine.ticket import Ticket
from topics.errors import CommitFailed, DiskFull, TopicsError
from topics.model.config import patch_from, resolve_config
from topics.model.names import parse_match
from topics.model.router import RouterDef
from topics.testing import FOREVER

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS


def busy() -> World:
    """Records in the log, in an active and in sealed segments, some of them deleted."""
    world = World()
    world.rig.create("f", "fsync")
    for tag in ("a", "b", "a", "c"):
        world.rig.write("f", 3, tag=tag)
        world.rig.checkpoint()
    world.rig.delete("f", match="b")
    world.rig.write("f", 2, tag="a")
    return world


def test_a_disk_that_is_full_for_everything_refuses_writes_and_resumes_when_there_is_space() -> None:
    """Row 76."""
    world = busy()
    full = world.faults.fill_disk()
    with pytest.raises((TopicsError, OSError)):
        world.rig.snapshot()
    with pytest.raises((TopicsError, OSError)):
        world.rig.checkpoint()
    _, ticket = world.rig.submit("f", 1)
    world.rig.sim.pump()
    assert ticket is None or isinstance(ticket.error, TopicsError)
    with pytest.raises(DiskFull) as refused:
        world.rig.create("g", "fsync")
    assert refused.value.cause == "no_space"
    del world.rig.ledger.instances["g"]
    before = world.seen()["f"]
    assert len(before.records) == 11
    full.lift()
    for _ in range(3):
        world.rig.tick(1_100)
    rotations = world.rig.sim.kernel.store.groups[0].stats.rotations
    world.rig.write("f", 3, size=1500)
    assert world.rig.sim.kernel.store.groups[0].stats.rotations > rotations
    world.rig.snapshot()
    assert len(world.cut()["f"].records) == 14


@pytest.mark.parametrize("portion", [128, 1])
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 4, 6, 8, 9, 10, 11, 12, 13, 20])
def test_what_happens_while_a_snapshot_is_captured_is_there_exactly_once(
    turns: int, portion: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 97: writes, deletes, config and router changes at each stage of a snapshot, also between two topics."""
    monkeypatch.setattr("topics.runtime.background.gather.PORTION", portion)
    world = busy()
    world.rig.create("g", "fsync")
    world.rig.create("old", "fsync")
    world.rig.router("gone", "f", "old")
    ticket = world.rig.sim.kernel.snapshotter.run()
    for _ in range(turns):
        world.rig.sim.driver.turn()
    world.rig.submit("f", 2, tag="z")
    commands: list[Callable[[Engine], Ticket[Any]]] = [
        lambda engine: engine.delete_records("f", match=parse_match("a")),
        lambda engine: engine.put_topic("f", resolve_config(patch_from({"durability": "fsync", "cap_records": 50}))),
        lambda engine: engine.routers.put(RouterDef(name="r", source="f", dest="g")),
        lambda engine: engine.routers.delete("gone"),
    ]
    told = [world.rig.sim.submit(command) for command in commands]
    world.rig.sim.pump()
    assert ticket.error is None
    assert [one.error for one in told] == [None] * 4
    world.rig.sim.sync_all()
    doomed = world.rig.ledger.instance("f")
    doomed.deleting |= {seq for seq in doomed.acked() if seq not in world.seen()["f"].records}
    doomed.deleted |= doomed.deleting
    for fed in (world.rig.ledger.instance("g"), world.rig.ledger.instance("old")):
        fed.fed_by = ("f",)
        fed.deleted |= {0}  # both routers lived for a while only: not every record of the source has a copy
    before = world.seen()
    routers = {router.name for router in world.rig.sim.engine.state.routers}
    assert routers == {"r"}
    for end in (world.kill, world.cut):
        assert end() == before
        assert {router.name for router in world.rig.sim.engine.state.routers} == routers


@pytest.mark.parametrize("turns", range(24))
def test_topics_that_come_and_go_while_others_are_captured_are_there_or_not(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 97, with a checkpoint on top: what is captured behind it is newer than what is captured before."""
    monkeypatch.setattr("topics.runtime.background.gather.PORTION", 1)
    world = World()
    for name in ("a", "b", "c", "d"):
        world.rig.create(name, "fsync")
        world.rig.write(name, 3)
    world.rig.checkpoint()
    for name in ("a", "b", "c", "d"):
        world.rig.write(name, 3)
    ticket = world.rig.sim.kernel.snapshotter.run()
    for _ in range(turns):
        world.rig.sim.driver.turn()
    world.rig.drop("c")
    world.rig.create("c", "fsync")
    world.rig.create("e", "fsync")
    for name in ("a", "c", "d", "e"):
        world.rig.write(name, 2)
    world.rig.checkpoint()
    world.rig.sim.pump()
    assert ticket.error is None
    before = world.seen()
    assert {name: len(seen.records) for name, seen in before.items()} == {"a": 8, "b": 6, "c": 2, "d": 8, "e": 2}
    for end in (world.kill, world.cut):
        assert end() == before


def test_a_delete_whose_commit_fails_deletes_nothing() -> None:
    """Row 115."""
    world = busy()
    before = world.seen()["f"].records
    world.faults.fail("datasync", WAL)
    world.rig.ledger.instance("f").deleting |= set(before)
    with pytest.raises(TopicsError):
        world.rig.delete("f", before_seq=9)
    assert world.seen()["f"].records == before


def test_a_delete_that_was_never_written_deletes_nothing_after_a_restart_either() -> None:
    """Row 115: its frame was wiped."""
    world = busy()
    before = world.seen()["f"].records
    world.faults.fail("pwrite", WAL)
    with pytest.raises(CommitFailed) as caught:
        world.rig.call(lambda engine: engine.delete_records("f", before_seq=9))
    assert caught.value.outcome == "not_committed"
    assert world.seen()["f"].records == before
    assert world.kill()["f"].records == before
    assert world.cut()["f"].records == before


def test_a_delete_by_tag_spares_what_matches_and_was_written_later() -> None:
    """Row 116."""
    world = busy()
    world.rig.delete("f", match="a")
    world.rig.write("f", 2, tag="a")
    later = set(list(world.seen()["f"].records)[-2:])
    assert later <= set(world.cut()["f"].records)
    assert later <= set(world.cut()["f"].records)


def test_a_relaxed_cap_or_ttl_brings_nothing_back() -> None:
    """Row 121."""
    world = World()
    world.rig.create("c", "fsync", cap_records=3)
    world.rig.write("c", 8)
    world.rig.configure("c", "fsync", ttl_ms=1_000)
    assert len(world.seen()["c"].records) == 3
    world.clock.advance(2_000)
    assert not world.seen()["c"].records
    world.rig.configure("c", "fsync")
    world.rig.ledger.instance("c").cap = 1
    world.rig.ledger.instance("c").ephemeral = True  # all of it may be gone, announced
    for end in (world.kill, world.cut):
        assert not end()["c"].records


def test_a_wall_clock_turned_back_lets_no_time_fall_and_revives_nothing() -> None:
    """Row 135."""
    world = World()
    world.rig.create("t", "fsync", ttl_ms=60_000)
    world.rig.write("t", 2)
    world.clock.set_wall_ms(world.clock.wall_ms() - HOUR_MS)
    world.rig.write("t", 2)
    topic = world.rig.sim.engine.state.topics["t"]
    assert topic.last_ts >= world.clock.wall_ms() + HOUR_MS
    world.kill()
    world.rig.write("t", 1)
    assert world.rig.sim.engine.state.topics["t"].last_ts >= world.clock.wall_ms() + HOUR_MS
    assert sorted(world.seen()["t"].records) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("stopped", [True, False])
def test_a_start_complains_of_a_wall_clock_more_than_a_day_behind(
    stopped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """`docs/spec/storage.md#sec-2-3`."""
    world = World()
    world.rig.create("t", "fsync")
    world.rig.write("t", 2)
    now = world.clock.wall_ms()
    for behind_ms, complains in [(24 * HOUR_MS, False), (24 * HOUR_MS + 1, True)]:
        world.clock.set_wall_ms(now - behind_ms)
        caplog.clear()
        world.stop() if stopped else world.kill()
        errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert any("the wall clock is 24 hours behind" in error for error in errors) is complains


def test_a_wall_clock_turned_back_brings_no_expired_record_back() -> None:
    """Row 135."""
    world = World()
    world.rig.create("t", "fsync", ttl_ms=60_000)
    world.rig.write("t", 2)
    world.clock.advance(61_000)
    world.rig.write("t", 1)
    world.rig.ledger.instance("t").gone |= {1, 2}
    assert sorted(world.seen()["t"].records) == [3]
    for end in (world.seen, world.kill, world.cut):
        world.clock.set_wall_ms(world.clock.wall_ms() - HOUR_MS)
        seen = end()["t"]
        assert (sorted(seen.records), seen.gaps) == ([3], [(1, 2)])


def test_a_wall_clock_turned_back_revives_no_lease_and_stops_no_timer() -> None:
    """Row 135."""
    world = World()
    world.rig.create("q", "fsync", type="queue", leases_durable=True)
    world.rig.write("q", 1)
    assert world.rig.claim("q", lease_ms=30_000) == [1]
    world.rig.tick(30_001)
    world.clock.set_wall_ms(world.clock.wall_ms() - HOUR_MS)
    assert world.rig.claim("q", node="other") == [1]
    runs = world.rig.sim.kernel.checkpointer.runs_total
    world.rig.write("q", 1)
    world.rig.tick(5_100)
    assert world.rig.sim.kernel.checkpointer.runs_total > runs
    world.rig.nack("q", [1], node="w")
    assert world.rig.claim("q", 5, node="third") == [2], "the job is still the other's"
    world.kill()
    assert world.rig.claim("q", 5, node="third") == []


def test_a_wall_clock_that_stays_a_year_ahead_expires_more_after_ten_minutes_and_says_so() -> None:
    """Row 136."""
    world = World()
    world.rig.create("t", "fsync", ttl_ms=HOUR_MS)
    world.rig.create("u", "fsync")
    world.rig.write("t", 2)
    world.rig.write("u", 2)
    world.clock.set_wall_ms(world.clock.wall_ms() + YEAR_MS)
    assert sorted(world.seen()["t"].records) == [1, 2]
    world.rig.tick()
    assert any("wall clock" in problem for problem in problems_of(world.rig.sim.kernel))
    world.rig.tick(600_000)
    world.rig.ledger.instance("t").ephemeral = True  # it expires, announced
    seen = world.seen()
    assert not seen["t"].records
    assert seen["t"].announced(1)
    assert len(seen["u"].records) == 2
    assert world.kill() == world.seen()


def due_times(world: World) -> None:
    """A record lives its TTL, a lease its length, a nacked job waits its delay, a key is remembered: all from now."""
    rig, clock = world.rig, world.clock
    rig.write("t", 1)
    newest = world.rig.sim.engine.state.topics["t"].head
    rig.write("q", 2)
    held, nacked = rig.claim("q", 1, node="a", lease_ms=30_000), rig.claim("q", 1, node="b")
    rig.nack("q", nacked, node="b", delay_ms=30_000)
    rig.tick(29_000)
    assert rig.claim("q", 9, node="c") == []
    assert newest in world.seen()["t"].records
    rig.tick(1_002 + 30_000 // 15)
    assert sorted(rig.claim("q", 9, node="c")) == sorted([*held, *nacked])
    rig.ack("q", [*held, *nacked], node="c")
    assert newest in world.seen()["t"].records
    clock.advance(30_000 + 60_000 // 15)
    instance = rig.ledger.instance("t")
    instance.gone |= set(instance.acked())
    assert newest not in world.seen()["t"].records, "it expired on time"
    assert world.seen()["t"].announced(newest)


@pytest.mark.parametrize("how", ["running", "kill", "cut", "stop"])
@pytest.mark.parametrize("stays", ["a moment", "an hour"])
def test_after_a_clock_that_was_a_year_ahead_everything_is_due_when_it_should_be(stays: str, how: str) -> None:
    """Row 136: running, and started while the clock was wrong."""
    world = World()
    world.rig.create("t", "fsync", ttl_ms=60_000)
    world.rig.create("q", "fsync", type="queue", leases_durable=True)
    world.rig.create("kept", "fsync")
    due_times(world)
    right = world.clock.wall_ms()
    world.clock.set_wall_ms(right + YEAR_MS)
    passed = 1_000 if stays == "a moment" else HOUR_MS
    world.rig.tick(passed // 2)
    world.rig.write("kept", 1)
    if how != "running":
        getattr(world, how)()
    world.rig.tick(passed // 2)
    world.rig.write("kept", 1)
    world.clock.set_wall_ms(right + passed)
    if how != "running":
        getattr(world, how)()
    ahead_ms = world.rig.sim.engine.state.topics["kept"].last_ts - world.clock.wall_ms()
    assert (ahead_ms > HOUR_MS) is (stays == "an hour"), "a clock that is wrong for a moment marks nothing"
    due_times(world)
    due_times(world)


def test_a_clock_that_is_a_year_ahead_for_a_moment_expires_nothing_and_ends_no_lease() -> None:
    """Row 136."""
    world = World()
    world.rig.create("t", "fsync", ttl_ms=60_000)
    world.rig.create("q", "fsync", type="queue", leases_durable=True)
    world.rig.write("t", 2)
    world.rig.write("q", 1)
    assert world.rig.claim("q", lease_ms=30_000) == [1]
    right = world.clock.wall_ms()
    for ahead_ms in (61_000, HOUR_MS, YEAR_MS, 10 * YEAR_MS):
        world.clock.set_wall_ms(right + ahead_ms)
        world.rig.tick(0)
        assert sorted(world.seen()["t"].records) == [1, 2]
        assert world.rig.claim("q", node="other") == []
    world.clock.set_wall_ms(right)
    assert sorted(world.kill()["t"].records) == [1, 2]


@pytest.mark.parametrize("how", ["stop", "cut", "kill"])
@pytest.mark.parametrize("counts", [(1, 8), (8, 1), (3, 7), (4, 2, 4), (2, 1, 5, 1)])
def test_another_shard_count_gives_the_same_state_and_old_groups_go_away(counts: tuple[int, ...], how: str) -> None:
    """Row 137."""
    world = World(wal_shards=counts[0])
    for at in range(5):
        world.rig.create(f"t{at}", "fsync")
    for turn, shards in enumerate(counts):
        if turn:
            before = world.seen()
            assert getattr(world, how)(wal_shards=shards) == before
        for at in range(5):
            world.rig.write(f"t{at}", 2, tag="x")
        world.rig.delete("t1", match="x")
    before = world.seen()
    world.rig.snapshot()
    world.rig.snapshot()
    world.rig.tick(5_100)
    groups = [name for name in world.disk.listdir("data/wal") if name.startswith("shard-")]
    assert len(groups) <= (counts[-1] if counts[-1] > 1 else 0)
    assert world.cut() == before


def test_a_snapshot_that_cannot_be_installed_removes_nothing_and_is_tried_again() -> None:
    """Rows 86 and 87, with an engine behind it."""
    world = busy()
    for kind in ("fsync", "rename", "sync_dir"):
        fault: Any = world.faults.fail(kind, "*meta*", code=errno.EIO, times=FOREVER)
        before = [name for name in world.disk.listdir("data/wal") if name.startswith("wal-")]
        with pytest.raises((TopicsError, OSError)):
            world.rig.snapshot()
        assert set(before) <= set(world.disk.listdir("data/wal"))
        fault.lift()
    world.rig.snapshot()
    world.cut()
