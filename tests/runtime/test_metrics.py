"""What `/v0/metrics` counts, at the moment it is asked (`docs/spec/http-api.md#sec-20-3`)."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from tests.runtime.world import WAL, World

from topics.api.metrics.metrics_endpoint import MetricsEndpoint
from topics.api.metrics.request_stats import RequestStats
from topics.engine.floor_log import INDEX_WAIT_MS
from topics.engine.ticket import Ticket


class Asked:
    """A call that remembers its answer."""

    key = None

    request = SimpleNamespace(header=lambda _: b"application/json")

    def __init__(self) -> None:
        self.answer: dict[str, Any] | None = None

    def when(self, ticket: Ticket[None], answer: Any) -> None:
        ticket.then(lambda done: answer(done.result()))

    def reply(self, status: int, body: bytes) -> None:
        assert status == 200
        self.answer = json.loads(body)


def ask(world: World) -> Asked:
    metrics = MetricsEndpoint(RequestStats(), shown_max=10, uptime_ms=lambda: 1, progress=lambda: None)
    metrics.attach(world.rig.sim.kernel, None)
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


def test_many_topics_are_looked_at_in_steps_with_room_for_others_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.api.metrics.metrics_endpoint.STEP_TOPICS", 2)
    world = World()
    for name in "abcde":
        world.rig.create(name, "fsync")
        world.rig.write(name, 1)
    kernel = world.rig.sim.kernel
    steps: list[Any] = []
    monkeypatch.setattr(kernel.driver, "soon", steps.append)
    asked = ask(world)
    while steps:
        assert asked.answer is None
        assert len(steps) == 1
        steps.pop()()
    assert asked.answer is not None
    assert (asked.answer["topics"], asked.answer["records_live"]) == (5, 5)


def test_a_topic_that_is_dropped_while_others_are_looked_at_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.api.metrics.metrics_endpoint.STEP_TOPICS", 1)
    world = World()
    for name in "ab":
        world.rig.create(name, "fsync")
        world.rig.write(name, 1)
    steps: list[Any] = []
    with monkeypatch.context() as held:
        held.setattr(world.rig.sim.kernel.driver, "soon", steps.append)
        asked = ask(world)
    world.rig.sim.engine.drop_topic("b")
    world.rig.sim.pump()
    steps.pop()()
    assert asked.answer is not None
    assert (asked.answer["topics"], asked.answer["records_live"]) == (1, 1)
