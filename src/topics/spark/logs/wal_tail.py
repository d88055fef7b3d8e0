"""The log behind a snapshot, read by a process that does not hold the lock (`docs/spec/storage.md#sec-9-4`,
`docs/spec/storage.md#sec-9-5` and `docs/spec/storage.md#sec-12`).

Files are only read, and the server may be appending to them: a scan takes whole submissions and stops at the first
byte that is not one, which is an end and never an error. Where valid frames lie behind that byte and stay there, it is
a hole: the log of the group ends there, as it would in recovery, and `holes` tells what lies behind it. A second scan
goes on where the first one stopped. Frames come in the order of layout generations, so a topic's frames come in the
order they were written. A file that vanishes while it is read raises FileNotFoundError: a newer snapshot has made it
superfluous, and the caller starts over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from topics.formats import file_names as names
from topics.formats.snapshot import Snapshot
from topics.formats.wal import OpenMark, Stop, WalColumns, complete_count, complete_end, scan_wal
from topics.formats.wal.frame import SUM_BYTES
from topics.spark.logs.read_files import Files
from topics.storage.wal.ends import (
    end_of_data,
    frame_bytes,
    has_frame_behind,
    highest_seqs,
    reads_clean,
    valid_behind,
)

_LOOKS: Final = 4
_PAUSE_S: Final = 0.05
"""How often, and after what pause, a bad place is read again: a page of a running server's write may come late."""
_UNKNOWN: Final = "?"
_WINDOW_BYTES: Final = 8 << 20
_OPEN_FRAME_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class FrameRun:
    """The first `count` frames of `columns`, all of whole submissions; their offsets count from `base` in the file."""

    path: str
    base: int
    columns: WalColumns
    count: int


@dataclass(frozen=True, slots=True)
class LogHole:
    """Bytes at `offset` that are no frame, with valid frames or files behind them that a replay does not reach.

    `highest` has the highest seq by topic id that those prove to be used; `unread_bytes` belong to no valid frame and
    may have held records of any topic of the group, which is that of one shard of `shards`."""

    path: str
    offset: int
    reason: str
    highest: Mapping[int, int]
    unread_bytes: int = 0
    group: str = ""
    shards: int = 0

    def may_hold(self, topic_id: int) -> bool:
        """Whether the log of this topic is the one with the hole."""
        shard = names.parse_shard(self.group) if self.group else 0
        return bool(self.shards) and names.shard_of(topic_id, self.shards) == shard


@dataclass(slots=True)
class _FileScan:
    """How far one file was read; `group` and `gen` are those of its `open` frame.

    `bad_at` is the first byte that is no frame, None where only zeros follow."""

    path: str
    gen: int
    group: str
    end: int
    shards: int = 0
    stretches: list[FrameRun] = field(default_factory=list)
    bad_at: int | None = None
    reason: str = ""
    hole: LogHole | None = None


class LogTail:
    """Frames of every group behind the positions that a snapshot records."""

    def __init__(self, files: Files, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._files = files
        self._sleep = sleep
        self._scans: dict[str, _FileScan] = {}
        self.holes: list[LogHole] = []

    def stretches(self, snapshot: Snapshot | None) -> list[FrameRun]:
        """Everything written behind the snapshot by now, in replay order."""
        kept: dict[str, _FileScan] = {}
        ordered: list[tuple[int, str, int, _FileScan]] = []
        oldest_gen = snapshot.gen if snapshot is not None else 0
        self.holes = []
        pending = list(self._pending(snapshot))
        last = {key: path for key, _, path, _ in pending}
        broken: set[str] = set()
        for key, number, path, start in pending:
            scan = self._scans.get(path)
            if scan is None or scan.end < start or not scan.stretches:
                scan = self._begin(path, start, key)
            if scan.group not in (key, _UNKNOWN) or (scan.group == key and scan.gen < oldest_gen):
                continue  # of another group, or absorbed
            if key not in broken and scan.group == key:
                self._read_on(scan)
                kept[path] = scan
                ordered.append((scan.gen, key, number, scan))
            hole = self._hole(scan, is_last=path == last[key], is_reached=key not in broken)
            if hole is not None:
                broken.add(key)
                self.holes.append(hole)
        self._scans = kept
        ordered.sort(key=lambda entry: entry[:3])
        return [stretch for _, _, _, scan in ordered for stretch in scan.stretches]

    def _pending(self, snapshot: Snapshot | None) -> Iterator[tuple[str, int, str, int]]:
        """Group key, number, path and first byte of every file that is not absorbed."""
        positions: Mapping[str, tuple[int, int]] = {}
        if snapshot is not None:
            positions = {group.key: (group.file, group.off) for group in snapshot.groups}
        for key, folder in self._groups():
            found, _ = names.pick_canonical(self._files.list(folder), parse=names.parse_wal, build=names.wal_name)
            from_file, from_off = positions.get(key, (0, 0))
            for number, name in found.items():
                if number >= from_file:
                    yield key, number, f"{folder}/{name}", from_off if number == from_file else 0

    def _groups(self) -> list[tuple[str, str]]:
        listed = self._files.list(names.WAL_DIR)
        shards = [name for name in listed if names.parse_shard(name) is not None]
        flat = [("", names.WAL_DIR)] if any(names.parse_wal(name) is not None for name in listed) else []
        return [*flat, *((name, f"{names.WAL_DIR}/{name}") for name in shards)]

    def _begin(self, path: str, start: int, key: str) -> _FileScan:
        """A scan that has read nothing yet; a file without its `open` frame belongs to no group."""
        columns = scan_wal(self._files.read(path, 0, _OPEN_FRAME_BYTES))
        mark = columns.bodies.get(0)
        if not isinstance(mark, OpenMark):
            return _FileScan(path, 0, _UNKNOWN, start)
        return _FileScan(path, mark.gen, mark.group, start, mark.shards)

    def _hole(self, scan: _FileScan, *, is_last: bool, is_reached: bool) -> LogHole | None:
        """The hole that the log of this file's group has in it, if it has one."""
        if not is_reached or scan.group == _UNKNOWN:
            return self._hole_at(scan, 0, 0, "open" if is_reached else "out of reach")
        looks = 1
        while scan.bad_at is not None:
            if scan.hole is not None and scan.hole.offset == scan.end:
                return scan.hole
            hole = self._hole_at(scan, scan.end, scan.bad_at, scan.reason)
            if hole is None and is_last:
                return None  # a torn end, or a write that is on its way
            if looks == _LOOKS:
                scan.hole = hole or LogHole(scan.path, scan.end, scan.reason, {})
                return scan.hole
            before = scan.end
            self._sleep(_PAUSE_S)
            self._read_on(scan)
            looks = looks + 1 if scan.end == before else 1
        return None

    def _hole_at(self, scan: _FileScan, start: int, place: int, reason: str) -> LogHole | None:
        """What lies behind `start`; None if no valid frame begins at `place` or later."""
        with closing(self._files.open(scan.path)) as file:
            rest = bytes(file.read(start, max(file.size - start, 0)))
        behind = valid_behind(rest, 0)
        if not has_frame_behind(behind, place - start):
            return None
        highest: dict[int, int] = {}
        highest_seqs(behind, highest)
        unread = min(len(rest), end_of_data(rest, 0) + SUM_BYTES) - sum(map(frame_bytes, behind.stretches))
        return LogHole(scan.path, start, reason, highest, unread, scan.group, scan.shards)

    def _read_on(self, scan: _FileScan) -> None:
        file = self._files.open(scan.path)
        scan.bad_at = None
        try:
            window = _WINDOW_BYTES
            while scan.end < file.size:
                buffer = file.read(scan.end, window)
                columns = scan_wal(buffer)
                taken = complete_end(columns)
                if taken:
                    scan.stretches.append(FrameRun(scan.path, scan.end, columns, complete_count(columns)))
                    scan.end += taken
                is_clean = reads_clean(columns, taken)
                scan.bad_at = None if is_clean else scan.end - taken + columns.end
                scan.reason = columns.reason or "incomplete submission"
                if columns.stop is Stop.CLEAN or len(buffer) < window:
                    return
                if not taken:
                    if columns.end == 0 and columns.reason != "short":
                        return
                    window *= 2  # one submission is larger than the window
        finally:
            file.close()
