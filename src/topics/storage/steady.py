"""SteadyFs: an `Fs` that hides what no caller should have to think about.

EINTR is retried without limit and EAGAIN ten times within 100 ms, on every call; a file system without allocation
extends instead. Writes pass through untouched, because `write_all` retries them and two layers of ten would be a
hundred. The engine puts it around the `Fs` it is given, once; storage code then calls it like any other.
"""

import time

from topics.storage.fs import File, Fs, LockHandle, Mode, Sleep, allocate_or_extend, retrying


class SteadyFile:
    """A file whose calls end in success or in an error that means something."""

    def __init__(self, inner: File, sleep: Sleep) -> None:
        self._inner = inner
        self._sleep = sleep
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
        retrying(self._inner.datasync, sleep=self._sleep)

    def fsync(self) -> None:
        retrying(self._inner.fsync, sleep=self._sleep)

    def size(self) -> int:
        return retrying(self._inner.size, sleep=self._sleep)

    def mmap(self) -> memoryview:
        return retrying(self._inner.mmap, sleep=self._sleep)


class SteadyFs:
    """`inner`, without its passing failures."""

    def __init__(self, inner: Fs, *, sleep: Sleep = time.sleep) -> None:
        self._inner = inner
        self._sleep = sleep

    def open(self, path: str, mode: Mode = "r") -> SteadyFile:
        return SteadyFile(retrying(lambda: self._inner.open(path, mode), sleep=self._sleep), self._sleep)

    def mkdir(self, path: str) -> None:
        retrying(lambda: self._inner.mkdir(path), sleep=self._sleep)

    def rename(self, src: str, dst: str) -> None:
        retrying(lambda: self._inner.rename(src, dst), sleep=self._sleep)

    def unlink(self, path: str) -> None:
        retrying(lambda: self._inner.unlink(path), sleep=self._sleep)

    def rmdir(self, path: str) -> None:
        retrying(lambda: self._inner.rmdir(path), sleep=self._sleep)

    def listdir(self, path: str) -> list[str]:
        return retrying(lambda: self._inner.listdir(path), sleep=self._sleep)

    def stat_len(self, path: str) -> int:
        return retrying(lambda: self._inner.stat_len(path), sleep=self._sleep)

    def exists(self, path: str) -> bool:
        return retrying(lambda: self._inner.exists(path), sleep=self._sleep)

    def is_dir(self, path: str) -> bool:
        return retrying(lambda: self._inner.is_dir(path), sleep=self._sleep)

    def sync_dir(self, path: str) -> None:
        retrying(lambda: self._inner.sync_dir(path), sleep=self._sleep)

    def lock(self, path: str) -> LockHandle:
        handle = retrying(lambda: self._inner.lock(path), sleep=self._sleep)
        return LockHandle(SteadyFile(handle.file, self._sleep))
