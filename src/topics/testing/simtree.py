"""Paths on the simulated disk, with the errors that a real kernel gives for them.

Turns every call that takes a path into calls on nodes. Which error wins when several apply is Linux's choice, checked
call by call against the real file system in the tests. Called by `SimFs`, which holds its mutex.
"""

import errno
import os
from functools import lru_cache

from topics.storage.fs import Mode
from topics.testing.simdisk import ROOT, SimDisk
from topics.testing.simnodes import Change, DirNode

Place = tuple[int, str]


def os_error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


@lru_cache(maxsize=4096)
def _parts(path: str) -> tuple[str, ...]:
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    assert ".." not in parts, f"{path}: the simulated disk has no '..'"
    return parts


class SimTree:
    """The names of one disk."""

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
