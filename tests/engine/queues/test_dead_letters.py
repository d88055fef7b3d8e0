"""Exhausted jobs go to the dead-letter topic: copy first, delete then (`docs/spec/semantics.md#sec-16-9`)."""

from __future__ import annotations

import pytest
from tests.engine.world import World

from topics.core.meta import with_keys
from topics.engine.queues import dead_letters as queue_letters
from topics.engine.ticket import Ticket
from topics.model.config import TopicConfig
from topics.model.record import WriteBatch
from topics.model.results import Appended


@pytest.fixture
def world() -> World:
    world = World()
    world.queue("q", max_deliveries=2, dead_letter="dead", leases_durable=True)
    return world


def exhaust(world: World, *seqs: int) -> None:
    for _ in range(2):
        assert world.seqs(max=len(seqs)) == list(seqs)
        world.nack(*seqs)


def test_the_third_attempt_moves_the_job_with_its_provenance(world: World) -> None:
    world.write("q", {"to": "x"}, tag="t", node="n", meta={"k": "v"})
    exhaust(world, 1)
    assert world.claim() == []
    [letter] = world.records("dead")
    assert (letter["data"], letter["$tag"], letter["$node"]) == ({"to": "x"}, b"t", b"n")
    assert letter["meta"] == {
        "k": "v",
        "$dead_letter_from": "q",
        "$dead_letter_deliveries": "2",
        "$dead_letter_src_seq": "1",
        "$dead_letter_src_ts": str(world.clock.wall_ms()),
        "$dead_letter_reason": "max_deliveries",
        "$dead_letter_first_ts": str(world.clock.wall_ms()),
        "$dead_letter_last_ts": str(world.clock.wall_ms()),
    }
    assert world.counters() == (0, 0, 1)
    assert world.rows("q") == []
    assert world.gaps("q") == []


def test_a_power_cut_takes_no_letter_of_a_queue_that_is_synced() -> None:
    """The first letter is synced with the topic's creation, and the sync of a delete covers letters in the queue's own
    log group: so several queues, with two letters each."""
    world = World(wal_shards=4)
    for number in range(6):
        queue = f"q{number}"
        world.queue(queue, max_deliveries=1, dead_letter=f"dead{number}", durability="fsync")
        for seq in (1, 2):
            world.write(queue, seq)
            world.claim(queue)
            world.nack(seq, name=queue)
            assert world.claim(queue) == []
    world = world.cut()
    assert [world.data(f"dead{number}") for number in range(6)] == [[1, 2]] * 6


def test_the_pass_goes_on_with_the_next_job(world: World) -> None:
    world.write("q", 1, 2, 3)
    exhaust(world, 1, 2)
    assert world.seqs(max=5) == [3]
    assert world.data("dead") == [1, 2]


def test_expiry_counts_as_a_delivery(world: World) -> None:
    world.write("q", 1)
    for _ in range(2):
        world.claim(lease_ms=100)
        world.advance(101)
    assert world.claim() == []
    assert world.data("dead") == [1]


def test_without_a_limit_or_a_target_jobs_come_back_for_ever() -> None:
    world = World()
    for name, config in (("a", {"max_deliveries": 1}), ("b", {"dead_letter": "dead"})):
        world.queue(name, **config)
        world.write(name, 1)
        for _ in range(5):
            assert world.seqs(name) == [1]
            world.nack(1, name=name)
    assert "dead" not in world.engine.state.topics


def test_a_job_that_cannot_be_copied_stays_with_its_count_and_is_given_to_nobody(world: World) -> None:
    world.topic("dead", cap_records=1, discard="reject")
    world.write("dead", "full")
    world.write("q", 1, 2)
    exhaust(world, 1)
    assert world.seqs(max=5) == [2]
    assert world.counters() == (1, 1, 0)
    world.delete("dead", before=2)
    assert world.claim() == []
    assert world.data("dead") == [1]
    assert world.counters() == (0, 1, 1)


def test_several_jobs_fill_a_bounded_topic_one_by_one(world: World) -> None:
    world.topic("dead", cap_records=2, discard="reject")
    world.write("q", 1, 2, 3)
    exhaust(world, 1, 2, 3)
    assert world.claim() == []
    assert world.data("dead") == [1, 2]
    assert world.counters() == (1, 0, 2)


@pytest.mark.parametrize("discard", ["old", "reject"])
def test_a_letter_that_can_never_fit_does_not_hold_up_the_others(world: World, discard: str) -> None:
    world.topic("dead", cap_bytes=1000, discard=discard)
    world.write("q", "x" * 1000, 2, "y" * 1000, 4)
    exhaust(world, 1, 2, 3, 4)
    assert world.claim() == []
    assert world.data("dead") == [2, 4]
    assert world.counters() == (2, 0, 2)
    world.topic("dead")
    assert world.claim() == []
    assert [letter["meta"]["$dead_letter_src_seq"] for letter in world.records("dead")] == ["2", "4", "1", "3"]


def test_hundreds_of_jobs_fill_a_bounded_topic_one_by_one() -> None:
    """None of which waits for a log: one step is done inside the one before it."""
    world = World()
    world.queue("q", max_deliveries=1, dead_letter="dead", durability="ephemeral")
    world.topic("dead", cap_records=350, discard="reject", durability="ephemeral")
    world.write("q", *range(400))
    world.nack(*world.seqs(max=400))
    assert world.claim() == []
    assert world.data("dead") == list(range(350))
    assert world.counters() == (50, 0, 350)


def test_exhausted_jobs_go_in_portions_however_many_there_are(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_letters, "PORTION_JOBS", 2)
    letters, written = world.engine.queues.dead_letters, list[int]()
    append = letters._append

    def noted(name: str, batch: WriteBatch, config: TopicConfig) -> Ticket[Appended]:
        written.append(batch.count)
        return append(name, batch, config)

    monkeypatch.setattr(letters, "_append", noted)
    world.write("q", *range(5))
    exhaust(world, 1, 2, 3, 4, 5)
    assert world.claim() == []
    assert [row["data"] for row in world.records("dead")] == list(range(5))
    assert world.counters() == (0, 0, 5)
    assert written == [2, 2, 1]


def test_raising_the_limit_lets_a_waiting_job_out_again(world: World) -> None:
    world.topic("dead", cap_records=1, discard="reject")
    world.write("dead", "full")
    world.write("q", 1)
    exhaust(world, 1)
    assert world.claim() == []
    world.queue("q", max_deliveries=3, dead_letter="dead")
    [job] = world.claim()
    assert job.deliveries == 3


def test_counts_and_moves_survive_a_crash(world: World) -> None:
    world.write("q", 1, 2)
    exhaust(world, 1, 2)
    world.claim(max=2)
    world = world.killed()
    assert world.counters() == (0, 0, 2)
    assert world.data("dead") == [1, 2]
    world.snapshot()
    world.write("q", 3)
    world = world.killed()
    assert world.counters() == (1, 0, 2)


def test_moves_are_counted_once_whatever_a_snapshot_saw(world: World) -> None:
    world.write("q", 1, 2)
    exhaust(world, 1, 2)
    taken = world.kernel.kernel.snapshotter.run()
    moved = world.claim_later(max=2)  # behind the snapshot's position in the log, but before it looks at the queue
    world.kernel.pump()
    assert taken.done
    assert moved.result().jobs == []
    assert world.counters() == (0, 0, 2)
    assert world.killed().counters() == (0, 0, 2)
    assert world.stopped().counters() == (0, 0, 2)


def test_a_letter_that_dies_again_names_its_last_queue() -> None:
    world = World()
    world.queue("q", max_deliveries=1, dead_letter="dead")
    world.queue("dead", max_deliveries=1, dead_letter="grave")
    world.write("q", 1)
    world.claim()
    world.nack(1)
    world.claim()
    world.claim("dead")
    world.nack(1, name="dead")
    world.claim("dead")
    [letter] = world.records("grave")
    assert (
        letter["meta"].items()
        >= {
            "$dead_letter_from": "dead",
            "$dead_letter_deliveries": "1",
            "$dead_letter_src_seq": "1",
        }.items()
    )


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        (None, b'{"x":1}'),
        (b"{}", b'{"x":1}'),
        (b" { } ", b'{"x":1}'),
        (b'{ "a" : 1.50 }', b'{ "a" : 1.50 ,"x":1}'),
        (b'{"x":9,"b":[1,2]}', b'{"b":[1,2],"x":1}'),
        (b'{"b":"}" , "x":{"y":0}}', b'{"b":"}","x":1}'),
        (b'"text"', b'{"x":1,"_topics_original_meta":"text"}'),
        (b"[1]", b'{"x":1,"_topics_original_meta":[1]}'),
        (b'{"s":"\\ud800"}', b'{"s":"\\ud800","x":1}'),
        (b'{"s":"\\ud800","x":2}', b'{"s":"\\ud800","x":1}'),
        (b'{"\\u0078":2,"y":3}', b'{"y":3,"x":1}'),
    ],
)
def test_added_keys_leave_the_callers_bytes_alone(meta: bytes | None, expected: bytes) -> None:
    assert with_keys(meta, {"x": b"1"}) == expected


def test_an_object_with_too_many_keys_is_wrapped() -> None:
    assert with_keys(b'{"a":1,"b":2}', {"x": b"1"}, keys_max=2) == b'{"x":1,"_topics_original_meta":{"a":1,"b":2}}'
    assert with_keys(b'{"a":1,"x":2}', {"x": b"1"}, keys_max=2) == b'{"a":1,"x":1}'
