"""WalFiles: every WAL file that may still be read, by a small number that fits a record's location.

A location in memory is `(index, offset)`; the index stays valid until the file is dropped, whatever its name becomes.
Holds: a handle is closed only when the file was dropped and no reader is inside it, so a read never meets a
descriptor that now belongs to another file. Indexes are never given out twice. Any thread may read; adding and
dropping is the business of one thread at a time per group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

from topics.errors import StorageIo
from topics.storage.fs import File, ReadFile, read_full

ReadWal = Callable[[int, int, int], bytes]
"""`(file index, offset, length)`: `WalFiles.pread`."""


class LogPosition(NamedTuple):
    """A place in a group: file number, then byte offset; ordered as the log is."""

    file: int
    off: int


class WalFile:
    """One file of a group and the handle it is read through; while a group writes it, that is `writer` too."""

    __slots__ = ("_dropped", "_lock", "_readers", "_writer", "file", "index", "key", "number", "path")

    def __init__(self, index: int, *, key: str, number: int, path: str, file: ReadFile) -> None:
        self.index = index
        self.key = key
        self.number = number
        self.path = path
        self.file = file
        self._writer: File | None = None
        self._lock = Lock()
        self._readers = 0
        self._dropped = False

    @contextmanager
    def held(self) -> Iterator[ReadFile]:
        """The handle, kept open for the length of the block even if the file is dropped meanwhile."""
        with self._lock:
            if self._dropped and not self._readers:
                raise StorageIo(f"{self.path} was removed")
            self._readers += 1
        try:
            yield self.file
        finally:
            with self._lock:
                self._readers -= 1
                last = self._dropped and not self._readers
            if last:
                self.file.close()

    @property
    def writer(self) -> File:
        """The handle of a file that a group writes."""
        assert self._writer is not None, f"{self.path} is not open for writing"
        return self._writer

    def written_through(self, file: File) -> None:
        """Read and write the file through this handle from now on. Only while nobody reads."""
        old, self.file, self._writer = self.file, file, file
        if old is not file:
            old.close()

    def close(self) -> None:
        """Close now, or when the last reader leaves."""
        with self._lock:
            self._dropped = True
            idle = not self._readers
        if idle:
            self.file.close()


class WalFiles:
    """The table of all groups' files."""

    def __init__(self) -> None:
        self._by_index: dict[int, WalFile] = {}
        self._next_index = 0
        self._lock = Lock()

    def add(self, *, key: str, number: int, path: str, file: ReadFile) -> WalFile:
        with self._lock:
            index = self._next_index
            self._next_index += 1
        entry = self._by_index[index] = WalFile(index, key=key, number=number, path=path, file=file)
        return entry

    def holds(self, index: int) -> bool:
        """Whether a file is still here; a location into one that is not is out of date."""
        return index in self._by_index

    def get(self, index: int) -> WalFile:
        entry = self._by_index.get(index)
        if entry is None:
            raise StorageIo(f"WAL file {index} was removed")
        return entry

    def pread(self, index: int, offset: int, length: int) -> bytes:
        """Bytes of a file; fewer only at its end."""
        with self.get(index).held() as file:
            return read_full(file, offset, length)

    def of_group(self, key: str) -> list[WalFile]:
        """Files of one group, oldest first."""
        found = [entry for entry in list(self._by_index.values()) if entry.key == key]
        return sorted(found, key=lambda entry: entry.number)

    def group_keys(self) -> list[str]:
        """Groups that have files."""
        return sorted({entry.key for entry in list(self._by_index.values())})

    def drop(self, index: int) -> None:
        """Forget a file; no location may point into it any more."""
        self._by_index.pop(index).close()

    def close(self) -> None:
        while self._by_index:
            self._by_index.popitem()[1].close()
