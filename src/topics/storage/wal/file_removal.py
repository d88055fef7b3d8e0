"""Removing WAL files that nothing needs any more (`docs/spec/storage.md#sec-4-5`).

Holds: a file goes only when the positions of both kept snapshots lie behind it and no location in memory points into
it, so the log can be replayed from either. Oldest first, and never one behind a file that must stay. A failed unlink
costs nothing: the next checkpoint tries again, and files that come back are skipped by replay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from topics.formats.file_names import CURRENT, FLAT_GROUP
from topics.storage.fs import Fs, parent
from topics.storage.wal.wal_files import LogPosition, WalFile, WalFiles

log = logging.getLogger("topics.wal")

SNAPSHOTS_KEPT = 2
Positions = Mapping[str, LogPosition]


def remove_absorbed(
    fs: Fs,
    files: WalFiles,
    *,
    key: str,
    dir: str,
    snapshots: Sequence[Positions],
    referenced: Callable[[int], bool],
    active: int | None,
    end: LogPosition | None = None,
) -> int:
    """Unlink what may go of one group; gives the number of files removed.

    `snapshots` are the positions in the kept valid snapshots; with fewer than two nothing goes. `referenced(index)`
    says whether a location points into a file. `active` is the number of the file being written, None for a group that
    is no longer written, whose log then ends at `end`.
    """
    if len(snapshots) < SNAPSHOTS_KEPT or any(key not in positions for positions in snapshots):
        return 0
    reached = min(positions[key] for positions in snapshots)
    group = files.of_group(key)
    gone: list[WalFile] = []
    for entry in group:
        if not _passed(entry, reached, active, end, group[-1].number) or referenced(entry.index):
            break
        gone.append(entry)
    whole = active is None and len(gone) == len(group)
    return _unlink(fs, files, gone, dir=dir, key=key, whole=whole)


def _passed(entry: WalFile, reached: LogPosition, active: int | None, end: LogPosition | None, newest: int) -> bool:
    if entry.number == active:
        return False
    if reached.file > entry.number:
        return True
    # The last file of a group that is no longer written goes when the positions are at its end.
    return active is None and end is not None and entry.number == newest and reached >= end


def _unlink(fs: Fs, files: WalFiles, gone: Sequence[WalFile], *, dir: str, key: str, whole: bool) -> int:
    done = 0
    try:
        if whole:
            _unlink_if_there(fs, f"{dir}/{CURRENT}")
        for entry in gone:
            _unlink_if_there(fs, entry.path)
            files.drop(entry.index)
            done += 1
        if gone or whole:
            fs.sync_dir(dir)
        if whole:
            _remove_dir(fs, dir, key)
    except OSError as error:
        log.warning("removing absorbed files of %s stopped, it will be tried again: %s", dir, error)
    return done


def _unlink_if_there(fs: Fs, path: str) -> None:
    try:
        fs.unlink(path)
    except FileNotFoundError:
        pass


def _remove_dir(fs: Fs, dir: str, key: str) -> None:
    """The directory of a shard that is no longer used, if nothing foreign lies in it."""
    if key != FLAT_GROUP and fs.is_dir(dir) and not fs.listdir(dir):
        fs.rmdir(dir)
        fs.sync_dir(parent(dir))
