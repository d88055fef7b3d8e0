"""The disk as storage sees it.

    ReadFile, File, ReadFs, Fs   the protocols: what storage may ask of a file system
    read_full, write_all, ...    calls that go on until they are done
    install, make_dirs, ...      whole files and trees

Paths are `str` with `/`. Every failure is an `OSError`; an absent file is a `FileNotFoundError`, and no other error is
ever taken for "absent". Nothing here knows what is in a file. `OsFs` is the real disk, `RetryingFs` goes around it,
`topics.testing` has simulated ones. All storage code goes through here: nobody else opens a file of the data directory.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

Buffer = bytes | bytearray | memoryview
Inode = tuple[int, int]
"""Which file it is, whatever its name: device and inode."""

# r       existing file, reads only
# rw      existing file
# create  made if absent, emptied if present
# new     made; FileExistsError if present
# ensure  made if absent, kept as it is if present
Mode = Literal["r", "rw", "create", "new", "ensure"]

PASSING = frozenset({errno.EINTR, errno.EAGAIN})  # nothing was tried: the call may simply be made again
NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})  # of the process, of the machine


class ReadFile(Protocol):
    """One open file, for reading. Offsets are explicit, so a file has no position and may be used from several
    threads."""

    @property
    def name(self) -> str:
        """The path it was opened by."""

    def pread(self, off: int, n: int) -> bytes:
        """At most `n` bytes; fewer at the end of the file, or when the kernel stops early (`read_full` goes on)."""

    def pread_into(self, off: int, buf: memoryview) -> int:
        """As `pread`, into memory that is there already; how many bytes came."""

    def size(self) -> int: ...

    def inode(self) -> Inode:
        """The same as `Fs.inode` of its path for as long as the path names this file."""

    def mmap(self) -> memoryview:
        """Read-only view of the file's present length; later writes show in it. Unmapped when the last view is gone."""

    def close(self) -> None:
        """Says nothing about durability. Twice is fine."""


class File(ReadFile, Protocol):
    """One open file that may be written."""

    def pwrite(self, off: int, buf: Buffer) -> int:
        """Bytes written, maybe fewer than given. Use `write_all`."""

    def pwritev(self, off: int, bufs: Sequence[Buffer]) -> int:
        """As `pwrite`, for buffers that follow each other. Use `write_all_v`."""

    def truncate(self, n: int) -> None:
        """Cut to `n` bytes, or extend to `n` with zeros that take no space."""

    def allocate(self, n: int) -> None:
        """Make at least `n` bytes of the file exist and have space; new ones read as zero. Never shrinks."""

    def datasync(self) -> None:
        """The bytes written so far, and the size needed to read them, survive a power cut."""

    def fsync(self) -> None: ...


class ReadFs(Protocol):
    """A file system that cannot be written. `runtime.recovery.look` is given nothing else, so that a start writes
    nothing before it has read and accepted everything, and readers of a data directory never write at all."""

    def open(self, path: str, mode: Literal["r"] = "r") -> ReadFile: ...

    def listdir(self, path: str) -> list[str]:
        """Names, sorted."""

    def stat_len(self, path: str) -> int: ...

    def exists(self, path: str) -> bool: ...

    def is_dir(self, path: str) -> bool: ...


class Fs(ReadFs, Protocol):
    """A file system. Names are durable only after `sync_dir` of their directory."""

    def open(self, path: str, mode: Mode = "r") -> File:
        """Files are made 0600, whatever the umask."""

    def mkdir(self, path: str) -> None:
        """Made 0700, whatever the umask; FileExistsError if the name is taken."""

    def rename(self, src: str, dst: str) -> None:
        """Atomic; replaces a file at `dst`."""

    def unlink(self, path: str) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def file_id(self, path: str) -> tuple[int, int]:
        """Inode and ctime in ns: of a copy of a file at least one of them is another, of a renamed directory's file
        none."""

    def sync_dir(self, path: str) -> None: ...

    def inode(self, path: str) -> Inode | None:
        """Which file or directory the path names; None if there is none."""

    def mount_ids(self, paths: Iterable[str]) -> set[str]:
        """The names of the file systems that these directories lie on; absent ones are left out. A name stays the same
        for as long as its file system stays mounted, and with it what was written and not synced. It is empty if
        unknown, which counts as another one."""

    def lock(self, path: str) -> LockHandle:
        """Make `path` if absent; hold it and the directory it lies in alone until the handle or the process ends; else
        DataDirLocked."""


class SyncFailed(OSError):
    """A sync failed: what it was to make durable may be lost, and a later one that succeeds proves nothing."""


class LockHandle:
    """A held lock file and its text. The lock lives as long as its file is open."""

    def __init__(self, file: File) -> None:
        self.file = file

    def read_text(self) -> str:
        """What the process before left; bytes that are no text come out as replacement characters."""
        return read_full(self.file, 0, self.file.size()).decode("utf-8", "replace")

    def replace_text(self, text: str) -> None:
        """A crash or error in between leaves a prefix or nothing, which readers take for "unknown"."""
        self.file.truncate(0)
        write_all(self.file, 0, text.encode())
        self.file.fsync()

    def overwrite_text(self, text: str) -> None:
        """In place, for which a full disk has room; until it is done, lines of the old text may be read."""
        data = text.encode()
        write_all(self.file, 0, data)
        self.file.truncate(len(data))
        self.file.fsync()

    def close(self) -> None:
        self.file.close()


# --- calls that go on until they are done -----------------------------------------------------------------------------


def write_all(file: File, off: int, buf: Buffer) -> None:
    """Every byte of `buf` at `off`, going on after short writes. A write that gets nowhere is an EIO."""
    view = memoryview(buf).cast("B")
    while view:
        done = file.pwrite(off, view)
        if done <= 0:
            raise OSError(errno.EIO, "write made no progress", file.name)
        off += done
        view = view[done:]


def write_all_v(file: File, off: int, bufs: Sequence[Buffer]) -> None:
    """`write_all` of buffers that follow each other; at most 512 go to the kernel at once (its limit is 1024)."""
    for lo in range(0, len(bufs), 512):
        off = _write_run(file, off, bufs[lo : lo + 512])


def _write_run(file: File, off: int, bufs: Sequence[Buffer]) -> int:
    size = sum(map(len, bufs))
    if not size:
        return off
    done = file.pwritev(off, bufs)
    if done < size:  # rare: finish by hand
        write_all(file, off + done, memoryview(b"".join(bufs))[done:])
    return off + size


def read_full(file: ReadFile, off: int, n: int) -> bytes:
    """`n` bytes from `off`, fewer only where the file ends."""
    first = file.pread(off, n)
    if len(first) == n or not first:
        return first
    parts = [first]
    got = len(first)
    while got < n and (part := file.pread(off + got, n - got)):
        parts.append(part)
        got += len(part)
    return b"".join(parts)


# --- whole files and trees --------------------------------------------------------------------------------------------


def parent(path: str) -> str:
    """The directory a name lies in; `.` for a bare name."""
    head, slash, _ = path.rstrip("/").rpartition("/")
    return head or (slash or ".")


def install(fs: Fs, path: str, data: Buffer) -> None:
    """Put a whole file at `path`: after any crash it holds its old bytes or `data`. Done only when this returns.

    A failure leaves `path.tmp` behind; the next install of the name, or recovery, takes it away.
    """
    temp = path + ".tmp"
    file = fs.open(temp, "create")
    try:
        write_all(file, 0, data)
        file.fsync()
    finally:
        file.close()
    fs.rename(temp, path)
    fs.sync_dir(parent(path))


def is_in_place(fs: Fs, path: str, file: ReadFile) -> bool:
    """Whether `path` still names this open file. If not, what is written to it is gone when it is closed."""
    return fs.inode(path) == file.inode()


def read_file(fs: ReadFs, path: str) -> bytes:
    file = fs.open(path, "r")
    try:
        size = file.size()
        data = file.pread(0, size)
        return data if len(data) == size else read_full(file, 0, size)
    finally:
        file.close()


def names_in(fs: ReadFs, path: str) -> list[str]:
    """`listdir`; nothing if there is no such directory."""
    try:
        return fs.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []


def make_dirs(fs: Fs, *paths: str) -> None:
    """Make these directories and what is missing above them, each durable before the next; what exists is left
    alone."""
    for path in paths:
        if fs.is_dir(path):
            continue
        above = parent(path)
        if above != path:
            make_dirs(fs, above)
        fs.mkdir(path)
        fs.sync_dir(above)


def remove_tree(fs: Fs, path: str) -> None:
    """Remove a directory and all below it; absent is fine. The caller syncs the directory above when it matters."""
    try:
        names = fs.listdir(path)
    except FileNotFoundError:
        return
    for name in names:
        below = f"{path}/{name}"
        if fs.is_dir(below):
            remove_tree(fs, below)
        else:
            fs.unlink(below)
    fs.rmdir(path)
