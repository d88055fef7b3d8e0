"""With `done` in its config a queue tells a topic of each job that ends, once (`docs/spec/semantics.md#sec-16-17`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.engine.crashing import SMALL, distinct_crashes, starts
from tests.engine.world import World

from topics.errors import InvalidRequest, TopicFull
from topics.storage.fs import Fs
from topics.testing import SimClock


@pytest.fixture
def world() -> World:
    world = World(wal_shards=4)
    world.queue("q", done="history", max_deliveries=2, dead_letter="dead")
    return world


def test_an_ack_is_told_with_its_times_its_worker_and_its_result(world: World) -> None:
    began = world.clock.wall_ms()
    world.write("q", {"to": "x"}, tag="mail")
    world.advance(10)
    world.claim(node="w1")
    world.nack(1, node="w1", error="busy")
    world.advance(20)
    world.claim(node="w2")
    world.advance(30)
    ack = world.engine.queues.ack("q", node="w2", seqs=[1], results=[b'{"sent":1}'])
    assert world.call(ack).result.acked == 1
    [record] = world.records("history")
    assert record["data"] == {
        "queue": "q",
        "seq": 1,
        "outcome": "acked",
        "node": "w2",
        "appended_ts": began,
        "first_claimed_ts": began + 10,
        "claimed_ts": began + 30,
        "done_ts": began + 60,
        "deliveries": 2,
        "result": {"sent": 1},
        "error": "busy",
    }
    assert (record["$tag"], record["$node"]) == (b"mail", b"w2")


def test_dead_letters_and_cancellations_are_told(world: World) -> None:
    world.write("q", "gone", "given up", "cancelled", "never handed out", tag="t")
    for _ in range(2):
        assert world.seqs(max=1) == [1]
        world.nack(1, error="boom")
    assert world.seqs(max=2) == [2, 3]
    world.nack(2, final=True)
    world.call(world.engine.queues.actions.cancel("q", [3, 4, 9]))
    told = {record["data"]["seq"]: record for record in world.records("history")}
    assert {seq: record["data"]["outcome"] for seq, record in told.items()} == {
        1: "failed",
        2: "failed",
        3: "cancelled",
        4: "cancelled",
    }
    assert told[1]["data"]["error"] == "boom"
    assert (told[4]["data"]["node"], told[4]["data"]["first_claimed_ts"]) == (None, None)
    assert {record["$tag"] for record in told.values()} == {b"t"}


def test_what_other_calls_end_at_the_same_time_is_told_once(world: World) -> None:
    world.write("q", "a", "b")
    world.claim(max=2)
    queues = world.engine.queues
    calls: list[Any] = [
        queues.actions.cancel("q", [1]),
        queues.ack("q", node="w", seqs=[1, 2]),
        queues.actions.cancel("q", [1, 2]),
    ]
    first, second, third = map(world.call, calls)
    assert (first.cancelled, second.result.acked, second.result.skipped, third.cancelled) == (1, 1, [1], 0)
    assert Counter(record["seq"] for record in world.data("history")) == {1: 1, 2: 1}


def test_the_history_lies_in_the_log_group_of_its_queues(world: World) -> None:
    """So that both are one submission: the one that was there first decides."""
    group = world.engine.context.group_of
    for number in range(6):
        world.queue(f"more{number}", done="history")
    ids = [world.engine.state.topic(name).id for name in ("history", "q", *(f"more{n}" for n in range(6)))]
    assert len({group(topic_id) for topic_id in ids}) == 1


def test_a_history_that_is_elsewhere_or_gone_is_told_all_the_same(world: World) -> None:
    group = world.engine.context.group_of
    world.queue("other")
    while group(world.engine.state.topic("other").id) == group(world.engine.state.topic("history").id):
        world.drop("other")
        world.queue("other")
    world.queue("other", done="history")
    world.write("other", 1)
    world.claim("other")
    world.ack(1, name="other")
    assert [record["queue"] for record in world.data("history")] == ["other"]
    world.drop("history")
    world.write("q", 1)
    world.claim("q")
    world.ack(1)
    assert [record["queue"] for record in world.data("history")] == ["q"]


def test_a_full_history_fails_the_ack_and_the_job_is_ready_again(world: World) -> None:
    world.topic("history", cap_records=1, discard="reject")
    world.write("q", 1, 2)
    world.claim(max=2)
    world.ack(1)
    with pytest.raises(TopicFull):
        world.ack(2)
    assert world.counters()[:2] == (1, 0)
    assert len(world.data("history")) == 1


def test_a_result_for_each_seq_or_none(world: World) -> None:
    with pytest.raises(InvalidRequest):
        world.engine.queues.ack("q", node="w", seqs=[1, 2], results=[b"1"])


@pytest.mark.parametrize("queue", ["ephemeral", "memory", "disk", "fsync"])
@pytest.mark.parametrize("history", ["ephemeral", "fsync"])
def test_every_pair_of_classes_tells_every_end(queue: str, history: str) -> None:
    world = World()
    world.topic("history", durability=history)
    world.queue("q", done="history", durability=queue, leases_durable=True)
    for seq in range(1, 6):
        world.write("q", seq)
        world.claim()
        world.ack(seq)
    assert [record["seq"] for record in world.data("history")] == [1, 2, 3, 4, 5]
    again = world.killed()
    kept = [1, 2, 3, 4, 5] if history == "fsync" else []
    assert [record["seq"] for record in again.data("history")] == kept
    assert again.rows("q") == []


def ends(world: World, told: set[int]) -> None:
    """Acks, a dead letter and a cancellation, with a checkpoint and a snapshot in between."""
    world.write("q", "a", "b", "c", "d", tag="t")
    world.claim(max=2)
    world.ack(1)
    told.add(1)
    world.checkpoint()
    world.nack(2, final=True)
    told.add(2)
    world.snapshot()
    world.call(world.engine.queues.actions.cancel("q", [3]))
    told.add(3)
    world.claim()
    world.ack(4)
    told.add(4)


@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_a_job_is_in_its_queue_or_in_the_history_at_every_crash(
    durability: str, crash_states: Callable[[int], None]
) -> None:
    """Never in both, never in neither, and in the history never twice; what was answered is there."""
    clock, told = SimClock(), set[int]()

    def go(fs: Fs) -> None:
        told.clear()
        world = World(fs=fs, clock=clock, wal_shards=2, **SMALL)
        world.topic("history", durability=durability)
        world.queue("q", done="history", dead_letter="dead", durability=durability)
        ends(world, told)

    count = 0
    for number, state in enumerate(distinct_crashes(go, note=lambda: frozenset(told))):
        for world in starts(state, number, SimClock(clock.wall_ms())):
            if "q" not in world.engine.state.topics:
                continue
            count += 1
            alive = {seq for seq, _ in world.rows("q")}
            written = Counter(record["seq"] for record in world.data("history"))
            assert max(written.values(), default=1) == 1, f"{state}: told twice {written}"
            assert not alive & set(written), f"{state}: {alive} and {written}"
            head = world.engine.state.topic("q").head
            if durability == "fsync" or state.how == "kill":
                assert alive | set(written) == set(range(1, head + 1)), f"{state}: {alive} and {written}"
                assert isinstance(state.note, frozenset)
                assert state.note <= set(written), f"{state}: {written}"
    assert count > 50
    crash_states(count)
