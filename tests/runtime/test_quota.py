"""`TOPICS_MAX_TOTAL_BYTES` counts what is live (`docs/spec/http-api.md#sec-9`): what retention has taken is given
back."""

from __future__ import annotations

import pytest
from tests.runtime.world import World

from topics.engine.writing.quota import TOPICS_PER_MS
from topics.errors import Throttled

CLASSES = ["fsync", "disk", "ephemeral"]
ROOM = 100
LARGE = 60  # bytes of filling: two such records do not fit


def world_with(durability: str, **config: int) -> World:
    world = World(max_total_bytes=ROOM)
    world.rig.create("a", durability, **config)
    world.rig.create("b", durability)
    return world


def is_refused(world: World, name: str) -> bool:
    write, ticket = world.rig.submit(name, size=LARGE)
    world.rig.sim.pump()
    assert ticket is None or ticket.done
    if ticket is not None and ticket.error is not None:
        assert isinstance(ticket.error, Throttled)
        assert ticket.error.detail == {"limit": "max_total_bytes", "max": ROOM}
    return write.failed


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("writer", ["a", "b"])
def test_what_has_expired_makes_room_at_once(durability: str, writer: str) -> None:
    world = world_with(durability, ttl_ms=100)
    world.rig.write("a", size=LARGE)
    world.clock.advance(100)
    assert is_refused(world, writer)
    world.clock.advance(1)
    assert not is_refused(world, writer)


@pytest.mark.parametrize("durability", CLASSES)
def test_a_topic_that_keeps_its_byte_cap_is_written_without_end(durability: str) -> None:
    world = world_with(durability, cap_bytes=45)
    for _ in range(5):
        world.rig.write("a", size=30)
    assert world.rig.sim.call(lambda engine: engine.topic_state("a")).count == 1


def test_a_tighter_byte_cap_makes_room_at_once() -> None:
    world = world_with("disk")
    world.rig.write("a", 2, size=20)
    assert is_refused(world, "b")
    world.rig.configure("a", cap_bytes=30)
    assert not is_refused(world, "b")


def test_a_first_write_creates_its_topic_in_the_room_that_expiry_made() -> None:
    world = world_with("disk", ttl_ms=100)
    world.rig.write("a", size=LARGE)
    world.clock.advance(101)
    world.rig.ledger.begin("c", "disk")
    assert not is_refused(world, "c")


def test_refused_writes_do_not_look_at_every_topic_each_time() -> None:
    world = world_with("disk", ttl_ms=1000)
    for at in range(2 * TOPICS_PER_MS):
        world.rig.create(f"t{at}")
    world.rig.write("a", size=LARGE)
    assert is_refused(world, "b")
    looked_at = world.rig.sim.engine.floor_log.is_logged
    seen: list[str] = []
    world.rig.sim.engine.floor_log.is_logged = lambda topic: bool(seen.append(topic.name)) or looked_at(topic)  # type: ignore[method-assign,func-returns-value]
    assert is_refused(world, "b")
    assert seen == []
    world.clock.advance(2)
    assert is_refused(world, "b")
    assert seen == ["a"]
