"""Recovery: a data directory becomes an engine's state, step by step as storage.md section 9.1 has them.

Always holds: nothing is written before every file was read and accepted; what will be served is synced first; running
it again on its own result changes nothing. I/O errors stop the start; they are never read as "absent" or "torn"."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from topics.clock import EngineClock, Host
from topics.config import Settings
from topics.core.capture import dead_ranges
from topics.core.checkpoint import flagged
from topics.core.delete import settle_cold
from topics.core.extent import Extent, Place
from topics.core.load import ActiveColumns, load_active, load_sealed
from topics.core.state import State
from topics.core.topic import TopicState
from topics.engine.encode import submission
from topics.engine.replay import Replay
from topics.errors import ColdStoreMismatch, MetadataLost, TopicsError
from topics.formats.names import shard_of
from topics.formats.snapshot import Snapshot, TopicItem
from topics.model.ops import HeadMark
from topics.model.run import EMPTY_RUN, RecordRun
from topics.runtime.expected import Marks
from topics.runtime.images import router_from_item, topic_from_item
from topics.runtime.store import Store, TopicFiles
from topics.storage.cold_cache import ColdCache
from topics.storage.cold_tier import ColdRoot, ColdTier, open_cold_root
from topics.storage.fetch import ActiveRead, Fetcher, Read, SealedRead, WalRead
from topics.storage.fs import Fs
from topics.storage.layout import DataDir, group_keys
from topics.storage.lock import DataDirLock
from topics.storage.segments.drop import list_topic_dirs, retire_topic_dir
from topics.storage.segments.flips import Flips
from topics.storage.segments.load import load_topic
from topics.storage.segments.loaded import LoadedActive, LoadedTopic
from topics.storage.segments.place import SegmentEnv, TopicDir
from topics.storage.segments.repair import repair_loaded, repair_segment
from topics.storage.segments.sealed import SealedSegment
from topics.storage.snapshots import SnapshotStore, layout_of, positions_of
from topics.storage.wal.discover import discover
from topics.storage.wal.files import Position, WalFiles
from topics.storage.wal.group import WalGroup
from topics.storage.wal.opening import open_group
from topics.storage.wal.reader import GroupScan, ScannedFile, complete_from_first, newest_layout, scan_group
from topics.storage.wal.repair import (
    Repaired,
    log_dirs,
    quarantined_ceilings,
    refuse_damage,
    remove_temps,
    repair_group,
)
from topics.storage.wal.rotation import Layout
from topics.storage.wal.witness import SyncWitness
from topics.storage.wal_lookup import find_in_wal

log = logging.getLogger("topics.recovery")

Progress = Callable[[float], None]
OpenCold = Callable[[str, Fs], ColdRoot]


@dataclass(slots=True)
class Recovered:
    state: State
    store: Store
    clock: EngineClock
    replayed_frames: int = 0
    lost_seqs: int = 0
    truncated_bytes: int = 0
    damage: int = 0
    wants_snapshot: bool = False
    retired: list[str] = field(default_factory=list)
    """Directories of deleted topics, to be removed in the background."""
    has_snapshot: bool = False


class Recovery:
    """One start. `instance` gives the random name of a new directory."""

    def __init__(
        self,
        fs: Fs,
        *,
        clock: EngineClock,
        host: Host,
        settings: Settings,
        instance: Callable[[], str],
        progress: Progress = lambda _: None,
        pid: int | None = None,
        open_cold: OpenCold = open_cold_root,
    ) -> None:
        self._fs = fs
        self._clock = clock
        self._host = host
        self._settings = settings
        self._new_instance = instance
        self._progress = progress
        self._pid = os.getpid() if pid is None else pid
        self._data = DataDir(settings.data_dir)
        self._cold: ColdTier | None = None
        if settings.cold_dir is not None:
            self._cold = ColdTier(open_cold(settings.cold_dir, fs), monotonic=clock.monotonic)
        self._files = WalFiles()
        self._marks = Marks()
        self._items: dict[int, TopicItem] = {}
        self._loaded: dict[int, LoadedTopic] = {}
        self._cold_cache = ColdCache(settings.cold_cache_bytes)
        self._state = State(recent_bytes=settings.recent_cache_bytes)
        self._done_frames = 0
        self._total_frames = 1

    def run(self) -> Recovered:
        self._data.make_root(self._fs)
        self._lock = DataDirLock.take(self._fs, self._data.lock, pid=self._pid)
        self._witness = SyncWitness(self._lock.mark_boot_unknown)
        try:
            return self._recover()
        except BaseException:
            self._files.close()
            self._lock.close()
            raise

    def _recover(self) -> Recovered:
        same_boot = self._lock.same_boot(self._host.boot_id())
        is_new = self._data.is_new(self._fs)
        self._data.make_missing(self._fs)
        self._snapshots = SnapshotStore(self._fs, self._data.meta)
        snapshot = self._load_snapshot()
        scans = self._scan(snapshot)
        self._check_complete(snapshot, scans)
        self._env = SegmentEnv(
            self._fs,
            self._data.topics,
            index_cache_bytes=self._settings.index_cache_bytes,
            may_write=False,
        )
        replay = self._replay(snapshot, scans, same_boot=same_boot)
        # From here on the directory is accepted, and writing begins.
        repaired = {
            scan.key: repair_group(
                self._fs,
                self._data,
                scan,
                self._files,
                file_bytes=self._settings.wal_file_bytes,
                anew=self._lock.old_boot is None,
            )
            for scan in scans
        }
        self._env.allow_writes()
        marks = self._settle(replay, same_boot=same_boot)
        return self._open(snapshot, scans, repaired, marks, replay, is_new=is_new)

    # --- steps 2 and 3: snapshot and groups -----------------------------------------------------------------------

    def _load_snapshot(self) -> Snapshot | None:
        loaded = self._snapshots.load()
        for rejected in loaded.rejected:
            log.warning("snapshot %s is passed over: %s", rejected.name, rejected.reason)
        return loaded.snapshot

    def _scan(self, snapshot: Snapshot | None) -> list[GroupScan]:
        positions = {} if snapshot is None else positions_of(snapshot)
        scans = [
            scan_group(
                self._fs,
                listing,
                self._files,
                start=positions.get(listing.key),
                snapshot_gen=0 if snapshot is None else snapshot.gen,
                salvage=self._settings.salvage,
            )
            for listing in discover(self._fs, self._data)
        ]
        for notice in (notice for scan in scans for notice in scan.notices):
            log.warning("%s", notice)
        if self._settings.wal_damage == "refuse":
            refuse_damage(scans)
        self._total_frames = max(1, sum(scan.total_frames for scan in scans))
        return scans

    def _check_complete(self, snapshot: Snapshot | None, scans: list[GroupScan]) -> None:
        """Without a snapshot, only a log that holds everything may be replayed."""
        if snapshot is not None or self._settings.salvage:
            return
        created = {
            int(scanned.columns.topic_id[row])
            for scan in scans
            for scanned in scan.files
            for row in scanned.columns.bodies
        }
        unexplained = [found for found in list_topic_dirs(self._fs, self._data.topics).ids if found not in created]
        if unexplained or not complete_from_first(scans):
            raise MetadataLost(
                f"{self._data.meta} holds no valid snapshot and the log does not reach back to its beginning. "
                "Restore the directory from a backup, or start once with TOPICS_SALVAGE=1 to keep what can be read"
            )

    # --- steps 4 and 5: segments and replay -----------------------------------------------------------------------

    def _replay(self, snapshot: Snapshot | None, scans: list[GroupScan], *, same_boot: bool) -> Replay:
        ordered = _in_replay_order(scans)
        for scanned in ordered:
            self._marks.note(scanned.columns)
        self._begin_cold(snapshot)
        self._trust_totals = snapshot is not None and (snapshot.clean or same_boot)
        if snapshot is not None:
            self._state.next_topic_id = max(self._state.next_topic_id, snapshot.next_topic_id)
            self._clock.raise_to(snapshot.clock_ms)
            for item in snapshot.topics:
                self._items[item.id] = item
                topic = topic_from_item(item)
                self._state.add(topic)
                self._attach(topic)
        replay = Replay(self._state, created=self._attach, breathe=self._report)
        stored = () if snapshot is None else map(router_from_item, snapshot.routers)
        replay.prepare((scanned.columns for scanned in ordered), stored)
        for scanned in ordered:
            replay.file(scanned.columns, buffer=scanned.buffer(), file=scanned.file.index)
            scanned.release()
        self._clock.raise_to(replay.highest_ts)
        return replay

    def _begin_cold(self, snapshot: Snapshot | None) -> None:
        recorded = self._marks.cold_segments(() if snapshot is None else snapshot.topics)
        if self._cold is not None:
            self._cold.begin(None if snapshot is None else snapshot.instance, used=recorded > 0)
            if not self._cold.ours and recorded:
                log.error("%s; %d segments in it cannot be read", unavailable(self._cold), recorded)
        elif recorded:
            raise ColdStoreMismatch(
                f"{recorded} segments are in a cold store and TOPICS_COLD_DIR is not set; set it to where they are"
            )

    def _report(self, frames: int) -> None:
        self._done_frames += frames
        self._progress(min(self._done_frames / self._total_frames, 1.0))

    def _attach(self, topic: TopicState) -> None:
        """Give a topic the slots that lie in its segments."""
        if topic.config.is_ephemeral:
            return
        item = self._items.get(topic.id)
        cold = None if self._cold is None else self._cold.store(topic.id)
        place = TopicDir(self._env, topic.id, name=topic.name, cold=cold)
        loaded = load_topic(place, self._marks.expected(topic.id, item))
        repair_loaded(loaded, partial(find_in_wal, self._files))
        self._loaded[topic.id] = loaded
        for finding in loaded.findings:
            log.log(_LEVELS[finding.severity], "%s", finding.message)
        dead = [] if item is None else [(dead.first, dead.last) for dead in item.dead]
        for segment in loaded.sealed:
            totals = (segment.live, segment.live_bytes)
            trusted = not segment.counted and (self._trust_totals or not _can_count(segment.segment))
            load_sealed(topic, segment.segment, dead=dead, totals=totals if trusted else None)
            unknown = segment.segment.tier == "cold" and not segment.live_bytes
            if trusted and (unknown or not self._trust_totals):
                topic.sealed[len(topic.sealed) - 1].doubt()
        if loaded.active is not None:
            load_active(topic, _columns(loaded.active), dead=dead)

    # --- step 7: settle -------------------------------------------------------------------------------------------

    def _settle(self, replay: Replay, *, same_boot: bool) -> list[HeadMark]:
        replay.settle_unknown()
        replay.settle_routers(self._read_again)
        marks = replay.settle_holes()
        behind = quarantined_ceilings(self._fs, self._data)
        self._state.next_topic_id = max([self._state.next_topic_id, *(topic_id + 1 for topic_id in behind)])
        marks += replay.settle_ceilings(same_boot=same_boot, behind=behind)
        replay.settle_queues()
        for notice in replay.notices:
            log.warning("%s", notice)
        return marks

    def _read_again(self, topic: TopicState, extent: Extent) -> RecordRun:
        """Records of one place, for routers that copy them again."""
        read: Read
        if extent.place is Place.WAL:
            read = WalRead(extent.file, extent.seqs, extent.offs, extent.lens)
        elif extent.place in (Place.SEALED, Place.INDEX):
            view: SealedSegment = extent.view  # type: ignore[assignment]
            view.load_index()
            if extent.place is Place.INDEX:
                settle_cold(topic, view.first_seq)
                return EMPTY_RUN
            read = SealedRead(view, extent.slots)
        else:
            active = self._loaded[topic.id].active
            assert active is not None, "records are placed in an active segment that is not there"
            read = ActiveRead(active.segment, extent.seqs, extent.offs, extent.lens)
        return Fetcher(read_wal=self._files.pread, cold=self._cold_cache).fetch([read]).parts[0].run

    # --- step 8: clean up and open --------------------------------------------------------------------------------

    def _open(
        self,
        snapshot: Snapshot | None,
        scans: list[GroupScan],
        repaired: dict[str, Repaired],
        marks: list[HeadMark],
        replay: Replay,
        *,
        is_new: bool,
    ) -> Recovered:
        settings = self._settings
        if not settings.salvage:
            remove_temps(self._fs, [*log_dirs(self._fs, self._data), self._data.meta])
        known = None if snapshot is None else layout_of(snapshot)
        layout = newest_layout(scans, known, shards=settings.wal_shards)
        retired = self._retire_dirs(scans, snapshot)
        by_key = {scan.key: scan for scan in scans}
        groups = [
            self._open_group(key, by_key.get(key), repaired.get(key), layout) for key in group_keys(layout.shards)
        ]
        store = self._store(snapshot, scans, groups, layout)
        # The lock's text vouches for what was written under it, so the ceilings must be synced before it does.
        self._log_marks(groups, marks)
        self._flag_again(store)
        self._lock.claim(self._host.boot_id())
        self._progress(1.0)
        return Recovered(
            state=self._state,
            store=store,
            clock=self._clock,
            replayed_frames=self._done_frames,
            lost_seqs=replay.lost_seqs,
            truncated_bytes=sum(scan.end.cut_bytes for scan in scans),
            damage=sum(scan.end.kind == "damage" for scan in scans),
            wants_snapshot=is_new or snapshot is None or layout != known or any(scan.beyond for scan in scans),
            retired=retired,
            has_snapshot=snapshot is not None,
        )

    def _open_group(self, key: str, scan: GroupScan | None, repaired: Repaired | None, layout: Layout) -> WalGroup:
        group = open_group(
            self._fs,
            self._data,
            key,
            scan=scan,
            repaired=repaired,
            layout=layout,
            files=self._files,
            file_bytes=self._settings.wal_file_bytes,
            clock=self._clock.source,
            sync_failed=self._witness,
            recorded=self._snapshots.recorded(key),
        )
        self._witness.watch(group)
        return group

    def _store(
        self, snapshot: Snapshot | None, scans: list[GroupScan], groups: list[WalGroup], layout: Layout
    ) -> Store:
        ours = {group.key for group in groups}
        store = Store(
            fs=self._fs,
            data=self._data,
            lock=self._lock,
            files=self._files,
            groups=groups,
            layout=layout,
            snapshots=self._snapshots,
            env=self._env,
            flips=Flips(self._env),
            fetcher=Fetcher(read_wal=self._files.pread, repair=self._repair_hot),
            cold_fetcher=Fetcher(read_wal=self._files.pread, cold=self._cold_cache, repair=self._repair),
            instance=self._instance(snapshot),
            cold=self._cold,
            next_ckpt=max(self._marks.next_ckpt, 1 if snapshot is None else snapshot.next_ckpt),
            leftovers={scan.key: _end_of(scan) for scan in scans if scan.key not in ours},
        )
        if self._cold is not None:
            self._cold.open(store.instance)
        for topic_id, loaded in self._loaded.items():
            if topic_id in self._state.by_id:
                active = None if loaded.active is None else loaded.active.segment
                store.topics[topic_id] = TopicFiles(loaded.place, active)
        return store

    def _instance(self, snapshot: Snapshot | None) -> str:
        """Without a snapshot, the name under which our segments lie in the cold store, if there are any."""
        if snapshot is not None:
            return snapshot.instance
        known = None if self._cold is None else self._cold.instance
        return known or self._new_instance()

    def _repair(self, segment: SealedSegment, slots: Sequence[int]) -> bool:
        """A stored frame turned out damaged: the log or the other tier may still have it."""
        return repair_segment(segment, partial(find_in_wal, self._files), slots)

    def _repair_hot(self, segment: SealedSegment, slots: Sequence[int]) -> bool:
        """As `_repair`, on a pool that must not wait for the cold store."""
        return segment.place.cold is None and self._repair(segment, slots)

    def _flag_again(self, store: Store) -> None:
        """Deletes whose flags are not known to be on disk get them now, so that another start finds nothing to do."""
        for topic_id, files in store.topics.items():
            topic = self._state.by_id[topic_id]
            for segment in topic.sealed:
                if segment.view.tier == "hot" and len(segment.unflagged()):
                    store.flips.flip(segment.view, segment.unflagged())  # type: ignore[arg-type]
            if files.active is not None:
                first, end = files.active.first_seq, files.active.next_seq
                dead = [seq for lo, hi in dead_ranges(topic) for seq in range(max(lo, first), min(hi + 1, end))]
                store.flips.flip(files.active, [seq - first for seq in dead])
        for done in store.flips.sync() if len(store.flips) else ():
            flagged(self._state.by_id[done.topic_id], done.first_seq)

    def _retire_dirs(self, scans: list[GroupScan], snapshot: Snapshot | None) -> list[str]:
        """Directories of topics that are gone. After damage, or in a salvage run, everything stays."""
        found = list_topic_dirs(self._fs, self._data.topics)
        if self._settings.salvage or snapshot is None or any(scan.end.kind == "damage" for scan in scans):
            return found.deleted
        orphans = [
            topic_id
            for topic_id in found.ids
            if topic_id not in self._state.by_id and topic_id < self._state.next_topic_id
        ]
        retired = [retire_topic_dir(self._env, topic_id) for topic_id in orphans]
        return [*found.deleted, *(name for name in retired if name is not None)]

    def _log_marks(self, groups: list[WalGroup], marks: list[HeadMark]) -> None:
        """What was declared lost is synced before anyone is served, so that the next start says the same."""
        for index, group in enumerate(groups):
            mine = [mark for mark in marks if shard_of(mark.topic_id, len(groups)) == index]
            if mine and group.read_only is None:
                now = self._clock.now_ms()
                group.write(
                    [
                        submission([mark], None, topic_id=mark.topic_id, ts=now, durable=True, client_frames=0)
                        for mark in mine
                    ]
                )
                group.sync()


_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def _in_replay_order(scans: list[GroupScan]) -> list[ScannedFile]:
    """All generation 1, then all of 2, and so on; inside a group the files keep their order."""
    files = [(scanned.gen, scan.key, at, scanned) for scan in scans for at, scanned in enumerate(scan.files)]
    return [scanned for _, _, _, scanned in sorted(files, key=lambda entry: entry[:3])]


def _end_of(scan: GroupScan) -> Position:
    return scan.position


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


def unavailable(cold: ColdTier) -> str:
    return f"the cold store {cold.label} is unavailable: {cold.reason}"


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
