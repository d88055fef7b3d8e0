"""SimFs: an in-memory `Fs` for one process on a disk that can lose power.

    fs = SimFs()
    file = fs.open("log", "create"); file.pwrite(0, b"a"); file.fsync(); fs.sync_dir(".")
    file.pwrite(1, b"b")
    fs.power_cut(Random(1), "lose_all")
    fs = fs.reboot()
    assert fs.contents("log") == b"a"

Bytes become durable by `datasync` or `fsync` of their file, names by `sync_dir` of their directory, neither by the
other. `kill` ends the process and keeps all that is pending; `power_cut` ends it and lets a pattern of `powercut`
decide. After either the object and all its handles answer EBADF, so that a forgotten thread of the dead process cannot
touch the disk of its successor; `reboot` gives the successor. `clone` copies the disk at any moment for the price of a
dict, which is how a test crashes at every call of one run. Safe to use from several threads.
"""

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from random import Random
from threading import Lock

from topics.errors import DataDirLocked
from topics.storage.fs import Buffer, Inode, LockHandle, Mode, parent
from topics.testing.powercut import PATTERN_FATES
from topics.testing.simdisk import ROOT, Change, DirNode, FileNode, Image, NameChange, PowerCutFate, SimDisk

Place = tuple[int, str]


def os_error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


@lru_cache(maxsize=4096)
def _parts(path: str) -> tuple[str, ...]:
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    assert ".." not in parts, f"{path}: the simulated disk has no '..'"
    return parts


class SimTree:
    """Paths on a disk, with the errors that a real kernel gives for them.

    Turns every call that takes a path into calls on nodes. Which error wins when several apply is Linux's choice, which
    the tests check call by call against the real file system. `SimFs` holds its mutex around every call."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk

    def open(self, path: str, mode: Mode) -> int:
        number = self.find(path)
        if number is None:
            if mode in ("r", "rw"):
                raise os_error(errno.ENOENT, path)
            return self.disk.add(self._place(path), directory=False)
        if mode == "new":
            raise os_error(errno.EEXIST, path)
        if self._is_dir(number):
            raise os_error(errno.EISDIR, path)
        if mode == "create" and self.disk.file(number).live.size:
            self.disk.own_file(number).change(Change("truncate", 0))
        return number

    def mkdir(self, path: str) -> None:
        if self.find(path) is not None:
            raise os_error(errno.EEXIST, path)
        self.disk.add(self._place(path), directory=True)

    def rename(self, src: str, dst: str) -> None:
        places = self._place(src), self._place(dst)
        moved = self.number(src)
        there = self.find(dst)
        if moved != there:
            self._check_rename(src, dst, moved, there)
            self.disk.move(*places)

    def unlink(self, path: str) -> None:
        if self._is_dir(self.number(path)):
            raise os_error(errno.EISDIR, path)
        self.disk.remove(self._place(path))

    def rmdir(self, path: str) -> None:
        if self.directory(path).live:
            raise os_error(errno.ENOTEMPTY, path)
        self.disk.remove(self._place(path))

    def size(self, path: str) -> int:
        number = self.number(path)
        return 4096 if self._is_dir(number) else self.disk.file(number).live.size

    def exists(self, path: str) -> bool:
        return self.find_or_none(path) is not None

    def is_dir(self, path: str) -> bool:
        number = self.find_or_none(path)
        return number is not None and self._is_dir(number)

    def sync(self, path: str) -> None:
        self.directory(path)
        self.disk.sync_names(self.number(path))

    def make_durable_dirs(self, path: str) -> None:
        """Every directory above `path` that is missing."""
        parts = _parts(path)
        for depth in range(1, len(parts)):
            above = "/".join(parts[:depth])
            if self.find(above) is None:
                self.mkdir(above)
                self.disk.sync_names(self._place(above)[0])

    # --- finding ---

    def find(self, path: str) -> int | None:
        """The node at `path`; None if only its last name is missing."""
        parts = _parts(path)
        number = ROOT
        for depth, part in enumerate(parts):
            node = self.disk.nodes[number]
            if not isinstance(node, DirNode):
                raise os_error(errno.ENOTDIR, path)
            below = node.live.get(part)
            if below is None:
                if depth + 1 < len(parts):
                    raise os_error(errno.ENOENT, path)
                return None
            number = below
        return number

    def find_or_none(self, path: str) -> int | None:
        try:
            return self.find(path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def number(self, path: str) -> int:
        number = self.find(path)
        if number is None:
            raise os_error(errno.ENOENT, path)
        return number

    def directory(self, path: str) -> DirNode:
        node = self.disk.nodes[self.number(path)]
        if not isinstance(node, DirNode):
            raise os_error(errno.ENOTDIR, path)
        return node

    def _is_dir(self, number: int) -> bool:
        return isinstance(self.disk.nodes[number], DirNode)

    def _place(self, path: str) -> Place:
        *above, name = _parts(path)
        directory = self.number("/".join(above))
        if not self._is_dir(directory):
            raise os_error(errno.ENOTDIR, path)
        return directory, name

    def _check_rename(self, src: str, dst: str, moved: int, there: int | None) -> None:
        if _parts(dst)[: len(_parts(src))] == _parts(src):
            raise os_error(errno.EINVAL, dst)
        if there is None:
            return
        if self._is_dir(there) and _parts(src)[: len(_parts(dst))] == _parts(dst):
            raise os_error(errno.ENOTEMPTY, dst)
        target = self.disk.nodes[there]
        if isinstance(target, DirNode) != self._is_dir(moved):
            raise os_error(errno.EISDIR if isinstance(target, DirNode) else errno.ENOTDIR, dst)
        if isinstance(target, DirNode) and target.live:
            raise os_error(errno.ENOTEMPTY, dst)


class SimFile:
    """One open file of a `SimFs`."""

    def __init__(self, fs: "SimFs", number: int, name: str, *, writable: bool) -> None:
        self._fs = fs
        self._number = number
        self._writable = writable
        self._open = True
        self.name = name

    def pread(self, off: int, n: int) -> bytes:
        with self._fs.mutex:
            return self._node().live.read(off, n)

    def pread_into(self, off: int, buf: memoryview) -> int:
        found = self.pread(off, len(buf))
        buf[: len(found)] = found
        return len(found)

    def pwrite(self, off: int, buf: Buffer) -> int:
        data = bytes(buf)
        with self._fs.mutex:
            self._check_writable(errno.EBADF)
            self._check_space(off + len(data))
            if data:
                self._own().change(Change("write", off, data))
        return len(data)

    def pwritev(self, off: int, bufs: Sequence[Buffer]) -> int:
        return self.pwrite(off, b"".join(bufs))

    def truncate(self, n: int) -> None:
        with self._fs.mutex:
            self._check_writable(errno.EINVAL)
            self._own().change(Change("truncate", n))

    def allocate(self, n: int) -> None:
        with self._fs.mutex:
            self._check_writable(errno.EBADF)
            self._check_space(n)
            if n > self._node().live.size:
                self._own().change(Change("extend", n))

    def datasync(self) -> None:
        with self._fs.mutex:
            if self._node().pending:
                self._own().promote()

    fsync = datasync

    def sync_failed(self) -> None:
        """What a failed sync leaves: these bytes may or may not be on the disk, and no later sync will tell."""
        with self._fs.mutex:
            if self._node().pending:
                self._own().doubt()

    def size(self) -> int:
        with self._fs.mutex:
            return self._node().live.size

    def inode(self) -> Inode:
        self._node()
        return 0, self._number

    def mmap(self) -> memoryview:
        with self._fs.mutex:
            self._node()
            self._fs.disk.mapped.add(self._number)
            return self._own().map()

    def close(self) -> None:
        with self._fs.mutex:
            if self._open and not self._fs.dead:
                self._fs.disk.release(self._number)
            self._open = False

    def _node(self) -> FileNode:
        if not self._open or self._fs.dead:
            raise os_error(errno.EBADF, self.name)
        return self._fs.disk.file(self._number)

    def _own(self) -> FileNode:
        return self._fs.disk.own_file(self._number)

    def _check_space(self, size: int) -> None:
        if not self._fs.disk.has_space(self._number, size):
            raise os_error(errno.ENOSPC, self.name)

    def _check_writable(self, code: int) -> None:
        self._node()
        if not self._writable:
            raise os_error(code, self.name)


class _LockFile(SimFile):
    """A locked file, and the locked directory it lies in."""

    def __init__(self, fs: "SimFs", number: int, name: str, *, directory: int) -> None:
        super().__init__(fs, number, name, writable=True)
        self._directory = directory

    def close(self) -> None:
        if self._open:
            self._fs.locks -= {self._number, self._directory}
        super().close()


class SimFs:
    """A process's view of a simulated disk."""

    def __init__(self, disk: SimDisk | None = None) -> None:
        self.disk = disk or SimDisk()
        self._names = SimTree(self.disk)
        self.mutex = Lock()
        self.locks: set[int] = set()
        self.dead = False

    # --- the Fs protocol ---

    def open(self, path: str, mode: Mode = "r") -> SimFile:
        with self.mutex:
            number = self._tree(path).open(path, mode)
            self.disk.hold(number)
            return SimFile(self, number, path, writable=mode != "r")

    def mkdir(self, path: str) -> None:
        with self.mutex:
            self._tree(path).mkdir(path)

    def rename(self, src: str, dst: str) -> None:
        with self.mutex:
            self._tree(src).rename(src, dst)

    def unlink(self, path: str) -> None:
        with self.mutex:
            self._tree(path).unlink(path)

    def rmdir(self, path: str) -> None:
        with self.mutex:
            self._tree(path).rmdir(path)

    def listdir(self, path: str) -> list[str]:
        with self.mutex:
            return sorted(self._tree(path).directory(path).live)

    def stat_len(self, path: str) -> int:
        with self.mutex:
            return self._tree(path).size(path)

    def file_id(self, path: str) -> tuple[int, int]:
        """A node is never used again, so its number says everything."""
        with self.mutex:
            return self._tree(path).number(path), 0

    def exists(self, path: str) -> bool:
        with self.mutex:
            return self._tree(path).exists(path)

    def is_dir(self, path: str) -> bool:
        with self.mutex:
            return self._tree(path).is_dir(path)

    def sync_dir(self, path: str) -> None:
        with self.mutex:
            self._tree(path).sync(path)

    def inode(self, path: str) -> Inode | None:
        with self.mutex:
            number = self._tree(path).find_or_none(path)
            return None if number is None else (0, number)

    def mount_ids(self, paths: Iterable[str]) -> set[str]:
        with self.mutex:
            for path in paths:
                self._tree(path)
            return {f"sim:{self.disk.mounts}"}

    def lock(self, path: str) -> LockHandle:
        with self.mutex:
            directory = self._tree(path).number(parent(path))
            if directory in self.locks:
                raise DataDirLocked(f"another process holds the directory of {path}")
            number = self._tree(path).open(path, "ensure")
            if number in self.locks:
                raise DataDirLocked(f"another process holds {path}")
            self.locks |= {number, directory}
            self.disk.hold(number)
            return LockHandle(_LockFile(self, number, path, directory=directory))

    def _tree(self, path: str) -> SimTree:
        if self.dead:
            raise os_error(errno.EBADF, path)
        return self._names

    # --- crashes ---

    def kill(self) -> None:
        """End the process. What it wrote stays pending, its locks are free."""
        with self.mutex:
            self.dead = True
            self.disk.drop_handles()

    def power_cut(self, rng: Random | None = None, pattern: str | PowerCutFate = "lose_all") -> None:
        """End the machine, or the file system alone if the host is not rebooted.

        `pattern` is a name of `POWER_PATTERNS`, drawn with `rng`, or a fate of `powercut`."""
        fate = PATTERN_FATES[pattern](rng or Random(0)) if isinstance(pattern, str) else pattern
        self.kill()
        self.disk.keep_only(fate)

    def reboot(self) -> "SimFs":
        """The next process on this disk. This one is killed first if it still lives."""
        if not self.dead:
            self.kill()
        return SimFs(self.disk)

    def clone(self) -> "SimFs":
        """A copy of the disk as a killed process would leave it now; ours goes on. Copy-on-write, so cheap."""
        with self.mutex:
            return SimFs(self.disk.clone())

    @property
    def dirty(self) -> bool:
        """Whether a power cut now could lose anything."""
        with self.mutex:
            return self.disk.dirty()

    @property
    def changes_seen(self) -> int:
        """Grows with everything that could make a crash now differ from a crash before."""
        return self.disk.changes_seen

    # --- looking and tampering, past the protocol; also on a dead disk ---

    def contents(self, path: str) -> bytes:
        with self.mutex:
            return _whole(self.disk.file(self._names.number(path)).live)

    def dump(self) -> dict[str, bytes]:
        """Every file by path, as the process sees it."""
        with self.mutex:
            nodes = self.disk.nodes
            found = sorted((path, nodes[number]) for number, path in self.disk.paths().items())
            return {path: _whole(node.live) for path, node in found if isinstance(node, FileNode)}

    def pending(self, path: str) -> list[Change]:
        """The file's changes that a power cut would decide about."""
        with self.mutex:
            node = self.disk.file(self._names.number(path))
            return [*node.doubtful, *node.pending]

    def pending_names(self) -> list[NameChange]:
        with self.mutex:
            return list(self.disk.renames)

    def tamper(self, path: str, edit: Callable[[bytes], bytes]) -> None:
        """Change a file on the platter, durably, with all that was pending in it: rot, a bad sector, an operator."""
        with self.mutex:
            self._rewrite(self._names.number(path), edit)

    def plant(self, path: str, data: bytes) -> None:
        """Put a durable file at `path`, making the directories above it; for foreign and left-over files."""
        with self.mutex:
            self._names.make_durable_dirs(path)
            self._rewrite(self._names.open(path, "ensure"), lambda old: data)
            self._names.sync(parent(path))

    def erase(self, path: str) -> None:
        """Take a file away durably."""
        with self.mutex:
            self._names.unlink(path)
            self._names.sync(parent(path))

    def _rewrite(self, number: int, edit: Callable[[bytes], bytes]) -> None:
        node = self.disk.own_file(number)
        data = edit(_whole(node.live))
        node.change(Change("truncate", 0))
        node.change(Change("write", 0, data))
        node.promote()


def _whole(image: Image) -> bytes:
    return image.read(0, image.size)
