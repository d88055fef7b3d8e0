"""Files and directories of the simulated disk: what is live, what is durable, and the changes between.

A file is two images and the changes that lead from the durable one to the live one, in order; a directory is two name
tables. Nodes belong to one disk at a time (`owner`); a disk that does not own a node copies it before changing it.
Called by `SimDisk`.
"""

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple


class Change(NamedTuple):
    """One change to a file: `data` written at `at`, its size set to `at`, or its size raised to `at`."""

    kind: Literal["write", "truncate", "extend"]
    at: int
    data: bytes = b""


class Image:
    """A file's bytes: `buf`, then zeros up to `size`. A preallocated file therefore costs what was written to it."""

    __slots__ = ("buf", "size")

    def __init__(self, buf: bytearray, size: int) -> None:
        self.buf = buf
        self.size = size

    def copy(self) -> "Image":
        return Image(bytearray(self.buf), self.size)

    def read(self, off: int, n: int) -> bytes:
        end = min(off + n, self.size)
        if end <= off:
            return b""
        return bytes(memoryview(self.buf)[off:end]).ljust(end - off, b"\0")

    def apply(self, change: Change) -> None:
        kind, at, data = change
        if kind == "write":
            self.fill_to(at)
            self.buf[at : at + len(data)] = data
            self.size = max(self.size, at + len(data))
        elif kind == "extend":
            self.size = max(self.size, at)
        else:
            del self.buf[at:]
            self.size = at

    def fill_to(self, n: int) -> None:
        if len(self.buf) < n:
            self.buf.extend(bytes(n - len(self.buf)))


class FileNode:
    """`doubtful` changes were part of a sync that failed: no later sync promotes them, a power cut may keep them."""

    __slots__ = ("doubtful", "durable", "live", "mapped", "owner", "pending")

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.live = Image(bytearray(), 0)
        self.durable = Image(bytearray(), 0)
        self.pending: list[Change] = []
        self.doubtful: list[Change] = []
        self.mapped: list[bytearray] = []

    def copy(self, owner: object) -> "FileNode":
        twin = FileNode.__new__(FileNode)
        twin.owner = owner
        twin.live = self.live.copy()
        twin.durable = self.durable.copy()
        twin.pending = self.pending.copy()
        twin.doubtful = self.doubtful.copy()
        twin.mapped = []
        return twin

    def change(self, change: Change) -> None:
        self.pending.append(change)
        if self.mapped and self._resizes(change):
            self.live = self.live.copy()  # a mapped buffer cannot change its length
        self.live.apply(change)
        for view in self.mapped:
            if view is not self.live.buf:
                _show(change, view)

    def _resizes(self, change: Change) -> bool:
        return change.kind == "truncate" or change.at + len(change.data) > len(self.live.buf)

    def map(self) -> memoryview:
        if len(self.live.buf) < self.live.size:
            self.live = self.live.copy()
            self.live.fill_to(self.live.size)
        if not any(view is self.live.buf for view in self.mapped):
            self.mapped.append(self.live.buf)
        return memoryview(self.live.buf)[: self.live.size].toreadonly()

    def promote(self) -> None:
        for change in self.pending:
            self.durable.apply(change)
            if self.doubtful:
                self.doubtful = [rest for old in self.doubtful for rest in _uncovered(old, change)]
        self.pending.clear()

    def doubt(self) -> None:
        self.doubtful += self.pending
        self.pending.clear()

    def keep_only(self, survivors: Iterable[Change]) -> None:
        for change in survivors:
            self.durable.apply(change)
        self.live = self.durable.copy()
        self.pending.clear()
        self.doubtful.clear()


def _show(change: Change, view: bytearray) -> None:
    """Let a mapping of an older, shorter or longer buffer see the change as far as it reaches."""
    room = max(0, len(view) - change.at)
    if change.kind == "write":
        view[change.at : change.at + len(change.data)] = change.data[:room]
    elif change.kind == "truncate":
        view[change.at :] = bytes(room)


def _uncovered(old: Change, new: Change) -> Iterator[Change]:
    """The parts of `old` that a later, durable `new` did not decide."""
    if old.kind != "write":
        return
    lo, hi = (new.at, new.at + len(new.data)) if new.kind == "write" else (new.at, 1 << 62)
    if new.kind == "extend":
        lo = hi
    start, end = old.at, old.at + len(old.data)
    if start < min(end, lo):
        yield Change("write", start, old.data[: lo - start])
    if max(start, hi) < end:
        yield Change("write", max(start, hi), old.data[max(start, hi) - start :])


class DirNode:
    __slots__ = ("durable", "live", "owner")

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.live: dict[str, int] = {}
        self.durable: dict[str, int] = {}

    def copy(self, owner: object) -> "DirNode":
        twin = DirNode(owner)
        twin.live = self.live.copy()
        twin.durable = self.durable.copy()
        return twin


Node = FileNode | DirNode
