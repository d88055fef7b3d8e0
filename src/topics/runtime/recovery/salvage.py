"""Salvage: records whose topic neither snapshot nor log describes get a topic of their own
(`docs/spec/storage.md#sec-9-2`).

A topic is adopted before the log is replayed, so that what the log still has of it (records, deletes, floors) takes
effect as always. Not adopted is what is known to be deleted: by a TopicDelete in the log, or because a valid snapshot
has passed its id and lacks it. What lies between the segments that were found is announced as lost. Called by recovery.
Without TOPICS_SALVAGE a start gets here only with a valid snapshot, behind which the log was lost or damaged; with it
nothing is deleted in such a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from topics.core.lineage import new_epoch
from topics.core.retention.removal import blocks_from
from topics.core.state import State
from topics.core.topic import TopicLog
from topics.engine.recovery.replay import recovered_name
from topics.formats.wal import WalColumns
from topics.formats.wal.bodies import TopicCreate
from topics.formats.wal.frame import FrameType
from topics.model.config import DEFAULT_CONFIG
from topics.model.ops import HeadMark, Lost


def unexplained(dirs: Iterable[int], logs: Iterable[WalColumns], *, known_below: int, deleted: set[int]) -> list[int]:
    """Ids with a directory or with records, of which nothing says what they are. `known_below`: the snapshot's next
    topic id, 1 without one."""
    found, created = set(dirs), set()
    for columns in logs:
        found.update(np.unique(columns.topic_id[columns.type == FrameType.APPEND]).tolist())
        created |= {int(columns.topic_id[row]) for row, body in columns.bodies.items() if isinstance(body, TopicCreate)}
    return sorted(topic_id for topic_id in found - created - deleted if topic_id >= known_below)


def adopt(state: State, topic_id: int, *, now_ms: int) -> TopicLog:
    """A topic for the records of an id; its segments are attached next."""
    epoch = new_epoch(state, now=now_ms, chance=topic_id)
    topic = TopicLog(
        topic_id=topic_id, name=recovered_name(topic_id), epoch=epoch, config=DEFAULT_CONFIG, created_ts=now_ms
    )
    topic.replaying = True
    state.add(topic)
    return topic


def announce_gaps(topics: Iterable[TopicLog]) -> Iterator[HeadMark]:
    """What was found of adopted topics may have lost its beginning and whole segments: readers are told."""
    for topic in topics:
        if gaps := tuple(_gaps(topic)):
            yield HeadMark(topic_id=topic.id, ceiling=topic.ceiling, lost=gaps)


def _gaps(topic: TopicLog) -> Iterator[Lost]:
    known = {seq for lost in topic.lost for seq in (lost.lo, lost.hi + 1)}
    at = max(topic.floors.earliest_seq, topic.floors.lost + 1)
    for block in blocks_from(topic, at):
        if block.first_seq > at and at not in known:
            yield at, block.first_seq - 1, "restart"
        at = max(at, block.first_seq + block.count)
