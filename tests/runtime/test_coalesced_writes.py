"""Single-record writes of one turn travel as one submission: what each of them is still promised for itself."""

from __future__ import annotations

from typing import Any

import pytest
from tests.crash.harness import read_all
from tests.runtime.world import WAL, World

from topics.engine.ticket import Ticket
from topics.errors import CommitFailed
from topics.model.config import patch_from, resolve_config
from topics.model.names import parse_match
from topics.testing import SimHost
from topics.testing.driver import SimKernel

LOG = "data/wal/wal-0000000000000001.log"


def a_world(durability: str = "disk", **settings: Any) -> World:
    """With one record written, so that the ceiling is there and nothing else is on its way."""
    world = World(**{"seq_reserve": 64, **settings})
    world.rig.create("t", durability)
    world.rig.write("t")
    return world


def first_seqs(given: list[tuple[Any, Ticket[Any] | None]]) -> list[int]:
    return [write.first_seq for write, _ in given]


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_writes_of_a_turn_are_one_append_and_answered_each_by_its_own_seq(durability: str) -> None:
    world = a_world(durability)
    (group,) = world.rig.sim.kernel.store.groups
    batches, frames = group.stats.batches, group.stats.client_frames
    given = [world.rig.submit("t") for _ in range(5)]
    assert world.rig.sim.kernel.commit.depth() == 5, "each of them has a place in the queue"
    world.rig.sim.pump()
    assert first_seqs(given) == [2, 3, 4, 5, 6]
    assert (group.stats.batches - batches, group.stats.client_frames - frames) == (1, 5)
    assert world.rig.sim.kernel.commit.depth() == 0
    assert len(world.kill()["t"].records) == 6


def test_what_comes_between_two_of_them_keeps_its_place() -> None:
    """A delete takes what was written before it in the same turn, and not what came after."""
    world = a_world()
    engine = world.rig.sim.engine
    before, _ = world.rig.submit("t", tag="x")
    deleted = engine.delete_records("t", match=parse_match("x"))
    after, _ = world.rig.submit("t", tag="x")
    world.rig.sim.pump()
    assert deleted.result().deleted == 1
    live = read_all(world.rig.sim, "t").records
    assert (before.first_seq in live, after.first_seq in live) == (False, True)


def test_a_batch_between_them_takes_its_seqs_in_order_of_arrival() -> None:
    world = a_world()
    given = [world.rig.submit("t", count) for count in (1, 3, 1, 1, 2, 1)]
    world.rig.sim.pump()
    assert first_seqs(given) == [2, 3, 6, 7, 8, 10]
    assert len(world.cut("keep_all")["t"].records) == 10


def test_a_write_after_a_stricter_class_took_effect_is_not_carried_by_a_weaker_one() -> None:
    """A config is applied between two writes of one turn: the second is synced before it is acked."""
    world = a_world()
    sim = world.rig.sim
    first, _ = world.rig.submit("t")
    topic = sim.engine.state.topics["t"]
    topic.config = resolve_config(patch_from({"durability": "fsync"}))
    world.rig.ledger.instance("t").durability = "fsync"
    second, ticket = world.rig.submit("t")
    syncs = sim.kernel.store.groups[0].stats.syncs
    sim.driver.turn()
    assert first.first_seq == 2
    assert ticket is not None
    assert not ticket.done, "written, and not synced yet"
    sim.pump()
    assert second.first_seq == 3
    assert sim.kernel.store.groups[0].stats.syncs > syncs


def test_a_later_moment_is_a_timestamp_of_its_own() -> None:
    world = a_world()
    world.rig.submit("t")
    world.clock.advance(5)
    world.rig.submit("t")
    world.rig.submit("t")
    world.rig.sim.pump()
    ts = world.rig.sim.engine.state.topics["t"].tail.runs[-1].ts
    assert ts[-2] == ts[-1] == ts[-3] + 5


def test_a_failed_write_fails_all_of_them_and_gives_their_seqs_back() -> None:
    world = a_world()
    world.faults.fail("pwrite", WAL)
    given = [world.rig.submit("t") for _ in range(4)]
    world.rig.sim.pump()
    for write, ticket in given:
        assert write.failed
        assert ticket is not None
        assert isinstance(ticket.error, CommitFailed)
        assert ticket.error.outcome == "not_committed"
    topic = world.rig.sim.engine.state.topics["t"]
    assert (topic.reserved_head, topic.staged_count, topic.staged_bytes) == (topic.head, 0, 0)
    assert world.rig.sim.engine.state.staged_bytes == 0
    assert world.rig.sim.kernel.commit.depth() == 0
    world.faults.clear()
    assert len(world.kill()["t"].records) == 1
    world.rig.write("t")
    assert world.rig.ledger.instance("t").writes[-1].first_seq == 2


def test_a_failed_sync_fails_all_of_them_and_shows_none() -> None:
    world = a_world("fsync")
    world.faults.fail("datasync", WAL)
    given = [world.rig.submit("t") for _ in range(3)]
    world.rig.sim.pump()
    assert all(write.failed for write, _ in given)
    assert len(read_all(world.rig.sim, "t").records) == 1


def test_one_that_still_grows_when_the_log_fails_is_answered_too() -> None:
    """A sync fails while the next writes are being gathered: they fail with it and nothing of them is written."""
    world = a_world("fsync")
    world.faults.fail("datasync", WAL)
    waiting = world.rig.submit("t")
    while world.rig.sim.driver._flush_due:
        world.rig.sim.driver.turn()
    gathering = [world.rig.submit("t") for _ in range(3)]
    (writer,) = world.rig.sim.writers
    writer.sync()
    assert waiting[0].failed
    assert all(write.failed for write, _ in gathering)
    world.rig.sim.pump()
    assert world.rig.sim.engine.state.topics["t"].staged_count == 0


def test_a_full_queue_counts_every_one_of_them() -> None:
    world = a_world(wal_queue=3)
    given = [world.rig.submit("t") for _ in range(3)]
    late, ticket = world.rig.submit("t")
    assert ticket is not None
    assert not ticket.done, "the fourth waits for a place"
    world.rig.sim.pump()
    assert first_seqs([*given, (late, ticket)]) == [2, 3, 4, 5]


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_a_torn_log_keeps_the_first_of_them_and_never_a_part_of_one(durability: str) -> None:
    """Each is a run by itself: a cut at any byte of their common append leaves the whole ones in front of it."""
    world = a_world(durability)
    before = world.disk.contents(LOG).rstrip(b"\0")
    given = [world.rig.submit("t") for _ in range(3)]
    world.rig.sim.pump()
    content = world.disk.contents(LOG)
    end = len(content.rstrip(b"\0"))
    kept = [records_after_cut(world, content, at) for at in range(len(before) + 1, end + 1, 7)] + [
        records_after_cut(world, content, len(content))
    ]
    tokens = [write.tokens[0] for write, _ in given]
    assert kept[-1][-3:] == tokens
    for found in kept:
        assert found == [*found[:1], *tokens[: len(found) - 1]]
    assert {len(found) for found in kept} == {1, 2, 3, 4}


def records_after_cut(world: World, content: bytes, at: int) -> list[str]:
    """What a start finds when everything from byte `at` of the log on is zero, after a power cut."""
    disk = world.disk.clone()
    log = disk.open(LOG, "rw")
    log.pwrite(0, content[:at] + bytes(len(content) - at))
    log.datasync()
    disk.kill()
    host = SimHost()
    host.reboot()
    sim = SimKernel.open(disk.reboot(), clock=world.clock, host=host, wal_file_bytes=4096, seq_reserve=64)
    return list(read_all(sim, "t").records.values())
