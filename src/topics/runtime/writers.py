"""Writers: the groups' writers taken together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Writer(Protocol):
    """Moves one group's submissions into its file and syncs them."""

    window_s: float
    """The longest a sync waits for more writers to share it."""

    def start(self) -> None: ...

    def pump(self) -> None:
        """Write what is queued, or hand it over."""

    def request_sync(self) -> None: ...

    def stop(self) -> None: ...


class Writers:
    def __init__(self, writers: Sequence[Writer]) -> None:
        self._writers = writers

    def start(self) -> None:
        for writer in self._writers:
            writer.start()

    def pump(self) -> None:
        for writer in self._writers:
            writer.pump()

    def set_window(self, window_s: float) -> None:
        """Read by the groups' threads at their next sync."""
        for writer in self._writers:
            writer.window_s = window_s

    def stop(self) -> None:
        for writer in self._writers:
            writer.stop()

    def __len__(self) -> int:
        return len(self._writers)
