"""Planning is pure: every seq of a range is in exactly one task, or in a gap."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.spark.planning.cut import LogBlock, LostSeqs, SegmentBlock, TopicCut
from topics.spark.planning.tasks import (
    OPEN_BYTES,
    Range,
    Task,
    TopicPart,
    TopicRead,
    batch_tasks,
    resolve,
    slices_of,
    stream_size,
    stream_tasks,
)


def segment(first: int, count: int, *, sealed: bool = True) -> SegmentBlock:
    return SegmentBlock(root="/d", stem=f"s{first}", first_seq=first, count=count, bytes=count * 100, is_sealed=sealed)


def frames(first: int, count: int) -> LogBlock:
    seqs = np.arange(first, first + count)
    whole = {name: seqs.tobytes() for name in ("seqs", "offsets", "ts")}
    return LogBlock(root="/d", path="wal", lengths=np.full(count, 90).tobytes(), **whole)


def cut(
    *blocks: SegmentBlock | LogBlock, floor: int = 1, earliest: int = 1, lost: tuple[LostSeqs, ...] = ()
) -> TopicCut:
    return TopicCut(
        name="t",
        topic_id=1,
        epoch=1,
        head_seq=blocks[-1].end_seq - 1 if blocks else 0,
        earliest_seq=earliest,
        evict_floor=floor,
        causes=(("cap", floor - 1), ("ttl", 0)),
        lost=lost,
        blocks=blocks,
    )


WHOLE = cut(segment(1, 100), segment(101, 100), segment(201, 50, sealed=False), frames(251, 30))


def test_a_slice_of_deleted_records_alone_is_no_slice() -> None:
    few = np.array([1, 2, 99, 100])
    columns = {name: few.tobytes() for name in ("seqs", "offsets", "lengths", "ts")}
    holed = cut(LogBlock(root="/d", path="wal", **columns))
    assert slices_of(holed, Range(10, 50)) == []
    tasks = batch_tasks([TopicRead(holed, Range(1, 101))], partitions_min=8, records_max=10, limit=None)
    found = [piece.block for task in tasks for part in task for piece in part.slices]
    assert all(block.count for block in found)
    assert [seq for block in found if isinstance(block, LogBlock) for seq in block.seq_array.tolist()] == [
        1,
        2,
        99,
        100,
    ]


def test_a_range_that_is_there_has_no_gaps() -> None:
    assert resolve(WHOLE, 1, 281) == Range(1, 281)
    assert resolve(WHOLE, 50, 9999) == Range(50, 281)
    assert resolve(WHOLE, 281, 281) == Range(281, 281)


def test_a_start_below_the_floor_is_a_prefix_gap() -> None:
    topic = cut(segment(1, 100), floor=30, earliest=35)
    assert resolve(topic, 10, 101) == Range(35, 101, (LostSeqs(10, 34, "cap"),))
    assert resolve(topic, 30, 101) == Range(35, 101)
    assert resolve(topic, 10, 20) == Range(20, 20, (LostSeqs(10, 19, "cap"),))
    assert resolve(topic, 10, 101, first_live=40) == Range(40, 101, (LostSeqs(10, 39, "cap"),))


def test_a_start_behind_the_end_means_another_topic() -> None:
    assert resolve(WHOLE, 500, 600) == Range(1, 281, (LostSeqs(1, 280, "recreated"),))


def test_lost_ranges_are_gaps_where_the_range_meets_them() -> None:
    topic = cut(segment(1, 50), segment(81, 50), lost=(LostSeqs(51, 80, "restart"),))
    assert resolve(topic, 1, 131).gaps == (LostSeqs(51, 80, "restart"),)
    assert resolve(topic, 60, 131).gaps == (LostSeqs(60, 80, "restart"),)
    assert resolve(topic, 1, 70).gaps == (LostSeqs(51, 69, "restart"),)
    assert resolve(topic, 81, 131).gaps == ()


def test_more_than_one_cause_is_mixed() -> None:
    topic = TopicCut(
        name="t", topic_id=1, epoch=1, head_seq=9, earliest_seq=8, evict_floor=8, causes=(("cap", 7), ("ttl", 5))
    )
    assert topic.prefix_reason(3) == "mixed"
    assert topic.prefix_reason(6) == "cap"


@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    tail=st.integers(0, 40),
    lo=st.integers(1, 300),
    hi=st.integers(1, 900),
    records_max=st.integers(1, 200),
    partitions_min=st.integers(1, 9),
)
def test_every_seq_is_in_exactly_one_task(
    counts: list[int], tail: int, lo: int, hi: int, records_max: int, partitions_min: int
) -> None:
    blocks: list[SegmentBlock | LogBlock] = []
    first = 1
    for count in counts:
        blocks.append(segment(first, count))
        first += count
    if tail:
        blocks.append(frames(first, tail))
    topic = cut(*blocks)
    wanted = resolve(topic, min(lo, topic.end_seq), hi)
    tasks = planned(TopicRead(topic, wanted), partitions_min=partitions_min, records_max=records_max)
    assert seqs_of(tasks) == [("t", seq) for seq in range(wanted.lo, max(wanted.hi, wanted.lo))]
    assert all(sum(part.count for part in task) <= records_max for task in tasks)
    for piece in (piece for task in tasks for part in task for piece in part.slices):
        if isinstance(piece.block, LogBlock):
            assert (piece.block.first_seq, piece.block.end_seq) == (piece.lo, piece.hi)


def planned(
    *reads: TopicRead, partitions_min: int = 1, records_max: int = 500_000, limit: int | None = None
) -> list[Task]:
    return batch_tasks(reads, partitions_min=partitions_min, records_max=records_max, limit=limit)


def seqs_of(tasks: list[Task]) -> list[tuple[str, int]]:
    pieces = ((part.topic, piece) for task in tasks for part in task for piece in part.slices)
    return [(topic, seq) for topic, piece in pieces for seq in range(piece.lo, piece.hi)]


PART = TopicRead(WHOLE, resolve(WHOLE, 20, 270))


def test_tasks_travel_as_they_are() -> None:
    tasks = planned(PART, records_max=60)
    assert pickle.loads(pickle.dumps(tasks)) == tasks


def test_a_limit_is_one_part() -> None:
    ((part,),) = planned(PART, records_max=60, limit=7)
    assert (part.limit, part.slices[0].lo, part.slices[-1].hi) == (7, 20, 270)
    assert planned(PART, records_max=60, limit=0) == []


def test_gaps_that_are_rows_have_a_task_of_their_own() -> None:
    gap = LostSeqs(1, 9, "cap")
    tasks = planned(TopicRead(WHOLE, Range(10, 20), [gap]), records_max=60)
    assert [[(part.gaps, part.count) for part in task] for task in tasks] == [[((gap,), 0)], [((), 10)]]


def topics_of(sizes: list[int]) -> list[TopicRead]:
    cuts = [replace(cut(segment(1, size)), name=f"t{at:05d}") for at, size in enumerate(sizes)]
    return [TopicRead(topic, resolve(topic, 1, topic.end_seq)) for topic in cuts]


def weight(task: Task) -> int:
    return sum(piece.weight for part in task for piece in part.slices)


@given(sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=60), partitions_min=st.integers(1, 9))
def test_topics_share_tasks_of_about_equal_weight(sizes: list[int], partitions_min: int) -> None:
    reads = topics_of(sizes)
    tasks = planned(*reads, partitions_min=partitions_min)
    assert seqs_of(tasks) == [(read.cut.name, seq) for read in reads for seq in range(1, read.range.hi)]
    assert len(tasks) <= partitions_min + 1
    fair = sum(map(weight, tasks)) / partitions_min
    record = 100 + OPEN_BYTES
    assert all(weight(task) <= 1.5 * fair + 2 * record for task in tasks)


def test_one_huge_topic_among_many_small_ones_is_split_evenly() -> None:
    reads = topics_of([10] * 500 + [2_000_000] + [10] * 500)
    tasks = planned(*reads, partitions_min=4)
    assert len(tasks) == 5  # a task has at most 500,000 records
    weights = [weight(task) for task in tasks]
    assert max(weights) <= 1.02 * min(weights)


def test_parts_of_a_stream_are_put_together_by_seqs_alone() -> None:
    parts = [(count, TopicPart(topic=f"t{at}", epoch=1)) for at, count in enumerate([4, 4, 4, 10, 1, 1])]
    tasks = stream_tasks(parts, 10)
    assert [[part.topic for part in task] for task in tasks] == [["t0", "t1"], ["t2"], ["t3"], ["t4", "t5"]]


@pytest.mark.parametrize(("total", "least", "expected"), [(1000, 4, 250), (10, 4, 3), (0, 4, 1), (10_000, 2, 1000)])
def test_tasks_of_a_stream_are_small_enough_and_many_enough(total: int, least: int, expected: int) -> None:
    assert stream_size(total, partitions_min=least, records_max=1000) == expected


def test_slices_cover_only_what_is_asked() -> None:
    assert [(s.lo, s.hi) for s in slices_of(WHOLE, Range(95, 105))] == [(95, 101), (101, 105)]
    assert slices_of(WHOLE, Range(300, 400)) == []
