"""DirectoryGuard: whether the files of a running engine are still where they were (`docs/spec/storage.md#sec-2-4`).

Somebody may delete, move or replace the data directory, its lock file or a log file under us. Descriptors go on working
then, but what is written through them is gone with the process, and a path may lead into a directory that belongs to
another process. Holds: once the directory was found to be another one, no group takes a write and nothing is written
below its path again. The log looks for its active file at every sync by itself; this looks where nobody writes.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import NamedTuple

from topics.engine.writing.commit import Commit
from topics.errors import CommitFailed, StorageIo
from topics.runtime.drivers.driver import Driver
from topics.runtime.store import Store
from topics.storage.fs import is_in_place

log = logging.getLogger("topics.directory_guard")


class _Found(NamedTuple):
    """`failed`: groups whose log was found gone now. `absent`: paths of log files that are not written any more."""

    directory_lost: bool
    failed: list[int]
    absent: list[str]


class DirectoryGuard:
    def __init__(self, store: Store, commit: Commit, driver: Driver, *, rescue: Callable[[], None]) -> None:
        """`rescue`: have what lies in the log moved into segments and a snapshot, soon."""
        self._store = store
        self._commit = commit
        self._driver = driver
        self._rescue = rescue
        self._looking = False
        self._told: set[str] = set()
        self.is_lost = False
        """The directory at our path is not ours any more. Never taken back."""

    def look(self) -> None:
        """Called about once per second by the owner; the looking is done on the pool."""
        if not self._looking and not self.is_lost:
            self._looking = True
            self._driver.run(self._find, self._found)

    def require(self) -> None:
        """Before anything is written by name: raise if the name does not lead to our directory. On any thread."""
        if self.is_lost or not self._store.lock.is_in_place():
            raise StorageIo(f"{self._store.data.root} was deleted, moved or replaced under the server")

    def _find(self) -> _Found:
        store = self._store
        if not store.lock.is_in_place():
            error = OSError(
                errno.ENOENT, "the directory or its lock file was deleted, moved or replaced", store.data.root
            )
            for group in store.groups:
                group.give_up(error)
            failed = [index for index, group in enumerate(store.groups) if group.read_only == "removed"]
            return _Found(True, failed, [])
        failed = [index for index, group in enumerate(store.groups) if group.check_in_place() is not None]
        active = {id(group.active) for group in store.groups}
        entries = [entry for key in store.files.group_keys() for entry in store.files.of_group(key)]
        absent = [
            entry.path
            for entry in entries
            if id(entry) not in active and not is_in_place(store.fs, entry.path, entry.file)
            if store.files.holds(entry.index)  # else it was removed by us, meanwhile
        ]
        return _Found(False, failed, absent)

    def _found(self, found: _Found | None, error: BaseException | None) -> None:
        self._looking = False
        if found is None:
            log.warning("the files of the data directory cannot be looked for: %s", error)
            return
        if found.directory_lost:
            self.is_lost = True
            log.critical(
                "%s was deleted, moved or replaced under the server: nothing is written any more", self._store.data.root
            )
        for index in found.failed:
            self._commit.sync_failed(index, CommitFailed("unknown", cause="removed"), "removed")
        fresh = [path for path in found.absent if path not in self._told]
        if fresh:
            self._told.update(fresh)
            log.error("log files are gone, their records are moved into segments now: %s", ", ".join(fresh))
            self._rescue()
