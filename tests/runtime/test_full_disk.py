"""A disk that is full: what is refused, what goes on, and that everything resumes by itself.

The simulated disk has so many bytes for all files together; space inside a file's length was paid for when the file
grew, as on a real disk that allocates."""

from __future__ import annotations

import errno
from random import Random

import pytest
from tests.runtime.world import WAL, World

from topics.api.endpoints.probes import refusals_of
from topics.errors import DiskFull, TopicsError
from topics.testing.faultfs import FOREVER


def refusal(world: World, name: str, count: int = 1, size: int = 4) -> BaseException | None:
    """What a write is answered; None if it was acked."""
    try:
        write, ticket = world.rig.submit(name, count, size=size)
    except TopicsError as error:
        return error
    world.rig.sim.pump()
    if ticket is None:
        return DiskFull() if write.failed else None
    return ticket.error


def filled(world: World, name: str = "t", *, spare: int = 0) -> None:
    """Write until the disk refuses, then let the engine come to rest."""
    world.disk.disk.space = world.disk.disk.used() + spare
    for _ in range(10_000):
        error = refusal(world, name, 4, size=64)
        if error is not None:
            assert isinstance(error, DiskFull)
            world.rig.tick()
            return
    raise AssertionError("the disk never filled up")


def make(durability: str = "fsync", **config: object) -> World:
    world = World(wal_file_bytes=1 << 14)
    world.rig.create("t", durability, **config)
    world.rig.write("t", 12, tag="old")
    world.rig.sim.snapshot()
    return world


def test_a_full_disk_has_an_error_of_its_own_that_says_to_come_back() -> None:
    world = make()
    filled(world)
    error = refusal(world, "t")
    assert isinstance(error, DiskFull)
    assert (error.code, error.status, error.retryable, error.retry_after_s) == ("disk_full", 503, True, 1)
    assert any("no_space" in sentence for sentence in refusals_of(world.rig.sim.kernel))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_quota_is_a_full_disk(code: int) -> None:
    world = make()
    fault = world.faults.fail("pwrite", WAL, code=code, times=FOREVER)
    assert isinstance(refusal(world, "t"), DiskFull)
    fault.lift()
    world.rig.tick()
    assert refusal(world, "t") is None


@pytest.mark.parametrize("durability", ["disk", "fsync", "memory"])
def test_deletes_go_on_while_the_disk_is_full_and_survive(durability: str) -> None:
    world = make(durability)
    filled(world)
    world.rig.delete("t", before_seq=5)
    world.rig.delete("t", match="old")
    assert isinstance(refusal(world, "t"), DiskFull)
    world.disk.disk.space = None
    world.kill()  # checks that nothing acked is missing and nothing deleted is back


def test_claims_and_acks_go_on_while_the_disk_is_full_and_survive() -> None:
    world = World(wal_file_bytes=1 << 14)
    world.rig.create("t", "fsync", type="queue", leases_durable=True)
    world.rig.write("t", 12)
    world.rig.sim.snapshot()
    filled(world)
    world.rig.ack("t", world.rig.claim("t", 4))
    world.disk.disk.space = None
    world.kill()


def test_a_topic_can_be_deleted_while_the_disk_is_full_and_its_space_makes_writes_resume() -> None:
    world = make()
    world.rig.create("big", "fsync")
    for _ in range(40):
        world.rig.write("big", 4, size=64)
    world.rig.sim.snapshot()
    world.rig.sim.snapshot()
    filled(world)
    world.rig.drop("big")
    for _ in range(5):
        world.rig.tick(6_000)
    assert refusal(world, "t") is None
    assert refusals_of(world.rig.sim.kernel) == []
    world.kill()


def test_records_expire_while_the_disk_is_full_and_that_makes_room() -> None:
    world = make(ttl_ms=60_000)
    for _ in range(160):
        world.rig.write("t", 4, size=64)
    world.rig.sim.snapshot()
    world.rig.sim.snapshot()
    world.rig.create("other", "fsync")
    filled(world, "other")
    world.clock.advance(61_000)
    for _ in range(5):
        world.rig.tick(6_000)
    assert refusal(world, "other") is None


def test_the_reserve_ends_and_then_deletes_are_refused_in_the_same_words() -> None:
    world = make()
    filled(world)
    fault = world.faults.fail(
        ("create", "allocate"), "*", code=errno.ENOSPC, times=FOREVER
    )  # what deletes free is taken
    instance = world.rig.ledger.instance("t")

    def delete_on() -> None:
        for seq in range(2, 1_000):
            world.rig.delete("t", before_seq=seq)

    with pytest.raises(DiskFull):
        delete_on()
    instance.deleting = set(instance.deleted)
    assert instance.deleted
    fault.lift()
    world.disk.disk.space = None
    world.rig.tick()
    assert refusal(world, "t") is None
    world.kill()


def test_the_disk_is_full_for_a_start_and_deletes_resume_with_writes() -> None:
    world = make()
    filled(world)
    space = world.disk.disk.space
    world.kill()
    assert world.disk.disk.space == space
    world.disk.disk.space = None
    world.rig.tick()
    world.rig.tick()
    assert refusal(world, "t") is None


@pytest.mark.parametrize("seed", range(30))
def test_a_disk_that_fills_up_and_empties_at_random_loses_nothing(seed: int) -> None:
    rng = Random(seed)
    world = World(wal_shards=rng.choice([1, 2]))
    names = ["a", "b", "c"]
    for name, durability in zip(names, ("fsync", "disk", "memory"), strict=True):
        world.rig.create(name, durability)
    for _ in range(40):
        name = rng.choice(names)
        step = rng.randrange(8)
        disk = world.disk.disk
        try:
            if step <= 2:
                refusal(world, name, rng.randint(1, 6), size=rng.choice([4, 60, 400]))
            elif step == 3:
                disk.space = rng.choice([None, disk.used(), disk.used() + rng.randrange(9_000)])
            elif step == 4:
                topic = world.rig.sim.engine.state.topics[name]
                world.rig.delete(name, before_seq=topic.earliest_seq + rng.randint(1, 4))
            elif step == 5:
                rng.choice([world.rig.checkpoint, world.rig.snapshot])()
            else:
                world.rig.tick(rng.choice([1_100, 6_000]))
        except (TopicsError, OSError) as error:
            assert isinstance(error, DiskFull) or getattr(error, "errno", 0) == errno.ENOSPC, error
            instance = world.rig.ledger.instance(name)
            instance.deleting -= instance.deleting - instance.deleted  # refused: not to be deleted
        assert all(seen.count == len(seen.records) for seen in world.seen().values())
    world.disk.disk.space = None
    rng.choice([world.kill, world.cut, world.stop])()
    for _ in range(3):
        world.rig.tick()
    for name in names:
        assert refusal(world, name) is None
