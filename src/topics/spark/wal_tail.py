"""The log behind a snapshot, read by a process that does not hold the lock (storage.md sections 9.4, 9.5, 12).

Files are only read, and the server may be appending to them: a scan takes whole submissions and stops at the first
byte that is not one, which is an end and never an error. A second scan goes on where the first one stopped. Frames come
in the order of layout generations, so a topic's frames come in the order they were written. A file that vanishes while
it is read raises FileNotFoundError: a newer snapshot has made it superfluous, and the caller starts over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from topics.formats import names
from topics.formats.snapshot import Snapshot
from topics.formats.wal import OpenMark, Stop, WalColumns, complete_count, complete_end, scan_wal
from topics.spark.files import Files

_WINDOW_BYTES: Final = 8 << 20
_OPEN_FRAME_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Stretch:
    """The first `count` frames of `columns`, all of whole submissions; their offsets count from `base` in the file."""

    path: str
    base: int
    columns: WalColumns
    count: int


@dataclass(slots=True)
class _FileScan:
    """How far one file was read; `group` and `gen` are those of its `open` frame."""

    path: str
    gen: int
    group: str
    end: int
    stretches: list[Stretch] = field(default_factory=list)


class LogTail:
    """Frames of every group behind the positions that a snapshot records."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._scans: dict[str, _FileScan] = {}

    def stretches(self, snapshot: Snapshot | None) -> list[Stretch]:
        """Everything written behind the snapshot by now, in replay order."""
        kept: dict[str, _FileScan] = {}
        ordered: list[tuple[int, str, int, _FileScan]] = []
        for key, number, path, start in self._pending(snapshot):
            scan = self._scans.get(path)
            if scan is None or scan.end < start or not scan.stretches:
                scan = self._begin(path, start, key)
            if scan.group != key:
                continue
            self._read_on(scan)
            kept[path] = scan
            ordered.append((scan.gen, key, number, scan))
        self._scans = kept
        oldest_gen = snapshot.gen if snapshot is not None else 0
        ordered.sort(key=lambda entry: entry[:3])
        return [stretch for gen, _, _, scan in ordered if gen >= oldest_gen for stretch in scan.stretches]

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
            return _FileScan(path, 0, "?", start)
        return _FileScan(path, mark.gen, mark.group, start)

    def _read_on(self, scan: _FileScan) -> None:
        file = self._files.open(scan.path)
        try:
            window = _WINDOW_BYTES
            while scan.end < file.size:
                buffer = file.read(scan.end, window)
                columns = scan_wal(buffer)
                taken = complete_end(columns)
                if taken:
                    scan.stretches.append(Stretch(scan.path, scan.end, columns, complete_count(columns)))
                    scan.end += taken
                if columns.stop is Stop.CLEAN or len(buffer) < window:
                    return
                if not taken:
                    if columns.end == 0 and columns.reason != "short":
                        return
                    window *= 2  # one submission is larger than the window
        finally:
            file.close()
