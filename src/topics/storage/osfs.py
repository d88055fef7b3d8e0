"""The `Fs` protocol on the real file system.

    OsFs         each method is one system call, where the system has it
    RetryingFs   any `Fs`, without the failures that pass by themselves

Always holds: files are 0600 and directories 0700 whatever the umask; no descriptor leaks when a call fails half-way; a
lock that cannot be trusted is not taken.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from topics.errors import DataDirLocked
from topics.storage.fs import (
    NO_DESCRIPTORS,
    Buffer,
    File,
    Fs,
    Inode,
    LockHandle,
    Mode,
    SyncFailed,
    parent,
)
from topics.storage.mount_id import mount_ids

P = ParamSpec("P")
R = TypeVar("R")
Sleep = Callable[[float], None]

_FLAGS: dict[Mode, int] = {
    "r": os.O_RDONLY,
    "rw": os.O_RDWR,
    "create": os.O_RDWR | os.O_CREAT | os.O_TRUNC,
    "new": os.O_RDWR | os.O_CREAT | os.O_EXCL,
    "ensure": os.O_RDWR | os.O_CREAT,
}
EAGAIN_RETRIES = 10
EAGAIN_PAUSE_S = 0.01  # 10 pauses are the 100 ms that a call may wait on EAGAIN
NO_ALLOCATE = frozenset({errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS})
_HELD = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})
_CLOSED = 0x7FFFFFFF  # no descriptor, and EBADF to every call; os.fsync(-1) would be a ValueError
_FULL_FSYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None) if sys.platform == "darwin" else None


def _fsync(fd: int) -> None:
    if _FULL_FSYNC is None:
        os.fsync(fd)
    else:  # on macOS fsync(2) stops at the drive's cache
        fcntl.fcntl(fd, _FULL_FSYNC)


def _cannot_allocate(fd: int, start: int, n: int) -> None:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def _write_first(fd: int, bufs: Sequence[Buffer], off: int) -> int:
    return os.pwrite(fd, bufs[0], off)  # fewer bytes than were given; whoever calls goes on behind them


def _read_first(fd: int, bufs: Sequence[memoryview], off: int) -> int:
    found = os.pread(fd, len(bufs[0]), off)
    bufs[0][: len(found)] = found
    return len(found)


# What other systems lack. Where space cannot be allocated, `RetryingFs` extends the file instead.
_datasync = os.fdatasync if hasattr(os, "fdatasync") and _FULL_FSYNC is None else _fsync
_fallocate = getattr(os, "posix_fallocate", _cannot_allocate)
_pwritev = getattr(os, "pwritev", _write_first)
_preadv = getattr(os, "preadv", _read_first)


def _naming(call: Callable[Concatenate[OsFile, P], R]) -> Callable[Concatenate[OsFile, P], R]:
    """Calls on a descriptor fail without saying on which file."""

    @wraps(call)
    def named(file: OsFile, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(file, *args, **kwargs)
        except OSError as error:
            error.filename = error.filename or file.name
            raise

    return named


class OsFile:
    """An open descriptor. Its errors name the file."""

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self.name = name

    @_naming
    def pread(self, off: int, n: int) -> bytes:
        return os.pread(self._fd, n, off)

    @_naming
    def pread_into(self, off: int, buf: memoryview) -> int:
        return _preadv(self._fd, (buf,), off)

    @_naming
    def pwrite(self, off: int, buf: Buffer) -> int:
        return os.pwrite(self._fd, buf, off)

    @_naming
    def pwritev(self, off: int, bufs: Sequence[Buffer]) -> int:
        return _pwritev(self._fd, bufs, off)

    @_naming
    def truncate(self, n: int) -> None:
        os.ftruncate(self._fd, n)

    @_naming
    def allocate(self, n: int) -> None:
        _fallocate(self._fd, 0, n)

    @_naming
    def datasync(self) -> None:
        _datasync(self._fd)

    @_naming
    def fsync(self) -> None:
        _fsync(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def inode(self) -> Inode:
        return _inode(os.fstat(self._fd))

    def mmap(self) -> memoryview:
        if not self.size():  # an empty mapping is an error to the kernel
            return memoryview(b"")
        return memoryview(mmap.mmap(self._fd, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ))

    def close(self) -> None:
        fd, self._fd = self._fd, _CLOSED
        if fd != _CLOSED:
            os.close(fd)


class _LockFile(OsFile):
    """A locked file, and the locked directory it lies in."""

    def __init__(self, file: OsFile, directory_fd: int) -> None:
        super().__init__(file._fd, file.name)
        self._directory_fd = directory_fd

    def close(self) -> None:
        super().close()
        fd, self._directory_fd = self._directory_fd, _CLOSED
        if fd != _CLOSED:
            os.close(fd)


class OsFs:
    """The file system of this machine; with `root`, every path is taken below it."""

    def __init__(self, root: str | None = None) -> None:
        self._prefix = "" if root is None else root.rstrip("/") + "/"

    def _at(self, path: str) -> str:
        return self._prefix + path.lstrip("/") if self._prefix else path

    def open(self, path: str, mode: Mode = "r") -> OsFile:
        fd, made = _open_or_make(self._at(path), mode)
        try:
            _refuse_directory(fd, path)
            if made:
                os.fchmod(fd, 0o600)
        except BaseException:
            os.close(fd)
            raise
        return OsFile(fd, path)

    def mkdir(self, path: str) -> None:
        os.mkdir(self._at(path), 0o700)
        os.chmod(self._at(path), 0o700)

    def rename(self, src: str, dst: str) -> None:
        os.rename(self._at(src), self._at(dst))

    def unlink(self, path: str) -> None:
        os.unlink(self._at(path))

    def rmdir(self, path: str) -> None:
        os.rmdir(self._at(path))

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(self._at(path)))

    def stat_len(self, path: str) -> int:
        return os.stat(self._at(path)).st_size

    def file_id(self, path: str) -> tuple[int, int]:
        found = os.stat(self._at(path))
        return found.st_ino, found.st_ctime_ns

    def exists(self, path: str) -> bool:
        return self._mode(path) is not None

    def is_dir(self, path: str) -> bool:
        mode = self._mode(path)
        return mode is not None and stat.S_ISDIR(mode)

    def _mode(self, path: str) -> int | None:
        # os.path.exists would take EACCES and EIO for "absent".
        try:
            return os.stat(self._at(path)).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None

    def sync_dir(self, path: str) -> None:
        fd = os.open(self._at(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            _fsync(fd)
        finally:
            os.close(fd)

    def mount_ids(self, paths: Iterable[str]) -> set[str]:
        return mount_ids([self._at(path) for path in paths])

    def inode(self, path: str) -> Inode | None:
        try:
            return _inode(os.stat(self._at(path)))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def lock(self, path: str) -> LockHandle:
        directory_fd = os.open(self._at(parent(path)), os.O_RDONLY | os.O_DIRECTORY)
        try:
            _flock_directory(directory_fd, path)
            file = self.open(path, "ensure")
            try:
                _flock(file._fd, path)
                if self.inode(path) != file.inode():  # replaced while we waited for nothing: who did so holds it
                    raise DataDirLocked(f"another process replaced {path}")
            except BaseException:
                file.close()
                raise
        except BaseException:
            os.close(directory_fd)
            raise
        return LockHandle(_LockFile(file, directory_fd))


def _flock_directory(fd: int, path: str) -> None:
    """The lock that a deleted lock file leaves standing. Network file systems lock only what is open for writing, which
    a directory never is: there the file's lock has to do."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            raise DataDirLocked(f"another process holds the directory of {path}") from error


def _flock(fd: int, path: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            raise DataDirLocked(f"another process holds {path}") from error
        raise OSError(error.errno, "this file system has no working flock", path) from error


def _inode(found: os.stat_result) -> Inode:
    return found.st_dev, found.st_ino


def _open_or_make(path: str, mode: Mode) -> tuple[int, bool]:
    """The descriptor, and whether the file is new: only then is its mode ours to set."""
    if mode in ("create", "ensure"):
        try:
            return os.open(path, _FLAGS["new"], 0o600), True
        except FileExistsError:
            pass
    return os.open(path, _FLAGS[mode], 0o600), mode == "new"


def _refuse_directory(fd: int, path: str) -> None:
    # Reading a directory would fail later and less clearly; opening one to write fails in the kernel.
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)


# --- failures that pass by themselves ---------------------------------------------------------------------------------


def _retrying(sleep: Sleep, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """`call`, made again on EINTR for ever and on EAGAIN ten times, 10 ms apart."""
    left = EAGAIN_RETRIES
    while True:
        try:
            return call(*args, **kwargs)
        except OSError as error:
            if error.errno == errno.EINTR:
                continue
            if error.errno != errno.EAGAIN or not left:
                raise
            left -= 1
            sleep(EAGAIN_PAUSE_S)


class RetryingFile:
    """A file of a `RetryingFs`."""

    def __init__(self, inner: File, fs: RetryingFs) -> None:
        self._inner = inner
        self._fs = fs
        self._sleep = fs.sleep
        self.name = inner.name
        self.close = inner.close  # never retried: after EINTR the descriptor is gone

    def pread(self, off: int, n: int) -> bytes:
        return _retrying(self._sleep, self._inner.pread, off, n)

    def pread_into(self, off: int, buf: memoryview) -> int:
        return _retrying(self._sleep, self._inner.pread_into, off, buf)

    def pwrite(self, off: int, buf: Buffer) -> int:
        return _retrying(self._sleep, self._inner.pwrite, off, buf)

    def pwritev(self, off: int, bufs: Sequence[Buffer]) -> int:
        return _retrying(self._sleep, self._inner.pwritev, off, bufs)

    def truncate(self, n: int) -> None:
        _retrying(self._sleep, self._inner.truncate, n)

    def allocate(self, n: int) -> None:
        try:
            _retrying(self._sleep, self._inner.allocate, n)
        except OSError as error:
            if error.errno not in NO_ALLOCATE:
                raise
            if self.size() < n:  # the bytes exist, but no space is kept for them
                self.truncate(n)

    def datasync(self) -> None:
        _sync(_retrying, self._sleep, self._inner.datasync)

    def fsync(self) -> None:
        _sync(_retrying, self._sleep, self._inner.fsync)

    def size(self) -> int:
        return _retrying(self._sleep, self._inner.size)

    def inode(self) -> Inode:
        return _retrying(self._sleep, self._inner.inode)

    def mmap(self) -> memoryview:
        return self._fs.with_descriptor(self._inner.mmap)  # a mapping takes a descriptor too


class RetryingFs:
    """`inner`, whose calls are made again where the failure passes by itself.

    EINTR is retried without limit, EAGAIN ten times within 100 ms. Where descriptors are used up, `make_room` closes
    files that nobody uses, and the call is made once more. A file system without allocation extends instead. A failed
    sync is a `SyncFailed`, so that nobody takes it for a failure that may be tried again. The process
    puts it around its `Fs` once; storage code calls it like any other."""

    def __init__(self, inner: Fs, *, sleep: Sleep = time.sleep) -> None:
        self._inner = inner
        self.sleep = sleep
        self.make_room: Callable[[], bool] = lambda: False
        """Closes files that nobody uses; whether there were any. Called from any thread."""

    def with_descriptor(self, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """A call that needs a file descriptor."""
        try:
            return _retrying(self.sleep, call, *args, **kwargs)
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS or not self.make_room():
                raise
        return _retrying(self.sleep, call, *args, **kwargs)

    def open(self, path: str, mode: Mode = "r") -> RetryingFile:
        return RetryingFile(self.with_descriptor(self._inner.open, path, mode), self)

    def mkdir(self, path: str) -> None:
        _retrying(self.sleep, self._inner.mkdir, path)

    def rename(self, src: str, dst: str) -> None:
        _retrying(self.sleep, self._inner.rename, src, dst)

    def unlink(self, path: str) -> None:
        _retrying(self.sleep, self._inner.unlink, path)

    def rmdir(self, path: str) -> None:
        _retrying(self.sleep, self._inner.rmdir, path)

    def listdir(self, path: str) -> list[str]:
        return self.with_descriptor(self._inner.listdir, path)

    def stat_len(self, path: str) -> int:
        return _retrying(self.sleep, self._inner.stat_len, path)

    def file_id(self, path: str) -> tuple[int, int]:
        return _retrying(self.sleep, self._inner.file_id, path)

    def exists(self, path: str) -> bool:
        return _retrying(self.sleep, self._inner.exists, path)

    def is_dir(self, path: str) -> bool:
        return _retrying(self.sleep, self._inner.is_dir, path)

    def sync_dir(self, path: str) -> None:
        _sync(self.with_descriptor, self._inner.sync_dir, path)

    def inode(self, path: str) -> Inode | None:
        return _retrying(self.sleep, self._inner.inode, path)

    def mount_ids(self, paths: Iterable[str]) -> set[str]:
        return self._inner.mount_ids(paths)

    def lock(self, path: str) -> LockHandle:
        return LockHandle(RetryingFile(_retrying(self.sleep, self._inner.lock, path).file, self))


def _sync(call: Callable[P, None], /, *args: P.args, **kwargs: P.kwargs) -> None:
    try:
        call(*args, **kwargs)
    except OSError as error:
        if error.errno in NO_DESCRIPTORS:  # of the directory that was to be opened: no sync was tried
            raise
        raise SyncFailed(error.errno, error.strerror, error.filename) from error
