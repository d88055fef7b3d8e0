"""Loading the segments of one topic at start (`docs/spec/storage.md#sec-6-3`, `docs/spec/storage.md#sec-6-5`,
`docs/spec/storage.md#sec-9-7` and `docs/spec/storage.md#sec-13-4`).

Reads only. Whatever has to change on disk goes through `env.write_or_defer` and happens once recovery has accepted the
directory; until then the segments in memory already show the result. Nothing here refuses a start except I/O errors and
a missing cold store: damage becomes slots that read as corrupt, and a finding.

What is checked when: of a sealed segment that the snapshot knows, two lengths, here; its index when it is first mapped;
its frames whenever they are read. Of every other segment (sealed or grown since the snapshot, or of other lengths than
recorded) the index, here. Of slots above the last synced mark, and of the active segment, index and frames, here."""

from __future__ import annotations

from array import array
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from topics.errors import ColdStoreMismatch, ColdUnavailable, CorruptSegment
from topics.formats.file_names import SegmentPart, segment_name
from topics.formats.segments.idx import ENTRY_BYTES, idx_agrees, read_idx
from topics.formats.snapshot import SegmentItem
from topics.storage.segments.active_segment import ActiveSegment
from topics.storage.segments.findings import CORRUPT, IDX_REBUILT
from topics.storage.segments.loading.heal import heal
from topics.storage.segments.loading.leftovers import (
    Listing,
    Parts,
    list_topic_dir,
    map_file,
    note_names,
    remove_sidecars,
    remove_temps,
    report,
    set_aside,
)
from topics.storage.segments.loading.loaded import ExpectedSegments, LoadedActive, LoadedSegment, LoadedTopic
from topics.storage.segments.loading.open_end import OpenEnd, cut_and_sync, judge_open_end
from topics.storage.segments.open_segment import found_flags, frame_flags, keep_flags
from topics.storage.segments.replace import ALL_PARTS, remove_files
from topics.storage.segments.sealed_segment import SealedSegment
from topics.storage.segments.segment_arrays import FEW_SLOTS, FewSlots, SegmentArrays, few_slots
from topics.storage.segments.tags import accounted_sizes, frame_tags
from topics.storage.segments.topic_dir import TopicDir
from topics.storage.tiers.stores import NoSuchObject, RangeOutOfBounds, SegmentStore


def cold_is_complete(store: SegmentStore, first_seq: int, count: int) -> bool:
    """The cold copy of a segment, looked at from the hot side: is it complete, how long is it
    (`docs/spec/storage.md#sec-13-4`).

    Whether both parts exist and agree. A store that does not answer has no complete copy as far as we know."""
    try:
        if store.len(first_seq, "idx") != count * ENTRY_BYTES:
            return False
        data_len = store.len(first_seq, "data")
        return idx_agrees(store.read_range(first_seq, "idx", 0, count * ENTRY_BYTES), data_len) is None
    except (OSError, NoSuchObject, RangeOutOfBounds):
        return False


def cold_is_gone(store: SegmentStore, first_seq: int) -> bool:
    """Whether the store answers that it lacks a part. One that does not answer may have both."""
    try:
        return not (store.exists(first_seq, "data") and store.exists(first_seq, "idx"))
    except OSError:
        return False


def cold_length(store: SegmentStore, first_seq: int) -> int:
    """Bytes of the cold `.data`; 0 when the store does not say."""
    try:
        return store.len(first_seq, "data")
    except (OSError, NoSuchObject):
        return 0


def load_topic(place: TopicDir, expected: ExpectedSegments) -> LoadedTopic:
    """Everything the files of one topic have, reconciled with what was recorded."""
    loader = _Loader(place, expected)
    loader.run()
    loader.loaded.findings += place.env.take_findings()
    return loader.loaded


class _Open(NamedTuple):
    """A segment with slots that no mark covers, judged."""

    first: int
    end: OpenEnd
    data: memoryview
    few: FewSlots | None = None
    """If it has few slots and they are as marked."""


class _Loader:
    def __init__(self, place: TopicDir, expected: ExpectedSegments) -> None:
        self.place = place
        self.expected = expected
        self.recorded = {item.first: item for item in expected.segments}
        self.listing = Listing()
        self.loaded = LoadedTopic(place)
        self.open: list[_Open] = []
        self.gone: dict[int, tuple[SegmentPart, ...]] = {}  # files to remove, by first seq
        self.torn = False  # a torn tail was met: unmarked segments behind it are refilled from the log

    def run(self) -> None:
        self.listing = list_topic_dir(self.place.read_fs, self.place.path)
        note_names(self.place, self.listing)
        remove_temps(self.place, self.listing)
        self._remove_gone()
        for first in self._firsts():
            self._load(first)
        self._finish_open_end()
        self._set_overlaps_aside()
        known = {loaded.segment.first_seq for loaded in self.loaded.sealed}
        remove_sidecars(self.place, self.listing, known=known)
        if self.gone:
            self.place.env.write_or_defer(partial(remove_files, self.place, self.gone))
        self._find_cold_garbage(known)

    def _remove_gone(self) -> None:
        """Any part of a segment logged `gone`: an interrupted drop is completed."""
        for first, move in self.expected.moves.items():
            if move.tier == "gone":
                self.recorded.pop(first, None)
                if self.listing.parts.pop(first, None):
                    self.gone[first] = ALL_PARTS
                if self.place.cold is not None:
                    self.loaded.cold_garbage.append(first)

    def _firsts(self) -> list[int]:
        """Segments with a file that matters, and those that were recorded, in order."""
        there = {first for first, parts in self.listing.parts.items() if "data" in parts or "idx" in parts}
        moved = {first for first, move in self.expected.moves.items() if move.tier != "gone"}
        active = {self.expected.active[0]} if self.expected.active is not None else set()
        cold = self._unrecorded_cold() if self.expected.unknown else set()
        return sorted(there | set(self.recorded) | moved | active | cold)

    def _unrecorded_cold(self) -> set[int]:
        """Complete copies in the cold store; one that does not answer stops a salvage run, which must not miss any."""
        return set() if self.place.cold is None else set(self.place.cold.list()) - self.expected.gone()

    def _load(self, first: int) -> None:
        parts = self.listing.parts.get(first, {})
        if self._recorded_tier(first) == "cold" and self._load_cold(first, parts):
            return
        if self._is_open(first):
            self._load_open(first, parts)
        elif "data" in parts:
            self._load_sealed(first, parts)
        else:
            self._load_without_data(first, parts)

    def _is_open(self, first: int) -> bool:
        """Whether what is torn may be cut because the log refills it. Not in a salvage run, nor of a topic that nothing
        describes: the log may be lost, too, so a segment that no mark knows is taken as it is."""
        log_is_lost = self.place.env.keeps_all or self.expected.unknown
        return self.expected.is_open(first) and (not log_is_lost or bool(self.expected.marked(first)[0]))

    def _recorded_tier(self, first: int) -> Literal["hot", "cold"]:
        move, item = self.expected.moves.get(first), self.recorded.get(first)
        if move is not None:
            return "cold" if move.tier == "cold" else "hot"
        return item.tier if item is not None else "hot"

    def _recorded_count(self, first: int) -> int | None:
        """Slots of a sealed segment as snapshot or `tier` mark have it."""
        move, item = self.expected.moves.get(first), self.recorded.get(first)
        if move is not None:
            return move.count
        return item.count if item is not None and item.sealed else None

    def _add(self, segment: SealedSegment, item: SegmentItem | None = None) -> None:
        """`item` when its totals can be trusted."""
        live, live_bytes = (item.live, item.live_bytes) if item is not None else segment.totals()
        self.loaded.sealed.append(LoadedSegment(segment, live, live_bytes, counted=item is None))

    def _sealed(self, first: int, count: int, data_len: int) -> SealedSegment:
        return SealedSegment(self.place, first_seq=first, count=count, data_len=data_len)

    # --- sealed, hot ------------------------------------------------------------------------------------------------

    def _load_sealed(self, first: int, parts: Parts) -> None:
        item = self.recorded.get(first)
        fs, path = self.place.read_fs, self.place.path
        data_len = fs.stat_len(f"{path}/{parts['data']}")
        idx_len = fs.stat_len(f"{path}/{parts['idx']}") if "idx" in parts else -1
        if item is not None and item.sealed and (data_len, idx_len) == (item.data_len, item.count * ENTRY_BYTES):
            self._add(self._sealed(first, item.count, data_len), item)
            return
        count = self._recorded_count(first)
        if count is None:
            count = self._count_slots(first)
        segment = self._sealed(first, count, item.data_len if item is not None and item.sealed else data_len)
        segment.load_index()
        if segment.damaged and self._take_cold_instead(first, count):
            return
        if count:
            self._add(segment)

    def _count_slots(self, first: int) -> int:
        """Slots of a sealed segment that nothing recorded: what its index says if it agrees, else its frames."""
        data = map_file(self.place, self.place.file(first, "data"))
        idx = map_file(self.place, self.place.file(first, "idx"))
        assert data is not None
        return len(heal(idx, data, first_seq=first, count=None, data_len=None).entries)

    def _load_without_data(self, first: int, parts: Parts) -> None:
        count = self._recorded_count(first)
        if count is None and "idx" in parts:
            count = self.place.read_fs.stat_len(self.place.file(first, "idx")) // ENTRY_BYTES
        if count is None and self.expected.unknown and self.place.cold is not None:
            count = self.place.cold.len(first, "idx") // ENTRY_BYTES
        if count is None or first + count <= self.expected.earliest_seq:
            if "idx" in parts:
                self.gone[first] = ALL_PARTS
            return
        if self._take_cold_instead(first, count):
            if "idx" in parts:
                self.gone[first] = ("idx",)
            return
        segment = self._sealed(first, count, 0)
        segment.load_index()
        self.loaded.missing.append(segment)
        self._add(segment, self.recorded.get(first))

    # --- above the mark ---------------------------------------------------------------------------------------------

    def _load_open(self, first: int, parts: Parts) -> None:
        marked_count, marked_len = self.expected.marked(first)
        data = map_file(self.place, self.place.file(first, "data"))
        if data is None and marked_len:
            self._load_lost_active(first, marked_count, parts)
            return
        if not marked_count and (self.torn or data is None):
            self.torn = True
            self._remove_unmarked(first)
            return
        idx = map_file(self.place, self.place.file(first, "idx")) or memoryview(b"")
        data = data or memoryview(b"")
        if marked_count <= FEW_SLOTS and self._load_few(first, idx, data):
            return
        end = judge_open_end(idx, data, first_seq=first, marked_count=marked_count, marked_len=marked_len)
        self.torn = self.torn or end.torn or end.bad is not None
        if end.bad is not None:
            self._add_damaged(first, end, data)
        elif end.count:
            self.open.append(_Open(first, end, data))
        else:
            self._remove_unmarked(first)

    def _load_few(self, first: int, idx: memoryview, data: memoryview) -> bool:
        """A short segment that is whole and ends at its mark, as most are of a server with thousands of topics."""
        count, data_len = self.expected.marked(first)
        if len(data) != data_len:
            return False
        few = few_slots(bytes(idx), bytes(data), first_seq=first, count=count, data_len=data_len)
        if few is not None:
            end = OpenEnd(read_idx(idx), data_len, bad=None, torn=False, reindexed=False)
            self.open.append(_Open(first, end, data, few))
        return few is not None

    def _load_lost_active(self, first: int, count: int, parts: Parts) -> None:
        if first + count <= self.expected.earliest_seq:  # it went with its directory, when the topic became ephemeral
            self._load_without_data(first, parts)
            return
        segment = self._sealed(first, count, 0)
        segment.load_index()
        self.torn = True
        self.loaded.missing.append(segment)
        self._add(segment)

    def _remove_unmarked(self, first: int) -> None:
        if self.listing.parts.get(first):
            report(self.place, segment_name(first, "data"), "never marked; refilled from the log", severity="info")
            self.gone[first] = ALL_PARTS

    def _add_damaged(self, first: int, end: OpenEnd, data: memoryview) -> None:
        """Damage below the mark: the segment is closed with what it has, and new records go to the next one."""
        assert end.bad is not None
        report(
            self.place,
            segment_name(first, "data"),
            f"{int(end.bad.sum())} records are damaged",
            counter=CORRUPT,
            severity="error",
        )
        segment = self._sealed(first, end.count, len(data))
        segment.stand_in(found_flags(self.place, first, SegmentArrays(end.entries, data, end.bad), again=False))
        self._add(segment)

    def _finish_open_end(self) -> None:
        highest = max((loaded.segment.first_seq for loaded in self.loaded.sealed), default=0)
        for number, opened in enumerate(self.open):
            newest = number == len(self.open) - 1 and opened.first > highest
            self._report_open(opened)
            if newest and opened.first + opened.end.count - 1 > self.expected.sealed_to:
                self.loaded.active = self._active(opened)
            else:
                self._seal_open(opened)
        self.loaded.sealed.sort(key=lambda loaded: loaded.segment.first_seq)

    def _report_open(self, opened: _Open) -> None:
        name = segment_name(opened.first, "data")
        if opened.end.reindexed:
            self.place.env.counters.idx_rebuilt += 1
            report(self.place, name, "index rebuilt from its data", counter=IDX_REBUILT)
        if opened.end.torn:
            report(self.place, name, f"torn tail cut behind record {opened.first + opened.end.count - 1}")

    def _active(self, opened: _Open) -> LoadedActive:
        end = opened.end
        data = opened.data[: end.data_len]
        if opened.few is None:
            sizes = array("I", accounted_sizes(end.entries, data, first_seq=opened.first).tobytes())
            self._put_in_order(opened, None)
            flags = frame_flags(end.entries, data)
            keep_flags(self.place, opened.first, end.entries, flags)
            tags = frame_tags(end.entries, data, first_seq=opened.first)
        else:
            (sizes, tags), flags = opened.few, end.entries["flags"].copy()
        segment = ActiveSegment(
            self.place,
            first_seq=opened.first,
            first_ts=int(end.entries["ts"][0]),
            count=end.count,
            data_len=end.data_len,
            sizes=sizes,
        )
        return LoadedActive(
            segment=segment,
            offs=end.entries["offset"].copy(),
            lens=end.entries["len"].copy(),
            ts=end.entries["ts"].copy(),
            flags=flags,
            sizes=np.frombuffer(sizes[:], np.uint32),
            tags=tags,
        )

    def _seal_open(self, opened: _Open) -> None:
        end = opened.end
        data, entries = opened.data[: end.data_len], end.entries.copy()
        flags = entries["flags"] = frame_flags(end.entries, data)
        segment = self._sealed(opened.first, end.count, end.data_len)
        segment.stand_in(SegmentArrays(entries, data))
        self._add(segment)
        self._put_in_order(opened, segment)
        keep_flags(self.place, opened.first, end.entries, flags)

    def _put_in_order(self, opened: _Open, segment: SealedSegment | None) -> None:
        """What was found above the mark may never have been synced: make it so before anything relies on it."""
        marked_count, _ = self.expected.marked(opened.first)
        if opened.end.torn or opened.end.reindexed or opened.end.count > marked_count or segment is not None:
            self.place.env.write_or_defer(partial(cut_and_sync, self.place, opened.first, opened.end, segment))

    # --- cold -------------------------------------------------------------------------------------------------------

    def _load_cold(self, first: int, parts: Parts) -> bool:
        """Use the cold copy; False when the hot one has to serve."""
        store, count = self.place.cold, self._recorded_count(first)
        if store is None:
            raise ColdStoreMismatch(
                f"segment {first} of topic {self.place.name!r} is in the cold store, and none is configured"
            )
        assert count is not None
        if "data" in parts or "idx" in parts:
            if not cold_is_complete(store, first, count):
                report(self.place, segment_name(first, "data"), "the cold copy is not complete; the hot one is used")
                return False
            self.gone[first] = ("data", "idx")
        elif not self._is_known(first) and cold_is_gone(store, first):
            return False  # a drop that `earliest_seq` implies is not logged: the move may be the last the log tells
        self._add_cold(first, count)
        return True

    def _is_known(self, first: int) -> bool:
        item = self.recorded.get(first)
        return item is not None and item.sealed

    def _take_cold_instead(self, first: int, count: int) -> bool:
        """Hot is damaged or gone: the cold copy if it is complete."""
        store = self.place.cold
        if store is None or not cold_is_complete(store, first, count):
            return False
        report(
            self.place, segment_name(first, "data"), "damaged in the hot tier; the cold copy is used", severity="error"
        )
        self._add_cold(first, count)
        return True

    def _add_cold(self, first: int, count: int) -> None:
        """Totals of the snapshot are not believed of one that was moved since: it may have been rewritten before, and
        then its dead have neither tags nor sizes, so that deletes which are replayed would not count them out."""
        item = self.recorded.get(first) if self._is_known(first) else None
        store = self.place.cold
        assert store is not None
        data_len = cold_length(store, first) if item is None else item.data_len
        segment = SealedSegment(self.place, first_seq=first, count=count, data_len=data_len, tier="cold")
        if item is not None and first not in self.expected.moves:
            self._add(segment, item)
            return
        try:
            segment.load_index()
            self._add(segment)
        except (ColdUnavailable, CorruptSegment):
            if item is not None:  # dropped since, perhaps: replay will tell
                self._add(segment, item)
            else:  # counted when the store answers again
                self.loaded.sealed.append(LoadedSegment(segment, count, 0, counted=False))

    def _find_cold_garbage(self, known: set[int]) -> None:
        """Cold copies without hot counterpart that nothing recorded: left by a drop that was interrupted."""
        store = self.place.cold
        if store is None:
            return
        try:
            there = store.list_any()
        except OSError:
            return
        active = {self.loaded.active.segment.first_seq} if self.loaded.active is not None else set()
        garbage = set(there) - known - active - set(self.loaded.cold_garbage)
        self.loaded.cold_garbage += sorted(garbage)

    # --- overlaps ---------------------------------------------------------------------------------------------------

    def _set_overlaps_aside(self) -> None:
        kept: list[LoadedSegment] = []
        for loaded in self.loaded.sealed:
            while kept and kept[-1].segment.last_seq >= loaded.segment.first_seq and self._wins(loaded, kept[-1]):
                set_aside(self.place, kept.pop().segment.first_seq)
            if kept and kept[-1].segment.last_seq >= loaded.segment.first_seq:
                set_aside(self.place, loaded.segment.first_seq)
            else:
                kept.append(loaded)
        active = self.loaded.active
        while active is not None and kept and kept[-1].segment.last_seq >= active.segment.first_seq:
            set_aside(self.place, kept.pop().segment.first_seq)
        self.loaded.sealed = kept

    def _wins(self, later: LoadedSegment, earlier: LoadedSegment) -> bool:
        """The recorded one, else the one with the lower first seq."""
        return later.segment.first_seq in self.recorded and earlier.segment.first_seq not in self.recorded
