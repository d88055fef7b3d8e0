"""Attach: a topic of a start gets the slots that lie in its segments (storage.md section 9.1, step 4).

Always holds: what a file lacks is looked for in the log and in the other tier before it is called lost; totals are
taken from the snapshot only if no flag can be on disk whose delete is not: because the kernel lived on since it was
written, or because deletes of the topic are synced before they take effect; and never where the log is damaged. The
ack of a job is not synced in every class, nor is any delete of a `memory` topic; their flags are counted. Called by
recovery for every topic of the snapshot, and by replay for every topic that the log brings back."""

from __future__ import annotations

import logging
from functools import partial

from topics.core.load import ActiveColumns, load_active, load_sealed, reached, written_until
from topics.core.topic import TopicState
from topics.errors import ColdUnavailable, TopicsError
from topics.formats.names import topic_dir_name
from topics.formats.snapshot import TopicItem
from topics.runtime.expected import Marks
from topics.storage.cold_tier import ColdTier
from topics.storage.segments.active import ActiveSegment
from topics.storage.segments.load import load_topic
from topics.storage.segments.loaded import LoadedActive, LoadedSegment, LoadedTopic
from topics.storage.segments.place import SegmentEnv, TopicDir
from topics.storage.segments.repair import repair_loaded
from topics.storage.segments.sealed import SealedSegment
from topics.storage.wal.files import WalFiles
from topics.storage.wal_lookup import find_in_wal

log = logging.getLogger("topics.recovery")

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Attach:
    """`items` is what the snapshot says of each topic, `marks` what the log says."""

    def __init__(
        self,
        env: SegmentEnv,
        files: WalFiles,
        cold: ColdTier | None,
        *,
        marks: Marks,
        items: dict[int, TopicItem],
        trust_totals: bool,
        log_is_whole: bool,
    ) -> None:
        self._env = env
        self._files = files
        self._cold = cold
        self._marks = marks
        self._items = items
        self._trust_totals = trust_totals and log_is_whole
        self._log_is_whole = log_is_whole
        self._reached = marks.in_segments(items.values())
        self.loaded: dict[int, LoadedTopic] = {}
        self.unknown: set[int] = set()
        """Topics that nothing describes any more: their files are all there is."""
        self.forsaken: set[int] = set()
        """Ephemeral topics with segments: those are from the time before, and what is in them does not come back."""

    def __call__(self, topic: TopicState) -> None:
        if topic.id in self._marks.deleted:  # it goes, and its files went
            return
        item = self._items.get(topic.id)
        if topic.config.is_ephemeral and topic.id not in self._marks.reconfigured:
            path = f"{self._env.topics_dir}/{topic_dir_name(topic.id)}"
            if (item is not None and item.segments) or self._env.fs.is_dir(path):
                self.forsaken.add(topic.id)
            return
        loaded = self._load(topic, item)
        dead = [] if item is None else [(dead.first, dead.last) for dead in item.dead]
        for segment in loaded.sealed:
            self._seal(topic, segment, dead)
        reached(topic, self._reached.get(topic.id, 0))
        newest = loaded.sealed[-1].segment if loaded.sealed else None
        is_newer = newest is not None and newest.count > 0 and newest.last_seq > (0 if item is None else item.head)
        if newest is not None and is_newer and _can_count(newest):
            written_until(topic, newest.checked_ts(newest.count - 1))
        if loaded.active is not None:
            load_active(topic, _columns(loaded.active), dead=dead)

    def active_of(self, topic_id: int) -> ActiveSegment | None:
        loaded = self.loaded.get(topic_id)
        return None if loaded is None or loaded.active is None else loaded.active.segment

    def _load(self, topic: TopicState, item: TopicItem | None) -> LoadedTopic:
        cold = None if self._cold is None else self._cold.store(topic.id)
        place = TopicDir(self._env, topic.id, name=topic.name, cold=cold)
        expected = self._marks.expected(topic.id, item)
        expected.unknown = topic.id in self.unknown or (item is None and self._env.keeps_all)
        loaded = load_topic(place, expected)
        repair_loaded(loaded, partial(find_in_wal, self._files))
        self.loaded[topic.id] = loaded
        for finding in loaded.findings:
            log.log(_LEVELS[finding.severity], "%s", finding.message)
        return loaded

    def _seal(self, topic: TopicState, segment: LoadedSegment, dead: list[tuple[int, int]]) -> None:
        totals = (segment.live, segment.live_bytes)
        proven = self._trust_totals or self._syncs_deletes(topic)
        if (segment.counted or not proven) and _can_count(segment.segment):
            try:
                load_sealed(topic, segment.segment, dead=dead)
            except ColdUnavailable:  # there is no room to keep its index
                pass
            else:
                return
        load_sealed(topic, segment.segment, dead=dead, totals=totals)
        if segment.counted or not proven or (segment.segment.tier == "cold" and not segment.live_bytes):
            topic.sealed[len(topic.sealed) - 1].doubt()

    def _syncs_deletes(self, topic: TopicState) -> bool:
        """By its class, which no frame of the log has changed since the snapshot; and the log has them still."""
        is_same_class = topic.id not in self._marks.reconfigured
        return self._log_is_whole and topic.config.syncs_deletes and is_same_class


def _can_count(segment: SealedSegment) -> bool:
    """Whether a segment's flags can be had now. Those of objects never change, so they can wait for a reader."""
    store = segment.place.cold
    if segment.tier == "hot":
        return True
    if store is None or not store.in_place:
        return segment.ready
    try:
        segment.load_index()
    except TopicsError:
        return False
    return True


def _columns(active: LoadedActive) -> ActiveColumns:
    return ActiveColumns(
        first_seq=active.segment.first_seq,
        offs=active.offs,
        lens=active.lens,
        ts=active.ts,
        sizes=active.sizes,
        flags=active.flags,
        tags=active.tags,
    )
