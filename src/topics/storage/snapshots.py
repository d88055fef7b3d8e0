"""SnapshotStore: metadata snapshots as files (`docs/spec/storage.md#sec-8-3` and `docs/spec/storage.md#sec-9-2`).

Holds: after any crash the newest snapshot that was installed, or the one before it, loads; nothing is unlinked before a
newer one is durable; a valid snapshot stays until two newer valid ones exist, so a bad newest file never leaves the
store without one. What is in a snapshot belongs to `topics.formats.snapshot` and the engine. Called by recovery, and
by one snapshot job at a time.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import msgspec

from topics.errors import Corruption, UnsupportedVersion
from topics.formats import file_names as names
from topics.formats.snapshot import Snapshot, decode_snapshot, encode_snapshot
from topics.storage.fs import Fs, ReadFs, install, names_in, read_file
from topics.storage.wal.file_removal import SNAPSHOTS_KEPT, Positions
from topics.storage.wal.rotation import Layout
from topics.storage.wal.wal_files import LogPosition

log = logging.getLogger("topics.storage")


class Rejected(NamedTuple):
    """A snapshot file that was passed over, and why."""

    name: str
    reason: str
    unknown_version: bool


class LoadedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a start finds: the newest valid snapshot, newer files that are not, doubles of a number, and older files,
    which are not read, newest first."""

    snapshot: Snapshot | None
    rejected: list[Rejected]
    ignored: list[str]
    number: int = 0
    highest: int = 0
    older: list[tuple[int, str]] = []


def load_snapshot(fs: ReadFs, dir: str) -> LoadedSnapshot:
    """Read what is there. A read error is raised: it proves nothing about the file."""
    chosen, ignored = names.pick_canonical(names_in(fs, dir), parse=names.parse_snapshot, build=names.snapshot_name)
    older = sorted(chosen.items(), reverse=True)
    rejected: list[Rejected] = []
    snapshot, number = None, 0
    while snapshot is None and older:
        number, name = older.pop(0)
        snapshot = _read_snapshot(fs, dir, name, rejected)
    if chosen and snapshot is None and all(reject.unknown_version for reject in rejected):
        raise UnsupportedVersion(f"{dir} holds only snapshots of another version: {rejected[0].reason}")
    return LoadedSnapshot(
        snapshot=snapshot,
        rejected=rejected,
        ignored=ignored,
        number=number,
        highest=max(chosen, default=0),
        older=older,
    )


def _read_snapshot(fs: ReadFs, dir: str, name: str, rejected: list[Rejected]) -> Snapshot | None:
    try:
        return decode_snapshot(read_file(fs, f"{dir}/{name}"), file=name)
    except (UnsupportedVersion, Corruption) as error:
        rejected.append(Rejected(name, str(error), isinstance(error, UnsupportedVersion)))
        return None


class SnapshotStore:
    """The directory `meta/`."""

    def __init__(self, fs: Fs, dir: str) -> None:
        self._fs = fs
        self._dir = dir
        self._highest = 0
        self._valid: dict[int, Positions] = {}
        self._unread: list[tuple[int, str]] = []  # older than the one in use, newest first
        self._names_synced = False

    @property
    def next_number(self) -> int:
        return self._highest + 1

    def load(self) -> LoadedSnapshot:
        """`load_snapshot`, and go on behind what it found."""
        loaded = load_snapshot(self._fs, self._dir)
        self.resume(loaded)
        return loaded

    def resume(self, loaded: LoadedSnapshot) -> None:
        """Go on behind what a look at the directory found."""
        self._highest = loaded.highest
        self._unread = list(loaded.older)
        self._valid = {} if loaded.snapshot is None else {loaded.number: positions_of(loaded.snapshot)}

    def kept(self) -> list[Positions]:
        """Recorded WAL positions of the newest two valid snapshots, newest first; fewer if there are fewer.

        The older one is read when first asked for, as a start does not need it; a read error is raised. What is given
        out is durable, also when a process that was killed had no time to sync the name."""
        if not self._names_synced:
            self._fs.sync_dir(self._dir)
            self._names_synced = True
        while len(self._valid) < SNAPSHOTS_KEPT and self._unread:
            number, name = self._unread[0]
            snapshot = _read_snapshot(self._fs, self._dir, name, [])
            self._unread.pop(0)
            if snapshot is not None:
                self._valid[number] = positions_of(snapshot)
        return [self._valid[number] for number in sorted(self._valid, reverse=True)[:SNAPSHOTS_KEPT]]

    def install(self, snapshot: Snapshot, *, keep_all: bool = False) -> None:
        """M4 and M5: put the snapshot beside the older ones, then drop those nobody needs, unless all are to be kept.

        A failure in M4 is raised and counts as "no snapshot": nothing is unlinked, the number is not used again."""
        number = snapshot.id
        if number <= self._highest:
            raise ValueError(f"snapshot {number} is not newer than {self._highest}")
        self._highest = number
        install(self._fs, f"{self._dir}/{names.snapshot_name(number)}", encode_snapshot(snapshot))
        self._valid[number] = positions_of(snapshot)
        if not keep_all:
            self._prune(number)

    def _prune(self, newest: int) -> None:
        """Keep the newest two by number and the newest two valid ones. Failing is no harm: the next install tries."""
        try:
            self.kept()
            self._valid = {number: self._valid[number] for number in sorted(self._valid)[-SNAPSHOTS_KEPT:]}
            gone = [name for name in self._fs.listdir(self._dir) if self._is_spent(name, newest)]
            for name in gone:
                self._fs.unlink(f"{self._dir}/{name}")
            if gone:
                self._fs.sync_dir(self._dir)
        except OSError as error:
            log.warning("removing old snapshots stopped, it will be tried again: %s", error)

    def _is_spent(self, name: str, newest: int) -> bool:
        number = names.parse_snapshot(name)
        return number is not None and number < newest - 1 and number not in self._valid


def positions_of(snapshot: Snapshot) -> Positions:
    """Recorded WAL positions by group key."""
    return {group.key: LogPosition(group.file, group.off) for group in snapshot.groups}


def layout_of(snapshot: Snapshot) -> Layout:
    return Layout(snapshot.gen, snapshot.shards)
