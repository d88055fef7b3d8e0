"""Reads: the pipeline of `docs/spec/semantics.md#sec-12-1`, from memory, from the log, from segments, and from all of
them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.core.disk import FakeView
from tests.core.rig import Rig, batch_of, records, seqs_of, stored

from topics import limits
from topics.core.reading.named_cursors import TopicLags, lag_of
from topics.core.reading.seek import seq_before_time, start_by_time
from topics.core.reading.walk import ReadOutcome, ReadRequest, plan_read
from topics.core.slots.extent import RecordPlace
from topics.core.slots.sealed_slots import Sealed
from topics.model.config import TopicConfig
from topics.model.names import parse_match
from topics.model.run import EMPTY_RUN, RecordRun


def twelve(config: TopicConfig | None = None, *, recent_bytes: int = 1 << 20, sealed: bool = False) -> Rig:
    """Records 1..12, three per write, sizes 1, 2, 3; nodes n1, n2, none in turn."""
    rig = Rig(recent_bytes=recent_bytes)
    rig.create("t", config)
    for at in range(4):
        rig.put("t", batch_of([(b"1", "x", "n1"), (b"22", "y", "n2"), (b"333", None, None)]))
        if sealed and at in (0, 2):
            rig.seal("t")
    return rig


everywhere = pytest.mark.parametrize(
    "rig",
    [
        pytest.param(lambda: twelve(), id="recent"),
        pytest.param(lambda: twelve(recent_bytes=0), id="log"),
        pytest.param(lambda: twelve(recent_bytes=0, sealed=True), id="segments"),
        pytest.param(lambda: twelve(TopicConfig(durability="ephemeral")), id="resident"),
        pytest.param(lambda: twelve(recent_bytes=300, sealed=True), id="mixed"),
    ],
)


def facts(outcome: ReadOutcome) -> tuple[list[int], int, bool, int]:
    return seqs_of(outcome), outcome.next_from_seq, outcome.caught_up, outcome.lag


@everywhere
def test_a_full_read_gives_every_record_byte_for_byte(rig) -> None:  # type: ignore[no-untyped-def]
    outcome = rig().read("t")
    assert facts(outcome) == (list(range(1, 13)), 12, True, 0)
    assert outcome.scanned == 12
    assert [record.blob for record in stored(outcome)][:3] == [b'{"d":1}', b'{"d":22}', b'{"d":333}']
    assert [(record.tag, record.node) for record in stored(outcome)][:3] == [(b"x", b"n1"), (b"y", b"n2"), (None, None)]


@everywhere
def test_the_limit_ends_a_page_and_the_next_one_goes_on(rig) -> None:  # type: ignore[no-untyped-def]
    made = rig()
    assert facts(made.read("t", ReadRequest(from_seq=0, limit=5))) == ([1, 2, 3, 4, 5], 5, False, 7)
    assert facts(made.read("t", ReadRequest(from_seq=5, limit=50))) == ([6, 7, 8, 9, 10, 11, 12], 12, True, 0)


@everywhere
def test_the_budget_stops_before_the_record_that_would_exceed_it(rig) -> None:  # type: ignore[no-untyped-def]
    made = rig()
    assert facts(made.read("t", ReadRequest(from_seq=0, budget_bytes=6))) == ([1, 2, 3], 3, False, 9)
    assert facts(made.read("t", ReadRequest(from_seq=0, budget_bytes=5))) == ([1, 2], 2, False, 10)
    assert facts(made.read("t", ReadRequest(from_seq=2, budget_bytes=1))) == ([3], 3, False, 9), "the first always fits"


@everywhere
def test_own_records_are_hidden_and_passed(rig) -> None:  # type: ignore[no-untyped-def]
    made = rig()
    outcome = made.read("t", ReadRequest(from_seq=0, nodes=frozenset([b"n1", b"n2"])))
    assert facts(outcome) == ([3, 6, 9, 12], 12, True, 0)
    assert outcome.scanned == 12
    outcome = made.read("t", ReadRequest(from_seq=9, limit=2, nodes=frozenset([b"n2"])))
    assert facts(outcome) == ([10, 12], 12, True, 0)


@everywhere
def test_a_hidden_record_does_not_count_for_the_budget(rig) -> None:  # type: ignore[no-untyped-def]
    """After 2 (2 bytes) only 0 are left: 3 does not fit, and the page ends before it; 1 and 4 were hidden for free."""
    made = rig()
    outcome = made.read("t", ReadRequest(from_seq=0, budget_bytes=2, nodes=frozenset([b"n1"])))
    assert facts(outcome) == ([2], 2, False, 10)
    outcome = made.read("t", ReadRequest(from_seq=2, budget_bytes=3, nodes=frozenset([b"n1"])))
    assert facts(outcome) == ([3], 4, False, 8)


def test_a_topic_may_ignore_the_node_filter() -> None:
    rig = twelve(TopicConfig(dedupe_node=False))
    assert len(seqs_of(rig.read("t", ReadRequest(from_seq=0, nodes=frozenset([b"n1"]))))) == 12


@everywhere
def test_deleted_stretches_are_crossed_silently(rig) -> None:  # type: ignore[no-untyped-def]
    made = rig()
    made.delete("t", match=parse_match("x"))
    made.delete("t", match=parse_match("y"))
    outcome = made.read("t")
    assert facts(outcome) == ([3, 6, 9, 12], 12, True, 0)
    assert (outcome.tombstone, outcome.scanned) == (None, 4)
    made.delete("t", before_seq=13)
    assert facts(made.read("t")) == ([], 12, True, 0)
    assert made.read("t").earliest_seq == 13


def test_a_cursor_at_the_head_is_caught_up() -> None:
    assert facts(twelve().read("t", 12)) == ([], 12, True, 0)


def test_a_cursor_beyond_the_head_is_of_another_life() -> None:
    outcome = twelve(TopicConfig(cap_records=5)).read("t", 40)
    assert facts(outcome) == ([8, 9, 10, 11, 12], 12, True, 0)
    gap = outcome.tombstone
    assert gap is not None
    assert (gap.gap_from, gap.gap_to, gap.reason, gap.earliest_seq, gap.head_seq) == (1, 12, "recreated", 8, 12)


def test_recreation_of_an_empty_topic_names_an_empty_gap() -> None:
    rig = Rig()
    rig.create("t")
    gap = rig.read("t", 7).tombstone
    assert gap is not None
    assert (gap.gap_from, gap.gap_to, gap.missed_estimate, gap.earliest_seq) == (1, 0, 0, 1)


def test_a_known_epoch_shows_recreation_at_any_position() -> None:
    rig = twelve()
    epoch = rig.topic("t").epoch
    assert rig.read("t", ReadRequest(from_seq=3, epoch=epoch)).tombstone is None
    outcome = rig.read("t", ReadRequest(from_seq=3, epoch=epoch - 1, limit=2))
    assert outcome.tombstone is not None
    assert (outcome.tombstone.reason, seqs_of(outcome)) == ("recreated", [1, 2])


def test_a_strong_reader_sees_nothing_above_its_limit() -> None:
    rig = twelve()
    outcome = rig.read("t", ReadRequest(from_seq=0, head_limit=7))
    assert facts(outcome) == ([1, 2, 3, 4, 5, 6, 7], 7, True, 0)
    assert outcome.head_seq == 7


def test_a_read_counts_as_consumption_unless_it_says_otherwise() -> None:
    rig = twelve()
    topic = rig.topic("t")
    rig.read("t", ReadRequest(from_seq=0, touch=False))
    untouched = topic.last_read_ts
    rig.read("t", 0)
    assert (untouched, topic.last_read_ts, topic.last_consumed) == (None, rig.now, rig.now)


@everywhere
def test_a_walk_examines_a_bounded_number_of_records(rig, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(limits, "READ_EXAMINED_MAX", 5)
    outcome = rig().read("t", ReadRequest(from_seq=0, nodes=frozenset([b"n1", b"n2"])))
    assert facts(outcome) == ([3], 5, False, 7)


@pytest.mark.usefixtures("long_runs")
def test_a_run_of_dead_slots_is_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READ_EXAMINED_MAX", 3)
    rig = twelve()
    rig.delete_seqs("t", range(2, 11))
    assert facts(rig.read("t")) == ([1, 11], 11, False, 1), "1, the dead run, 11"


def test_the_newest_records_need_no_fetch() -> None:
    rig = twelve()
    rig.read("t")
    assert rig.disk.fetches == 0


# --- while a fetch is under way --------------------------------------------------------------------------------------


def walk_of(rig: Rig, from_seq: int = 0, **given: int):  # type: ignore[no-untyped-def]
    return plan_read(rig.topic("t"), ReadRequest(from_seq=from_seq, **given), rig.state.recent, now=rig.now)  # type: ignore[arg-type]


def test_a_record_flagged_on_disk_is_skipped() -> None:
    rig = twelve(recent_bytes=0)
    walk = walk_of(rig, limit=4)
    extent = walk.need()
    run = rig.disk.fetch(rig.topic("t"), extent)
    walk.feed(RecordRun(run.buf, [*run.body_offs[:1], *run.body_offs[2:]], run.flags[:1] + run.flags[2:]))
    while (extent := walk.need()) is not None:
        walk.feed(rig.disk.fetch(rig.topic("t"), extent))
    assert facts(walk.result()) == ([1, 3, 4, 5], 5, False, 7)


def test_a_damaged_record_ends_the_page_in_front_of_it() -> None:
    rig = twelve(recent_bytes=0)
    walk = walk_of(rig, limit=4)
    run = rig.disk.fetch(rig.topic("t"), walk.need())
    walk.feed(RecordRun(run.buf, run.body_offs[:2], run.flags[:2]), seq_next=3)
    assert walk.need() is None
    assert facts(walk.result()) == ([1, 2], 2, False, 10)


def test_a_failed_fetch_leaves_what_came_before_it() -> None:
    rig = twelve(recent_bytes=0, sealed=True)
    walk = walk_of(rig)
    walk.feed(rig.disk.fetch(rig.topic("t"), walk.need()))
    assert walk.stop()
    assert facts(walk.result()) == ([1, 2, 3], 3, False, 9)
    assert not walk_of(rig).stop(), "nothing to answer with"


def test_a_floor_that_overtakes_a_fresh_walk_is_announced() -> None:
    rig = twelve(recent_bytes=0)
    walk = walk_of(rig, limit=3)
    rig.set_config("t", TopicConfig(cap_records=4))
    walk.replan()
    while (extent := walk.need()) is not None:
        walk.feed(rig.disk.fetch(rig.topic("t"), extent))
    outcome = walk.result()
    assert outcome.tombstone is not None
    assert (outcome.tombstone.gap_from, outcome.tombstone.gap_to, seqs_of(outcome)) == (1, 8, [9, 10, 11])


def test_a_floor_that_overtakes_a_walk_with_records_ends_it() -> None:
    rig = twelve(recent_bytes=0, sealed=True)
    walk = walk_of(rig)
    walk.feed(rig.disk.fetch(rig.topic("t"), walk.need()))
    rig.set_config("t", TopicConfig(cap_records=4))
    walk.replan()
    assert facts(walk.result()) == ([1, 2, 3], 3, False, 9), "the next read is told what is missing"


def test_locations_may_change_under_a_reader() -> None:
    rig = twelve(recent_bytes=0)
    walk = walk_of(rig)
    assert walk.need().place is RecordPlace.WAL
    rig.checkpoint("t")
    walk.replan()
    assert walk.need().place is RecordPlace.ACTIVE
    rig.seal("t")
    walk.replan()
    assert walk.need().place is RecordPlace.SEALED
    walk.feed(rig.disk.fetch(rig.topic("t"), walk.need()))
    assert facts(walk.result()) == (list(range(1, 13)), 12, True, 0)


def test_a_cold_segment_is_read_after_its_index_has_come() -> None:
    rig = twelve(recent_bytes=0, sealed=True)
    rig.delete_seqs("t", [5])
    rig.checkpoint("t")
    rig.move("t")
    rig.move("t")
    rig.snapshot("t")
    rig.restart("t", same_boot=True)
    view = rig.topic("t").sealed[1].view
    assert isinstance(view, FakeView)
    assert not view.loaded
    walk = walk_of(rig, 3)
    assert walk.need().place is RecordPlace.INDEX
    view.loaded = True
    walk.feed(EMPTY_RUN)
    assert walk.need().seqs.tolist() == [4, 6, 7, 8, 9]


def test_many_small_dead_runs_are_crossed_in_one_page() -> None:
    rig = Rig(recent_bytes=0)
    rig.create("t")
    rig.put("t", batch_of([(b"1", "even" if at % 2 else "odd", None) for at in range(2000)]))
    rig.seal("t")
    rig.delete("t", match=parse_match("even"))
    outcome = rig.read("t", ReadRequest(from_seq=0, limit=1000))
    assert seqs_of(outcome) == list(range(1, 2000, 2))
    assert outcome.next_from_seq == 1999
    assert rig.disk.fetches == 1
    assert np.all(np.diff(seqs_of(outcome)) == 2)


@pytest.mark.usefixtures("long_runs")
def test_records_of_one_write_share_a_chunk_with_the_next() -> None:
    rig = Rig()
    rig.create("t")
    for at in range(300):
        rig.put("t", records(str(at)))
    outcome = rig.read("t")
    assert seqs_of(outcome) == list(range(1, 301))
    assert len(outcome.runs) == 1


# --- by tag ----------------------------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize(
    ("tag", "seqs"),
    [
        ("x", [1, 4, 7, 10]),
        ("y*", [2, 5, 8, 11]),
        ("*", [1, 2, 4, 5, 7, 8, 10, 11]),
        ("none", []),
        ("x*", [1, 4, 7, 10]),
    ],
)
def test_a_read_by_tag_gives_the_records_that_match_and_passes_over_the_rest(rig, tag, seqs) -> None:  # type: ignore[no-untyped-def]
    made = rig()
    outcome = made.read("t", ReadRequest(from_seq=0, tag=parse_match(tag)))
    assert facts(outcome) == (seqs, 12, True, 0)
    assert outcome.scanned == len(seqs)
    outcome = made.read("t", ReadRequest(from_seq=1, limit=2, tag=parse_match(tag)))
    assert seqs_of(outcome) == [seq for seq in seqs if seq > 1][:2]


@everywhere
def test_a_read_by_tag_leaves_out_what_was_deleted_and_what_its_reader_wrote(rig) -> None:  # type: ignore[no-untyped-def]
    made = rig()
    made.delete("t", before_seq=6, match=parse_match("x"))
    assert seqs_of(made.read("t", ReadRequest(from_seq=0, tag=parse_match("x")))) == [7, 10]
    hidden = ReadRequest(from_seq=0, tag=parse_match("*"), nodes=frozenset([b"n2"]))
    assert seqs_of(made.read("t", hidden)) == [7, 10]


def test_a_read_by_tag_looks_at_no_record_of_a_segment_that_lacks_it() -> None:
    rig = Rig(recent_bytes=0)
    rig.create("t")
    for at in range(40):
        rig.put("t", records(*[b"1"] * 500, tag=f"t{at}"))
        rig.seal("t")
    outcome = rig.read("t", ReadRequest(from_seq=0, tag=parse_match("t39")))
    assert (outcome.records, outcome.scanned, outcome.next_from_seq) == (256, 256, 39 * 500 + 256)


def test_a_read_by_tag_does_not_ask_the_index_of_segments_that_are_known_to_lack_it() -> None:
    rig = Rig(recent_bytes=0)
    rig.create("t")
    for tag in ("aa", "bb", "aa", "aa", "bb"):
        rig.put("t", records(b"1", tag=tag))
        rig.seal("t")
    assert seqs_of(rig.read("t", ReadRequest(from_seq=0, tag=parse_match("bb")))) == [2, 5]
    lookups = [sealed.view.tag_lookups for sealed in rig.topic("t").sealed]  # type: ignore[attr-defined]
    assert [count > 0 for count in lookups] == [False, True, False, False, True]


# --- by time ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sealed", [False, True])
def test_the_begin_by_time_is_in_front_of_the_first_record_of_that_time(sealed: bool) -> None:
    rig = Rig(now=100)
    rig.create("t")
    for _ in range(6):
        rig.put("t", records(b"1", b"2"))
        rig.now += 10
        if sealed:
            rig.seal("t")
    topic = rig.topic("t")
    for ts, seq in [(0, 0), (100, 0), (101, 2), (110, 2), (149, 10), (150, 10), (151, 12), (2**50, 12)]:
        assert seq_before_time(topic, ts) == start_by_time(topic, ts, now=rig.now) == seq


def test_a_begin_by_time_asks_for_the_segment_that_is_not_loaded() -> None:
    rig = Rig(now=100)
    rig.create("t")
    for _ in range(4):
        rig.put("t", records(b"1", b"2"))
        rig.now += 10
        rig.seal("t")
    topic = rig.topic("t")
    for sealed in topic.sealed:
        sealed.view.loaded = False  # type: ignore[misc]
    asked = []
    while isinstance(found := seq_before_time(topic, 120), Sealed):
        asked.append(found)
        found.view.loaded = True  # type: ignore[misc]
    assert found == 4
    assert 1 <= len(asked) <= 3


def test_a_read_from_a_time_that_retention_reached_begins_before_it_and_tells() -> None:
    rig = Rig(now=100)
    rig.create("t", TopicConfig(cap_records=4))
    for _ in range(6):
        rig.put("t", records(b"1", b"2"))
        rig.now += 10
    topic = rig.topic("t")
    assert start_by_time(topic, 120, now=rig.now) == 0
    assert rig.read("t", ReadRequest(from_seq=0)).tombstone is not None
    assert start_by_time(topic, 145, now=rig.now) == 10
    assert start_by_time(topic, 2**50, now=rig.now) == 12


def test_the_lag_of_many_readers_is_that_of_each() -> None:
    rig = Rig(now=100)
    rig.create("t")
    for at in range(5):
        rig.put("t", records(b"1", b"22", b"333"))
        rig.now += 10
        if at < 3:
            rig.seal("t")
    rig.delete("t", before_seq=3)
    topic = rig.topic("t")
    together = TopicLags(topic, now=rig.now)
    for seq in range(topic.head + 2):
        assert together.of(seq) == lag_of(topic, seq, now=rig.now), seq
    assert [together.of(seq).records for seq in (9, 10, 14, 15)] == [6, 5, 1, 0]
    assert together.of(9)[1:] == (together.of(12).bytes * 2, rig.now - 130)
