"""The next file of a group: prepared ahead, then opened in the order R2 to R5 (`docs/spec/storage.md#sec-4-4`).

Holds: a name `wal-<n>.log` appears only over a file whose `open` frame is synced, and `CURRENT` names it only when the
name is durable. Nothing here decides when; `WalGroup` does, and only it calls this.
"""

from __future__ import annotations

from typing import NamedTuple

from topics.formats.file_names import CURRENT, PREALLOC, current_text, wal_name
from topics.formats.wal.bodies import OpenMark, encode_body
from topics.formats.wal.frame import FrameType, encode_frame
from topics.limits import MIB
from topics.storage.fs import File, Fs, install, write_all

FOREIGN_SUFFIX = ".foreign"
FIRST_FILE_BYTES = 1 * MIB  # a log that has little in it takes little space


def grown(used: int, *, file_bytes: int) -> int:
    """Size of the file behind so many bytes of log: twice as much, up to the size that is set."""
    return min(file_bytes, max(FIRST_FILE_BYTES, 2 * used))


class Layout(NamedTuple):
    """The generation of shard layouts that new files belong to."""

    gen: int
    shards: int


class OpenedFile(NamedTuple):
    """A new active file."""

    file: File
    path: str
    number: int
    tail: int
    capacity: int


def open_frame(*, layout: Layout, first: int, group: str, ts: int) -> bytes:
    """The first frame of file `first`."""
    body = OpenMark(gen=layout.gen, shards=layout.shards, first=first, group=group)
    return encode_frame(FrameType.CHECKPOINT_MARK, ts=ts, data=encode_body(body), durable=True)


class NextFile:
    """`prealloc.tmp` of one group and what becomes of it."""

    def __init__(self, fs: Fs, dir: str) -> None:
        self._fs = fs
        self._dir = dir
        self._file: File | None = None
        self._capacity = 0
        # A rename to this number was attempted and not finished by R5: the file may be there, it is ours to replace.
        self.named: int | None = None

    @property
    def ready(self) -> bool:
        return self._file is not None

    def prepare(self, capacity: int) -> None:
        """Create and allocate `prealloc.tmp`; on failure nothing of it keeps space."""
        self.discard()
        file = self._fs.open(self._path(PREALLOC), "create")
        try:
            file.allocate(capacity)
        except BaseException:
            self._abandon(file)
            raise
        self._file, self._capacity = file, capacity

    def open(self, *, layout: Layout, number: int, group: str, ts: int, room: int, file_bytes: int) -> OpenedFile:
        """R2 to R5: file `number` with its `open` frame and space for `room` bytes behind it."""
        frame = open_frame(layout=layout, first=number, group=group, ts=ts)
        try:
            file = self._take(max(file_bytes, len(frame) + room))
            write_all(file, 0, frame)
            file.fsync()
            path = self._rename(number)
            self._fs.sync_dir(self._dir)
            install(self._fs, self._path(CURRENT), current_text(number))
        except BaseException:
            self.discard()
            raise
        self._file, self.named = None, None
        return OpenedFile(file, path, number, len(frame), self._capacity)

    def discard(self) -> None:
        """Close what was prepared; the next `prepare` starts from an empty file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _take(self, capacity: int) -> File:
        if self._file is None or self._capacity < capacity:
            self.prepare(capacity)
        assert self._file is not None
        return self._file

    def _rename(self, number: int) -> str:
        path = self._path(wal_name(number))
        if self.named != number and self._fs.exists(path):
            self._fs.rename(path, path + FOREIGN_SUFFIX)  # a file that recovery ignored; it is not ours to destroy
        self.named = number
        self._fs.rename(self._path(PREALLOC), path)
        return path

    def _abandon(self, file: File) -> None:
        file.close()
        try:
            self._fs.unlink(self._path(PREALLOC))
        except OSError:
            pass  # recovery removes it

    def _path(self, name: str) -> str:
        return f"{self._dir}/{name}"
