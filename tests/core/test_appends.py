"""Appends: seqs, admission, reservations, idempotency, and what applying an op twice or out of order does."""

from __future__ import annotations

from array import array

import msgspec
import pytest
from tests.core.rig import Rig, batch_of, records, seqs_of, stored

from topics.core import append
from topics.core.append import sliced
from topics.core.apply import apply
from topics.core.effects import OpResult
from topics.errors import RecordTooLarge, TopicFull, VersionConflict
from topics.model.config import TopicConfig
from topics.model.ops import RESIDENT, Append, Op
from topics.model.position import Position
from topics.model.record import Expected, WriteBatch


def reserved(decision: object) -> append.Reservation:
    assert isinstance(decision, append.Reservation)
    return decision


def ops_for(rig: Rig, name: str, *datas: bytes, key: str | None = None) -> tuple[append.Reservation, list[Op]]:
    batch = batch_of([(data, None, None) for data in datas], key)
    decision = reserved(append.decide_append(rig.topic(name), batch, rig.now))
    return decision, rig.ops_of(name, batch, decision)


# --- seqs ------------------------------------------------------------------------------------------------------------


def test_seqs_of_a_batch_are_consecutive_and_start_at_one() -> None:
    rig = Rig()
    rig.create("t")
    first = reserved(rig.put("t", records("1", "2", "3")))
    second = reserved(rig.put("t", records("4")))
    assert (first.first_seq, first.last_seq, second.first_seq) == (1, 3, 4)
    assert rig.topic("t").head == 4


def test_the_time_of_a_record_never_falls_with_its_seq() -> None:
    rig = Rig()
    rig.create("t")
    rig.put("t", records("1"))
    rig.now -= 500  # the engine's clock never does this; a recovered topic may still be ahead of it
    rig.put("t", records("2"))
    assert [record.ts for record in stored(rig.read("t"))] == [1_000_000, 1_000_000]


def test_nothing_is_visible_before_apply() -> None:
    rig = Rig()
    topic = rig.create("t")
    ops_for(rig, "t", b"1")
    assert (topic.head, topic.reserved_head, topic.count, topic.staged_count) == (0, 1, 0, 1)
    assert seqs_of(rig.read("t")) == []


def test_released_seqs_are_used_again_and_leave_no_trace() -> None:
    rig = Rig()
    topic = rig.create("t")
    first, _ = ops_for(rig, "t", b"1", b"2", key="k")
    second, _ = ops_for(rig, "t", b"3")
    append.release(topic, second, reuse_seqs=True)
    append.release(topic, first, reuse_seqs=True)
    assert (topic.reserved_head, topic.staged_count, topic.staged_bytes) == (0, 0, 0)
    assert reserved(rig.put("t", batch_of([(b"4", None, None)], "k"))).first_seq == 1


def test_released_seqs_are_used_again_in_whatever_order_the_writes_are_told() -> None:
    """Batches that a thread has are told one by one, the oldest first."""
    rig = Rig()
    topic = rig.create("t")
    before, _ = ops_for(rig, "t", b"0")
    writes = [ops_for(rig, "t", b"1", b"2")[0] for _ in range(4)]
    for at in (1, 0, 3):
        append.release(topic, writes[at], reuse_seqs=True)
    refused = reserved(append.decide_append(topic, records("3"), rig.now))
    append.release(topic, refused, reuse_seqs=True)
    append.release(topic, writes[2], reuse_seqs=True)
    assert (topic.reserved_head, topic.staged_count) == (before.last_seq, 1)


def test_seqs_of_an_unknown_outcome_are_not_used_again() -> None:
    rig = Rig()
    topic = rig.create("t")
    first, _ = ops_for(rig, "t", b"1", b"2")
    append.release(topic, first, reuse_seqs=False)
    assert reserved(append.decide_append(topic, records("3"), rig.now)).first_seq == 3


# --- admission -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discard", ["old", "reject"])
def test_a_record_larger_than_the_byte_cap_is_refused_for_good(discard: str) -> None:
    rig = Rig()
    rig.create("t", TopicConfig(cap_bytes=3, discard=discard))  # type: ignore[arg-type]
    with pytest.raises(RecordTooLarge):
        rig.put("t", records("1234"))
    assert rig.topic("t").reserved_head == 0


@pytest.mark.parametrize(
    "config", [TopicConfig(cap_records=2, discard="reject"), TopicConfig(cap_bytes=2, discard="reject")]
)
def test_a_batch_larger_than_a_cap_is_refused_by_a_reject_topic(config: TopicConfig) -> None:
    rig = Rig()
    rig.create("t", config)
    with pytest.raises(RecordTooLarge):
        rig.put("t", records("1", "2", "3"))


def test_a_full_reject_topic_says_so_and_counts_writes_on_their_way() -> None:
    rig = Rig()
    topic = rig.create("t", TopicConfig(cap_records=3, discard="reject"))
    rig.put("t", records("1"))
    ops_for(rig, "t", b"2", b"3")
    with pytest.raises(TopicFull) as refused:
        rig.put("t", records("4"))
    assert refused.value.detail == {"topic": "t", "cap_records": 3, "cap_bytes": 0, "head_seq": 1, "earliest_seq": 1}
    assert topic.reserved_head == 3


def test_a_deleted_record_makes_room_at_once() -> None:
    rig = Rig()
    rig.create("t", TopicConfig(cap_records=1, discard="reject"))
    rig.put("t", records("1"))
    rig.delete("t", before_seq=2)
    assert reserved(rig.put("t", records("2"))).first_seq == 2


def test_a_batch_larger_than_the_cap_of_an_old_topic_keeps_its_newest_records() -> None:
    rig = Rig()
    rig.create("t", TopicConfig(cap_records=2))
    rig.put("t", records("1", "2", "3", "4", "5"))
    outcome = rig.read("t")
    assert seqs_of(outcome) == [4, 5]
    assert outcome.tombstone is not None
    assert (outcome.tombstone.gap_from, outcome.tombstone.gap_to, outcome.tombstone.reason) == (1, 3, "cap")


# --- idempotency -----------------------------------------------------------------------------------------------------


def test_a_repeat_gives_the_first_writes_numbers_until_the_window_is_over() -> None:
    rig = Rig()
    rig.create("t", TopicConfig(idempotency_window_ms=100))
    rig.put("t", batch_of([(b"1", None, None)], "k"))
    rig.put("t", records("2"))
    rig.now += 100
    repeat = rig.put("t", batch_of([(b"other", None, None)], "k"))
    assert isinstance(repeat, append.Repeat)
    assert (repeat.memo.first_seq, repeat.memo.count, repeat.memo.head) == (1, 1, 1)
    rig.now += 1
    assert reserved(rig.put("t", batch_of([(b"3", None, None)], "k"))).first_seq == 3


def test_a_hit_does_not_extend_the_window() -> None:
    rig = Rig()
    rig.create("t", TopicConfig(idempotency_window_ms=100))
    rig.put("t", batch_of([(b"1", None, None)], "k"))
    rig.now += 60
    assert isinstance(rig.put("t", batch_of([(b"1", None, None)], "k")), append.Repeat)
    rig.now += 41
    assert isinstance(rig.put("t", batch_of([(b"1", None, None)], "k")), append.Reservation)


def test_a_repeat_succeeds_on_a_full_topic_and_after_its_records_were_deleted() -> None:
    rig = Rig()
    rig.create("t", TopicConfig(cap_records=1, discard="reject"))
    rig.put("t", batch_of([(b"1", None, None)], "k"))
    assert isinstance(rig.put("t", batch_of([(b"1", None, None)], "k")), append.Repeat)
    rig.delete("t", before_seq=2)
    assert isinstance(rig.put("t", batch_of([(b"1", None, None)], "k")), append.Repeat)


def test_a_second_writer_with_the_key_waits_for_the_first() -> None:
    rig = Rig()
    topic = rig.create("t")
    _, ops = ops_for(rig, "t", b"1", key="k")
    batch = batch_of([(b"1", None, None)], "k")
    assert isinstance(append.decide_append(topic, batch, rig.now), append.Busy)
    for op in ops:
        rig.commit(op)
    assert isinstance(append.decide_append(topic, batch, rig.now), append.Repeat)


def test_a_window_of_zero_switches_keys_off() -> None:
    rig = Rig()
    topic = rig.create("t", TopicConfig(idempotency_window_ms=0))
    for expected in (1, 2):
        assert reserved(rig.put("t", batch_of([(b"1", None, None)], "k"))).first_seq == expected
    assert len(topic.idem) == 0


# --- applying in recovery --------------------------------------------------------------------------------------------


def replayed(op: Append) -> Append:
    return msgspec.structs.replace(op, frames=None, key=None)


def logged_appends(rig: Rig, name: str) -> list[Append]:
    return [replayed(op) for op in rig.logs[rig.topic(name).id].ops if isinstance(op, Append)]


def test_an_append_that_is_there_already_is_a_duplicate() -> None:
    rig = Rig()
    topic = rig.create("t")
    rig.put("t", records("1", "2"))
    effect = apply(rig.state, logged_appends(rig, "t")[0])
    assert effect.fate is OpResult.DUPLICATE
    assert (topic.count, topic.bytes, topic.head) == (2, 2, 2)


def test_an_append_ahead_of_the_head_changes_nothing() -> None:
    rig = Rig()
    rig.create("t")
    rig.put("t", records("1"))
    rig.put("t", records("2"))
    late = logged_appends(rig, "t")[1]
    other = Rig()
    topic = other.create("t")
    assert apply(other.state, late).fate is OpResult.AHEAD
    assert (topic.head, topic.count) == (0, 0)


def test_an_append_that_overlaps_the_head_publishes_the_rest() -> None:
    rig = Rig()
    rig.create("t")
    rig.put("t", records("1", "2", "3"))
    op = logged_appends(rig, "t")[0]
    other = Rig()
    topic = other.create("t")
    other.disk = rig.disk
    apply(other.state, sliced(op, 0, 2))
    effect = apply(other.state, op)
    assert (effect.fate, effect.first_seq, effect.last_seq) == (OpResult.APPLIED, 3, 3)
    assert (topic.head, topic.count) == (3, 3)
    assert seqs_of(other.read("t")) == [1, 2, 3]


@pytest.mark.parametrize("known", [0, 2])
def test_the_parts_of_a_batch_that_lies_in_no_file_bring_their_bytes(known: int) -> None:
    """Copies of a router are made again, may reach above the head, are cut by their times where cap and TTL rule."""
    rig, other = Rig(), Rig()
    rig.create("t")
    rig.put("t", records("10", "20", "30", "40"))
    logged = next(op for op in rig.logs[rig.topic("t").id].ops if isinstance(op, Append))
    times = array(logged.ts.typecode, [rig.now, rig.now, rig.now + 1, rig.now + 2])
    op = msgspec.structs.replace(logged, file=RESIDENT, ts=times, key=None)
    topic = other.create("t", TopicConfig(ttl_ms=60_000, cap_records=100))
    if known:
        apply(other.state, sliced(op, 0, known))
    apply(other.state, op)
    assert (topic.head, topic.count) == (4, 4)
    assert [record.blob for record in stored(other.read("t"))] == [record.blob for record in stored(rig.read("t"))]


def test_records_without_a_slot_are_filled_in_below_the_head() -> None:
    """The log repairs a segment that is missing."""
    rig = Rig()
    rig.create("t")
    for data in ("1", "2", "3", "4"):
        rig.put("t", records(data, tag="x"))
    ops = logged_appends(rig, "t")
    other = Rig()
    topic = other.create("t")
    other.disk = rig.disk
    topic.replaying = True
    topic.head = 2  # a segment with 1 and 2 should have been there
    for op in ops[2:]:
        assert apply(other.state, op).fate is OpResult.APPLIED
    assert apply(other.state, ops[1]).fate is OpResult.FILLED
    assert apply(other.state, ops[0]).fate is OpResult.FILLED
    topic.replaying = False
    assert (topic.count, topic.earliest_seq, topic.head) == (4, 1, 4)
    assert seqs_of(other.read("t")) == [1, 2, 3, 4]


def test_records_below_the_floor_come_back_dead() -> None:
    rig = Rig()
    rig.create("t")
    rig.put("t", records("1", "2", "3"))
    other = Rig()
    topic = other.create("t")
    topic.replaying = True
    topic.floors.earliest_seq = 3
    apply(other.state, logged_appends(rig, "t")[0])
    assert (topic.head, topic.count, topic.bytes, topic.earliest_seq) == (3, 1, 1, 3)


# --- expected versions -----------------------------------------------------------------------------------------------


def expecting(batch: WriteBatch, head: int | None = None, **tags: int) -> WriteBatch:
    expected = Expected(None if head is None else Position(head), tuple(tags.items()))
    return msgspec.structs.replace(batch, expected=expected)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_condition_counts_what_is_published_and_what_is_reserved(sealed: bool) -> None:
    rig = Rig()
    topic = rig.create("t")
    rig.put("t", batch_of([(b"1", "a", None), (b"2", "b", None), (b"3", "a", None)]))
    if sealed:
        rig.seal("t")
    append.ExpectedCheck(Expected(Position(3), (("a", 3), ("b", 2), ("c", 0)))).needs(topic)
    held = append.decide_append(topic, expecting(batch_of([(b"4", "a", None)]), a=3), rig.now)
    assert isinstance(held, append.Reservation)
    for expected in (Expected(Position(3)), Expected(None, (("a", 3),))):
        with pytest.raises(VersionConflict):
            append.ExpectedCheck(expected).needs(topic)
    append.ExpectedCheck(Expected(Position(4), (("a", 4), ("b", 2)))).needs(topic)
    append.release(topic, held, reuse_seqs=True)
    append.ExpectedCheck(Expected(Position(3), (("a", 3),))).needs(topic)


def test_a_condition_on_a_tag_asks_for_the_segment_that_is_not_loaded() -> None:
    rig = Rig()
    topic = rig.create("t")
    rig.put("t", batch_of([(b"1", "a", None)]))
    rig.seal("t")
    rig.put("t", batch_of([(b"2", "b", None)]))
    topic.sealed[0].view.loaded = False  # type: ignore[misc]
    append.ExpectedCheck(Expected(None, (("b", 2),))).needs(topic)
    assert append.ExpectedCheck(Expected(None, (("a", 1),))).needs(topic) is topic.sealed[0]
