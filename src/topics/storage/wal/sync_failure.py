"""What a failed sync does beyond its own group (`docs/spec/storage.md#sec-5-3`).

The boot line of the lock file promises that written bytes are there as long as the kernel lives. A failed sync breaks
that, so the line is rewritten first; when even that fails, no group may go on writing under a false promise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from topics.errors import ReadOnlyCause

log = logging.getLogger("topics.wal")


class Latched(Protocol):
    def latch(self, cause: ReadOnlyCause) -> ReadOnlyCause: ...


class SyncFailureLatch:
    """Given to every group as `sync_failed`; told of every group when it is opened. Called on any group's thread."""

    def __init__(self, mark_boot_unknown: Callable[[], None]) -> None:
        self._mark = mark_boot_unknown
        self._groups: list[Latched] = []

    def watch(self, group: Latched) -> None:
        self._groups.append(group)

    def __call__(self) -> None:
        try:
            self._mark()
        except OSError as error:
            log.critical("the lock file cannot be rewritten after a failed sync, all groups are read-only: %s", error)
            for group in self._groups:
                group.latch("sync")
