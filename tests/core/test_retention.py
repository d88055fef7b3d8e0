"""Retention: TTL, caps, floors; and that floors move only for records that were live (`docs/spec/semantics.md#sec-6`
and `docs/spec/semantics.md#sec-7`)."""

from __future__ import annotations

import pytest
from tests.core.rig import Rig, records, seqs_of

from topics.core import append
from topics.core.apply import apply
from topics.core.retention import rules as retention
from topics.model.config import TopicConfig
from topics.model.ops import Evict, HeadMark


def filled(config: TopicConfig, count: int = 12, *, sealed: bool = False) -> Rig:
    """Single writes, 10 ms apart, every third tagged "x"; in two segments and a tail if `sealed`."""
    rig = Rig()
    rig.create("t", config)
    for at in range(count):
        rig.put("t", records("1", tag="x" if at % 3 == 0 else None))
        rig.now += 10
        if sealed and at in (3, 7):
            rig.seal("t")
    return rig


both = pytest.mark.parametrize("sealed", [False, True])


@both
def test_the_worked_example_of_the_contract(sealed: bool) -> None:
    rig = filled(TopicConfig(cap_records=5), sealed=sealed)
    topic = rig.topic("t")
    assert (topic.head, topic.earliest_seq, topic.count, topic.evict_floor) == (12, 8, 5, 8)


@both
def test_a_record_lives_at_its_ttl_and_not_a_millisecond_longer(sealed: bool) -> None:
    rig = filled(TopicConfig(ttl_ms=1000), count=3, sealed=sealed)
    rig.now = 1_000_000 + 1000
    assert seqs_of(rig.read("t")) == [1, 2, 3]
    rig.now += 1
    outcome = rig.read("t")
    assert seqs_of(outcome) == [2, 3]
    assert outcome.tombstone is not None
    assert outcome.tombstone.reason == "ttl"


def test_expiry_is_due_without_any_call() -> None:
    rig = filled(TopicConfig(ttl_ms=1000), count=3)
    topic = rig.topic("t")
    assert retention.due(topic, 1_001_000) is None
    op = retention.due(topic, 1_001_001)
    assert op is not None
    assert (op.ttl_lost, op.evict_floor, op.earliest_seq) == (1, 2, 2)
    assert topic.count == 3, "what is due changes nothing before it is applied"


@both
def test_a_byte_cap_is_due_as_an_evict(sealed: bool) -> None:
    rig = filled(TopicConfig(cap_bytes=5), sealed=sealed)
    topic = rig.topic("t")
    assert (topic.bytes, topic.earliest_seq, topic.floors.cap_lost) == (5, 8, 7)


@both
def test_dropping_deleted_slots_does_not_move_the_floor(sealed: bool) -> None:
    rig = filled(TopicConfig(), sealed=sealed)
    rig.delete("t", before_seq=6)
    topic = rig.topic("t")
    assert (topic.evict_floor, topic.earliest_seq) == (1, 6)
    rig.set_config("t", TopicConfig(cap_records=7))
    assert (topic.evict_floor, topic.earliest_seq, topic.count) == (1, 6, 7)


@both
def test_the_floor_is_the_last_record_that_was_live(sealed: bool) -> None:
    """5 and 6 are deleted, then everything up to 6 is evicted: what was lost last is 4."""
    rig = filled(TopicConfig(), sealed=sealed)
    rig.delete_seqs("t", [5, 6])
    rig.set_config("t", TopicConfig(cap_records=6))
    topic = rig.topic("t")
    assert topic.floors.cap_lost == 4
    assert (topic.evict_floor, topic.earliest_seq, topic.count) == (5, 7, 6)
    assert rig.read("t", 4).tombstone is None, "behind 4 only requested removals are missing"
    gap = rig.read("t", 3).tombstone
    assert gap is not None
    assert (gap.gap_from, gap.gap_to) == (4, 6)


@both
def test_looser_retention_brings_nothing_back(sealed: bool) -> None:
    rig = filled(TopicConfig(cap_records=3), sealed=sealed)
    rig.set_config("t", TopicConfig())
    assert seqs_of(rig.read("t")) == [10, 11, 12]
    assert rig.topic("t").evict_floor == 10


def test_a_reject_topic_over_a_tightened_cap_loses_nothing() -> None:
    rig = filled(TopicConfig(discard="reject"))
    rig.set_config("t", TopicConfig(discard="reject", cap_records=3, cap_bytes=2))
    assert (rig.topic("t").count, rig.topic("t").evict_floor) == (12, 1)


def test_two_causes_make_a_mixed_gap_and_one_cause_its_own() -> None:
    rig = filled(TopicConfig(cap_records=8))  # 1..4 by cap
    rig.set_config("t", TopicConfig(ttl_ms=50))  # up to 7 by age
    reasons = {at: gap.reason for at in range(8) if (gap := rig.read("t", at).tombstone) is not None}
    assert reasons == {0: "mixed", 1: "mixed", 2: "mixed", 3: "mixed", 4: "ttl", 5: "ttl", 6: "ttl"}


def test_a_write_that_finds_expired_records_blames_their_age_not_the_cap() -> None:
    rig = Rig()
    rig.create("t", TopicConfig(cap_records=2, ttl_ms=100))
    rig.put("t", records("1", "2"))
    rig.now += 101
    batch = records("3")
    # Retention has not run: the append itself has to tell the two apart, as it will in recovery.
    decision = append.decide_append(rig.topic("t"), batch, rig.now)
    assert isinstance(decision, append.Reservation)
    for op in rig.ops_of("t", batch, decision):
        rig.do(op, synced=True)
    floors = rig.topic("t").floors
    assert (floors.ttl_lost, floors.cap_lost) == (1, 0)


def test_an_old_evict_does_no_harm() -> None:
    rig = filled(TopicConfig(cap_records=3))
    topic = rig.topic("t")
    op = Evict(topic_id=topic.id, evict_floor=3, cap_lost=2, ttl_lost=0, trim_lost=0, restart_lost=0, earliest_seq=3)
    before = (topic.count, topic.earliest_seq, topic.floors.cap_lost)
    effect = apply(rig.state, op)
    assert effect.removal is None
    assert (topic.count, topic.earliest_seq, topic.floors.cap_lost) == before


# --- lost ranges -----------------------------------------------------------------------------------------------------


def lose(rig: Rig, count: int, reason: str = "restart") -> None:
    topic = rig.topic("t")
    lost = (topic.head + 1, topic.head + count, reason)
    op = HeadMark(topic_id=topic.id, ceiling=0, resume_at=topic.head + count + 1, lost=(lost,))  # type: ignore[arg-type]
    rig.do(op, synced=True)


def test_a_lost_range_leaves_older_records_alone() -> None:
    rig = filled(TopicConfig(), count=3)
    lose(rig, 4)
    rig.put("t", records("8"))
    topic = rig.topic("t")
    assert (topic.head, topic.evict_floor, topic.earliest_seq, topic.count) == (8, 1, 1, 4)
    first = rig.read("t")
    assert (seqs_of(first), first.next_from_seq, first.tombstone) == ([1, 2, 3], 3, None)
    second = rig.read("t", 3)
    assert second.tombstone is not None
    assert (second.tombstone.gap_from, second.tombstone.gap_to, second.tombstone.reason) == (4, 7, "restart")
    assert second.tombstone.earliest_seq == 1
    assert seqs_of(second) == [8]


def test_a_reader_inside_a_lost_range_is_told_of_the_rest_of_it() -> None:
    rig = filled(TopicConfig(), count=3)
    lose(rig, 4)
    gap = rig.read("t", 5).tombstone
    assert gap is not None
    assert (gap.gap_from, gap.gap_to) == (6, 7)


def test_a_range_is_absorbed_when_the_floor_reaches_its_start() -> None:
    rig = filled(TopicConfig(), count=3)
    lose(rig, 4, "source_trim")
    rig.put("t", records("8", "9"))
    topic = rig.topic("t")
    rig.set_config("t", TopicConfig(cap_records=3))
    assert (len(topic.lost), topic.evict_floor) == (1, 3)
    rig.set_config("t", TopicConfig(cap_records=2))
    assert (len(topic.lost), topic.floors.cap_lost, topic.floors.trim_lost, topic.evict_floor) == (0, 3, 7, 8)


def test_deletes_do_not_absorb_a_range() -> None:
    rig = filled(TopicConfig(), count=3)
    lose(rig, 4)
    rig.put("t", records("8"))
    rig.delete("t", before_seq=8)
    topic = rig.topic("t")
    assert (topic.evict_floor, topic.earliest_seq, len(topic.lost)) == (1, 8, 1)
    gap = rig.read("t").tombstone
    assert gap is not None
    assert (gap.gap_from, gap.gap_to) == (4, 7), "the deleted front is silent, the lost range is not"


def test_a_range_at_the_very_start_is_part_of_the_floor_at_once() -> None:
    rig = Rig()
    rig.create("t")
    lose(rig, 256)
    topic = rig.topic("t")
    assert (topic.evict_floor, topic.earliest_seq, topic.floors.restart_lost) == (257, 257, 256)


def test_adjacent_ranges_of_one_reason_are_one_and_a_replayed_one_is_added_once() -> None:
    rig = filled(TopicConfig(), count=2)
    lose(rig, 2)
    lose(rig, 3)
    lose(rig, 1, "cap")
    topic = rig.topic("t")
    for op in rig.logs[topic.id].ops:
        if isinstance(op, HeadMark):
            apply(rig.state, op)
    assert list(topic.lost) == [(3, 7, "restart"), (8, 8, "cap")]
    assert topic.head == 8
