"""Which groups and files of the log there are: names and first frames only (recovery step 3).

Reads and never writes. A failed listing or read is raised, never taken for "no such file". What is not ours (unknown
names, doubles of one number, files of another group) is left alone and reported in `notices`.

What a scan of the log found: the files to replay, where a group ends, and the layouts that were seen.

Values made by the reader, used by replay, repair and the opening of writers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from topics.formats import file_names as names
from topics.formats.buffers import Buffer
from topics.formats.wal import WalColumns, scan_wal
from topics.formats.wal.bodies import OpenMark
from topics.formats.wal.frame import FRAME_LEN_MAX, LEN_BYTES
from topics.storage.data_dir import DataDir
from topics.storage.fs import ReadFile, ReadFs, names_in, read_file, read_full
from topics.storage.wal.ends import GroupEnd
from topics.storage.wal.rotation import Layout
from topics.storage.wal.wal_files import LogPosition, WalFile

_HEAD_READ = 4096


class GroupListing(msgspec.Struct, frozen=True, kw_only=True):
    """A group's directory: file names by number, ascending, and the number that `CURRENT` names, if it can be read."""

    key: str
    dir: str
    names: dict[int, str]
    current: int | None
    has_current: bool
    notices: list[str]


class OpenFrame(NamedTuple):
    """The `open` frame of a file and its length."""

    mark: OpenMark
    size: int


def discover(fs: ReadFs, data: DataDir) -> list[GroupListing]:
    """Every group on disk, the flat one first; directories of shards count even when they are empty."""
    found = names_in(fs, data.wal)
    flat = list_group(fs, names.FLAT_GROUP, data.wal, found)
    groups = [flat] if flat.names or flat.has_current else []
    shards, doubles = names.pick_canonical(found, parse=names.parse_shard, build=names.shard_name)
    for name in shards.values():
        path = f"{data.wal}/{name}"
        if fs.is_dir(path):
            groups.append(list_group(fs, name, path, fs.listdir(path)))
    notices = [f"{data.wal}/{name} is ignored: the same shard has its canonical directory" for name in doubles]
    if groups and notices:
        groups[0].notices.extend(notices)
    return groups


def list_group(fs: ReadFs, key: str, dir: str, found: list[str]) -> GroupListing:
    """What `found`, the names in `dir`, says about a group."""
    chosen, doubles = names.pick_canonical(found, parse=names.parse_wal, build=names.wal_name)
    has_current = names.CURRENT in found
    return GroupListing(
        key=key,
        dir=dir,
        names=chosen,
        current=names.parse_current(read_file(fs, f"{dir}/{names.CURRENT}")) if has_current else None,
        has_current=has_current,
        notices=[f"{dir}/{name} is ignored: its number has a canonical file" for name in doubles],
    )


def read_open_frame(file: ReadFile) -> OpenFrame | None:
    """The first frame of a file if it is a valid `open` mark."""
    head = read_full(file, 0, _HEAD_READ)
    frame_len = int.from_bytes(head[:LEN_BYTES], "little")
    if frame_len > _HEAD_READ - LEN_BYTES and frame_len <= FRAME_LEN_MAX:
        head = read_full(file, 0, LEN_BYTES + frame_len)
    columns = scan_wal(head, 0, LEN_BYTES + frame_len)
    mark = columns.bodies.get(0)
    return OpenFrame(mark, columns.end) if isinstance(mark, OpenMark) else None


class ScannedFile:
    """One file to replay: its good rows and, on demand, its bytes."""

    __slots__ = ("_buffer", "columns", "file", "gen", "start")

    def __init__(self, file: WalFile, *, gen: int, start: int, columns: WalColumns, buffer: Buffer | None) -> None:
        self.file = file
        self.gen = gen
        self.start = start
        self.columns = columns
        self._buffer = buffer

    @property
    def number(self) -> int:
        return self.file.number

    def buffer(self) -> Buffer:
        """The file's bytes up to the end of its good frames, at least."""
        return read_full(self.file.file, 0, self.columns.end) if self._buffer is None else self._buffer

    def release(self) -> None:
        """Forget the bytes; replay is done with them."""
        self._buffer = None


class GroupScan:
    """What recovery knows of a group.

    `files` are replayed in order. `last` is the file that a writer would go on in, good up to `tail`; it holds `frames`
    frames, a guess from above unless `exact`. `start` is the recorded position, if there is one. `beyond`: the frames
    in front of it do not lead there, so nobody may append behind them. `ends_early`: the log does not reach it, so
    frames that were synced are gone. `tail_lost`: so are those from `tail` on, because the
    file was cut. `next_number` names a new file in every case.
    """

    def __init__(self, listing: GroupListing) -> None:
        self.key = listing.key
        self.dir = listing.dir
        self.notices = list(listing.notices)
        self.files: list[ScannedFile] = []
        self.passed: list[WalFile] = []  # absorbed, or of a generation the snapshot has left behind
        self.layouts: list[Layout] = []
        self.end = GroupEnd(kind="clean")
        self.last: WalFile | None = None
        self.tail = 0
        self.frames = 0
        self.exact = True
        self.last_gen = 0
        self.start: LogPosition | None = None
        self.beyond = False
        self.ends_early = False
        self.tail_lost = False
        self.next_number = 1
        self.current = listing.current
        self.from_first = False

    @property
    def position(self) -> LogPosition:
        """End of the log as found."""
        return LogPosition(self.next_number, 0) if self.last is None else LogPosition(self.last.number, self.tail)

    @property
    def current_stale(self) -> bool:
        return self.last is not None and self.current != self.last.number

    @property
    def complete(self) -> bool:
        """Whether every frame ever written is here: a replay without a snapshot is possible."""
        return self.from_first and self.end.kind != "damage" and not self.beyond


def newest_layout(scans: Iterable[GroupScan], snapshot: Layout | None, *, shards: int) -> Layout:
    """The layout of this run: the highest generation seen, or the next one if its shard count was another."""
    seen = [layout for scan in scans for layout in scan.layouts]
    if snapshot is not None:
        seen.append(snapshot)
    if not seen:
        return Layout(1, shards)
    newest = max(seen)
    same = all(layout.shards == shards for layout in seen if layout.gen == newest.gen)
    return Layout(newest.gen if same else newest.gen + 1, shards)


def complete_from_first(scans: Sequence[GroupScan]) -> bool:
    """Whether the log alone holds everything: each group from its frame 1, and none of an earlier layout gone."""
    gens = [scan.layouts[0].gen for scan in scans if scan.layouts]
    return all(scan.complete for scan in scans) and min(gens, default=1) == 1
