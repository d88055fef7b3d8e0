"""Deletes: what is chosen, what it costs, what the engine is told, and what waits for a cold index."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tests.core.disk import FakeView
from tests.core.rig import Rig, batch_of, records, seqs_of

from topics.core import append, delete
from topics.core.apply import apply
from topics.core.effects import OpResult
from topics.core.queue.leases import CLAIMED, drop_dead_jobs
from topics.core.queue.queue_job import LEASED
from topics.core.retention import rules as retention
from topics.core.topic import TopicLog
from topics.errors import InvalidRequest
from topics.model.config import TopicConfig
from topics.model.names import TagMatch, parse_match
from topics.model.ops import Append, Delete, LeaseEvent

TAGS = ["a", "ab", "abc", "b", "", None]


def tagged(*, sealed: bool, config: TopicConfig | None = None) -> Rig:
    """Records 1..18, tags in turn; 1..6 and 7..12 in segments if `sealed`."""
    rig = Rig(recent_bytes=0)
    rig.create("t", config)
    for at in range(3):
        rig.put("t", batch_of([(b"12", tag, None) for tag in TAGS]))
        if sealed and at < 2:
            rig.seal("t")
    return rig


both = pytest.mark.parametrize("sealed", [False, True])


def live(topic: TopicLog) -> list[int]:
    return [seq for seq in range(1, topic.head + 1) if topic.live(seq)]


@both
@pytest.mark.parametrize(
    ("match", "removed"),
    [
        ("a", [1, 7, 13]),
        ("a*", [1, 2, 3, 7, 8, 9, 13, 14, 15]),
        ("ab*", [2, 3, 8, 9, 14, 15]),
        ("", [5, 11, 17]),
        ("*", [seq for seq in range(1, 19) if seq % 6]),
        ("c*", []),
    ],
)
def test_a_match_removes_exactly_what_it_matches(sealed: bool, match: str, removed: list[int]) -> None:
    rig = tagged(sealed=sealed)
    effect = rig.delete("t", match=parse_match(match))
    topic = rig.topic("t")
    assert (effect.removed_count, effect.freed_bytes) == (len(removed), 2 * len(removed))
    assert live(topic) == [seq for seq in range(1, 19) if seq not in removed]
    assert topic.evict_floor == 1
    assert rig.delete("t", match=parse_match(match)).removed_count == 0


@both
def test_before_seq_and_match_must_both_hold(sealed: bool) -> None:
    rig = tagged(sealed=sealed)
    assert rig.delete("t", before_seq=13, match=parse_match("a")).removed_count == 2
    assert rig.delete("t", match=parse_match("a")).removed_count == 1, "the entry above the bound is still there"


@both
def test_before_seq_moves_the_front_and_delete_below(sealed: bool) -> None:
    rig = tagged(sealed=sealed)
    effect = rig.delete("t", before_seq=9)
    topic = rig.topic("t")
    assert (effect.removed_count, topic.earliest_seq, topic.floors.delete_below) == (8, 9, 9)
    assert rig.delete("t", before_seq=100).removed_count == 10
    assert (topic.earliest_seq, topic.floors.delete_below, topic.count, topic.bytes) == (19, 19, 0, 0)


@pytest.mark.parametrize("before", [0, 1])
def test_a_bound_at_the_start_removes_nothing_and_need_not_be_logged(before: int) -> None:
    rig = tagged(sealed=False)
    op = delete.decide_delete(rig.topic("t"), before_seq=before, match=None)
    assert delete.removes_nothing(rig.topic("t"), op)
    assert apply(rig.state, op).removed_count == 0


def test_a_delete_without_a_selector_is_refused() -> None:
    rig = tagged(sealed=False)
    with pytest.raises(InvalidRequest):
        delete.decide_delete(rig.topic("t"), before_seq=None, match=None)


def test_a_write_reserved_after_the_delete_is_spared_and_one_before_it_is_not() -> None:
    rig = Rig()
    topic = rig.create("t")
    waiting = []
    for at in range(2):
        batch = records(str(at), tag="x")
        decision = append.decide_append(topic, batch, rig.now)
        assert isinstance(decision, append.Reservation)
        waiting.append(rig.ops_of("t", batch, decision))
        if at == 0:
            op = delete.decide_delete(topic, before_seq=None, match=parse_match("x"))
    for one in waiting[0]:
        rig.do(one, synced=True)
    assert apply(rig.state, op).removed_count == 1
    for one in waiting[1]:
        rig.do(one, synced=True)
    assert apply(rig.state, op).removed_count == 0, "replayed, it still spares what came after it"
    assert live(topic) == [2]


def test_seqs_without_a_live_record_are_not_logged() -> None:
    rig = tagged(sealed=False)
    rig.delete_seqs("t", [3])
    op = delete.decide_delete_seqs(rig.topic("t"), (2, 3, 19, 500), reason="ack")
    assert op.seqs == (2,)
    assert delete.removes_nothing(rig.topic("t"), delete.decide_delete_seqs(rig.topic("t"), (3,), reason="ack"))


# --- what the engine is told -----------------------------------------------------------------------------------------


def test_flips_name_the_slots_of_each_segment_and_the_seqs_of_the_active_one() -> None:
    rig = tagged(sealed=True)
    rig.checkpoint("t")
    op = delete.decide_delete(rig.topic("t"), before_seq=None, match=TagMatch("Eq", "b"))
    removal = apply(rig.state, op).removal
    assert removal is not None
    assert [(first, slots.tolist()) for first, slots in removal.flips] == [(1, [3]), (7, [3])]
    assert np.concatenate(removal.active_flips).tolist() == [16]
    assert np.concatenate(removal.seqs).tolist() == [4, 10, 16]
    assert removal.dead_segments == []


def test_a_wholly_dead_segment_is_dropped_instead_of_flagged() -> None:
    rig = tagged(sealed=True)
    topic = rig.topic("t")
    removal = apply(rig.state, delete.decide_delete(topic, before_seq=9, match=None)).removal
    assert removal is not None
    assert removal.dead_segments == [1]
    assert [(first, slots.tolist()) for first, slots in removal.flips] == [(7, [0, 1])]
    removal = apply(rig.state, Delete(topic_id=topic.id, seqs=tuple(range(9, 13)), reason="api")).removal
    assert removal is not None
    assert removal.dead_segments == [7]
    removal = apply(rig.state, delete.decide_delete(topic, before_seq=13, match=None)).removal
    assert removal is not None
    assert removal.dead_segments == [], "each segment is reported once"
    rig.drop_dead("t")
    assert len(topic.sealed) == 0


def test_evicting_the_living_rest_of_a_segment_makes_it_dead_too() -> None:
    rig = tagged(sealed=True)
    topic = rig.topic("t")
    rig.delete_seqs("t", [4, 5, 6])
    rig.set_config("t", TopicConfig(cap_records=12))
    assert (topic.earliest_seq, topic.sealed[0].live, topic.sealed[0].live_bytes) == (7, 0, 0)


# --- cost ------------------------------------------------------------------------------------------------------------


def test_a_match_delete_asks_each_segment_once_and_a_before_delete_none() -> None:
    rig = tagged(sealed=True)
    views = [sealed.view for sealed in rig.topic("t").sealed]
    rig.delete("t", before_seq=3)
    assert all(isinstance(view, FakeView) and view.tag_lookups == 0 for view in views)
    op = delete.decide_delete(rig.topic("t"), before_seq=None, match=parse_match("a"))
    apply(rig.state, op)
    assert [view.tag_lookups for view in views if isinstance(view, FakeView)] == [1, 1]


def test_repeated_deletes_of_one_tag_do_not_look_at_old_entries_again() -> None:
    rig = Rig()
    topic = rig.create("t")
    for _ in range(200):
        rig.put("t", records("1", tag="x"))
        rig.delete("t", match=parse_match("x"))
    assert topic.tags.take(TagMatch("Glob", ""), below=1000) == []


# --- cold segments ---------------------------------------------------------------------------------------------------


def restarted_cold() -> Rig:
    """Both segments cold, the second with a delete in it, nobody has their indexes."""
    rig = tagged(sealed=True)
    rig.delete_seqs("t", [8])
    rig.checkpoint("t")
    rig.move("t")
    rig.move("t")
    rig.snapshot("t")
    rig.restart("t", same_boot=True)
    return rig


def test_what_a_cold_segment_deleted_before_it_moved_is_remembered() -> None:
    rig = tagged(sealed=True)
    rig.delete_seqs("t", [2])
    rig.move("t")
    view = rig.topic("t").sealed[0].view
    assert isinstance(view, FakeView)
    assert not view.loaded
    assert rig.delete("t", match=parse_match("ab*")).removed_count == 5
    assert rig.index_loads == 0
    assert live(rig.topic("t")) == [1, 4, 5, 6, 7, 10, 11, 12, 13, 16, 17, 18]


def test_a_delete_names_the_indexes_it_needs() -> None:
    rig = restarted_cold()
    topic = rig.topic("t")
    ask = delete.unsearchable
    assert ask(topic, before_seq=None, match=parse_match("a")) == [7], "the first one is known to be whole"
    assert ask(topic, before_seq=None, match=parse_match("zzz")) == [], "its tags are at hand, and none fits"
    assert ask(topic, before_seq=7, match=parse_match("a")) == []
    assert ask(topic, before_seq=9, match=None) == [7]
    assert ask(topic, before_seq=13, match=None) == [], "a segment that goes whole needs no index"


def test_a_delete_applied_without_the_index_is_completed_when_it_comes() -> None:
    rig = restarted_cold()
    topic = rig.topic("t")
    effect = apply(rig.state, delete.decide_delete(topic, before_seq=None, match=parse_match("ab*")))
    assert effect.fate is OpResult.APPLIED
    assert effect.removed_count == 4, "2 and 3 of the first segment, 14 and 15 of the tail"
    assert list(topic.awaiting) == [7]
    view = topic.sealed[1].view
    assert isinstance(view, FakeView)
    view.loaded = True
    removal = delete.finish_cold_delete(topic, 7)
    assert (removal.count, np.concatenate(removal.seqs).tolist()) == (1, [9]), "8 was dead before"
    assert not topic.awaiting
    assert (topic.count, rig.state.total_bytes) == (12, 24)


def moved_without_sidecar() -> tuple[Rig, FakeView]:
    """The first segment is cold, its deletes are known, but nobody can tell the sizes of its records."""
    rig = tagged(sealed=True)
    rig.move("t")
    view = rig.topic("t").sealed[0].view
    assert isinstance(view, FakeView)
    view.has_sidecar = False
    return rig, view


def test_a_delete_of_half_a_cold_segment_without_a_sidecar_moves_the_front_and_counts_later() -> None:
    rig, view = moved_without_sidecar()
    topic = rig.topic("t")
    assert delete.unsearchable(topic, before_seq=4, match=None) == [1]
    effect = apply(rig.state, delete.decide_delete(topic, before_seq=4, match=None))
    assert (effect.fate, effect.removed_count, topic.earliest_seq) == (OpResult.APPLIED, 0, 4)
    assert list(topic.awaiting) == [1]
    view.loaded = True
    delete.finish_cold_delete(topic, 1)
    assert (topic.count, rig.state.total_bytes, topic.earliest_seq) == (15, 30, 4)
    assert live(topic) == list(range(4, 19))


def test_nobody_waits_for_a_cold_segment_that_goes_whole_after_all() -> None:
    rig, _ = moved_without_sidecar()
    topic = rig.topic("t")
    apply(rig.state, delete.decide_delete(topic, before_seq=4, match=None))
    apply(rig.state, delete.decide_delete(topic, before_seq=8, match=None))
    assert not topic.awaiting
    assert (topic.count, rig.state.total_bytes, topic.earliest_seq) == (11, 22, 8)


def test_acks_in_a_cold_segment_without_a_sidecar_wait_for_it() -> None:
    rig, view = moved_without_sidecar()
    topic = rig.topic("t")
    assert delete.unsearchable_seqs(topic, (2, 5)) == [1]
    effect = apply(rig.state, delete.decide_delete_seqs(topic, (2, 5), reason="ack"))
    assert (effect.removed_count, list(topic.awaiting)) == (0, [1])
    view.loaded = True
    assert delete.finish_cold_delete(topic, 1).count == 2
    assert (topic.count, rig.state.total_bytes) == (16, 32)


def test_a_lease_on_a_job_in_a_cold_segment_outlives_a_start_that_cannot_look_at_it() -> None:
    rig = Rig()
    topic = rig.create("q", TopicConfig(type="queue", leases_durable=True))
    rig.put("q", records("1", "2", "3"))
    rig.seal("q")
    rig.move("q")
    topic.sealed[0].doubt()
    claimed = LeaseEvent(topic_id=topic.id, seq=2, event=CLAIMED, node="w", lease_id=1, deadline=9**9, deliveries=1)
    apply(rig.state, claimed)
    apply(rig.state, msgspec.structs.replace(claimed, seq=3, lease_id=2))
    view = topic.sealed[0].view
    assert isinstance(view, FakeView)
    view.flip(np.array([2]))  # 3 was acked, and flagged in the cold copy
    drop_dead_jobs(topic)
    assert topic.queue is not None
    assert {seq: job.state for seq, job in topic.queue.jobs.items()} == {2: LEASED, 3: LEASED}
    view.loaded = True
    delete.finish_cold_delete(topic, 1)
    assert list(topic.queue.jobs) == [2]


def test_eviction_that_needs_a_cold_index_is_postponed() -> None:
    rig = restarted_cold()
    topic = rig.topic("t")
    apply(rig.state, delete.decide_delete(topic, before_seq=7, match=None))
    topic.config = TopicConfig(cap_records=9)
    assert retention.trim_to_cap(topic, now=rig.now) is None
    assert list(topic.awaiting) == [7]
    view = topic.sealed[1].view
    assert isinstance(view, FakeView)
    view.loaded = True
    delete.finish_cold_delete(topic, 7)
    assert (topic.count, topic.earliest_seq) == (9, 10)


# --- floors of a count cap and flags on disk -------------------------------------------------------------------------


def test_floors_go_in_front_of_a_delete_so_that_replay_trims_as_the_appends_did() -> None:
    """1 is evicted by the cap, then 2 is deleted and flagged on disk. Without the floor in the log, replay of the third
    append would find only two live records, evict nothing, and bring 1 back."""
    rig = Rig()
    topic = rig.create("t", TopicConfig(cap_records=2))
    rig.put("t", records("1"))
    rig.put("t", records("2"))
    rig.seal("t")
    rig.put("t", records("3"))
    assert retention.unlogged(topic) is not None
    rig.delete_seqs("t", [2])
    assert retention.unlogged(topic) is None
    rig.restart("t", same_boot=True)
    topic = rig.topic("t")
    assert (seqs_of(rig.read("t")), topic.evict_floor, topic.earliest_seq) == ([3], 2, 3)


def test_a_cap_that_came_and_went_is_replayed_at_its_own_time() -> None:
    """Segments may hold records that were written after a config change; the change must not trim those."""
    rig = Rig()
    rig.create("t")
    rig.put("t", records("1"))
    rig.snapshot("t")
    rig.set_config("t", TopicConfig(cap_records=1))
    rig.set_config("t", TopicConfig())
    rig.put("t", records("2", "3"))
    rig.seal("t")
    rig.restart("t", same_boot=True)
    assert seqs_of(rig.read("t")) == [1, 2, 3]
    assert [op.count for op in rig.logs[rig.topic("t").id].ops if isinstance(op, Append)] == [1, 2]
