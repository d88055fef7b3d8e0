"""Marks: the frames by which the engine tells itself, across a restart, how far segments have come.

A checkpoint mark goes to every group and lists the topics of that group; at most 4096 items fit a frame, so a busy
checkpoint makes several frames of one submission. Marks are no client frames, and a full queue does not refuse them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from topics.core.topic import TopicLog
from topics.formats.wal.bodies import (
    CKPT_ITEMS_MAX,
    ActiveSegmentItem,
    Body,
    CkptMark,
    TierMark,
    TierMove,
    TopicMark,
    encode_body,
)
from topics.formats.wal.frame import FrameType, encode_frame
from topics.model.ops import RouterMark
from topics.model.submission import Submission

T = TypeVar("T")


def topic_mark(topic: TopicLog, *, seq: int, active: tuple[int, int, int] | None, sealed_to: int) -> TopicMark:
    """What a checkpoint made durable of one topic, with its floors of this moment."""
    floors = topic.floors
    return TopicMark(
        id=topic.id,
        seq=seq,
        ceiling=topic.ceiling,
        evict_floor=topic.evict_floor,
        cap_lost=floors.cap_lost,
        ttl_lost=floors.ttl_lost,
        trim_lost=floors.trim_lost,
        restart_lost=floors.restart_lost,
        earliest_seq=topic.earliest_seq,
        delete_below=floors.delete_below,
        active=None if active is None else ActiveSegmentItem(*active),
        sealed_to=sealed_to,
    )


def checkpoint_submission(
    *, n: int, file: int, off: int, topics: Sequence[TopicMark], routers: Sequence[RouterMark], ts: int
) -> Submission:
    pages = max(1, -(-len(topics) // CKPT_ITEMS_MAX), -(-len(routers) // CKPT_ITEMS_MAX))
    marks = [
        CkptMark(n=n, file=file, off=off, topics=tuple(_page(topics, at)), routers=tuple(_page(routers, at)))
        for at in range(pages)
    ]
    return _submission(marks, ts=ts)


def tier_submission(moves: Sequence[TierMove], *, ts: int) -> Submission:
    return _submission([TierMark(moves=tuple(moves))], ts=ts)


def _page(items: Sequence[T], at: int) -> Sequence[T]:
    return items[at * CKPT_ITEMS_MAX : (at + 1) * CKPT_ITEMS_MAX]


def _submission(marks: Sequence[Body], *, ts: int) -> Submission:
    last = len(marks) - 1
    frames = [
        encode_frame(FrameType.CHECKPOINT_MARK, ts=ts, data=encode_body(mark), durable=True, more=at < last)
        for at, mark in enumerate(marks)
    ]
    return Submission(frames, sum(map(len, frames)), len(frames), durable=True)
