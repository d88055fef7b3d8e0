"""Offsets: a batch has both ends on record, and limits hold."""

from __future__ import annotations

from topics.spark.planning.cut import TopicCut
from topics.spark.planning.offsets import (
    NextSeq,
    OffsetRange,
    advance,
    between,
    from_json,
    heads,
    limit_bytes,
    limit_rows,
    to_json,
)


def topic(name: str, head: int, *, epoch: int = 1, earliest: int = 1) -> TopicCut:
    return TopicCut(name=name, topic_id=1, epoch=epoch, head_seq=head, earliest_seq=earliest, evict_floor=1)


def test_offsets_are_json_and_back() -> None:
    points = {"b": NextSeq(2, 7), "a": NextSeq(1, 1)}
    assert to_json(points) == {"a": {"epoch": 1, "seq": 1}, "b": {"epoch": 2, "seq": 7}}
    assert from_json(to_json(points)) == points


def test_a_batch_goes_on_to_the_heads() -> None:
    cuts = {"a": topic("a", 9)}
    assert advance({"a": NextSeq(1, 4)}, heads(cuts), cuts) == {"a": NextSeq(1, 10)}
    assert list(between({"a": NextSeq(1, 4)}, {"a": NextSeq(1, 10)}, cuts)) == [OffsetRange("a", 1, 4, 10)]


def test_a_new_topic_enters_at_its_earliest_before_it_is_read() -> None:
    cuts = {"a": topic("a", 9), "b": topic("b", 5, earliest=3)}
    start = {"a": NextSeq(1, 10)}
    end = advance(start, heads(cuts), cuts)
    assert end == {"a": NextSeq(1, 10), "b": NextSeq(1, 3)}
    assert list(between(start, end, cuts)) == []
    assert advance(end, heads(cuts), cuts)["b"] == NextSeq(1, 6)


def test_a_fixed_target_is_not_passed() -> None:
    cuts = {"a": topic("a", 9), "late": topic("late", 3)}
    target = {"a": NextSeq(1, 6)}
    assert advance({"a": NextSeq(1, 4)}, target, cuts) == {"a": NextSeq(1, 6)}
    assert advance({"a": NextSeq(1, 8)}, target, cuts) == {"a": NextSeq(1, 8)}


def test_a_topic_that_is_gone_stays_where_it_was() -> None:
    assert advance({"a": NextSeq(1, 4)}, {}, {}) == {"a": NextSeq(1, 4)}


def test_a_recreated_topic_is_read_from_its_earliest() -> None:
    cuts = {"a": topic("a", 5, epoch=2, earliest=2)}
    end = advance({"a": NextSeq(1, 100)}, heads(cuts), cuts)
    assert end == {"a": NextSeq(2, 6)}
    assert list(between({"a": NextSeq(1, 100)}, end, cuts)) == [OffsetRange("a", 2, 2, 6, was=1)]


def test_row_limits_are_shared_by_what_is_waiting() -> None:
    start = {"a": NextSeq(1, 1), "b": NextSeq(1, 1), "c": NextSeq(1, 5)}
    end = {"a": NextSeq(1, 901), "b": NextSeq(1, 101), "c": NextSeq(1, 5)}
    limited = limit_rows(start, end, 100)
    assert limited == {"a": NextSeq(1, 91), "b": NextSeq(1, 11), "c": NextSeq(1, 5)}
    assert limit_rows(start, end, 5000) == end
    total = sum(limit_rows(start, end, 3)[name].seq - start[name].seq for name in start)
    assert 1 <= total <= 3


def test_limits_reach_the_end_in_the_end() -> None:
    start, end = {"a": NextSeq(1, 1), "b": NextSeq(1, 1)}, {"a": NextSeq(1, 50), "b": NextSeq(1, 3)}
    for _ in range(60):
        start = limit_rows(start, end, 1)
    assert start == end


def test_byte_limits_give_at_least_one_record() -> None:
    start, end = {"a": NextSeq(1, 1)}, {"a": NextSeq(1, 50)}
    limited = limit_bytes(start, end, 10, bytes_end=lambda name, lo, size: lo + max(size // 20, 1))
    assert limited == {"a": NextSeq(1, 2)}
