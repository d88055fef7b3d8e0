"""The data directory itself: its paths, its lock, and whether it is a copy. Called by recovery.

DataDir       where everything lies (`docs/spec/storage.md#sec-2-1`)
Identity      is this the directory that was written, or a copy of it? (`docs/spec/storage.md#sec-2-5`)
DataDirLock   one process per directory, and how the one before it ended (`docs/spec/storage.md#sec-2-4`)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from threading import Lock
from typing import Final

from topics.errors import DataDirLocked
from topics.formats import file_names as names
from topics.storage.fs import Fs, LockHandle, install, is_in_place, make_dirs, names_in, parent, read_file

_ID: Final = re.compile(r"id=([0-9a-f]{32})\n").fullmatch
_PLACE: Final = re.compile(r"id=([0-9a-f]{32})\nfile=([0-9]+:[0-9]+)\n((?:log=[^\n]+\n)*)").fullmatch
_BYTES_MAX: Final = 1 << 16


class Identity:
    """What the directory says about itself, read once. `is_copy`: it is not the one that was written.

    identity          id=<32 hex digits>, never written again once it is there
    identity.place    the same id, and which files are meant: inode and ctime of `identity`, and the inode of the
                      newest log file of each group at the last start

    A copy made by cp, tar or rsync, and a backup put back, has other files under the same names; a renamed directory
    has the same files. Always holds: what is written down was true when it was written, so a match proves that nothing
    was put in its place since. A mismatch may be a false alarm; a fork of every topic follows, which harms no reader.
    """

    def __init__(self, fs: Fs, data: DataDir) -> None:
        self._fs = fs
        self._data = data
        self._id = _read(fs, data.identity)
        self._place = _read(fs, data.identity_place)
        self.is_copy = (self._id is not None or self._place is not None) and not self._is_in_place()

    def _is_in_place(self) -> bool:
        own, place = _ID(self._id or ""), _PLACE(self._place or "")
        if own is None or place is None or own[1] != place[1]:
            return False
        return place[2] == self._file() and all(map(self._is_same_log, place[3].splitlines()))

    def _file(self) -> str:
        inode, ctime_ns = self._fs.file_id(self._data.identity)
        return f"{inode}:{ctime_ns}"

    def _is_same_log(self, line: str) -> bool:
        """A log file that is gone was absorbed; one that is there must be the one that was meant."""
        path, _, inode = line.removeprefix("log=").rpartition(":")
        try:
            return str(self._fs.file_id(f"{self._data.root}/{path}")[0]) == inode
        except FileNotFoundError:
            return True

    def write(self, new_id: str, logs: Iterable[str]) -> None:
        """Write down what is true now, as far as it is not there already. `logs` are the newest log file of each group,
        as paths below the directory. A copy has logged its forks before."""
        if self.is_copy or self._id is None:
            install(self._fs, self._data.identity, f"id={new_id}\n".encode())
            self._id = f"id={new_id}\n"
        root = self._data.root
        lines = [f"log={path}:{self._fs.file_id(f'{root}/{path}')[0]}\n" for path in logs]
        place = f"{self._id}file={self._file()}\n{''.join(lines)}"
        if place != self._place:
            install(self._fs, self._data.identity_place, place.encode())
            self._place = place
        self.is_copy = False


def _read(fs: Fs, path: str) -> str | None:
    """None if there is no such file; what is no text of ours matches nothing."""
    try:
        return read_file(fs, path)[:_BYTES_MAX].decode("utf-8", "replace")
    except FileNotFoundError:
        return None


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
        make_dirs(fs, self.meta, self.wal, self.topics)
        fs.sync_dir(self.root)

    def mount_ids(self, fs: Fs) -> set[str]:
        """The file systems that the directory lies on: each part of it may be a mount point."""
        shards = [f"{self.wal}/{name}" for name in names_in(fs, self.wal)]
        return fs.mount_ids([self.root, self.meta, self.wal, self.topics, *shards])

    def is_new(self, fs: Fs) -> bool:
        """Whether nothing was ever stored here: no entry below `meta/`, `wal/` and `topics/`."""
        return not any(names_in(fs, path) for path in (self.meta, self.wal, self.topics))


BOOT_UNKNOWN = "-"


class DataDirLock:
    """A lock that is held. `old_boot` is the boot id that the process before left, or None."""

    def __init__(self, handle: LockHandle, fs: Fs, path: str, *, pid: int) -> None:
        self._fs = fs
        self._path = path
        self._handle = handle
        self._pid = pid
        self._mutex = Lock()
        self._unknown = False
        self.old_boot = parse_boot(handle.read_text())

    @classmethod
    def take(cls, fs: Fs, path: str, *, pid: int) -> DataDirLock:
        """Lock or raise DataDirLocked; the text stays as it is until `claim`."""
        try:
            handle = fs.lock(path)
        except DataDirLocked as error:
            raise DataDirLocked(f"{path} is held by another process; stop it or choose another directory") from error
        try:
            return cls(handle, fs, path, pid=pid)
        except BaseException:
            handle.close()
            raise

    def same_boot(self, boot_id: str) -> bool:
        """Whether everything that the process before wrote is still there."""
        return bool(boot_id) and self.old_boot == boot_id

    def claim(self, boot_id: str, *, vouches: bool = True) -> None:
        """Recovery is done: from here on the text speaks for this process. Unless it `vouches`, the boot line stays as
        the process before left it, so that the next start judges what it finds as this one did."""
        with self._mutex:
            proven = boot_id if vouches else self.old_boot
            self._handle.overwrite_text(self._text(BOOT_UNKNOWN if self._unknown else proven))

    def mark_boot_unknown(self) -> None:
        """A sync failed: written bytes are not safe any more, not even while the kernel lives."""
        with self._mutex:
            self._unknown = True
            self._handle.replace_text(self._text(BOOT_UNKNOWN))

    def is_in_place(self) -> bool:
        """Whether the directory at our path is still the one we hold. Asked by any thread."""
        return is_in_place(self._fs, self._path, self._handle.file)

    def _text(self, boot_id: str | None) -> str:
        return f"pid={self._pid}\nboot={boot_id or BOOT_UNKNOWN}\n"

    def close(self) -> None:
        """Give the lock up."""
        self._handle.close()


def parse_boot(text: str) -> str | None:
    """The boot id of a lock file's text; None when it proves nothing."""
    for line in text.splitlines(keepends=True):
        if line.startswith("boot=") and line.endswith("\n"):
            boot_id = line[5:].strip()
            return boot_id if boot_id and boot_id != BOOT_UNKNOWN else None
    return None
