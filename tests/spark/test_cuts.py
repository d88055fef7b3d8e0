"""Cuts are put together from what there is: segments, and log frames around them, by ascending seq."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np

from topics.core.slots.restore import load_sealed
from topics.core.topic import TopicLog
from topics.model.config import DEFAULT_CONFIG
from topics.model.ops import RESIDENT, HeadMark
from topics.runtime.recovery.reader import head_in_files
from topics.spark.logs.directory import _blocks_of
from topics.spark.logs.read_files import Files
from topics.storage.osfs import OsFs
from topics.storage.segments.topic_dir import SegmentEnv, TopicDir

FILES = Files("/d", OsFs(), "/d")


def topic_of(*runs: range, file: int = 0) -> TopicLog:
    """A topic with these seqs in the tail, in WAL file number `file`."""
    topic = TopicLog(topic_id=1, name="t", epoch=1, config=DEFAULT_CONFIG, created_ts=0)
    for run in runs:
        count = len(run)
        topic.tail.run_for_append(run[0]).extend(
            locs=array("Q", [file << 32 | seq * 100 for seq in run]),
            lens=array("I", [90] * count),
            ts=array("Q", run),
            sizes=array("I", [9] * count),
            flags=array("B", bytes(count)),
        )
        topic.head = max(topic.head, run[-1])
    return topic


def looked(*marks: HeadMark) -> Any:
    attach = SimpleNamespace(loaded={}, marks=SimpleNamespace(expected=lambda *_: SimpleNamespace(sealed_to=10**6)))
    files = SimpleNamespace(get=lambda number: SimpleNamespace(path=f"/d/wal-{number}"))
    return SimpleNamespace(attach=attach, files=files, item=lambda _: None, marks=list(marks), set_aside=set())


def ranges(topic: TopicLog, *marks: HeadMark) -> tuple[list[tuple[int, int]], int]:
    world = looked(*marks)
    head = head_in_files(world, topic)
    return [(block.first_seq, block.end_seq) for block in _blocks_of(world, topic, FILES, None, head)], head


def test_a_segment_lies_between_the_log_frames_around_it() -> None:
    """After a crash the log may bring back records below a segment, of segments that were dropped since."""
    topic = topic_of(range(1, 21), range(41, 61))
    place = TopicDir(SegmentEnv(OsFs(), "/d/topics"), 1)
    view: Any = SimpleNamespace(first_seq=21, count=20, data_len=1800, tier="hot", place=place, flags=np.zeros(20))
    load_sealed(topic, view, dead=[], totals=(20, 180))
    topic.head = 60
    assert ranges(topic) == ([(1, 21), (21, 41), (41, 61)], 60)


def test_what_lies_behind_a_hole_waits() -> None:
    """A restart would declare it lost; while the server runs it may still come."""
    hole = HeadMark(topic_id=1, ceiling=20, resume_at=15, lost=((11, 14, "restart"),))
    assert ranges(topic_of(range(1, 11), range(15, 20)), hole) == ([(1, 11)], 10)


def test_copies_that_are_in_memory_only_wait() -> None:
    topic = topic_of(range(1, 11))
    topic.tail.runs += topic_of(range(11, 15), file=RESIDENT).tail.runs
    topic.head = 14
    assert ranges(topic) == ([(1, 11)], 10)
