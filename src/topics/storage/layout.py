"""DataDir: the paths below a data directory (storage.md section 2.1).

Knows where things lie and makes the directories that are missing; opens no file. Every other part of storage asks it
for paths, so that the tree is drawn once.
"""

from __future__ import annotations

from topics.formats import names
from topics.storage.fs import Fs, make_dirs, parent


class DataDir:
    """A data directory at `root`."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/") or "/"
        self.lock = f"{self.root}/{names.LOCK}"
        self.identity = f"{self.root}/{names.IDENTITY}"
        self.identity_place = f"{self.root}/{names.IDENTITY_PLACE}"
        self.meta = f"{self.root}/{names.META_DIR}"
        self.wal = f"{self.root}/{names.WAL_DIR}"
        self.topics = f"{self.root}/{names.TOPICS_DIR}"

    def group(self, key: str) -> str:
        """The directory of a WAL group; the flat group lies in `wal/` itself."""
        return self.wal if key == names.FLAT_GROUP else f"{self.wal}/{key}"

    def quarantine(self, key: str) -> str:
        """Where bytes cut off from a group go."""
        return f"{self.wal}/{names.QUARANTINE_DIR}/{names.quarantine_group_name(key)}"

    def topic(self, topic_id: int) -> str:
        return f"{self.topics}/{names.topic_dir_name(topic_id)}"

    def make_root(self, fs: Fs) -> None:
        """The directory itself, so that the lock can be taken."""
        make_dirs(fs, self.root)
        try:
            fs.sync_dir(parent(self.root))
        except PermissionError:
            pass  # a directory above that we may not open was not made by us

    def make_missing(self, fs: Fs) -> None:
        """The directories below the root; to be called with the lock held.

        Synced also when all are there: a process that was killed may have made them, and nothing below them is durable
        before they are."""
        for path in (self.meta, self.wal, self.topics):
            make_dirs(fs, path)
        fs.sync_dir(self.root)

    def mounted(self, fs: Fs) -> list[str]:
        """The directories that may lie on file systems of their own, as far as they are there."""
        shards = [f"{self.wal}/{name}" for name in (fs.listdir(self.wal) if fs.is_dir(self.wal) else [])]
        return [self.root, *filter(fs.is_dir, (self.meta, self.wal, self.topics, *shards))]

    def is_new(self, fs: Fs) -> bool:
        """Whether nothing was ever stored here: no entry below `meta/`, `wal/` and `topics/`."""
        return not any(fs.is_dir(path) and fs.listdir(path) for path in (self.meta, self.wal, self.topics))


def group_keys(shards: int) -> list[str]:
    """Group keys of a layout, by shard index."""
    return [names.FLAT_GROUP] if shards == 1 else [names.shard_name(shard) for shard in range(shards)]
