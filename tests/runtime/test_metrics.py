"""What `/v0/metrics` counts, at the moment it is asked (`docs/spec/http-api.md#sec-20-3`)."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from tests.runtime.world import WAL, World

from topics.api.metrics import Metrics
from topics.engine.floor_log import INDEX_WAIT_MS
from topics.engine.ticket import Ticket


class Asked:
    """A call that remembers its answer."""

    request = SimpleNamespace(header=lambda _: b"application/json")

    def __init__(self) -> None:
        self.answer: dict[str, Any] | None = None

    def when(self, ticket: Ticket[None], answer: Any) -> None:
        ticket.then(lambda done: answer(done.result()))

    def reply(self, status: int, body: bytes) -> None:
        assert status == 200
        self.answer = json.loads(body)


def ask(world: World) -> Asked:
    metrics = Metrics(uptime_ms=lambda: 1, progress=lambda: None)
    metrics.kernel = world.rig.sim.kernel
    asked = Asked()
    metrics.metrics(asked)  # type: ignore[arg-type]
    return asked


def two_of_five() -> World:
    """Two records in a topic that keeps all, three in one that forgets."""
    world = World()
    world.rig.create("kept", "fsync")
    world.rig.create("mortal", "fsync", ttl_ms=100)
    world.rig.write("kept", 2)
    world.rig.write("mortal", 3)
    return world


def test_what_has_expired_is_not_counted() -> None:
    world = two_of_five()
    world.clock.advance(100)
    assert ask(world).answer["records_live"] == 5  # type: ignore[index]
    world.clock.advance(1)
    asked = ask(world)
    world.rig.sim.pump()
    assert asked.answer is not None
    assert asked.answer["records_live"] == 2


def test_what_a_byte_cap_lets_go_is_not_counted() -> None:
    world = World()
    world.rig.create("capped", "fsync", cap_bytes=30)
    world.rig.write("capped", 3, size=10)
    asked = ask(world)
    world.rig.sim.pump()
    assert asked.answer is not None
    assert (asked.answer["records_live"], asked.answer["bytes_live"] <= 30) == (1, True)


@pytest.mark.parametrize("is_refused", [False, True])
def test_the_answer_comes_though_the_log_takes_nothing(is_refused: bool) -> None:
    world = two_of_five()
    world.faults.fail("datasync", WAL)
    if is_refused:
        world.rig.submit("kept", 1)
        world.rig.sim.pump()
    world.clock.advance(101)
    asked = ask(world)
    world.rig.sim.pump()
    assert asked.answer is not None


def test_the_answer_comes_though_a_sync_hangs() -> None:
    world = two_of_five()
    world.clock.advance(101)
    asked = ask(world)
    assert asked.answer is None
    world.clock.advance(INDEX_WAIT_MS)
    world.rig.sim.engine.floor_log.tick()
    assert asked.answer is not None
