"""Recovery: a data directory becomes an engine's state, step by step as `docs/spec/storage.md#sec-9-1` has them.

Always holds: nothing is written before every file was read and accepted; what will be served is synced first; running
it again on its own result changes nothing. I/O errors stop the start; they are never read as "absent" or "torn"."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from topics.clock import EngineClock, Host
from topics.config import Settings
from topics.core.apply import apply
from topics.core.lineage import decide_fork
from topics.core.state import State
from topics.core.topic import TopicLog
from topics.engine.recovery.replay import Replay
from topics.errors import ColdStoreMismatch, MetadataLost, StartRefused
from topics.formats.snapshot import Snapshot
from topics.model.ops import HeadMark
from topics.runtime.recovery.attach import Attach, Marks
from topics.runtime.recovery.first_writes import Repair, flag_again, floors_of, log_marks, name_store, retire_dirs
from topics.runtime.recovery.images import router_from_item, topic_from_item
from topics.runtime.recovery.lost_log import note_used
from topics.runtime.recovery.reread import RecordReread
from topics.runtime.recovery.salvage import adopt, announce_gaps, unexplained
from topics.runtime.store import Store, TopicFiles
from topics.storage.data_dir import DataDir, DataDirLock, Identity, LogFile, group_keys
from topics.storage.fetch import Fetcher
from topics.storage.fs import Fs
from topics.storage.osfs import RetryingFs
from topics.storage.segments.flips import DeleteFlags
from topics.storage.segments.replace import list_topic_dirs
from topics.storage.segments.topic_dir import SegmentEnv
from topics.storage.snapshots import SnapshotStore, layout_of, positions_of
from topics.storage.tiers.cold_cache import ColdCache
from topics.storage.tiers.cold_tier import ColdRoot, ColdTier, open_cold_root
from topics.storage.wal.file_scan import GroupScan, ScannedFile, complete_from_first, newest_layout, scan_group
from topics.storage.wal.group import WalGroup
from topics.storage.wal.group_scan import GroupListing, discover, list_group
from topics.storage.wal.log_repair import (
    Repaired,
    log_dirs,
    open_group,
    quarantined_ceilings,
    refuse_damage,
    remove_temps,
    repair_group,
)
from topics.storage.wal.rotation import Layout
from topics.storage.wal.sync_failure import SyncFailureLatch
from topics.storage.wal.wal_files import LogPosition, WalFiles

log = logging.getLogger("topics.recovery")

CLOCK_BEHIND_MAX_MS: Final = 24 * 3_600_000
"""A wall clock further behind than this is no matter of summer time or drift."""

Progress = Callable[[float], None]
OpenCold = Callable[[str, Fs], ColdRoot]


@dataclass(slots=True)
class Recovered:
    state: State
    store: Store
    clock: EngineClock
    chance: Callable[[], int]
    replayed_frames: int = 0
    lost_seqs: int = 0
    truncated_bytes: int = 0
    damage: int = 0
    wants_snapshot: bool = False
    retired: list[str] = field(default_factory=list)
    """Directories of deleted topics, to be removed in the background."""
    has_snapshot: bool = False


class Recovery:
    """One start. `instance` gives the random name of a new directory, `chance` random bits for epochs."""

    def __init__(
        self,
        fs: Fs,
        *,
        clock: EngineClock,
        host: Host,
        settings: Settings,
        instance: Callable[[], str],
        chance: Callable[[], int],
        progress: Progress = lambda _: None,
        pid: int | None = None,
        open_cold: OpenCold = open_cold_root,
    ) -> None:
        self._fs = fs
        self._clock = clock
        self._host = host
        self._settings = settings
        self._new_instance = instance
        self._chance = chance
        self._progress = progress
        self._pid = os.getpid() if pid is None else pid
        self._data = DataDir(settings.data_dir)
        self._cold: ColdTier | None = None
        if settings.cold_dir is not None:
            self._cold = ColdTier(open_cold(settings.cold_dir, fs), monotonic=clock.monotonic)
        self._files = WalFiles()
        self._marks = Marks()
        self._cold_cache = ColdCache(settings.cold_cache_bytes)
        self._state = State(recent_bytes=settings.recent_cache_bytes)
        self._done_frames = 0
        self._total_frames = 1

    def run(self) -> Recovered:
        try:
            self._data.make_root(self._fs)
            self._lock = DataDirLock.take(self._fs, self._data.lock, pid=self._pid)
        except OSError as error:
            reason = error.strerror or error
            raise StartRefused(f"{self._data.root} cannot be used as the data directory: {reason}") from error
        self._witness = SyncFailureLatch(self._lock.mark_boot_unknown)
        try:
            return self._recover()
        except BaseException:
            self._files.close()
            self._lock.close()
            raise

    def _recover(self) -> Recovered:
        self._boot = self._boot_line()
        same_boot = self._lock.same_boot(self._boot)
        is_new = self._data.is_new(self._fs)
        self._data.make_missing(self._fs)
        self._identity = Identity(self._fs, self._data)
        self._snapshots = SnapshotStore(self._fs, self._data.meta)
        snapshot = self._load_snapshot()
        scans = self._scan(snapshot)
        self._check_complete(snapshot, scans)
        self._env = SegmentEnv(
            self._fs,
            self._data.topics,
            index_cache_bytes=self._settings.index_cache_bytes,
            may_write=False,
            keeps_all=self._settings.salvage,
        )
        if isinstance(self._fs, RetryingFs):
            self._fs.make_room = self._env.make_room
        replay = self._replay(snapshot, scans, same_boot=same_boot)
        self._check_clock()
        for scan in scans:
            if scan.end.set_aside:
                shards = self._settings.wal_shards if snapshot is None else snapshot.shards
                note_used(self._state, scan, recorded_shards=shards, file_bytes=self._settings.wal_file_bytes)
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
        marks = self._finish(replay, scans, same_boot=same_boot) + self._fork()
        return self._open(snapshot, scans, repaired, marks, replay, is_new=is_new)

    def _boot_line(self) -> str:
        """What has to be the same for bytes that nobody synced to be there still: the kernel's life, and that of every
        file system that the directory lies on. Empty if one of them is not known."""
        mounts = {self._fs.mount_id(path) for path in self._data.mounted(self._fs)}
        boot_id = self._host.boot_id()
        return " ".join([boot_id, *sorted(mounts)]) if boot_id and all(mounts) else ""

    # --- steps 2 and 3: snapshot and groups -----------------------------------------------------------------------

    def _load_snapshot(self) -> Snapshot | None:
        loaded = self._snapshots.load()
        for rejected in loaded.rejected:
            log.warning("snapshot %s is passed over: %s", rejected.name, rejected.reason)
        return loaded.snapshot

    def _scan(self, snapshot: Snapshot | None) -> list[GroupScan]:
        scans = [self._scan_group(listing, snapshot) for listing in discover(self._fs, self._data)]
        scans += [self._scan_group(listing, snapshot) for listing in self._missing_groups(scans, snapshot)]
        for notice in (notice for scan in scans for notice in scan.notices):
            log.warning("%s", notice)
        if self._settings.wal_damage == "refuse":
            refuse_damage(scans)
        self._total_frames = max(1, sum(scan.total_frames for scan in scans))
        return scans

    def _scan_group(self, listing: GroupListing, snapshot: Snapshot | None) -> GroupScan:
        return scan_group(
            self._fs,
            listing,
            self._files,
            start=None if snapshot is None else positions_of(snapshot).get(listing.key),
            snapshot_gen=0 if snapshot is None else snapshot.gen,
            salvage=self._settings.salvage,
            unharmed=self._lock.same_boot(self._boot),
            left_over=snapshot is not None and listing.key not in group_keys(snapshot.shards),
        )

    def _missing_groups(self, scans: list[GroupScan], snapshot: Snapshot | None) -> list[GroupListing]:
        """Groups that the snapshot's layout has and the disk has not: their logs end before the recorded position. Once
        there is a newer layout, such a group may have gone because everything in it was absorbed."""
        if snapshot is None or any(found.gen > snapshot.gen for scan in scans for found in scan.layouts):
            return []
        there = {scan.key for scan in scans}
        missing = [key for key in group_keys(snapshot.shards) if key not in there and key in positions_of(snapshot)]
        return [list_group(self._fs, key, self._data.group(key), []) for key in missing]

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
        topics = () if snapshot is None else snapshot.topics
        self._attach = Attach(
            self._env,
            self._files,
            self._cold,
            marks=self._marks,
            items={item.id: item for item in topics},
            trust_totals=same_boot and snapshot is not None and snapshot.boot == self._boot,
            log_is_whole=not any(scan.end.set_aside for scan in scans),
        )
        if snapshot is not None:
            self._state.next_topic_id = max(self._state.next_topic_id, snapshot.next_topic_id)
            self._state.last_epoch = max(self._state.last_epoch, snapshot.last_epoch)
            self._clock.raise_to(snapshot.clock_ms)
            for item in topics:
                topic = topic_from_item(item)
                self._state.add(topic)
                self._attach(topic)
        self._adopted = self._adopt(snapshot, ordered)
        read = RecordReread(Fetcher(read_wal=self._files.pread, cold=self._cold_cache), self._attach.active_of)
        replay = Replay(self._state, created=self._attach, yield_gil=self._report, read=read)
        stored = () if snapshot is None else map(router_from_item, snapshot.routers)
        replay.prepare((scanned.columns for scanned in ordered), stored, self._marks.in_segments(topics))
        for scanned in ordered:
            replay.file(scanned.columns, buffer=scanned.buffer(), file=scanned.file.index)
            scanned.release()
        self._clock.raise_to(replay.highest_ts)
        return replay

    def _adopt(self, snapshot: Snapshot | None, ordered: list[ScannedFile]) -> list[TopicLog]:
        dirs = list_topic_dirs(self._fs, self._data.topics)
        # Whatever the log has lost, an id whose directory is there was given once, and is not given again.
        self._state.next_topic_id = max(self._state.next_topic_id, dirs.highest_id + 1)
        found = unexplained(
            dirs.ids,
            (scanned.columns for scanned in ordered),
            known_below=1 if snapshot is None else snapshot.next_topic_id,
            deleted=self._marks.deleted,
        )
        adopted = [adopt(self._state, topic_id, now_ms=self._clock.now_ms()) for topic_id in found]
        for topic in adopted:
            log.error("nothing describes topic %08X any more; what is there is kept as %r", topic.id, topic.name)
            self._attach.unknown.add(topic.id)
            self._attach(topic)
        return adopted

    def _begin_cold(self, snapshot: Snapshot | None) -> None:
        recorded = self._marks.cold_segments(() if snapshot is None else snapshot.topics)
        if self._cold is not None:
            salvaged = self._settings.salvage and snapshot is None and self._cold.has_owner()
            if salvaged:
                log.warning("nothing says whose segments %s holds; they are taken for ours", self._cold.label)
            self._cold.begin(None if snapshot is None else snapshot.instance, used=recorded > 0 or salvaged)
            if not self._cold.ours and recorded:
                log.error("%s; %d segments in it cannot be read", unavailable(self._cold), recorded)
        elif recorded:
            raise ColdStoreMismatch(
                f"{recorded} segments are in a cold store and TOPICS_COLD_DIR is not set; set it to where they are"
            )

    def _report(self, frames: int) -> None:
        self._done_frames += frames
        self._progress(min(self._done_frames / self._total_frames, 1.0))

    def _check_clock(self) -> None:
        behind_ms = self._clock.behind_ms()
        if behind_ms > CLOCK_BEHIND_MAX_MS:
            log.error(
                "the wall clock is %d hours behind the newest time stored in %s; time goes on from there, a "
                "little slower, until it has caught up. Set the clock",
                *(behind_ms // 3_600_000, self._data.root),
            )

    # --- step 7: settle -------------------------------------------------------------------------------------------

    def _finish(self, replay: Replay, scans: list[GroupScan], *, same_boot: bool) -> list[HeadMark]:
        replay.finish_unknown_topics()
        marks = replay.finish_routers()
        marks += replay.finish_holes()
        marks += replay.announce(announce_gaps(topic for topic in self._adopted if topic.id in self._state.by_id))
        behind = quarantined_ceilings(self._fs, self._data)
        self._state.next_topic_id = max([self._state.next_topic_id, *(topic_id + 1 for topic_id in behind)])
        set_aside = {topic_id for scan in scans for topic_id in scan.end.highest}
        marks += replay.finish_ceilings(same_boot=same_boot, behind=behind, set_aside=set_aside)
        marks += replay.finish_ephemeral()
        replay.router_recovery.finish_copies_to_restore()
        replay.finish_queues()
        for notice in replay.notices:
            log.warning("%s", notice)
        return marks

    def _fork(self) -> list[HeadMark]:
        """Of a copy, every topic goes on under an epoch of its own: whatever else is written elsewhere, under the old
        one, is not ours."""
        if not self._identity.is_copy:
            return []
        log.warning("%s is a copy, or was put back from one: its topics get new epochs", self._data.root)
        now, topics = self._clock.now_ms(), self._state.by_id.values()
        marks = [decide_fork(self._state, topic, now=now, chance=self._chance()) for topic in topics]
        for mark in marks:
            apply(self._state, mark)
        return marks

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
        settings, was_copy = self._settings, self._identity.is_copy
        if not settings.salvage:
            remove_temps(self._fs, [*log_dirs(self._fs, self._data), self._data.meta])
        known = None if snapshot is None else layout_of(snapshot)
        layout = newest_layout(scans, known, shards=settings.wal_shards)
        keeps_all = settings.salvage or snapshot is None or any(scan.end.kind == "damage" for scan in scans)
        retired = retire_dirs(self._env, self._state, forsaken=self._attach.forsaken, keeps_all=keeps_all)
        by_key = {scan.key: scan for scan in scans}
        groups = [
            self._open_group(key, by_key.get(key), repaired.get(key), layout) for key in group_keys(layout.shards)
        ]
        store = self._store(snapshot, scans, groups, layout)
        if is_new:
            name_store(store, now_ms=self._clock.now_ms())
        # The lock's text vouches for what was written under it, so the ceilings must be synced before it does.
        floors = floors_of(self._state, self._attach.forsaken)
        store.owes_marks = not log_marks(groups, [*marks, *floors], now_ms=self._clock.now_ms())
        flag_again(self._state, store)
        if not store.owes_marks:
            self._write_identity(groups)
        self._lock.claim(store.boot, vouches=not store.owes_marks)
        self._progress(1.0)
        return Recovered(
            state=self._state,
            store=store,
            clock=self._clock,
            chance=self._chance,
            replayed_frames=self._done_frames,
            lost_seqs=replay.lost_seqs,
            truncated_bytes=sum(scan.end.cut_bytes for scan in scans),
            damage=sum(scan.end.kind == "damage" for scan in scans),
            wants_snapshot=not is_new
            and (
                snapshot is None
                or was_copy
                or layout != known
                or any(scan.beyond for scan in scans)
                or store.owes_marks
                or bool(self._adopted)
            ),
            retired=retired,
            has_snapshot=is_new or snapshot is not None,
        )

    def _write_identity(self, groups: list[WalGroup]) -> None:
        """Without space for it the directory is judged by the next start as it was by this one."""
        logs = [LogFile.of(group.key, group.position.file) for group in groups if group.active is not None]
        try:
            self._identity.settle(self._new_instance(), logs)
        except OSError as error:
            log.warning("%s could not be written: %s", self._data.identity, error.strerror or error)

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
        repair = Repair(self._files)
        store = Store(
            fs=self._fs,
            data=self._data,
            lock=self._lock,
            files=self._files,
            groups=groups,
            layout=layout,
            snapshots=self._snapshots,
            env=self._env,
            flips=DeleteFlags(self._env),
            fetcher=Fetcher(read_wal=self._files.pread, repair=repair.hot),
            cold_fetcher=Fetcher(read_wal=self._files.pread, cold=self._cold_cache, repair=repair.any),
            instance=self._instance(snapshot),
            boot=self._boot_line(),
            cold=self._cold,
            next_ckpt=max(self._marks.next_ckpt, 1 if snapshot is None else snapshot.next_ckpt),
            leftovers={scan.key: _end_of(scan) for scan in scans if scan.key not in ours},
        )
        if self._cold is not None:
            self._cold.open(store.instance)
        for topic_id, loaded in self._attach.loaded.items():
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


def _in_replay_order(scans: list[GroupScan]) -> list[ScannedFile]:
    """All generation 1, then all of 2, and so on; inside a group the files keep their order."""
    files = [(scanned.gen, scan.key, at, scanned) for scan in scans for at, scanned in enumerate(scan.files)]
    return [scanned for _, _, _, scanned in sorted(files, key=lambda entry: entry[:3])]


def _end_of(scan: GroupScan) -> LogPosition:
    return scan.position


def unavailable(cold: ColdTier) -> str:
    return f"the cold store {cold.label} is unavailable: {cold.reason}"
