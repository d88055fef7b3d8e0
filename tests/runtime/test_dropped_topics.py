"""A topic that is dropped while something works on its files: nobody complains, and nothing of it is left."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.runtime.world import World

from topics.core.reading.walk import ReadRequest
from topics.errors import TopicNotFound
from topics.storage.fetch import RecordsMoved


@pytest.mark.parametrize("call", ["create", "pwrite", "datasync", "sync_dir"])
def test_a_topic_that_is_dropped_in_the_middle_of_a_checkpoint_fails_nothing(
    call: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    world.rig.create("t", "fsync")
    world.rig.create("u", "fsync")
    world.rig.write("t", 6, tag="a")
    world.rig.write("u", 2)
    began = world.faults.block(call, "*/topics/00000001*", until=lambda: drop(world))  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, "topics"):
        world.rig.checkpoint()
    assert began.hits == 1
    world.rig.tick()
    assert caplog.records == []
    assert world.rig.sim.kernel.checkpointer.failures_total == 0
    assert world.disk.listdir("data/topics") == ["00000002"]
    assert sorted(world.cut()) == ["u"]


def drop(world: World) -> None:
    world.rig.drop("t")
    world.rig.tick()


def test_flags_that_wait_for_their_sync_are_forgotten_with_their_topic() -> None:
    world = World()
    world.rig.create("t", "fsync")
    world.rig.write("t", 2)
    world.rig.write("t", 1, tag="a")
    world.rig.checkpoint()
    world.rig.delete("t", match="a")
    flips = world.rig.sim.kernel.store.flips
    assert len(flips) == 1
    drop(world)
    assert len(flips) == 0
    world.rig.checkpoint()
    assert world.rig.sim.kernel.store.env.counters.flip_failures == 0


def test_a_directory_that_an_ephemeral_topic_gave_up_is_missed_by_no_later_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also where that start goes by a snapshot from before the change of class, and through two layouts of the log."""
    world = World(wal_shards=2)
    world.rig.create("t", "disk")
    world.rig.write("t", 2)
    world.rig.configure("t", "ephemeral")
    world.cut()
    world.rig.snapshot()
    world.kill(wal_shards=1)
    world.disk.kill()
    world.disk = world.disk.reboot()
    newest = max(world.disk.listdir("data/meta"))
    world.disk.tamper(f"data/meta/{newest}", lambda data: data[:-1])
    world.kill()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_page_whose_topics_are_being_dropped_does_not_end_the_list() -> None:
    world = World()
    world.rig.create("a", "fsync", ttl_ms=10)
    world.rig.create("b", "fsync")
    world.rig.write("a")
    world.clock.advance(11)
    sim = world.rig.sim
    dropped = sim.submit(lambda engine: engine.drop_topic("a"))
    page = sim.submit(lambda engine: engine.page_of_topics(page_size=1))
    sim.pump()
    assert (dropped.result().deleted, page.result()) == (True, ([], "a"))
    following, last = sim.call(lambda engine: engine.page_of_topics(page_size=1, after="a"))
    assert ([topic.topic for topic in following], last) == (["b"], None)


@pytest.mark.parametrize("is_swept", [False, True])
@pytest.mark.parametrize("from_seq", [0, 4])
def test_a_read_that_waits_while_its_topic_is_dropped_ends(
    monkeypatch: pytest.MonkeyPatch, from_seq: int, is_swept: bool
) -> None:
    """Its next records lay in a file that a checkpoint has put another in the place of."""
    world = World(recent_cache_bytes=0)
    world.rig.create("t", "fsync")
    world.rig.write("t", 6)
    world.rig.checkpoint()  # four in a segment, two in the active one
    kernel, held = world.rig.sim.kernel, list[Any]()
    monkeypatch.setattr(kernel.driver, "run_read", lambda job, done: held.append((job, done)))
    request = ReadRequest(from_seq=from_seq, limit=100, budget_bytes=1 << 20)
    reading = world.rig.sim.submit(lambda engine: engine.read("t", request))
    files = kernel.store.topics[1]
    world.rig.drop("t")
    files.active = None
    if is_swept:
        world.rig.tick()
    [(job, done)] = held
    if from_seq:
        done(None, RecordsMoved())
        assert isinstance(reading.error, TopicNotFound)
    else:
        done(job(), None)  # the segment is loaded; its records are read next
        for job, done in held[1:]:
            done(job(), None)
        assert reading.result().outcome.next_from_seq == 4
