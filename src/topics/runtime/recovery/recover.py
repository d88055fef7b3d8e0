"""Recovery: a data directory becomes an engine's state, step by step as `docs/spec/storage.md#sec-9-1` has them.

    Recovery      takes the lock, looks (`look`), then opens what was found
    log_marks     logs what was declared lost, so that the next start says the same
    flag_again    sets the flags of deletes that may not have reached the disk
    retire_dirs   takes away the directories of topics that are gone
    name_store    installs the first snapshot of a new directory
    Repair        looks for a stored frame that turns out damaged later

Always holds: nothing but the lock and missing directories is written before `look` has returned; what will be served
is synced first; running it again on its own result changes nothing. The marks are synced before the lock's text vouches
for anything. If there was no space for them it does not vouch, until a snapshot has what they would have said
(`Store.owes_marks`)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from topics.clock import EngineClock, Host
from topics.config import Settings
from topics.core.apply import apply
from topics.core.capture import dead_ranges
from topics.core.lineage import decide_fork
from topics.core.retention.rules import floors_op
from topics.core.slots.checkpoint import flagged
from topics.core.state import State
from topics.engine.writing.encode import submission
from topics.errors import ColdStoreMismatch, CommitFailed, StartRefused
from topics.formats.file_names import group_keys, shard_of
from topics.formats.snapshot import GroupPosition, Snapshot
from topics.model.ops import Evict, HeadMark
from topics.runtime.recovery.look import Look, Looked, Progress
from topics.runtime.store import Store, TopicFiles
from topics.storage.data_dir import DataDir, DataDirLock, Identity
from topics.storage.fetch import Fetcher
from topics.storage.fs import Fs
from topics.storage.segments.flips import DeleteFlags
from topics.storage.segments.loading.segment_repair import repair_segment
from topics.storage.segments.replace import TopicDirs, retire_topic_dir
from topics.storage.segments.sealed_segment import SealedSegment
from topics.storage.segments.topic_dir import SegmentEnv
from topics.storage.snapshots import SnapshotStore, layout_of
from topics.storage.tiers.cold_tier import ColdRoot, ColdTier, open_cold_root
from topics.storage.tiers.stores import SegmentStore
from topics.storage.wal.file_scan import GroupScan, newest_layout
from topics.storage.wal.group import WalGroup
from topics.storage.wal.log_repair import Repaired, log_dirs, open_group, remove_temps, repair_group
from topics.storage.wal.lookup import find_in_wal
from topics.storage.wal.rotation import Layout
from topics.storage.wal.sync_failure import SyncFailureLatch
from topics.storage.wal.wal_files import WalFiles

log = logging.getLogger("topics.recovery")

CLOCK_BEHIND_MAX_MS: Final = 24 * 3_600_000
"""A wall clock further behind than this is no matter of summer time or drift."""

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


class StartCold:
    """The cold tier of a start, or None; see `look.ColdStores`."""

    def __init__(self, tier: ColdTier | None, *, salvage: bool) -> None:
        self.tier = tier
        self._salvage = salvage

    def begin(self, snapshot: Snapshot | None, *, recorded: int) -> None:
        tier = self.tier
        if tier is not None:
            salvaged = self._salvage and snapshot is None and tier.has_owner()
            if salvaged:
                log.warning("nothing says whose segments %s holds; they are taken for ours", tier.label)
            tier.begin(None if snapshot is None else snapshot.instance, used=recorded > 0 or salvaged)
            if not tier.ours and recorded:
                log.error("%s; %d segments in it cannot be read", unavailable(tier), recorded)
        elif recorded:
            raise ColdStoreMismatch(
                f"{recorded} segments are in a cold store and TOPICS_COLD_DIR is not set; set it to where they are"
            )

    def store(self, topic_id: int) -> SegmentStore | None:
        return None if self.tier is None else self.tier.store(topic_id)


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

    def run(self) -> Recovered:
        try:
            self._data.make_root(self._fs)
            self._lock = DataDirLock.take(self._fs, self._data.lock, pid=self._pid)
        except OSError as error:
            reason = error.strerror or error
            raise StartRefused(f"{self._data.root} cannot be used as the data directory: {reason}") from error
        try:
            return self._recover()
        except BaseException:
            self._lock.close()
            raise

    def _recover(self) -> Recovered:
        is_new = self._data.is_new(self._fs)
        self._boot = self._boot_line()
        self._data.make_missing(self._fs)
        self._identity = Identity(self._fs, self._data)
        looked = Look(
            self._fs,
            self._settings,
            clock=self._clock,
            cold=StartCold(self._cold, salvage=self._settings.salvage),
            boot=self._boot,
            same_boot=self._lock.same_boot(self._boot),
            progress=self._progress,
        ).run()
        try:
            return self._open(looked, is_new=is_new)
        except BaseException:
            looked.files.close()
            raise

    def _boot_line(self) -> str:
        """What has to be the same for bytes that nobody synced to be there still: the kernel's life, and that of every
        file system that the directory lies on. Empty if one of them is not known."""
        mounts = self._data.mount_ids(self._fs)
        boot_id = self._host.boot_id()
        return " ".join([boot_id, *sorted(mounts)]) if boot_id and all(mounts) else ""

    def _check_clock(self) -> None:
        behind_ms = self._clock.behind_ms()
        if behind_ms > CLOCK_BEHIND_MAX_MS:
            log.error(
                "the wall clock is %d hours behind the newest time stored in %s; time goes on from there, a "
                "little slower, until it has caught up. Set the clock",
                *(behind_ms // 3_600_000, self._data.root),
            )

    # --- steps 6 to 8: from here on the directory is accepted, and writing begins ----------------------------------

    def _open(self, looked: Looked, *, is_new: bool) -> Recovered:
        fs, settings, state, scans = self._fs, self._settings, looked.state, looked.scans
        self._check_clock()
        if self._cold is not None:
            self._cold.probe_unclaimed()
        repaired = self._repair(looked)
        looked.env.allow_writes(fs)
        was_copy = self._identity.is_copy
        marks = looked.marks + self._fork(state)
        if not settings.salvage:
            remove_temps(fs, [*log_dirs(fs, self._data), self._data.meta])
        known = None if looked.snapshot is None else layout_of(looked.snapshot)
        layout = newest_layout(scans, known, shards=settings.wal_shards)
        is_damaged = any(scan.end.kind == "damage" for scan in scans)
        keeps_all = settings.salvage or looked.snapshot is None or is_damaged
        retired = retire_dirs(
            looked.env, state, looked.topic_dirs, forsaken=looked.attach.forsaken, keeps_all=keeps_all
        )
        store = self._store(looked, repaired, layout)
        if is_new:
            name_store(store, now_ms=self._clock.now_ms())
        # The lock's text vouches for what was written under it, so the ceilings must be synced before it does.
        floors = floors_of(state, looked.attach.forsaken)
        store.owes_marks = not log_marks(store.groups, [*marks, *floors], now_ms=self._clock.now_ms())
        flag_again(state, store)
        if not store.owes_marks:
            self._write_identity(store.groups)
        self._lock.claim(store.boot, vouches=not store.owes_marks)
        self._progress(1.0)
        snapshot_is_old = (
            looked.snapshot is None
            or was_copy
            or layout != known
            or any(scan.beyond for scan in scans)
            or store.owes_marks
            or bool(looked.adopted)
        )
        return Recovered(
            state=state,
            store=store,
            clock=self._clock,
            chance=self._chance,
            replayed_frames=looked.replayed_frames,
            lost_seqs=looked.replay.lost_seqs,
            truncated_bytes=sum(scan.end.cut_bytes for scan in scans),
            damage=sum(scan.end.kind == "damage" for scan in scans),
            wants_snapshot=not is_new and snapshot_is_old,
            retired=retired,
            has_snapshot=is_new or looked.snapshot is not None,
        )

    def _repair(self, looked: Looked) -> dict[str, Repaired]:
        return {
            scan.key: repair_group(
                self._fs,
                self._data,
                scan,
                looked.files,
                file_bytes=self._settings.wal_file_bytes,
                anew=self._lock.old_boot is None,
            )
            for scan in looked.scans
        }

    def _fork(self, state: State) -> list[HeadMark]:
        """Of a copy, every topic goes on under an epoch of its own: whatever else is written elsewhere, under the old
        one, is not ours."""
        if not self._identity.is_copy:
            return []
        log.warning("%s is a copy, or was put back from one: its topics get new epochs", self._data.root)
        now, topics = self._clock.now_ms(), state.by_id.values()
        marks = [decide_fork(state, topic, now=now, chance=self._chance()) for topic in topics]
        for mark in marks:
            apply(state, mark)
        return marks

    def _write_identity(self, groups: list[WalGroup]) -> None:
        """Without space for it the directory is judged by the next start as it was by this one."""
        files = [group.active for group in groups if group.active is not None]
        logs = [file.path.removeprefix(f"{self._data.root}/") for file in files]
        try:
            self._identity.write(self._new_instance(), logs)
        except OSError as error:
            log.warning("%s could not be written: %s", self._data.identity, error.strerror or error)

    def _store(self, looked: Looked, repaired: dict[str, Repaired], layout: Layout) -> Store:
        snapshots = SnapshotStore(self._fs, self._data.meta)
        snapshots.resume(looked.loaded)
        groups = self._groups(looked, repaired, layout, snapshots)
        ours = {group.key for group in groups}
        files, repair = looked.files, Repair(looked.files)
        store = Store(
            fs=self._fs,
            data=self._data,
            lock=self._lock,
            files=files,
            groups=groups,
            layout=layout,
            snapshots=snapshots,
            env=looked.env,
            flips=DeleteFlags(looked.env),
            fetcher=Fetcher(read_wal=files.pread, repair=repair.hot),
            cold_fetcher=Fetcher(read_wal=files.pread, cold=looked.cold_cache, repair=repair.any),
            instance=self._instance(looked.snapshot),
            boot=self._boot,
            cold=self._cold,
            next_ckpt=max(looked.attach.marks.next_ckpt, 1 if looked.snapshot is None else looked.snapshot.next_ckpt),
            leftovers={scan.key: scan.position for scan in looked.scans if scan.key not in ours},
        )
        if self._cold is not None:
            self._cold.open(store.instance)
        for topic_id, loaded in looked.attach.loaded.items():
            if topic_id in looked.state.by_id:
                active = None if loaded.active is None else loaded.active.segment
                store.topics[topic_id] = TopicFiles(loaded.place, active)
        return store

    def _groups(
        self, looked: Looked, repaired: dict[str, Repaired], layout: Layout, snapshots: SnapshotStore
    ) -> list[WalGroup]:
        by_key: dict[str, GroupScan] = {scan.key: scan for scan in looked.scans}
        kept, clock = snapshots.kept(), self._clock.source
        sync_failed = SyncFailureLatch(self._lock.mark_boot_unknown)
        groups = [
            open_group(
                self._fs,
                self._data,
                key,
                scan=by_key.get(key),
                repaired=repaired.get(key),
                layout=layout,
                files=looked.files,
                file_bytes=self._settings.wal_file_bytes,
                clock=clock,
                sync_failed=sync_failed,
                recorded=max((positions[key].file for positions in kept if key in positions), default=0),
            )
            for key in group_keys(layout.shards)
        ]
        for group in groups:
            sync_failed.watch(group)
        return groups

    def _instance(self, snapshot: Snapshot | None) -> str:
        """Without a snapshot, the name under which our segments lie in the cold store, if there are any."""
        if snapshot is not None:
            return snapshot.instance
        known = None if self._cold is None else self._cold.instance
        return known or self._new_instance()


def unavailable(cold: ColdTier) -> str:
    return f"the cold store {cold.label} is unavailable: {cold.reason}"


# --- what a start writes before anyone is served ----------------------------------------------------------------------


def log_marks(groups: list[WalGroup], marks: Sequence[HeadMark | Evict], *, now_ms: int) -> bool:
    """What was declared lost is synced before anyone is served. False if some of it is not: a group has no space, and
    reads must work all the same."""
    logged = True
    for index, group in enumerate(groups):
        mine = [mark for mark in marks if shard_of(mark.topic_id, len(groups)) == index]
        if mine:
            logged = _log_in(group, mine, now_ms=now_ms) and logged
    return logged


def _log_in(group: WalGroup, marks: Sequence[HeadMark | Evict], *, now_ms: int) -> bool:
    try:
        group.write(
            [
                submission([mark], None, topic_id=mark.topic_id, ts=now_ms, durable=True, client_frames=0)
                for mark in marks
            ]
        )
    except CommitFailed:
        if group.read_only != "no_space":
            raise
        return False
    group.sync()
    return True


def flag_again(state: State, store: Store) -> None:
    """Deletes whose flags are not known to be on disk get them now, so that another start finds nothing to do."""
    for topic_id, files in store.topics.items():
        topic = state.by_id[topic_id]
        for segment in topic.sealed:
            if segment.view.tier == "hot" and len(segment.unflagged()):
                store.flips.flip(segment.view, segment.unflagged())  # type: ignore[arg-type]
        if files.active is not None:
            first, end = files.active.first_seq, files.active.next_seq
            dead = [seq for lo, hi in dead_ranges(topic) for seq in range(max(lo, first), min(hi + 1, end))]
            store.flips.flip(files.active, [seq - first for seq in dead])
    for done in store.flips.sync() if len(store.flips) else ():
        flagged(state.by_id[done.topic_id], done.first_seq)


def floors_of(state: State, forsaken: Iterable[int]) -> list[Evict]:
    """Floors behind which a later start misses no segment, for topics whose directory is taken away."""
    topics = (state.by_id.get(topic_id) for topic_id in sorted(forsaken))
    return [floors_op(topic) for topic in topics if topic is not None and topic.head]


def retire_dirs(
    env: SegmentEnv, state: State, found: TopicDirs, *, forsaken: Collection[int], keeps_all: bool
) -> list[str]:
    """Directories of topics that are gone or want theirs no more, to be removed. After damage, or in a salvage run,
    all others stay."""
    if keeps_all:
        return found.deleted
    orphans = [topic_id for topic_id in found.ids if topic_id not in state.by_id and topic_id < state.next_topic_id]
    orphans += [topic_id for topic_id in found.ids if topic_id in state.by_id and topic_id in forsaken]
    retired = [retire_topic_dir(env, topic_id) for topic_id in orphans]
    return [*found.deleted, *(name for name in retired if name is not None)]


def name_store(store: Store, *, now_ms: int) -> None:
    """Snapshot 1, before the first write: from here on a log that ends early is damage and not a missing beginning."""
    store.snapshots.install(
        Snapshot(
            id=store.snapshots.next_number,
            instance=store.instance,
            boot=store.boot,
            clock_ms=now_ms,
            ts=now_ms,
            clean=False,
            gen=store.layout.gen,
            shards=store.layout.shards,
            next_topic_id=1,
            next_ckpt=store.next_ckpt,
            groups=tuple(
                GroupPosition(key=group.key, file=group.position.file, off=group.position.off) for group in store.groups
            ),
            topics=(),
            routers=(),
        )
    )


class Repair:
    """A stored frame turned out damaged: the log or the other tier may still have it."""

    def __init__(self, files: WalFiles) -> None:
        self._files = files

    def any(self, segment: SealedSegment, slots: Sequence[int]) -> bool:
        return repair_segment(segment, partial(find_in_wal, self._files), slots)

    def hot(self, segment: SealedSegment, slots: Sequence[int]) -> bool:
        """As `any`, on a pool that must not wait for the cold store."""
        return segment.place.cold is None and self.any(segment, slots)
