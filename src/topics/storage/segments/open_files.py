"""OpenFiles: descriptors of segment files, kept open while they are in use.

Topics are many and descriptors are few: at most `limit` idle files stay open, the least recently used goes first. A
file somebody has borrowed is never closed under them. `forget` is for names that now mean another file (a rewrite
renamed over them) or none (a drop): later borrowers open anew, present ones keep the old file.

Safe from any thread: the owner flips delete flags while pool threads read and the checkpointer syncs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from topics.storage.fs import File, Fs, Mode

IDLE_FILES_MAX = 256


class _Held:
    __slots__ = ("file", "stale", "users")

    def __init__(self, file: File) -> None:
        self.file = file
        self.users = 0
        self.stale = False


class OpenFiles:
    def __init__(self, fs: Fs, *, limit: int = IDLE_FILES_MAX) -> None:
        self._fs = fs
        self._limit = limit
        self._held: OrderedDict[tuple[str, Mode], _Held] = OrderedDict()
        self._lock = Lock()

    @contextmanager
    def borrow(self, path: str, mode: Mode = "r") -> Iterator[File]:
        held = self._take(path, mode)
        try:
            yield held.file
        finally:
            self._give_back(held)

    def _take(self, path: str, mode: Mode) -> _Held:
        with self._lock:
            held = self._held.get((path, mode))
            if held is not None:
                self._held.move_to_end((path, mode))
                held.users += 1
                return held
        fresh = _Held(self._fs.open(path, mode))  # may wait for the disk: not under the lock
        fresh.users = 1
        with self._lock:
            if (path, mode) in self._held:
                fresh.stale = True  # another thread was faster; ours is closed when given back
            else:
                self._held[path, mode] = fresh
                self._close_idle()
        return fresh

    def _give_back(self, held: _Held) -> None:
        with self._lock:
            held.users -= 1
            if held.stale and not held.users:
                held.file.close()

    def _close_idle(self) -> None:
        spare = len(self._held) - self._limit
        if spare > 0:
            self._close_some(spare)

    def _close_some(self, count: int) -> int:
        idle = [key for key, held in self._held.items() if not held.users][:count]
        for key in idle:
            self._held.pop(key).file.close()
        return len(idle)

    def close_idle(self) -> int:
        """Descriptors are used up: close all that nobody has borrowed. How many there were."""
        with self._lock:
            return self._close_some(len(self._held))

    def forget(self, *paths: str) -> None:
        """These names mean other files from now on."""
        with self._lock:
            for key in [key for key in self._held if key[0] in paths]:
                held = self._held.pop(key)
                held.stale = True
                if not held.users:
                    held.file.close()

    def close(self) -> None:
        with self._lock:
            for held in self._held.values():
                held.file.close()
            self._held.clear()
