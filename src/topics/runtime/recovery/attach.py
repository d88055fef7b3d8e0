"""Attach: a topic of a start gets the slots that lie in its segments (`docs/spec/storage.md#sec-9-1`, step 4).

    Marks          what snapshot and log say of each topic's segments, before any of them is opened
    Attach         opens them and puts their slots into the topic
    RecordReread   reads records for routers that copy them again (`docs/spec/storage.md#sec-9-6`)

Always holds: what a file lacks is looked for in the log and in the other tier before it is called lost; totals are
taken from the snapshot only if no flag can be on disk whose delete is not: because the kernel lived on since it was
written, or because deletes of the topic are synced before they take effect; and never where the log is damaged. The
ack of a job is not synced in every class, nor is any delete of a `memory` topic; their flags are counted. Called by
recovery for every topic of the snapshot, and by replay for every topic that the log brings back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from topics.core.delete import finish_cold_delete
from topics.core.slots.extent import Extent, RecordPlace
from topics.core.slots.restore import ActiveColumns, load_active, load_sealed, reached, written_until
from topics.core.topic import TopicLog
from topics.errors import ColdUnavailable, StorageIo, TopicsError
from topics.formats.file_names import topic_dir_name
from topics.formats.segments.columns import FrameColumns, decode_columns, decode_frames
from topics.formats.snapshot import TopicItem
from topics.formats.wal import WalColumns
from topics.formats.wal.bodies import CkptMark, ConfigUpdateBody, TierMark, TopicMark
from topics.model.ops import Evict, TopicDelete
from topics.model.run import BODY_HEAD_BYTES, EMPTY_RUN, PRESENCE_MASK, RecordRun
from topics.storage.disk_spans import read_spans
from topics.storage.fetch import Fetcher, SealedRead, WalRead
from topics.storage.segments.active_segment import ActiveSegment
from topics.storage.segments.loading.load import load_topic
from topics.storage.segments.loading.loaded import ExpectedSegments, LoadedActive, LoadedSegment, LoadedTopic, Move
from topics.storage.segments.loading.segment_repair import repair_loaded
from topics.storage.segments.sealed_segment import SealedSegment
from topics.storage.segments.topic_dir import SegmentEnv, TopicDir
from topics.storage.tiers.stores import SegmentStore
from topics.storage.wal.lookup import find_in_wal
from topics.storage.wal.wal_files import WalFiles


class Marks:
    """The newest mark of each topic, its highest floor, the last move of each segment, and the topics that the log
    deletes or gives another config. Feed it columns in replay order."""

    def __init__(self) -> None:
        self._topics: dict[int, TopicMark] = {}
        self._moves: dict[int, dict[int, Move]] = {}
        self._earliest: dict[int, int] = {}
        self.deleted: set[int] = set()
        self.reconfigured: set[int] = set()
        self.next_ckpt = 1

    def note(self, columns: WalColumns) -> None:
        for row, body in columns.bodies.items():
            if isinstance(body, Evict):
                topic_id = int(columns.topic_id[row])
                self._earliest[topic_id] = max(self._earliest.get(topic_id, 1), body.earliest_seq)
            elif isinstance(body, CkptMark):
                self.next_ckpt = max(self.next_ckpt, body.n + 1)
                self._topics.update({mark.id: mark for mark in body.topics})
            elif isinstance(body, TierMark):
                for move in body.moves:
                    self._moves.setdefault(move.id, {})[move.first] = Move(move.count, move.tier)
            elif isinstance(body, TopicDelete):
                self.deleted.add(int(columns.topic_id[row]))
            elif isinstance(body, ConfigUpdateBody):
                self.reconfigured.add(int(columns.topic_id[row]))

    def topic_ids(self) -> Iterable[int]:
        return self._topics.keys() | self._moves.keys()

    def cold_segments(self, items: Iterable[TopicItem]) -> int:
        """How many segments are recorded in the cold tier."""
        cold = {(item.id, row.first) for item in items for row in item.segments if row.tier == "cold"}
        for topic_id, moves in self._moves.items():
            for first, move in moves.items():
                (cold.add if move.tier == "cold" else cold.discard)((topic_id, first))
        return len(cold)

    def in_segments(self, items: Iterable[TopicItem]) -> dict[int, int]:
        """How far each topic lies in synced segments, by id."""
        reached = {item.id: item.ckpt_seq for item in items}
        return reached | {mark.id: max(mark.seq, reached.get(mark.id, 0)) for mark in self._topics.values()}

    def expected(self, topic_id: int, item: TopicItem | None) -> ExpectedSegments:
        """A mark is newer than the snapshot, which was taken at an earlier position of the log."""
        mark = self._topics.get(topic_id)
        segments = () if item is None else item.segments
        open_row = next((row for row in segments if not row.sealed), None)
        active = None if open_row is None else (open_row.first, open_row.count, open_row.data_len)
        sealed_to = max((row.first + row.count - 1 for row in segments if row.sealed), default=0)
        ckpt_seq, earliest = (0, 1) if item is None else (item.ckpt_seq, item.earliest_seq)
        if mark is not None:
            active = None if mark.active is None else (mark.active.first, mark.active.count, mark.active.data_len)
            sealed_to = max(sealed_to, mark.sealed_to)
            ckpt_seq, earliest = max(ckpt_seq, mark.seq), max(earliest, mark.earliest_seq)
        earliest = max(earliest, self._earliest.get(topic_id, 1))
        return ExpectedSegments(
            segments=[row for row in segments if row.sealed],
            active=active,
            sealed_to=sealed_to,
            ckpt_seq=ckpt_seq,
            earliest_seq=earliest,
            moves=self._moves.get(topic_id, {}),
        )


_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Attach:
    """`items` is what the snapshot says of each topic, `marks` what the log says."""

    def __init__(
        self,
        env: SegmentEnv,
        files: WalFiles,
        cold_store: Callable[[int], SegmentStore | None],
        *,
        marks: Marks,
        items: dict[int, TopicItem],
        trust_totals: bool,
        log_is_whole: bool,
        tell: Callable[[str, int], None],
    ) -> None:
        self._env = env
        self._files = files
        self._cold_store = cold_store
        self.marks = marks
        self.items = items
        self._trust_totals = trust_totals and log_is_whole
        self._log_is_whole = log_is_whole
        self._tell = tell
        self._reached = marks.in_segments(items.values())
        self.loaded: dict[int, LoadedTopic] = {}
        self.unknown: set[int] = set()
        """Topics that nothing describes any more: their files are all there is."""
        self.forsaken: set[int] = set()
        """Ephemeral topics with segments: those are from the time before, and what is in them does not come back."""

    def __call__(self, topic: TopicLog) -> None:
        if topic.id in self.marks.deleted:  # it goes, and its files went
            return
        item = self.items.get(topic.id)
        if topic.config.is_ephemeral and topic.id not in self.marks.reconfigured:
            path = f"{self._env.topics_dir}/{topic_dir_name(topic.id)}"
            if (item is not None and item.segments) or self._env.read_fs.is_dir(path):
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

    def _load(self, topic: TopicLog, item: TopicItem | None) -> LoadedTopic:
        place = TopicDir(self._env, topic.id, name=topic.name, cold=self._cold_store(topic.id))
        expected = self.marks.expected(topic.id, item)
        expected.unknown = topic.id in self.unknown or (item is None and self._env.keeps_all)
        loaded = load_topic(place, expected)
        repair_loaded(loaded, partial(find_in_wal, self._files))
        self.loaded[topic.id] = loaded
        for finding in loaded.findings:
            self._tell(finding.message, _LEVELS[finding.severity])
        return loaded

    def _seal(self, topic: TopicLog, segment: LoadedSegment, dead: list[tuple[int, int]]) -> None:
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

    def _syncs_deletes(self, topic: TopicLog) -> bool:
        """By its class, which no frame of the log has changed since the snapshot; and the log has them still."""
        is_same_class = topic.id not in self.marks.reconfigured
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


ActiveOf = Callable[[int], ActiveSegment | None]


class RecordReread:
    """Records as recovery finds them, dead ones included. Every frame is checked as in `storage.fetch`; a flag byte
    only says that readers of the source no longer see the record. What lies in the cold store is read from there, but
    only where it is alive. `active_of` gives the active segment of a topic by its id."""

    def __init__(self, fetcher: Fetcher, active_of: ActiveOf) -> None:
        self._fetcher = fetcher
        self._active_of = active_of

    def __call__(self, topic: TopicLog, extent: Extent) -> RecordRun:
        if extent.place is RecordPlace.WAL:
            read = WalRead(extent.file, extent.seqs, extent.offs, extent.lens)
            return self._fetcher.fetch([read]).parts[0].run
        if extent.place in (RecordPlace.SEALED, RecordPlace.INDEX):
            view: SealedSegment = extent.view  # type: ignore[assignment]
            return self._sealed(topic, view, extent)
        active = self._active_of(topic.id)
        assert active is not None, "records are placed in an active segment that is not there"
        offs, lens = extent.offs.astype(np.int64), extent.lens.astype(np.int64)
        buffer, at = read_spans(active.read, offs, lens)
        return _run(topic, decode_frames(buffer, at, lens, want=("node",), include_dead=True), memoryview(buffer))

    def _sealed(self, topic: TopicLog, segment: SealedSegment, extent: Extent) -> RecordRun:
        if segment.tier == "cold":
            segment.load_index()
        if extent.place is RecordPlace.INDEX:
            finish_cold_delete(topic, segment.first_seq)
            return EMPTY_RUN
        pair = segment.pair()
        if pair.data is None:
            return self._fetcher.fetch([SealedRead(segment, extent.slots)]).parts[0].run
        found = decode_columns(
            pair.data, pair.entries, first_seq=segment.first_seq, slots=extent.slots, want=("node",), include_dead=True
        )
        return _run(topic, found, pair.data)


def _run(topic: TopicLog, found: FrameColumns, data: memoryview) -> RecordRun:
    if found.bad:
        raise StorageIo(f"records of topic {topic.name!r} cannot be read again")
    assert found.node_offset is not None
    return RecordRun(data, (found.node_offset - BODY_HEAD_BYTES).tolist(), (found.flags & PRESENCE_MASK).tobytes())
