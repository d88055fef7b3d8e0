"""Cuts are put together from what there is: segments, and log frames around them, by ascending seq."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from topics.spark.logs.replay import LogPiece, ReaderTopicLog
from topics.spark.logs.slots import SlotLookup
from topics.spark.logs.stored import FoundSegments
from topics.spark.logs.topic_cut import CutBuilder
from topics.spark.planning.cut import SegmentBlock


def piece(path: str, *seqs: int) -> LogPiece:
    column = np.array(seqs, np.int64)
    return LogPiece(path, column, column * 100, np.full(len(seqs), 90, np.int64), column)


def segment(first: int, count: int) -> SegmentBlock:
    return SegmentBlock(root="/d", stem=f"s{first}", first_seq=first, count=count, bytes=count * 90, is_sealed=True)


def ranges(pieces: list[LogPiece], segments: list[SegmentBlock]) -> tuple[list[tuple[int, int]], int]:
    stored: Any = SimpleNamespace(_hot=SimpleNamespace(root="/d"), of_topic=lambda topic: FoundSegments(list(segments)))
    cut = CutBuilder(ReaderTopicLog(1, "t", 1, {}, pieces=pieces), stored, SlotLookup()).build(0)
    return [(block.first_seq, block.end_seq) for block in cut.blocks], cut.head_seq


def test_a_segment_lies_between_the_log_frames_around_it() -> None:
    """A segment on its way to another tier is read from the log meanwhile, and later ones from their files."""
    whole = piece("wal", *range(1, 61))
    assert ranges([whole], [segment(21, 20)]) == ([(1, 21), (21, 41), (41, 61)], 60)


def test_what_lies_behind_a_hole_waits() -> None:
    assert ranges([piece("wal", *range(1, 11), *range(15, 20))], []) == ([(1, 11)], 10)


def test_a_seq_that_is_in_the_log_twice_is_one_record() -> None:
    twice = [piece("wal-1", *range(1, 11)), piece("wal-2", *range(6, 16))]
    assert ranges(twice, []) == ([(1, 11), (11, 16)], 15)
