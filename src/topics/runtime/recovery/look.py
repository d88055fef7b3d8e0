"""Look: what a data directory holds, read and judged as a start would, and not changed (`docs/spec/storage.md#sec-9-1`,
steps 2 to 5, and of step 7 what happens in memory).

`look` is given a file system that cannot write. `Looked` is the state that a start would serve, and what has to be
written before it may be: ends of logs to cut, files to repair, losses to log. `recover` goes on from there; readers
without the lock (Spark's directory mode, `topics verify`, `topics inspect`) stop here.

Always holds: an I/O error stops the look; it is never read as "absent" or "torn"."""

from __future__ import annotations

import logging
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Protocol

from topics.clock import EngineClock
from topics.config import Settings
from topics.core.state import State
from topics.core.topic import TopicLog
from topics.engine.recovery.replay import Replay
from topics.errors import MetadataLost
from topics.formats.file_names import group_keys
from topics.formats.snapshot import Snapshot, TopicItem
from topics.formats.wal.bodies import RouterCreate, TopicCreateBody
from topics.model.ops import HeadMark
from topics.runtime.recovery.attach import Attach, Marks, RecordReread
from topics.runtime.recovery.images import router_from_item, topic_from_item
from topics.runtime.recovery.salvage import adopt, announce_gaps, note_used, unexplained
from topics.storage.data_dir import DataDir
from topics.storage.fetch import Fetcher
from topics.storage.fs import ReadFs
from topics.storage.osfs import RetryingFs
from topics.storage.segments.replace import TopicDirs, list_topic_dirs
from topics.storage.segments.topic_dir import SegmentEnv
from topics.storage.snapshots import LoadedSnapshot, load_snapshot, positions_of
from topics.storage.tiers.cold_cache import ColdCache
from topics.storage.tiers.stores import SegmentStore
from topics.storage.wal.file_removal import Positions
from topics.storage.wal.file_scan import GroupScan, ScannedFile, complete_from_first, scan_group
from topics.storage.wal.group_scan import GroupListing, discover, list_group
from topics.storage.wal.log_repair import quarantined_ceilings, refuse_damage
from topics.storage.wal.wal_files import WalFiles

log = logging.getLogger("topics.recovery")

Progress = Callable[[float], None]
Wanted = Callable[[str], bool]
"""Whether a reader wants a topic, by its name."""


class ColdStores(Protocol):
    """The cold tier, as far as a look needs it."""

    def begin(self, snapshot: Snapshot | None, *, recorded: int) -> None:
        """So many segments are recorded in the cold tier; an error if they cannot be had there."""

    def store(self, topic_id: int) -> SegmentStore | None: ...


@dataclass(slots=True)
class Looked:
    """A directory as it was found. `marks` are the losses that a start logs."""

    data: DataDir
    files: WalFiles
    env: SegmentEnv
    state: State
    cold_cache: ColdCache
    loaded: LoadedSnapshot
    snapshot: Snapshot | None
    scans: list[GroupScan]
    attach: Attach
    replay: Replay
    topic_dirs: TopicDirs
    adopted: list[TopicLog] = field(default_factory=list)
    marks: list[HeadMark] = field(default_factory=list)
    set_aside: set[int] = field(default_factory=set)
    """Ids of topics that log bytes behind a damaged place may have held."""
    replayed_frames: int = 0

    @property
    def is_damaged(self) -> bool:
        """Whether valid frames lie behind a place that cannot be read."""
        return any(scan.end.set_aside for scan in self.scans)

    def item(self, topic_id: int) -> TopicItem | None:
        """What the snapshot says of a topic."""
        return self.attach.items.get(topic_id)

    def close(self) -> None:
        self.files.close()
        self.env.close()


class Look:
    """One look. `wanted` is given by readers: it leaves all other topics out, and the log may be in use meanwhile."""

    def __init__(
        self,
        fs: ReadFs,
        settings: Settings,
        *,
        clock: EngineClock,
        cold: ColdStores,
        boot: str = "",
        same_boot: bool = True,
        progress: Progress = lambda _: None,
        wanted: Wanted | None = None,
    ) -> None:
        self._fs = fs
        self._settings = settings
        self._clock = clock
        self._cold = cold
        self._boot = boot
        self._same_boot = same_boot
        self._progress = progress
        self._wanted = wanted
        self._tolerant = settings.salvage or wanted is not None
        self._data = DataDir(settings.data_dir)
        self._files = WalFiles()
        self._total_frames = 1
        self._done_frames = 0

    def run(self) -> Looked:
        try:
            return self._look()
        except BaseException:
            self._files.close()
            raise

    def _look(self) -> Looked:
        loaded = load_snapshot(self._fs, self._data.meta)
        for rejected in loaded.rejected:
            self._tell(f"snapshot {rejected.name} is passed over: {rejected.reason}")
        scans = self._scan(loaded.snapshot)
        self._check_complete(loaded.snapshot, scans)
        damaged = [scan for scan in scans if scan.end.set_aside]
        looked = self._begin(loaded, scans, log_is_whole=not damaged)
        self._replay(looked)
        for scan in damaged:
            shards = self._settings.wal_shards if loaded.snapshot is None else loaded.snapshot.shards
            note_used(looked.state, scan, recorded_shards=shards, file_bytes=self._settings.wal_file_bytes)
        self._finish(looked)
        looked.replayed_frames = self._done_frames
        return looked

    def _tell(self, sentence: str, level: int = logging.WARNING) -> None:
        """Readers keep it to themselves: what they see half done is the work of a server, and no news."""
        if self._wanted is None:
            log.log(level, "%s", sentence)

    # --- step 3: groups -------------------------------------------------------------------------------------------

    def _scan(self, snapshot: Snapshot | None) -> list[GroupScan]:
        positions = {} if snapshot is None else positions_of(snapshot)
        written = positions.keys() if snapshot is None else set(group_keys(snapshot.shards))
        scans = [self._scan_group(listing, snapshot, positions, written) for listing in discover(self._fs, self._data)]
        missing = written & positions.keys() - {scan.key for scan in scans}
        if snapshot is not None and not any(found.gen > snapshot.gen for scan in scans for found in scan.layouts):
            # The log of a group that is gone ends before its recorded position. Under a newer layout the group may have
            # gone because everything in it was absorbed.
            listings = [list_group(self._fs, key, self._data.group(key), []) for key in sorted(missing)]
            scans += [self._scan_group(listing, snapshot, positions, written) for listing in listings]
        for notice in (notice for scan in scans for notice in scan.notices):
            self._tell(notice)
        if self._settings.wal_damage == "refuse":
            refuse_damage(scans)
        self._total_frames = max(1, sum(len(scanned.columns.offset) for scan in scans for scanned in scan.files))
        return scans

    def _scan_group(
        self, listing: GroupListing, snapshot: Snapshot | None, positions: Positions, written: Set[str]
    ) -> GroupScan:
        """`written` are the groups of the snapshot's layout."""
        return scan_group(
            self._fs,
            listing,
            self._files,
            start=positions.get(listing.key),
            snapshot_gen=0 if snapshot is None else snapshot.gen,
            salvage=self._tolerant,
            unharmed=self._same_boot and self._wanted is None,  # a server may be writing while a reader looks
            left_over=snapshot is not None and listing.key not in written,
        )

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
        dirs = list_topic_dirs(self._fs, self._data.topics).ids
        if any(found not in created for found in dirs) or not complete_from_first(scans):
            raise MetadataLost(
                f"{self._data.meta} holds no valid snapshot and the log does not reach back to its beginning. "
                "Restore the directory from a backup, or start once with TOPICS_SALVAGE=1 to keep what can be read"
            )

    # --- steps 4 and 5: segments and replay -----------------------------------------------------------------------

    def _begin(self, loaded: LoadedSnapshot, scans: list[GroupScan], *, log_is_whole: bool) -> Looked:
        """Everything that a replay needs, with the topics of the snapshot and their segments."""
        settings, snapshot = self._settings, loaded.snapshot
        env = SegmentEnv(
            self._fs, self._data.topics, index_cache_bytes=settings.index_cache_bytes, keeps_all=settings.salvage
        )
        if isinstance(self._fs, RetryingFs):
            self._fs.make_room = env.make_room
        marks = Marks()
        for scanned in _in_replay_order(scans):
            marks.note(scanned.columns)
        topics = () if snapshot is None else snapshot.topics
        self._cold.begin(snapshot, recorded=marks.cold_segments(topics))
        state = State(recent_bytes=settings.recent_cache_bytes)
        attach = Attach(
            env,
            self._files,
            self._cold.store,
            marks=marks,
            items={item.id: item for item in topics},
            trust_totals=self._wanted is not None
            or (self._same_boot and snapshot is not None and snapshot.boot == self._boot),
            log_is_whole=log_is_whole,
            tell=self._tell,
        )
        cache = ColdCache(settings.cold_cache_bytes)
        read = RecordReread(Fetcher(read_wal=self._files.pread, cold=cache), attach.active_of)
        skipped = self._skipped(snapshot, scans)
        if snapshot is not None:
            state.next_topic_id = max(state.next_topic_id, snapshot.next_topic_id)
            state.last_epoch = max(state.last_epoch, snapshot.last_epoch)
            self._clock.raise_to(snapshot.clock_ms)
            for item in topics:
                if item.id not in skipped:
                    topic = topic_from_item(item)
                    state.add(topic)
                    attach(topic)
        dirs = list_topic_dirs(self._fs, self._data.topics) if self._wanted is None else TopicDirs()
        adopted = self._adopt(state, snapshot, scans, attach, dirs) if self._wanted is None else []
        return Looked(
            data=self._data,
            files=self._files,
            env=env,
            state=state,
            cold_cache=cache,
            loaded=loaded,
            snapshot=snapshot,
            scans=scans,
            attach=attach,
            replay=Replay(state, created=attach, progress=self._report, read=read, skipped=skipped),
            topic_dirs=dirs,
            adopted=adopted,
        )

    def _skipped(self, snapshot: Snapshot | None, scans: list[GroupScan]) -> frozenset[int]:
        """Topics that nobody wants, unless routers feed a wanted one from them: copies are made again from there."""
        if self._wanted is None:
            return frozenset()
        names: dict[int, str] = {}
        sources: dict[int, set[int]] = {}
        if snapshot is not None:
            names = {item.id: item.name for item in snapshot.topics}
            for router in snapshot.routers:
                sources.setdefault(router.dest_id, set()).add(router.source_id)
        for columns in (scanned.columns for scan in scans for scanned in scan.files):
            for row, body in columns.bodies.items():
                if isinstance(body, TopicCreateBody):
                    names[int(columns.topic_id[row])] = body.name
                elif isinstance(body, RouterCreate):
                    sources.setdefault(body.dest_id, set()).add(body.source_id)
        kept: set[int] = set()
        found = {topic_id for topic_id, name in names.items() if self._wanted(name)}
        while found:
            kept |= found
            found = {source for dest in found for source in sources.get(dest, ())} - kept
        return frozenset(names.keys() - kept)

    def _replay(self, looked: Looked) -> None:
        snapshot, replay = looked.snapshot, looked.replay
        ordered = _in_replay_order(looked.scans)
        topics = () if snapshot is None else snapshot.topics
        stored = () if snapshot is None else map(router_from_item, snapshot.routers)
        replay.prepare([scanned.columns for scanned in ordered], stored, looked.attach.marks.in_segments(topics))
        for scanned in ordered:
            replay.file(scanned.columns, buffer=scanned.buffer(), file=scanned.file.index)
            scanned.release()
        self._clock.raise_to(replay.highest_ts)

    def _adopt(
        self, state: State, snapshot: Snapshot | None, scans: list[GroupScan], attach: Attach, dirs: TopicDirs
    ) -> list[TopicLog]:
        """Topics for records that nothing describes any more."""
        # Whatever the log has lost, an id whose directory is there was given once, and is not given again.
        state.next_topic_id = max(state.next_topic_id, dirs.highest_id + 1)
        found = unexplained(
            dirs.ids,
            [scanned.columns for scanned in _in_replay_order(scans)],
            known_below=1 if snapshot is None else snapshot.next_topic_id,
            deleted=attach.marks.deleted,
        )
        adopted = [adopt(state, topic_id, now_ms=self._clock.now_ms()) for topic_id in found]
        for topic in adopted:
            log.error("nothing describes topic %08X any more; what is there is kept as %r", topic.id, topic.name)
            attach.unknown.add(topic.id)
            attach(topic)
        return adopted

    def _report(self, frames: int) -> None:
        self._done_frames += frames
        self._progress(min(self._done_frames / self._total_frames, 1.0))

    # --- step 7: what follows of it -------------------------------------------------------------------------------

    def _finish(self, looked: Looked) -> None:
        """Copies that routers had made, holes and ceilings, in memory. The losses are collected in `marks`."""
        replay, state = looked.replay, looked.state
        replay.finish_unknown_topics()
        marks = replay.finish_routers()
        marks += replay.finish_holes()
        marks += replay.announce(announce_gaps(topic for topic in looked.adopted if topic.id in state.by_id))
        behind, set_aside = quarantined_ceilings(self._fs, self._data), set[int]()
        for highest in (scan.end.highest for scan in looked.scans):
            set_aside |= highest.keys()
            behind |= {topic_id: max(seq, behind.get(topic_id, 0)) for topic_id, seq in highest.items()}
        state.next_topic_id = max([state.next_topic_id, *(topic_id + 1 for topic_id in behind)])
        marks += replay.finish_ceilings(same_boot=self._same_boot, behind=behind, set_aside=set_aside)
        marks += replay.finish_ephemeral()
        replay.router_recovery.finish_copies_to_restore()
        replay.finish_queues()
        for notice in replay.notices:
            self._tell(notice)
        looked.marks, looked.set_aside = marks, set_aside


def _in_replay_order(scans: list[GroupScan]) -> list[ScannedFile]:
    """All generation 1, then all of 2, and so on; inside a group the files keep their order."""
    files = [(scanned.gen, scan.key, at, scanned) for scan in scans for at, scanned in enumerate(scan.files)]
    return [scanned for _, _, _, scanned in sorted(files, key=lambda entry: entry[:3])]
