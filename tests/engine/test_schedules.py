"""Schedules append a record at each tick, once, whenever the server dies (`docs/spec/semantics.md#sec-16-18`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.engine.crashing import SMALL, distinct_crashes, starts
from tests.engine.world import World

from topics.errors import InvalidRequest, NotAQueue, ScheduleNotFound, TopicExistsIncompatible
from topics.model.schedules.schedule import ScheduleRule
from topics.model.schedules.schedule_answers import ScheduleState
from topics.storage.fs import Fs
from topics.testing import SimClock

MINUTE = 60_000


def put(world: World, name: str = "s", topic: str = "t", **rule: Any) -> ScheduleState:
    state: ScheduleState = world.call(world.engine.schedules.put(name, topic, ScheduleRule(**rule)))
    return state


def get(world: World, name: str = "s") -> ScheduleState:
    return world.engine.schedules.get(name)


def scheduled_at(world: World, topic: str = "t") -> list[int]:
    return [int(record["meta"]["$scheduled_at"]) for record in world.records(topic)]


def test_each_tick_appends_its_record() -> None:
    world = World()
    began = world.clock.wall_ms()
    shown = put(world, every_ms=1000, data=b'{"n":1}', tag="tag", node="node", meta=b'{"k":"v"}')
    assert (shown.created, shown.last_tick, shown.next_tick, shown.ticks) == (True, None, began + 1000, 0)
    for _ in range(3):
        world.advance(1000)
    records = world.records("t")
    assert [record["meta"] for record in records] == [
        {"k": "v", "$schedule": "s", "$scheduled_at": str(began + 1000 * n)} for n in (1, 2, 3)
    ]
    assert {(r["data"]["n"], r["$tag"], r["$node"]) for r in records} == {(1, b"tag", b"node")}
    assert (get(world).last_tick, get(world).next_tick, get(world).ticks) == (began + 3000, began + 4000, 3)


def test_a_put_keeps_the_cursor_if_the_times_are_the_same() -> None:
    world = World()
    began = world.clock.wall_ms()
    put(world, every_ms=1000)
    world.advance(1500)
    assert put(world, every_ms=1000).created is False
    shown = put(world, every_ms=1000, data=b"2")
    assert (shown.created, shown.next_tick, shown.ticks) == (False, began + 2000, 1)
    shown = put(world, every_ms=7000, data=b"2")
    assert (shown.next_tick, shown.ticks) == (began + 8500, 1)


@pytest.mark.parametrize(("missed", "expected"), [("skip", []), ("one", [9]), ("all", [1, 2, 3, 4, 5, 6, 7, 8, 9])])
def test_what_passed_while_the_server_was_down_follows_the_rule(missed: str, expected: list[int]) -> None:
    world = World()
    began = world.clock.wall_ms()
    put(world, every_ms=MINUTE, missed=missed)
    disk_clock = world.clock
    disk_clock.advance(9 * MINUTE + 30_000)
    again = world.killed()
    again.rest()
    assert scheduled_at(again) == [began + MINUTE * n for n in expected]
    again.advance(30_000)
    assert scheduled_at(again)[-1] == began + 10 * MINUTE


def test_a_paused_schedule_does_not_tick_and_goes_on_where_it_should() -> None:
    world = World()
    began = world.clock.wall_ms()
    put(world, every_ms=MINUTE, missed="all")
    assert world.call(world.engine.schedules.set_paused("s", True)).next_tick is None
    world.advance(3 * MINUTE)
    assert scheduled_at(world) == []
    world.call(world.engine.schedules.set_paused("s", False))
    world.rest()
    assert scheduled_at(world) == [began + MINUTE * n for n in (1, 2, 3)]


def test_a_run_by_hand_leaves_the_cursor_alone() -> None:
    world = World()
    put(world, every_ms=MINUTE)
    before = get(world)
    assert world.call(world.engine.schedules.run("s")).seq == 1
    assert get(world) == before
    assert scheduled_at(world) == [world.clock.wall_ms()]


def test_a_topic_that_refuses_is_a_problem_that_is_told_until_there_is_room() -> None:
    world = World()
    began = world.clock.wall_ms()
    world.topic("t", cap_records=1, discard="reject")
    put(world, every_ms=MINUTE, missed="all")
    world.advance(MINUTE)
    world.advance(MINUTE)
    assert "full" in str(get(world).problem)
    assert scheduled_at(world) == [began + MINUTE]
    world.delete("t", before=2)
    world.advance(1000)
    assert scheduled_at(world) == [began + 2 * MINUTE]
    assert get(world).problem is None


def test_a_schedule_goes_with_its_topic_and_with_a_drop() -> None:
    world = World()
    put(world, "a", "t", every_ms=1000)
    put(world, "b", "u", every_ms=1000)
    put(world, "c", "u", every_ms=1000)
    world.drop("t")
    assert world.call(world.engine.schedules.drop("b")).deleted
    assert not world.call(world.engine.schedules.drop("b")).deleted
    world.advance(1000)
    assert "t" not in world.engine.state.topics
    for start in (world, world.killed(), world.stopped()):
        assert [shown.schedule for shown in start.engine.schedules.page()[0]] == ["c"]
        with pytest.raises(ScheduleNotFound):
            get(start, "a")


def test_a_schedule_does_not_change_its_topic_and_priority_needs_a_queue() -> None:
    world = World()
    put(world, every_ms=1000)
    with pytest.raises(TopicExistsIncompatible):
        put(world, topic="other", every_ms=1000)
    with pytest.raises(NotAQueue):
        put(world, "p", "new", every_ms=1000, priority=3)
    assert "new" not in world.engine.state.topics, "half created"
    world.queue("q")
    put(world, "p", "q", every_ms=1000, priority=3)
    world.write("q", "plain")
    world.advance(1000)
    assert world.seqs("q", max=2) == [1, 2]


@pytest.mark.parametrize("rule", [{"cron": "0 0 30 2 *"}, {"cron": "* * * * *", "timezone": "No/Where"}])
def test_nothing_is_half_created(rule: dict[str, Any]) -> None:
    world = World()
    with pytest.raises(InvalidRequest):
        put(world, **rule)
    assert not world.engine.state.topics
    assert world.engine.schedules.page() == ([], False)


def test_pages_go_by_name() -> None:
    world = World()
    for name in ("b1", "a2", "b2", "a1", "b3"):
        put(world, name, f"t{name[1]}", every_ms=1000)
    schedules = world.engine.schedules
    page, more = schedules.page(prefix="b", page_size=2)
    assert ([shown.schedule for shown in page], more) == (["b1", "b2"], True)
    page, more = schedules.page(prefix="b", page_size=2, after="b2")
    assert ([shown.schedule for shown in page], more) == (["b3"], False)
    assert [shown.schedule for shown in schedules.page(topic="t1")[0]] == ["a1", "b1"]


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_state_and_cursor_outlive_every_restart(durability: str) -> None:
    world = World()
    world.topic("t", durability=durability)
    put(world, cron="*/5 * * * *", timezone="Europe/Berlin", data=b"[1]", tag="x", missed="all")
    world.advance(5 * MINUTE)
    world.advance(5 * MINUTE)
    world.snapshot()
    world.advance(5 * MINUTE)
    shown = get(world)
    assert shown.ticks == 3
    for again in (world.killed(), world.cut(), world.stopped()):
        again.rest()
        assert get(again) == shown
        assert len(again.records("t")) == (0 if durability == "ephemeral" else 3)


@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_a_tick_is_appended_once_at_every_crash(durability: str, crash_states: Callable[[int], None]) -> None:
    """No tick is missing and none comes twice, whatever the disk did; what was answered stays."""
    clock = SimClock()
    told: list[str] = []
    began = clock.wall_ms()

    def go(fs: Fs) -> None:
        nonlocal clock
        told.clear()
        clock = SimClock(began)
        world = World(fs=fs, clock=clock, wal_shards=2, **SMALL)
        world.topic("t", durability=durability)
        put(world, every_ms=1000, missed="all", data=b'"a"')
        told.append("put")
        world.advance(1000)
        world.write("t", "between")
        world.checkpoint()
        world.advance(2000)
        put(world, every_ms=1000, missed="all", data=b'"b"')
        world.snapshot()
        world.advance(1000)
        told.append("dropping")
        world.call(world.engine.schedules.drop("s"))
        told.append("dropped")

    count = 0
    for number, state in enumerate(distinct_crashes(go, note=lambda: tuple(told))):
        for world in starts(state, number, SimClock(began + 60_000)):
            count += 1
            known = "s" in world.engine.state.schedules
            assert isinstance(state.note, tuple)
            assert known or state.note in ((), ("put", "dropping"), ("put", "dropping", "dropped")), str(state)
            assert not (known and "dropped" in state.note), str(state)
            if not known:
                continue
            world.rest()
            ticks = [tick for record in world.records("t") if (tick := (record["meta"] or {}).get("$scheduled_at"))]
            assert [int(tick) for tick in ticks] == [began + 1000 * n for n in range(1, 61)], str(state)
    assert count > 50
    crash_states(count)
