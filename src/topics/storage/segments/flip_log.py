"""FlipLog: which deletes of one segment are not yet safe in its files.

    unwritten --flag byte--> unsynced --data sync, idx bit, idx sync--> forgotten

Every slot listed here must be in the snapshot's `dead`, or its Delete frame must stay in the log. While `frozen`, the
segment's files are being replaced: flips are only noted. `relay` collects what dies while a copy of the files is made,
so that the copy can be flagged too. The lock is held for single-byte writes at most; never for a sync.
"""

from __future__ import annotations

from threading import Lock


class FlipLog:
    __slots__ = ("dir_unsynced", "frozen", "lock", "relay", "retired", "unsynced", "unwritten", "working")

    def __init__(self) -> None:
        self.lock = Lock()
        self.working = Lock()  # held by the one background job that changes the segment's files
        self.unwritten: set[int] = set()
        self.unsynced: set[int] = set()
        self.relay: set[int] | None = None
        self.frozen = False
        self.dir_unsynced = False  # files were renamed into place, and syncing their directory failed
        self.retired = False  # the active segment that it began with is sealed

    def pending(self) -> list[int]:
        """Slots whose deletion the files do not prove yet."""
        with self.lock:
            return sorted(self.unwritten | self.unsynced)

    def __bool__(self) -> bool:
        return bool(self.unwritten or self.unsynced)

    # --- for a job that replaces the files; it holds `working` ------------------------------------------------------

    def watch(self) -> None:
        """From now on remember in `relay` what dies."""
        with self.lock:
            self.relay = set()

    def freeze(self) -> set[int]:
        """No more writes to the old files; gives what died since `watch`, and what they do not prove yet."""
        with self.lock:
            self.frozen = True
            died, self.relay = self.relay or set(), None
            return died | self.unwritten | self.unsynced

    def thaw(self) -> None:
        """The old files stay: go on writing to them."""
        with self.lock:
            self.relay = None
            self.frozen = False

    def replaced(self, *, proven: set[int]) -> None:
        """The files are new and prove these; whatever else was only written must be written again."""
        with self.lock:
            self.unwritten = (self.unwritten | self.unsynced) - proven
            self.unsynced = set()
            self.relay = None
            self.frozen = False
