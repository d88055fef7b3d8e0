"""Readers that go on: one trip to the files serves several of their batches, and changes nothing that they see."""

from __future__ import annotations

import numpy as np
import pytest
from tests.core.rig import Rig, batch_of, seqs_of

from topics import limits
from topics.core.reading.request import ReadAhead
from topics.core.reading.walk import ReadRequest, plan_read
from topics.model.names import parse_match
from topics.model.run import RecordRun


def sealed(count: int = 12) -> Rig:
    """Records 1..count in one segment and in no memory; every third has the tag `x`."""
    rig = Rig(recent_bytes=0)
    rig.create("t")
    rig.put("t", batch_of([(b"1", "x" if seq % 3 == 0 else None, None) for seq in range(1, count + 1)]))
    rig.seal("t")
    return rig


def page(rig: Rig, ahead: ReadAhead, from_seq: int, *, limit: int = 4, budget_bytes: int = 1 << 20) -> list[int]:
    request = ReadRequest(from_seq=from_seq, limit=limit, budget_bytes=budget_bytes, ahead=ahead)
    return seqs_of(rig.read("t", request))


def test_one_trip_brings_the_next_batches_too() -> None:
    rig, ahead = sealed(), ReadAhead()
    assert [page(rig, ahead, at) for at in (0, 4, 8)] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]
    assert rig.disk.fetches == 1


def test_without_one_each_batch_is_a_trip() -> None:
    rig = sealed()
    for at in (0, 4, 8):
        rig.read("t", ReadRequest(from_seq=at, limit=4))
    assert rig.disk.fetches == 3


def test_a_trip_is_bounded_by_records_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "AHEAD_RECORDS", 6)
    rig, ahead = sealed(), ReadAhead()
    assert (page(rig, ahead, 0), ahead.next_seq) == ([1, 2, 3, 4], 7)
    monkeypatch.setattr(limits, "AHEAD_BYTES", 2)
    assert (page(rig, ahead, 8, limit=1), ahead.next_seq) == ([9], 11)


def test_a_batch_of_more_than_a_trip_is_one_trip_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "AHEAD_RECORDS", 2)
    rig, ahead = sealed(), ReadAhead()
    assert page(rig, ahead, 0, limit=10) == list(range(1, 11))
    assert rig.disk.fetches == 1


def test_what_is_deleted_meanwhile_is_not_read() -> None:
    rig, ahead = sealed(), ReadAhead()
    assert page(rig, ahead, 0) == [1, 2, 3, 4]
    rig.delete("t", match=parse_match("x"))
    assert page(rig, ahead, 4) == [5, 7, 8, 10]
    rig.delete("t", before_seq=11)
    assert page(rig, ahead, 8) == [11]
    assert rig.disk.fetches == 1


def test_a_topic_created_again_has_other_records() -> None:
    rig, ahead = sealed(), ReadAhead()
    page(rig, ahead, 0)
    rig.drop("t")
    rig.create("t")
    rig.put("t", batch_of([(b"222", None, None)] * 8))
    rig.seal("t")
    outcome = rig.read("t", ReadRequest(from_seq=4, limit=1, ahead=ahead))
    assert [record.blob for run in outcome.runs for record in run.records()] == [b'{"d":222}']


@pytest.mark.parametrize("missing", [3, 9])
def test_if_not_all_can_be_had_a_batch_is_fetched_by_itself(missing: int) -> None:
    """Flagged on disk and not yet here, or damaged: the small read decides what that means."""
    rig, ahead = sealed(), ReadAhead()
    topic = rig.topic("t")
    walk = plan_read(topic, ReadRequest(from_seq=0, limit=4, ahead=ahead), rig.state.recent, now=rig.now)
    extent = walk.need()
    assert extent is not None
    assert len(extent.seqs) == 12
    walk.feed(without(rig.disk.fetch(topic, extent), missing))
    asked = []
    while (extent := walk.need()) is not None:
        asked.append(list(map(int, extent.seqs)))
        walk.feed(without(rig.disk.fetch(topic, extent), missing))
    assert asked == ([[1, 2, 3, 4], [5]] if missing == 3 else [[1, 2, 3, 4]])
    assert seqs_of(walk.result()) == [seq for seq in range(1, 6) if seq != missing][:4]
    assert ahead.next_seq == 0


def test_damage_behind_the_batch_leaves_the_batch_whole() -> None:
    rig, ahead = sealed(), ReadAhead()
    topic = rig.topic("t")
    walk = plan_read(topic, ReadRequest(from_seq=0, limit=4, ahead=ahead), rig.state.recent, now=rig.now)
    extent = walk.need()
    assert extent is not None
    walk.feed(rig.disk.fetch(topic, extent), seq_next=9)
    again = walk.need()
    assert again is not None
    walk.feed(rig.disk.fetch(topic, again), seq_next=5)
    assert seqs_of(walk.result()) == [1, 2, 3, 4]


def test_let_go_it_has_nothing() -> None:
    rig, ahead = sealed(), ReadAhead()
    two = next(iter(rig.read("t", ReadRequest(from_seq=0, limit=2)).runs))
    ahead.hold(7, np.array([3, 5], np.int64), two)
    assert ahead.find(7, 3) is ahead.find(7, 5) is ahead
    assert [ahead.find(7, seq) for seq in (2, 4, 6)] == [None] * 3
    assert ahead.find(8, 3) is None
    ahead.let_go()
    assert ahead.find(7, 3) is None


def without(run: RecordRun, seq: int) -> RecordRun:
    kept = [at for at in range(len(run)) if run.seq(at) != seq]
    return RecordRun(run.buf, [run.body_offs[at] for at in kept], bytes([run.flags[at] for at in kept]))
