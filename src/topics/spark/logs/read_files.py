"""Read-only files of a data directory or cold root, local or anything that `pyarrow.fs` opens.

`ArrowFs` is a `ReadFs` over `pyarrow.fs`, so whatever reads a local directory reads a copy in an object store, too. An
absent file is `FileNotFoundError`, everything else an `OSError`, as it comes. Nothing here writes, locks or caches: the
server may be running. Used on the driver, and by scans on executors, which open a `Files` anew from its root.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import numpy as np

from topics.errors import ConfigError, Corruption
from topics.formats.segments import ENTRY_BYTES, Idx, idx_agrees, read_idx
from topics.spark.planning.cut import SegmentBlock
from topics.spark.secret import without_secrets
from topics.storage.fs import Inode, ReadFile, ReadFs, read_full
from topics.storage.osfs import OsFs
from topics.storage.segments.loading.heal import heal

_TRIES: Final = 4
_PAUSE_S: Final = 0.02
CHUNK_BYTES: Final = 4 << 20
CHUNK_RECORDS: Final = 1 << 16


class Files:
    """Files below one root, named by paths relative to it. `root` is what `open_files` was given."""

    def __init__(self, root: str, fs: ReadFs, path: str) -> None:
        self.root = root
        self.fs = fs
        self.top = path

    def path(self, path: str = "") -> str:
        return f"{self.top}/{path}" if path else self.top

    def shown(self, path: str = "") -> str:
        """A file, or the root, for people."""
        if isinstance(self.fs, OsFs):
            return self.path(path)
        root = without_secrets(self.root).rstrip("/")
        return f"{root}/{path}" if path else root

    def relative(self, path: str) -> str:
        return path.removeprefix(f"{self.top}/")

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty if there is no such directory."""
        try:
            return self.fs.listdir(self.path(path))
        except FileNotFoundError:
            return []

    def size(self, path: str) -> int:
        return self.fs.stat_len(self.path(path))

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes from `offset` on, fewer than `length` only at the end of the file."""
        file = self.open(path)
        try:
            return read_full(file, offset, max(file.size() - offset, 0) if length is None else length)
        finally:
            file.close()

    def read_up_to(self, path: str, size: int) -> bytes:
        """A file that should have so many bytes, with the fewest calls there are; a longer one shows by one more."""
        if not isinstance(self.fs, OsFs):
            return self.read(path)
        file = os.open(self.path(path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(file, size + 1, 0)
        finally:
            os.close(file)

    def open(self, path: str) -> ReadFile:
        """One file, held open: it stays what it is when another takes its name."""
        return self.fs.open(self.path(path))


def open_files(root: str) -> Files:
    """The files below a path or URI."""
    scheme = urlsplit(root).scheme
    if scheme in ("", "file") or len(scheme) == 1:
        return Files(root, OsFs(), local_path(root).rstrip("/") or "/")
    fs = ArrowFs(root)
    return Files(root, fs, fs.top)


def local_path(root: str) -> str:
    """The path of a `file:` URI; other texts are paths already."""
    return unquote(urlsplit(root).path) if root.startswith("file:") else root


class ArrowFs:
    """An object store, or any other file system of `pyarrow.fs`, for reading. `top` is the path that the URI names."""

    def __init__(self, uri: str) -> None:
        import pyarrow as pa
        from pyarrow import fs

        self._arrow = fs
        try:
            self._fs, path = fs.FileSystem.from_uri(uri)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
            raise ConfigError(f"path {without_secrets(uri)} cannot be opened: {error}") from None
        self.top: str = path.rstrip("/")

    def open(self, path: str, mode: str = "r") -> ReadFile:
        # Some stores tell of an absent object only when it is read.
        size = self.stat_len(path)
        return ArrowFile(path, self._fs.open_input_file(path), size)

    def listdir(self, path: str) -> list[str]:
        selector = self._arrow.FileSelector(path, recursive=False, allow_not_found=True)
        return sorted(str(info.base_name) for info in self._fs.get_file_info(selector))

    def stat_len(self, path: str) -> int:
        info = self._fs.get_file_info(path)
        if info.type == self._arrow.FileType.NotFound:
            raise FileNotFoundError(2, "no such object", path)
        return int(info.size or 0)

    def exists(self, path: str) -> bool:
        return bool(self._fs.get_file_info(path).type != self._arrow.FileType.NotFound)

    def is_dir(self, path: str) -> bool:
        return bool(self._fs.get_file_info(path).type == self._arrow.FileType.Directory)


class ArrowFile:
    def __init__(self, name: str, file: Any, size: int) -> None:
        self.name = name
        self._file = file
        self._size = size

    def pread(self, off: int, n: int) -> bytes:
        wanted = min(n, self._size - off)
        return bytes(self._file.read_at(wanted, off)) if wanted > 0 else b""

    def pread_into(self, off: int, buf: memoryview) -> int:
        found = self.pread(off, len(buf))
        buf[: len(found)] = found
        return len(found)

    def size(self) -> int:
        return self._size

    def inode(self) -> Inode:
        return (0, 0)

    def mmap(self) -> memoryview:
        return memoryview(self.pread(0, self._size))

    def close(self) -> None:
        self._file.close()


# --- the two files of a segment ---------------------------------------------------------------------------------------


class OpenPair:
    """A segment's `.data` and `.idx`, opened so that they belong together: `idx` has one entry for each slot of the
    block."""

    def __init__(self, files: Files, block: SegmentBlock, file: ReadFile, idx: Idx) -> None:
        self._files = files
        self.block = block
        self.data = file
        self.idx = idx
        self.name = files.shown(f"{block.stem}.data")

    def replaced(self) -> bool:
        """Whether the names are those of other files by now, or are gone: then nothing here proves damage."""
        stem, files = self.block.stem, self._files
        try:
            file = files.open(f"{stem}.data")
            inode = file.inode()
            file.close()
            raw = files.read(f"{stem}.idx", 0, self.block.count * ENTRY_BYTES)
        except FileNotFoundError:
            return True
        now = read_idx(raw[: len(raw) // ENTRY_BYTES * ENTRY_BYTES])
        same = len(now) == len(self.idx) and all(
            np.array_equal(now[each], self.idx[each]) for each in ("offset", "len")
        )
        return inode != self.data.inode() or not same

    def close(self) -> None:
        self.data.close()


def open_pair(files: Files, block: SegmentBlock) -> OpenPair:
    """Raises FileNotFoundError when the segment is not there (any more), Corruption when it cannot be trusted.

    A rewrite replaces both files one after the other, under the same names; a reader between the two renames would hold
    an index that describes other bytes. So the data file is opened once and kept, and a sealed pair must tile
    (`docs/spec/storage.md#sec-6-3`). A pair that keeps disagreeing has lost its index: it is rebuilt in memory, as the
    server would, and bytes that hold no frame are corruption."""
    for attempt in range(_TRIES):
        file = files.open(f"{block.stem}.data")
        try:
            idx = _read_matching(files, block, file)
        except BaseException:
            file.close()
            raise
        if idx is not None:
            return OpenPair(files, block, file, idx)
        if attempt + 1 < _TRIES:
            file.close()
            time.sleep(_PAUSE_S * (attempt + 1))
    try:
        return OpenPair(files, block, file, _rebuilt(files, block, file))
    except BaseException:
        file.close()
        raise


def _read_matching(files: Files, block: SegmentBlock, file: ReadFile) -> Idx | None:
    """The index if it fits the open data file."""
    try:
        raw = files.read(f"{block.stem}.idx", 0, None if block.is_sealed else block.count * ENTRY_BYTES)
    except FileNotFoundError:
        # Drops unlink `.data` first: a lone open data file is on its way out, or has really lost its index.
        return None
    if len(raw) < block.count * ENTRY_BYTES:
        return None
    if block.is_sealed and idx_agrees(raw, file.size()) is not None:
        return None
    return read_idx(raw)[: block.count]


def _rebuilt(files: Files, block: SegmentBlock, file: ReadFile) -> Idx:
    files.size(f"{block.stem}.data")  # gone by now: FileNotFoundError, and the caller plans anew
    data = read_full(file, 0, file.size() if block.is_sealed else min(file.size(), block.bytes))
    try:
        idx = memoryview(files.read(f"{block.stem}.idx"))
    except FileNotFoundError:
        idx = None
    healed = heal(idx, memoryview(data), first_seq=block.first_seq, count=block.count, data_len=block.bytes)
    if healed.bad is not None and healed.bad.any():
        slots = np.flatnonzero(healed.bad)
        offset, seq = int(healed.entries["offset"][slots[0]]), block.first_seq + int(slots[0])
        reason = f"{healed.reason}, no valid frame for {len(slots)} records from seq {seq} on"
        raise Corruption(file=files.shown(f"{block.stem}.data"), offset=offset, reason=reason)
    return healed.entries


def chunks(idx: Idx, first: int, last: int) -> Iterator[tuple[int, int, int, int]]:
    """Slots `[a, b)` and the bytes they lie in, so that no chunk is much larger than CHUNK_BYTES."""
    a = first
    while a < last:
        b = min(a + CHUNK_RECORDS, last)
        lengths = idx["len"][a:b].astype(np.int64)
        ends = np.cumsum(lengths)
        if ends[-1] > CHUNK_BYTES:
            b = a + max(int(np.searchsorted(ends, CHUNK_BYTES, side="right")), 1)
            lengths, ends = lengths[: b - a], ends[: b - a]
        used = np.flatnonzero(lengths)
        start = int(idx["offset"][a + used[0]]) if len(used) else 0
        yield a, b, start, int(ends[-1])
        a = b
