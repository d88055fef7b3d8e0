"""The simulated disk: files and directories by node number, pending changes, and cheap copies of all of it.

A file node is two images, live and durable, and the changes that lead from the durable one to the live one, in order; a
directory node is two name tables. A sync moves changes to the durable side; a power cut asks a `PowerCutFate` which of
the rest survive, and makes the outcome both live and durable. Name changes are pending disk-wide in one list, each
atomic by itself.

Copies are copy-on-write by node: a clone shares every node, and each side copies a node when it first changes it
(`owner` says whose it is), so a clone costs one dict. Not thread-safe: `SimFs`, its only caller, holds a mutex.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, Protocol


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


ROOT = 1


class NameChange(NamedTuple):
    """One atomic change of names. `link` has only a target, `unlink` only a source, `rename` both."""

    kind: Literal["link", "unlink", "rename"]
    node: int
    src: tuple[int, str] = (0, "")
    dst: tuple[int, str] = (0, "")
    replaced: int = 0

    @property
    def name(self) -> str:
        """The name that appears, or, for `unlink`, the one that goes."""
        return self.dst[1] or self.src[1]


class PowerCutFate(Protocol):
    """What a power cut leaves of the pending changes."""

    def changes(self, path: str, pending: Sequence[Change]) -> Iterable[Change]: ...

    def names(self, pending: Sequence[NameChange]) -> Iterable[NameChange]: ...


class SimDisk:
    """Nodes by number, and the name changes that no `sync_dir` has covered yet."""

    def __init__(self) -> None:
        self.token = object()
        self.nodes: dict[int, Node] = {ROOT: DirNode(self.token)}
        self.renames: list[NameChange] = []
        self.mapped: set[int] = set()
        self.held: dict[int, int] = {}  # open handles per file node
        self.orphans: set[int] = set()  # durably nameless, kept by a handle
        self.next_node = ROOT + 1
        self.changes_seen = 0
        self.mounts = 1
        self.space: int | None = None
        """Bytes that all files together may take; what lies inside a file's length was paid for. None: no limit."""

    # --- copies ---

    def clone(self) -> "SimDisk":
        """The same disk without its process: no handle is open on it."""
        twin = SimDisk.__new__(SimDisk)
        twin.token = object()
        self.token = object()  # from here on, neither side owns what both can see
        twin.nodes = self.nodes.copy()
        twin.renames = self.renames.copy()
        twin.mapped = set()
        twin.held = {}
        twin.orphans = set()
        twin.next_node = self.next_node
        twin.changes_seen = self.changes_seen
        twin.mounts = self.mounts
        twin.space = self.space
        for number in self.mapped:  # a mapped buffer changes in place, so it cannot be shared
            node = self.nodes[number]
            twin.nodes[number] = node.copy(twin.token)
            node.owner = self.token
        for number in self.orphans:
            del twin.nodes[number]
        return twin

    def used(self) -> int:
        """Bytes of the files that a name leads to, or that somebody has open."""
        reached = {*self.paths(), *self.held}
        nodes = [self.nodes[number] for number in reached]
        return sum(node.live.size for node in nodes if isinstance(node, FileNode))

    def has_space(self, number: int, size: int) -> bool:
        """Whether a file may grow to this size."""
        grows = size - self.file(number).live.size
        return self.space is None or grows <= 0 or self.used() + grows <= self.space

    def file(self, number: int) -> FileNode:
        """For reading."""
        node = self.nodes[number]
        assert isinstance(node, FileNode)
        return node

    def own_file(self, number: int) -> FileNode:
        """For changing."""
        node = self.nodes[number]
        if node.owner is not self.token:
            node = self.nodes[number] = node.copy(self.token)
        assert isinstance(node, FileNode)
        self.changes_seen += 1
        return node

    def own_dir(self, number: int) -> DirNode:
        node = self.nodes[number]
        if node.owner is not self.token:
            node = self.nodes[number] = node.copy(self.token)
        assert isinstance(node, DirNode)
        return node

    # --- names ---

    def add(self, place: tuple[int, str], *, directory: bool) -> int:
        number = self.next_node
        self.next_node += 1
        self.nodes[number] = DirNode(self.token) if directory else FileNode(self.token)
        self._record(NameChange("link", number, dst=place))
        self.own_dir(place[0]).live[place[1]] = number
        return number

    def remove(self, place: tuple[int, str]) -> None:
        number = self.own_dir(place[0]).live.pop(place[1])
        self._record(NameChange("unlink", number, src=place))

    def move(self, src: tuple[int, str], dst: tuple[int, str]) -> None:
        number = self.own_dir(src[0]).live.pop(src[1])
        target = self.own_dir(dst[0]).live
        self._record(NameChange("rename", number, src=src, dst=dst, replaced=target.get(dst[1], 0)))
        target[dst[1]] = number

    def _record(self, change: NameChange) -> None:
        self.renames.append(change)
        self.changes_seen += 1

    def sync_names(self, directory: int) -> None:
        """Make every change durable that touches the directory, with the earlier ones of the same files."""
        taken: list[NameChange] = []
        rest: list[NameChange] = []
        nodes: set[int] = set()
        for change in reversed(self.renames):
            if directory in (change.src[0], change.dst[0]) or change.node in nodes:
                nodes |= {change.node, change.replaced}
                taken.append(change)
            else:
                rest.append(change)
        if not taken:
            return
        self.changes_seen += 1
        self.renames = rest[::-1]
        for change in reversed(taken):
            self._make_durable(change, taken)
            gone = change.node if change.kind == "unlink" else change.replaced
            if gone:
                self._forget(gone)

    def _make_durable(self, change: NameChange, known: Sequence[NameChange]) -> None:
        """Guarded by node number, so that any subset of the pending changes gives one name per file at most."""
        if change.kind != "link":
            for place in {place for other in known if other.node == change.node for place in (other.src, other.dst)}:
                self._drop_durable(place, change.node)
        if change.kind != "unlink" and change.dst[0] in self.nodes:
            self.own_dir(change.dst[0]).durable[change.dst[1]] = change.node

    def _drop_durable(self, place: tuple[int, str], number: int) -> None:
        directory = self.nodes.get(place[0])
        if isinstance(directory, DirNode) and directory.durable.get(place[1]) == number:
            del self.own_dir(place[0]).durable[place[1]]

    def _forget(self, number: int) -> None:
        if isinstance(self.nodes.get(number), DirNode):
            self.sync_names(number)  # a directory that is durably gone took its names along
        if number in self.held:
            self.orphans.add(number)
        else:
            self.nodes.pop(number, None)
            self.mapped.discard(number)

    # --- handles ---

    def hold(self, number: int) -> None:
        self.held[number] = self.held.get(number, 0) + 1

    def release(self, number: int) -> None:
        self.held[number] -= 1
        if not self.held[number]:
            del self.held[number]
            if number in self.orphans:
                self.orphans.discard(number)
                self._forget(number)

    def drop_handles(self) -> None:
        """The process is gone: so are its handles, its mappings and the files only it could reach."""
        self.held.clear()
        for number in self.orphans:
            self.nodes.pop(number, None)
        self.orphans.clear()
        for number in self.mapped & self.nodes.keys():
            self.nodes[number] = self.nodes[number].copy(self.token)
        self.mapped.clear()

    # --- the end ---

    def keep_only(self, fate: PowerCutFate) -> None:
        """Power cut: `fate` says what survives, and that is then both live and durable; it is mounted anew."""
        self.mounts += 1
        self.drop_handles()
        dirty = self._dirty_files()
        paths = self._last_paths() if dirty else {}
        for number in dirty:
            file = self.own_file(number)
            file.keep_only(list(fate.changes(paths.get(number, ""), [*file.doubtful, *file.pending])))
        if self.renames:
            self._apply_names(fate)

    def dirty(self) -> bool:
        return bool(self.renames or self._dirty_files())

    def _dirty_files(self) -> list[int]:
        return [n for n, node in self.nodes.items() if isinstance(node, FileNode) and (node.pending or node.doubtful)]

    def _apply_names(self, fate: PowerCutFate) -> None:
        pending, self.renames = self.renames, []
        for change in list(fate.names(pending)):
            self._make_durable(change, pending)
        for number in {place[0] for change in pending for place in (change.src, change.dst)} & self.nodes.keys():
            directory = self.own_dir(number)
            directory.live = directory.durable.copy()
        reached = self.paths()
        self.nodes = {n: node for n, node in self.nodes.items() if n in reached or n == ROOT}

    def _walk(self, number: int, prefix: str) -> Iterator[tuple[int, str]]:
        node = self.nodes[number]
        if isinstance(node, DirNode):
            for name, below in node.live.items():
                yield below, prefix + name
                yield from self._walk(below, f"{prefix}{name}/")

    def paths(self) -> dict[int, str]:
        """Every live node by number."""
        return dict(self._walk(ROOT, ""))

    def _last_paths(self) -> dict[int, str]:
        """As `paths`; a file without a name goes by its last one."""
        found = self.paths()
        for change in reversed(self.renames):
            if change.node not in found and change.src[0]:
                above = found.get(change.src[0], "")
                found[change.node] = f"{above}/{change.src[1]}" if above else change.src[1]
        return found
