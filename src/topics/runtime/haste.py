"""Haste: how much of the interpreter a checkpoint takes, by how far the log has run ahead of the segments.

With little to absorb a checkpoint takes small bites and steps aside after each, so that nobody notices it. The further
the log runs ahead the larger the bites, because a log that only grows would make the next start slow and fill the disk.
At the end of the process nobody is left to step aside for. Asked by the checkpoint's thread between two bites."""

from __future__ import annotations

from collections.abc import Callable

from topics.runtime.driver import Driver

BITES = (256, 1024, 4096)
"""Records at a time: calm, behind, far behind."""
ELSEWHERE_BITE = 16_384
"""Every question costs the asker a few waits for the interpreter."""


class Haste:
    """`backlog_bytes` says how much log is not absorbed yet; so much as `calm_bytes` is nothing to hurry for."""

    def __init__(self, driver: Driver, backlog_bytes: Callable[[], int], *, calm_bytes: int) -> None:
        self._driver = driver
        self._backlog_bytes = backlog_bytes
        self._calm_bytes = calm_bytes
        self.closing = False

    def bite(self) -> int:
        """How many records to convert at a time from here on."""
        return BITES[self._level()]

    def breathe(self) -> None:
        """Between two bites: let others have the interpreter, unless they have had it for too long."""
        if self._level() < len(BITES) - 1:
            self._driver.breathe()

    def _level(self) -> int:
        if self.closing:
            return len(BITES) - 1
        return min(self._backlog_bytes() // max(self._calm_bytes, 1), len(BITES) - 1)


class Elsewhere:
    """The pace of a checkpoint that computes on another processor: it steps aside by waiting for that."""

    def bite(self) -> int:
        return ELSEWHERE_BITE

    def breathe(self) -> None:
        return
