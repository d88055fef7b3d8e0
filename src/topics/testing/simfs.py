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
from collections.abc import Callable, Sequence
from random import Random
from threading import Lock

from topics.errors import DataDirLocked
from topics.storage.fs import Buffer, Inode, LockHandle, Mode, parent
from topics.testing.powercut import PATTERN_FATES
from topics.testing.simdisk import NameChange, PowerCutFate, SimDisk
from topics.testing.simnodes import Change, FileNode, Image
from topics.testing.simtree import SimTree, os_error


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

    def mount_id(self, path: str) -> str:
        with self.mutex:
            self._tree(path)
            return f"sim:{self.disk.mounts}"

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
