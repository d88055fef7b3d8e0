"""FaultFs: an `Fs` whose calls fail where a test says so.

    fs = FaultFs(SimFs())
    fs.fail("pwrite", "*/wal-*.log", code=errno.ENOSPC, times=FOREVER)   until .lift()
    fs.fill_disk()                                                       ENOSPC for all that grows, until .lift()
    fs.short("pwrite", "*.data", keep=7)                                 the next write of a .data takes 7 bytes
    fs.lie("datasync")                                                   returns, and promoted nothing
    fs.block("datasync", "*/shard-00/*", until=gate.wait)
    fs.crash(at=12)                                                      SimCrash instead of the 12th call from now

A fault strikes from the `at`-th call of its kind on a path of its pattern, counted from when it was set, and then
`times` times. Kinds are those of `KINDS`: an `open` that may make the file is a `create`, both writes are `pwrite`.
Every call is counted, recorded in `trace` and shown to `hook` before it happens. After a crash every call raises, as a
dead process makes none. Works on any `Fs`; on `SimFs` a failed sync also leaves the bytes in doubt for ever.
Safe to use from several threads.
"""

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from threading import Lock
from typing import Literal, NamedTuple, TypeVar, get_args
from weakref import WeakSet

from topics.storage.fs import PASSING, Buffer, File, Fs, Inode, LockHandle, Mode

Kind = Literal[
    "open", "create", "pread", "pwrite", "truncate", "allocate", "datasync", "fsync", "size", "mmap", "close",
    "mkdir", "rename", "unlink", "rmdir", "listdir", "stat_len", "file_id", "exists", "is_dir", "sync_dir",
    "lock",
]  # fmt: skip
Kinds = Kind | Literal["*"] | Sequence[Kind]
KINDS: tuple[Kind, ...] = get_args(Kind)
# The calls before which a crash can differ from a crash earlier.
CHANGING: frozenset[Kind] = frozenset(KINDS) - {
    "open", "pread", "size", "mmap", "close", "listdir", "stat_len", "file_id", "exists", "is_dir",
}  # fmt: skip
GROWING: tuple[Kind, ...] = ("create", "pwrite", "allocate", "mkdir")  # what a full disk refuses
SYNCS: frozenset[Kind] = frozenset({"datasync", "fsync", "sync_dir"})
FOREVER = 1 << 62
T = TypeVar("T")


class SimCrash(BaseException):
    """The process ended here. Not an Exception, so that no handler of the product takes it for a failure."""


class FsCall(NamedTuple):
    number: int
    kind: Kind
    path: str


class Fault:
    """One rule. `hits` counts its strikes; `lift` ends it."""

    def __init__(self, kind: Kinds, path: str, *, at: int, times: int) -> None:
        self.kinds = frozenset(KINDS if kind == "*" else (kind,) if isinstance(kind, str) else kind)
        self.path = path
        assert self.kinds <= frozenset(KINDS), f"no call is of kind {kind!r}"
        assert at >= 1
        self.seen = 0
        self.hits = 0
        self._span = range(at, at + times)

    def lift(self) -> None:
        self._span = range(0)

    def takes(self, call: FsCall) -> bool:
        if call.kind not in self.kinds or not fnmatchcase(call.path, self.path):
            return False
        self.seen += 1
        if self.seen not in self._span:
            return False
        self.hits += 1
        return True

    def before(self, call: FsCall) -> None:
        """Raise, or wait."""

    def kept(self, size: int) -> int:
        """How many of `size` bytes the call moves."""
        return size

    lies = False


class _Fail(Fault):
    code = errno.EIO
    error: BaseException | None = None

    def before(self, call: FsCall) -> None:
        raise self.error or OSError(self.code, os.strerror(self.code), call.path)


class _Short(Fault):
    keep: int | None = None

    def kept(self, size: int) -> int:
        return size // 2 if self.keep is None else min(self.keep, size)


class _Block(Fault):
    until: Callable[[], object]

    def before(self, call: FsCall) -> None:
        self.until()


class _Lie(Fault):
    lies = True


class _Crash(Fault):
    owner: "FaultFs"

    def before(self, call: FsCall) -> None:
        self.owner.crashed = True
        raise SimCrash(f"before call {call.number}: {call.kind} {call.path}")


class FaultFile:
    """A file of a `FaultFs`."""

    def __init__(self, fs: "FaultFs", inner: File) -> None:
        self._fs = fs
        self._inner = inner
        self.name = inner.name
        fs.opened.add(self)

    def pread(self, off: int, n: int) -> bytes:
        return self._fs.call("pread", self.name, lambda struck: self._inner.pread(off, _kept(struck, n)))

    def pread_into(self, off: int, buf: memoryview) -> int:
        found = self.pread(off, len(buf))
        buf[: len(found)] = found
        return len(found)

    def pwrite(self, off: int, buf: Buffer) -> int:
        view = memoryview(buf).cast("B")
        return self._write(view.nbytes, lambda n: self._inner.pwrite(off, view[:n]), off)

    def pwritev(self, off: int, bufs: Sequence[Buffer]) -> int:
        size = sum(map(len, bufs))
        return self._write(size, lambda n: self._inner.pwritev(off, bufs if n == size else _head(bufs, n)), off)

    def _write(self, size: int, write: Callable[[int], int], off: int) -> int:
        try:
            return self._fs.call("pwrite", self.name, lambda struck: write(_kept(struck, size)))
        except OSError as error:
            if error.errno not in PASSING:
                _tell(self._inner, "write_failed", off, size)
            raise

    def truncate(self, n: int) -> None:
        self._fs.call("truncate", self.name, lambda _: self._inner.truncate(n))

    def allocate(self, n: int) -> None:
        self._fs.call("allocate", self.name, lambda _: self._inner.allocate(n))

    def datasync(self) -> None:
        self._sync("datasync", self._inner.datasync)

    def fsync(self) -> None:
        self._sync("fsync", self._inner.fsync)

    def _sync(self, kind: Kind, sync: Callable[[], None]) -> None:
        try:
            self._fs.call(kind, self.name, lambda struck: None if _lied(struck) else sync())
        except OSError as error:
            if error.errno not in PASSING:
                _tell(self._inner, "sync_failed")
            raise

    def size(self) -> int:
        return self._fs.call("size", self.name, lambda _: self._inner.size())

    def inode(self) -> Inode:
        return self._inner.inode()

    def mmap(self) -> memoryview:
        return self._fs.call("mmap", self.name, lambda _: self._inner.mmap())

    def close(self) -> None:
        self._fs.call("close", self.name, lambda _: self._inner.close())


def _kept(struck: Sequence[Fault], size: int) -> int:
    return min((fault.kept(size) for fault in struck), default=size)


def _lied(struck: Sequence[Fault]) -> bool:
    return any(fault.lies for fault in struck)


def _head(bufs: Sequence[Buffer], n: int) -> list[Buffer]:
    return [memoryview(b"".join(bufs))[:n]]


def _tell(file: File, event: str, *args: int) -> None:
    """Simulated files want to know of failures that happened above them; real ones do not care."""
    listener = getattr(file, event, None)
    if listener is not None:
        listener(*args)


class FaultFs:
    """`inner`, with faults."""

    def __init__(self, inner: Fs, *, hook: Callable[[FsCall], object] | None = None, record: bool = True) -> None:
        """`record=False` keeps no trace, for runs of millions of calls."""
        self._inner = inner
        self._lock = Lock()
        self._faults: list[Fault] = []
        self.hook = hook
        self.record = record
        self.trace: list[FsCall] = []
        self.calls = 0
        self.opened: WeakSet[FaultFile] = WeakSet()
        self.crashed = False

    # --- setting faults ---

    def fail(
        self, kind: Kinds = "*", path: str = "*", *, code: int = errno.EIO,
        error: BaseException | None = None, at: int = 1, times: int = 1,
    ) -> Fault:  # fmt: skip
        """Raise OSError(code), or `error` if given, without making the call."""
        fault = _Fail(kind, path, at=at, times=times)
        fault.code = code
        fault.error = error
        return self._set(fault)

    def fill_disk(self, path: str = "*") -> Fault:
        """No space is left for anything new until the fault is lifted."""
        return self.fail(GROWING, path, code=errno.ENOSPC, times=FOREVER)

    def short(
        self, kind: Literal["pwrite", "pread"] = "pwrite", path: str = "*", *, keep: int | None = None,
        at: int = 1, times: int = 1,
    ) -> Fault:  # fmt: skip
        """Move `keep` bytes, by default half; 0 is a call that gets nowhere."""
        fault = _Short(kind, path, at=at, times=times)
        fault.keep = keep
        return self._set(fault)

    def block(self, kind: Kinds, path: str = "*", *, until: Callable[[], object], at: int = 1, times: int = 1) -> Fault:
        """Call `until` first; what it does, and how long, is the test's. The call then goes on."""
        fault = _Block(kind, path, at=at, times=times)
        fault.until = until
        return self._set(fault)

    def lie(self, kind: Kind = "datasync", path: str = "*", *, at: int = 1, times: int = 1) -> Fault:
        """A sync that reports success and did nothing. A later honest sync of the file covers its bytes."""
        assert kind in SYNCS, "only a sync can lie"
        return self._set(_Lie(kind, path, at=at, times=times))

    def crash(self, kind: Kinds = "*", path: str = "*", *, at: int = 1) -> Fault:
        fault = _Crash(kind, path, at=at, times=1)
        fault.owner = self
        return self._set(fault)

    def _set(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """Lift every fault. A crash stays one."""
        with self._lock:
            self._faults.clear()

    # --- calls ---

    def call(self, kind: Kind, path: str, act: Callable[[Sequence[Fault]], T]) -> T:
        with self._lock:
            if self.crashed:
                raise SimCrash(f"after the crash: {kind} {path}")
            self.calls += 1
            call = FsCall(self.calls, kind, path)
            if self.record:
                self.trace.append(call)
            struck = [fault for fault in self._faults if fault.takes(call)]
        if self.hook is not None:
            self.hook(call)
        for fault in struck:
            fault.before(call)
        return act(struck)

    def open(self, path: str, mode: Mode = "r") -> FaultFile:
        kind: Kind = "open" if mode in ("r", "rw") else "create"
        return FaultFile(self, self.call(kind, path, lambda _: self._inner.open(path, mode)))

    def mkdir(self, path: str) -> None:
        self.call("mkdir", path, lambda _: self._inner.mkdir(path))

    def rename(self, src: str, dst: str) -> None:
        """Counted under its target. Open files go by the new name from here on."""
        self.call("rename", dst, lambda _: self._inner.rename(src, dst))
        for file in list(self.opened):
            if file.name == src or file.name.startswith(src + "/"):
                file.name = dst + file.name[len(src) :]

    def unlink(self, path: str) -> None:
        self.call("unlink", path, lambda _: self._inner.unlink(path))

    def rmdir(self, path: str) -> None:
        self.call("rmdir", path, lambda _: self._inner.rmdir(path))

    def listdir(self, path: str) -> list[str]:
        return self.call("listdir", path, lambda _: self._inner.listdir(path))

    def stat_len(self, path: str) -> int:
        return self.call("stat_len", path, lambda _: self._inner.stat_len(path))

    def file_id(self, path: str) -> tuple[int, int]:
        return self.call("file_id", path, lambda _: self._inner.file_id(path))

    def exists(self, path: str) -> bool:
        return self.call("exists", path, lambda _: self._inner.exists(path))

    def is_dir(self, path: str) -> bool:
        return self.call("is_dir", path, lambda _: self._inner.is_dir(path))

    def sync_dir(self, path: str) -> None:
        self.call("sync_dir", path, lambda struck: None if _lied(struck) else self._inner.sync_dir(path))

    def inode(self, path: str) -> Inode | None:
        """Not counted: it moves nothing, and it comes with every sync."""
        return self._inner.inode(path)

    def mount_ids(self, paths: Iterable[str]) -> set[str]:
        return self._inner.mount_ids(paths)

    def lock(self, path: str) -> LockHandle:
        return LockHandle(FaultFile(self, self.call("lock", path, lambda _: self._inner.lock(path)).file))
