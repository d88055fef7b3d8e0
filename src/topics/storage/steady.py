"""SteadyFs: an `Fs` that hides what no caller should have to think about.

EINTR is retried without limit and EAGAIN ten times within 100 ms, on every call; a file system without allocation
extends instead. A failed sync is a `SyncFailed`, so that nobody takes it for a failure that may be tried again. Where
descriptors are used up, `make_room` closes what nobody uses, and the call is made once more.
Writes pass through untouched, because `write_all` retries them and two layers of ten would be a hundred. The engine
puts it around the `Fs` it is given, once; storage code then calls it like any other.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from topics.storage.fs import (
    NO_DESCRIPTORS,
    File,
    Fs,
    Inode,
    LockHandle,
    Mode,
    Sleep,
    SyncFailed,
    allocate_or_extend,
    retrying,
)

T = TypeVar("T")


class SteadyFile:
    """A file whose calls end in success or in an error that means something."""

    def __init__(self, inner: File, fs: "SteadyFs") -> None:
        self._inner = inner
        self._fs = fs
        self._sleep = fs.sleep
        self.name = inner.name
        self.pwrite = inner.pwrite
        self.pwritev = inner.pwritev
        self.close = inner.close  # never retried: after EINTR the descriptor is gone

    def pread(self, off: int, n: int) -> bytes:
        return retrying(lambda: self._inner.pread(off, n), sleep=self._sleep)

    def truncate(self, n: int) -> None:
        retrying(lambda: self._inner.truncate(n), sleep=self._sleep)

    def allocate(self, n: int) -> None:
        allocate_or_extend(self, n, lambda size: retrying(lambda: self._inner.allocate(size), sleep=self._sleep))

    def datasync(self) -> None:
        _sync(lambda: retrying(self._inner.datasync, sleep=self._sleep))

    def fsync(self) -> None:
        _sync(lambda: retrying(self._inner.fsync, sleep=self._sleep))

    def size(self) -> int:
        return retrying(self._inner.size, sleep=self._sleep)

    def inode(self) -> Inode:
        return retrying(self._inner.inode, sleep=self._sleep)

    def mmap(self) -> memoryview:
        return self._fs.sparing(self._inner.mmap)  # a mapping holds a descriptor too


class SteadyFs:
    """`inner`, without its passing failures."""

    def __init__(self, inner: Fs, *, sleep: Sleep = time.sleep) -> None:
        self._inner = inner
        self.sleep = sleep
        self.make_room: Callable[[], bool] = lambda: False
        """Closes files that nobody uses; whether there were any. Called from any thread."""

    def sparing(self, call: Callable[[], T]) -> T:
        """A call that needs a descriptor."""
        try:
            return retrying(call, sleep=self.sleep)
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS or not self.make_room():
                raise
        return retrying(call, sleep=self.sleep)

    def open(self, path: str, mode: Mode = "r") -> SteadyFile:
        return SteadyFile(self.sparing(lambda: self._inner.open(path, mode)), self)

    def mkdir(self, path: str) -> None:
        retrying(lambda: self._inner.mkdir(path), sleep=self.sleep)

    def rename(self, src: str, dst: str) -> None:
        retrying(lambda: self._inner.rename(src, dst), sleep=self.sleep)

    def unlink(self, path: str) -> None:
        retrying(lambda: self._inner.unlink(path), sleep=self.sleep)

    def rmdir(self, path: str) -> None:
        retrying(lambda: self._inner.rmdir(path), sleep=self.sleep)

    def listdir(self, path: str) -> list[str]:
        return self.sparing(lambda: self._inner.listdir(path))

    def stat_len(self, path: str) -> int:
        return retrying(lambda: self._inner.stat_len(path), sleep=self.sleep)

    def file_id(self, path: str) -> tuple[int, int]:
        return retrying(lambda: self._inner.file_id(path), sleep=self.sleep)

    def exists(self, path: str) -> bool:
        return retrying(lambda: self._inner.exists(path), sleep=self.sleep)

    def is_dir(self, path: str) -> bool:
        return retrying(lambda: self._inner.is_dir(path), sleep=self.sleep)

    def sync_dir(self, path: str) -> None:
        _sync(lambda: self.sparing(lambda: self._inner.sync_dir(path)))

    def inode(self, path: str) -> Inode | None:
        return retrying(lambda: self._inner.inode(path), sleep=self.sleep)

    def mount_id(self, path: str) -> str:
        return self._inner.mount_id(path)

    def lock(self, path: str) -> LockHandle:
        handle = retrying(lambda: self._inner.lock(path), sleep=self.sleep)
        return LockHandle(SteadyFile(handle.file, self))


def _sync(call: Callable[[], None]) -> None:
    """A directory is opened to be synced; without a descriptor for it, nothing was tried."""
    try:
        call()
    except OSError as error:
        if error.errno in NO_DESCRIPTORS:
            raise
        raise SyncFailed(error.errno, error.strerror, error.filename) from error
