"""Restarts: what the ceiling costs, what a snapshot carries, and that recovering is repeatable."""

from __future__ import annotations

import msgspec
import pytest
from tests.core.rig import BLOCK, Rig, batch_of, records, seqs_of, stored

from topics.core import append, capture, delete
from topics.core.apply import apply
from topics.core.effects import OpResult
from topics.core.retention import ceiling as seqs
from topics.core.topic import TopicLog
from topics.model.config import Durability, TopicConfig
from topics.model.names import parse_match
from topics.model.ops import Append, Evict, HeadMark


def written(durability: Durability, count: int = 3) -> Rig:
    rig = Rig()
    rig.create("t", TopicConfig(durability=durability, durable=durability == "fsync"))
    for at in range(count):
        rig.put("t", records(str(at)))
    return rig


def watermarks(topic: TopicLog) -> tuple[int, int, int, int]:
    return topic.head, topic.evict_floor, topic.earliest_seq, topic.count


@pytest.mark.parametrize("durability", ["disk", "memory"])
def test_after_a_power_cut_the_head_is_the_ceiling_and_the_rest_is_lost(durability: Durability) -> None:
    rig = written(durability)
    rig.logs[1].synced = 2  # the ceiling and the first record
    rig.restart("t", same_boot=False, cut=True)
    topic = rig.topic("t")
    assert watermarks(topic) == (1 + BLOCK, 1, 1, 1)
    assert list(topic.lost) == [(2, 1 + BLOCK, "restart")]
    assert isinstance(append.decide_append(topic, records("x"), rig.now), append.Reservation)
    assert topic.reserved_head == 2 + BLOCK


@pytest.mark.parametrize("durability", ["disk", "memory", "fsync"])
def test_a_killed_process_loses_nothing_and_opens_no_range(durability: Durability) -> None:
    rig = written(durability)
    rig.restart("t", same_boot=True)
    assert watermarks(rig.topic("t")) == (3, 1, 1, 3)
    assert not len(rig.topic("t").lost)


def test_an_fsync_topic_keeps_its_head_across_a_power_cut() -> None:
    rig = written("fsync")
    rig.restart("t", same_boot=False, cut=True)
    assert watermarks(rig.topic("t")) == (3, 1, 1, 3)


def test_log_bytes_set_aside_count_whatever_the_boot() -> None:
    rig = written("fsync")
    topic = rig.topic("t")
    mark = seqs.decide_restart(topic, same_boot=True, behind=9)
    assert mark is not None
    apply(rig.state, mark)
    assert (topic.head, list(topic.lost)) == (9, [(4, 9, "restart")])


@pytest.mark.parametrize("clean", [True, False])
def test_an_ephemeral_topic_restarts_empty_and_says_so(clean: bool) -> None:
    rig = written("ephemeral")
    if clean:
        rig.checkpoint("t")
        rig.snapshot("t", clean=True)
    rig.restart("t", same_boot=True)
    topic = rig.topic("t")
    head = 3 if clean else 1 + BLOCK
    assert watermarks(topic) == (head, head + 1, head + 1, 0)
    gap = rig.read("t").tombstone
    assert gap is not None
    assert (gap.gap_from, gap.gap_to, gap.reason) == (1, head, "restart")
    assert seqs.decide_restart(topic, same_boot=True) is None, "a second start has nothing to add"


def test_a_topic_that_became_ephemeral_drops_its_records_at_the_next_start() -> None:
    rig = written("disk")
    rig.seal("t")
    rig.put("t", records("4"))
    rig.set_config("t", TopicConfig(durability="ephemeral"))
    assert seqs_of(rig.read("t")) == [1, 2, 3, 4]
    rig.restart("t", same_boot=True)
    topic = rig.topic("t")
    assert (topic.count, topic.evict_floor, topic.earliest_seq) == (0, topic.head + 1, topic.head + 1)
    assert topic.sealed[0].live == 0


def test_appends_of_a_topic_that_is_ephemeral_by_then_are_ignored() -> None:
    rig = written("disk")
    late = [op for op in rig.logs[1].ops if isinstance(op, Append)][-1]
    rig.set_config("t", TopicConfig(durability="ephemeral"))
    assert apply(rig.state, late).fate is OpResult.IGNORED


def test_a_change_to_fsync_needs_no_ceiling_any_more() -> None:
    rig = written("disk")
    topic = rig.topic("t")
    assert topic.ceiling == 1 + BLOCK
    rig.set_config("t", TopicConfig(durability="fsync", durable=True))
    assert topic.ceiling == 3
    rig.restart("t", same_boot=False, cut=True)
    assert watermarks(rig.topic("t")) == (3, 1, 1, 3)


def test_a_topic_fed_by_a_router_keeps_its_ceiling_in_every_class() -> None:
    rig = written("disk")
    rig.state.fed.add(rig.topic("t").id)
    rig.set_config("t", TopicConfig(durability="fsync", durable=True))
    assert rig.topic("t").ceiling == 1 + BLOCK


def test_recovering_twice_is_recovering_once() -> None:
    rig = written("disk", 6)
    rig.seal("t")
    rig.put("t", records("7", tag="x"))
    rig.delete_seqs("t", [2, 7])
    rig.logs[1].synced = len(rig.logs[1].ops)
    rig.put("t", records("8"))
    rig.restart("t", same_boot=False, cut=True)
    first = msgspec.to_builtins(capture.capture(rig.topic("t")))
    rig.restart("t", same_boot=False, cut=True)
    assert msgspec.to_builtins(capture.capture(rig.topic("t"))) == first


def test_a_snapshot_carries_floors_lost_ranges_dead_seqs_and_keys() -> None:
    rig = Rig()
    topic = rig.create("t", TopicConfig(cap_records=6))
    rig.put("t", batch_of([(b"12", None, None)] * 8, "key"))
    rig.seal("t")
    rig.do(HeadMark(topic_id=topic.id, ceiling=20, resume_at=13, lost=((9, 12, "restart"),)), synced=True)
    rig.put("t", records("13", tag="x"))
    image = capture.capture(topic)
    assert (image.head, image.ceiling, image.earliest_seq, image.evict_floor, image.cap_lost) == (13, 20, 4, 4, 3)
    assert (image.count, image.bytes, image.ckpt_seq, image.base_seq) == (6, 12, 12, 1)
    assert image.lost == [(9, 12, "restart")]
    assert image.segments == [(1, 8, topic.sealed[0].view.data_len, True, "hot", 5, 10)]
    assert image.idem == [("key", rig.now, 1, 8, 8)]
    assert capture.capture(topic, clean=True).ceiling == 13
    again = capture.restore(image)
    assert (again.head, again.ceiling, again.floors.cap_lost, again.floors.earliest_seq) == (12, 20, 3, 4)


def test_deletes_that_no_segment_shows_yet_are_in_the_snapshot() -> None:
    rig = written("disk", 9)
    rig.checkpoint("t")
    topic = rig.topic("t")
    for chosen in ((2, 3, 4), (8,)):
        apply(rig.state, delete.decide_delete_seqs(topic, chosen, reason="ack"))
    assert capture.dead_ranges(topic) == [(2, 4), (8, 8)]
    rig.disk.seal(topic)  # flags what died meanwhile
    assert capture.dead_ranges(topic) == []


def test_a_key_whose_records_are_lost_is_forgotten() -> None:
    rig = Rig()
    rig.create("t")
    rig.put("t", batch_of([(b"1", None, None)], "kept"))
    rig.logs[1].synced = len(rig.logs[1].ops)
    rig.put("t", batch_of([(b"2", None, None)], "lost"))
    rig.checkpoint("t")
    rig.snapshot("t")
    rig.logs[1].synced = 2
    rig.logs[1].snapshot.log_from = 0  # type: ignore[union-attr]
    rig.disk.active.clear()  # the disk lost what the snapshot was told of
    rig.logs[1].snapshot.image = msgspec.structs.replace(rig.logs[1].snapshot.image, ckpt_seq=0)  # type: ignore[union-attr]
    rig.restart("t", same_boot=False, cut=True)
    again = rig.put("t", batch_of([(b"1", None, None)], "kept"))
    assert isinstance(again, append.Repeat)
    assert isinstance(rig.put("t", batch_of([(b"2", None, None)], "lost")), append.Reservation)


def test_a_hole_in_the_log_becomes_a_lost_range() -> None:
    rig = written("disk", 2)
    topic = rig.topic("t")
    apply(rig.state, seqs.hole_op(topic, 6))
    assert (topic.head, list(topic.lost)) == (5, [(3, 5, "restart")])


def test_floors_ahead_of_the_head_hold_when_the_records_come() -> None:
    """A snapshot may know floors of records that only the log still has."""
    source = written("disk", 5)
    rig = Rig()
    topic = rig.create("t")
    topic.replaying = True
    apply(
        rig.state,
        Evict(topic_id=1, evict_floor=4, cap_lost=3, ttl_lost=0, trim_lost=0, restart_lost=0, earliest_seq=5),
    )
    for op in source.logs[1].ops:
        if isinstance(op, Append):
            apply(rig.state, msgspec.structs.replace(op, frames=None))
    assert seqs.decide_restart(topic, same_boot=True) is None
    assert watermarks(topic) == (5, 4, 5, 1)


def test_no_segment_step_changes_what_is_read() -> None:
    rig = Rig(recent_bytes=0)
    rig.create("t")
    for at in range(30):
        rig.put("t", records(str(at), tag=f"k{at % 5}"))
    rig.delete("t", match=parse_match("k3"))
    expected = seqs_of(rig.read("t"))
    for step in ("checkpoint", "seal", "rewrite", "move"):
        getattr(rig, step)("t")
        assert seqs_of(rig.read("t")) == expected
        assert len(rig.topic("t").tail) == (30 if step == "checkpoint" else 0)
    assert len(rig.topic("t").tags) == 0


# --- memory of what lies in no file ----------------------------------------------------------------------------------


def test_evicted_records_of_an_ephemeral_topic_give_their_memory_back() -> None:
    rig = Rig()
    topic = rig.create("t", TopicConfig(durability="ephemeral", cap_records=100))
    for _ in range(50):
        rig.put("t", batch_of([(b"1" * 100, "x", None)] * 100))
    assert topic.count == 100
    assert topic.resident.bytes < 3 * 100 * 200
    assert len(topic.tail) < 2000
    assert len(topic.tags) < 6000
    assert len(seqs_of(rig.read("t"))) == 100


@pytest.mark.parametrize("how", ["evicted", "deleted"])
def test_what_died_in_an_ephemeral_topic_does_not_keep_it_from_becoming_durable(how: str) -> None:
    rig = Rig()
    rig.create("t", TopicConfig(durability="ephemeral", cap_records=3 if how == "evicted" else 0))
    for _ in range(300):
        rig.put("t", records("1", "x" * 40_000))
    if how == "deleted":
        rig.delete_seqs("t", range(2, 598))
    before = seqs_of(rig.read("t"))
    rig.set_config("t", TopicConfig(durability="disk"))
    rig.put("t", records("1"))
    rig.checkpoint("t")
    assert seqs_of(rig.read("t")) == [*before, 601]


def test_records_deleted_in_the_middle_of_an_ephemeral_topic_do_so_too() -> None:
    rig = Rig()
    topic = rig.create("t", TopicConfig(durability="ephemeral"))
    for at in range(2000):
        rig.put("t", records("1" * 200, tag="keep" if at % 100 == 0 else "drop", node="n"))
    before = topic.resident.bytes
    rig.delete("t", match=parse_match("drop"))
    assert topic.resident.bytes < before / 10
    outcome = rig.read("t")
    assert seqs_of(outcome) == list(range(1, 2001, 100))
    assert {(record.tag, record.node, record.blob) for record in stored(outcome)} == {
        (b"keep", b"n", b'{"d":' + b"1" * 200 + b"}")
    }
    rig.set_config("t", TopicConfig(durability="disk"))
    rig.put("t", records("2"))
    rig.seal("t")  # whole frames are still there to be written out
    assert seqs_of(rig.read("t")) == [*range(1, 2001, 100), 2001]
