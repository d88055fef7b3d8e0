"""Replay for readers: a snapshot and the frames behind it, as what is known of each topic
(`docs/spec/storage.md#sec-9-4`).

Much smaller than recovery: nothing is repaired, no router forwards, no ceiling becomes a head. The rules used here are
idempotent and mostly commute, so frames that a snapshot already reflects do no harm.
Called by `topics.spark.logs.directory`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from topics.core.lineage import with_ancestor
from topics.formats.snapshot import SegmentItem, Snapshot, TopicItem
from topics.formats.wal import (
    ActiveSegmentItem,
    Body,
    CkptMark,
    ConfigUpdate,
    Delete,
    EvictWatermark,
    HeadWatermark,
    LostRange,
    TierMark,
    TopicCreate,
    TopicDelete,
    TopicMark,
)
from topics.formats.wal.frame import APPEND_BYTES_MIN, FrameType
from topics.spark.logs.wal_tail import FrameRun, LogHole
from topics.spark.planning.cut import I64, Ancestors, DeadRange, TagDelete

Wanted = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Append frames of one topic in one stretch of log."""

    path: str
    seq: I64
    offset: I64
    length: I64
    ts: I64


@dataclass(slots=True)
class ReaderTopicLog:
    """What snapshot and log tell of one topic. `stored_seq` is the highest seq in synced segments, `passed_seq` the
    highest that a jump of the head left behind, `noted_head` what the snapshot has as the head, `unlogged_to` the
    highest that an ephemeral time ended with, `unread_seqs` how many more may have been used in bytes that nobody can
    read."""

    id: int
    name: str
    epoch: int
    config: dict[str, Any]
    stored_seq: int = 0
    passed_seq: int = 0
    noted_head: int = 0
    unlogged_to: int = 0
    unread_seqs: int = 0
    earliest_seq: int = 1
    cap_lost: int = 0
    ttl_lost: int = 0
    trim_lost: int = 0
    restart_lost: int = 0
    delete_below: int = 0
    last_ts: int = 0
    lost: set[LostRange] = field(default_factory=set)
    dead: list[DeadRange] = field(default_factory=list)
    tag_deletes: list[TagDelete] = field(default_factory=list)
    segments: dict[int, SegmentItem] = field(default_factory=dict)
    active: tuple[int, ActiveSegmentItem | None] = (-1, None)
    """Number of the checkpoint that told, and what it told."""
    sealed_to: int = 0
    tiers: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Tier and count by first seq, of segments that moved since the snapshot."""
    pieces: list[LogPiece] = field(default_factory=list)
    ancestors: Ancestors = ()

    @property
    def lost_to(self) -> int:
        return max(self.cap_lost, self.ttl_lost, self.trim_lost, self.restart_lost)


class ReaderReplay:
    """Topics by id. Build it from a snapshot (or None), then `apply` stretches in replay order."""

    def __init__(self, snapshot: Snapshot | None, wanted: Wanted) -> None:
        self._wanted = wanted
        self.topics: dict[int, ReaderTopicLog] = {}
        self.clock_ms = snapshot.clock_ms if snapshot is not None else 0
        self.instance = snapshot.instance if snapshot is not None else ""
        self._next_topic_id = snapshot.next_topic_id if snapshot is not None else 0
        for item in snapshot.topics if snapshot is not None else ():
            if wanted(item.name):
                self.topics[item.id] = _from_item(item)

    def by_name(self) -> dict[str, ReaderTopicLog]:
        """Live topics; of one name the highest id counts."""
        return {topic.name: topic for _, topic in sorted(self.topics.items())}

    def is_deleted(self, topic_id: int) -> bool:
        """Whether there was such a topic and is none any more; for readers that want every topic."""
        return topic_id < self._next_topic_id and topic_id not in self.topics

    def apply(self, stretches: Iterable[FrameRun]) -> None:
        for stretch in stretches:
            columns, count = stretch.columns, stretch.count
            for row, body in sorted(columns.bodies.items()):
                if row < count:
                    self._apply_body(int(columns.topic_id[row]), body)
            self._take_appends(stretch)

    def announce(self, holes: Iterable[LogHole]) -> None:
        """Seqs that a hole in the log keeps from us are gaps, as the next start of the server would make them."""
        found = list(holes)
        for hole in found:
            for topic_id, seq in hole.highest.items():
                topic = self.topics.get(topic_id)
                if topic is not None:
                    topic.passed_seq = max(topic.passed_seq, seq)
                    topic.unlogged_to = max(topic.unlogged_to, seq)
        for topic_id, topic in self.topics.items():
            unread = sum(hole.unread_bytes for hole in found if hole.may_hold(topic_id))
            topic.unread_seqs = unread // APPEND_BYTES_MIN

    def _apply_body(self, topic_id: int, body: Body) -> None:
        if isinstance(body, TopicCreate):
            self._create(topic_id, body)
        elif isinstance(body, CkptMark):
            for mark in body.topics:
                self._apply_mark(body.n, mark)
        elif isinstance(body, TierMark):
            for move in body.moves:
                if move.id in self.topics:
                    self.topics[move.id].tiers[move.first] = (move.tier, move.count)
        elif topic_id in self.topics:
            if isinstance(body, TopicDelete):
                del self.topics[topic_id]
                return
            apply = _ON_TOPIC.get(type(body))
            if apply is not None:
                apply(self.topics[topic_id], body)

    def _create(self, topic_id: int, body: TopicCreate) -> None:
        self._next_topic_id = max(self._next_topic_id, topic_id + 1)
        if topic_id not in self.topics and self._wanted(body.name):
            self.topics[topic_id] = ReaderTopicLog(topic_id, body.name, body.epoch, body.config)

    def _apply_mark(self, number: int, mark: TopicMark) -> None:
        topic = self.topics.get(mark.id)
        if topic is None:
            return
        topic.stored_seq = max(topic.stored_seq, mark.seq)
        topic.sealed_to = max(topic.sealed_to, mark.sealed_to)
        topic.delete_below = max(topic.delete_below, mark.delete_below)
        _raise_floors(topic, mark)
        if number > topic.active[0]:
            topic.active = (number, mark.active)

    def _take_appends(self, stretch: FrameRun) -> None:
        columns, rows = stretch.columns, slice(stretch.count)
        is_append = columns.type[rows] == FrameType.APPEND
        ids = columns.topic_id[rows]
        for topic_id in np.unique(ids[is_append]).tolist():
            topic = self.topics.get(topic_id)
            if topic is None:
                continue
            at = np.flatnonzero(is_append & (ids == topic_id))
            piece = LogPiece(
                stretch.path,
                columns.seq[at].astype(np.int64),
                columns.offset[at] + stretch.base,
                columns.length[at].astype(np.int64),
                columns.ts[at].astype(np.int64),
            )
            topic.pieces.append(piece)
            topic.last_ts = max(topic.last_ts, int(piece.ts[-1]))


def _from_item(item: TopicItem) -> ReaderTopicLog:
    sealed = [segment.first + segment.count - 1 for segment in item.segments if segment.sealed]
    return ReaderTopicLog(
        id=item.id,
        name=item.name,
        epoch=item.epoch,
        ancestors=tuple((row.epoch, row.head) for row in item.ancestors),
        config=item.config,
        stored_seq=item.ckpt_seq,
        noted_head=item.head,
        earliest_seq=item.earliest_seq,
        cap_lost=item.cap_lost,
        ttl_lost=item.ttl_lost,
        trim_lost=item.trim_lost,
        restart_lost=item.restart_lost,
        delete_below=item.delete_below,
        last_ts=item.last_ts,
        lost=set(item.lost),
        dead=[(dead.first, dead.last) for dead in item.dead],
        segments={segment.first: segment for segment in item.segments},
        sealed_to=max(sealed, default=0),
    )


def _raise_floors(topic: ReaderTopicLog, floors: EvictWatermark | TopicMark) -> None:
    topic.earliest_seq = max(topic.earliest_seq, floors.earliest_seq)
    topic.cap_lost = max(topic.cap_lost, floors.cap_lost)
    topic.ttl_lost = max(topic.ttl_lost, floors.ttl_lost)
    topic.trim_lost = max(topic.trim_lost, floors.trim_lost)
    topic.restart_lost = max(topic.restart_lost, floors.restart_lost)


def _delete(topic: ReaderTopicLog, body: Delete) -> None:
    if body.seqs is not None:
        topic.dead.extend(_runs(body.seqs))
        return
    assert body.bound_head is not None
    below = body.bound_head if body.before_seq is None else min(body.before_seq, body.bound_head)
    if body.match is None:
        topic.delete_below = max(topic.delete_below, below)
    else:
        op, value = body.match
        topic.tag_deletes.append(TagDelete(value.encode(), op == "Glob", below))


def _runs(seqs: Iterable[int]) -> list[DeadRange]:
    """Ascending seqs as ranges with both ends."""
    runs: list[DeadRange] = []
    for seq in sorted(seqs):
        if runs and runs[-1][1] >= seq - 1:
            runs[-1] = (runs[-1][0], seq)
        else:
            runs.append((seq, seq))
    return runs


def _configure(topic: ReaderTopicLog, body: ConfigUpdate) -> None:
    topic.config = body.config


def _add_lost(topic: ReaderTopicLog, body: HeadWatermark) -> None:
    if body.fork is not None and body.fork.epoch > topic.epoch:
        topic.ancestors = with_ancestor(topic.ancestors, topic.epoch, body.fork.head)
        topic.epoch = body.fork.epoch
    topic.lost.update(body.lost)
    topic.passed_seq = max(topic.passed_seq, (body.resume_at or 1) - 1)
    if body.resume_at is not None and not body.lost:
        topic.unlogged_to = max(topic.unlogged_to, body.resume_at - 1)


_ON_TOPIC: Final[dict[type[Any], Callable[[ReaderTopicLog, Any], None]]] = {
    Delete: _delete,
    EvictWatermark: _raise_floors,
    HeadWatermark: _add_lost,
    ConfigUpdate: _configure,
}
