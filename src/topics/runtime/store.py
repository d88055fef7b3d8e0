"""Store: everything of a data directory that is open at run time; who is who, no behaviour of its own.

Made by recovery, taken apart by `close`. `topics` maps a topic id to its directory and active segment; the sealed
segments hang in the engine's state, because that is who decides about them."""

from __future__ import annotations

from dataclasses import dataclass, field

from topics.storage.data_dir import DataDir, DataDirLock
from topics.storage.fetch import Fetcher
from topics.storage.fs import Fs
from topics.storage.segments.active_segment import ActiveSegment
from topics.storage.segments.flips import DeleteFlags
from topics.storage.segments.topic_dir import SegmentEnv, TopicDir
from topics.storage.snapshots import SnapshotStore
from topics.storage.tiers.cold_tier import ColdTier
from topics.storage.wal.group import WalGroup
from topics.storage.wal.rotation import Layout
from topics.storage.wal.wal_files import LogPosition, WalFiles


@dataclass(slots=True)
class TopicFiles:
    place: TopicDir
    active: ActiveSegment | None = None


@dataclass(slots=True)
class Store:
    fs: Fs
    data: DataDir
    lock: DataDirLock
    files: WalFiles
    groups: list[WalGroup]
    layout: Layout
    snapshots: SnapshotStore
    env: SegmentEnv
    flips: DeleteFlags
    fetcher: Fetcher
    """For pools that must not wait for the cold store."""
    cold_fetcher: Fetcher
    instance: str
    boot: str = ""
    next_ckpt: int = 1
    cold: ColdTier | None = None
    leftovers: dict[str, LogPosition] = field(default_factory=dict)
    """Groups of earlier layouts that are still on disk, and where their logs end."""
    topics: dict[int, TopicFiles] = field(default_factory=dict)
    owes_marks: bool = False
    """What this start declared lost is in no log, for want of space; until it is stored, the lock does not vouch."""

    def files_of(self, topic_id: int, *, name: str) -> TopicFiles:
        """The topic's place, named when it is first asked for; no directory is made yet."""
        found = self.topics.get(topic_id)
        if found is None:
            cold = None if self.cold is None else self.cold.store(topic_id)
            found = self.topics[topic_id] = TopicFiles(TopicDir(self.env, topic_id, name=name, cold=cold))
        return found

    def close(self) -> None:
        for group in self.groups:
            group.close()
        self.files.close()
        self.env.close()
        self.lock.close()
