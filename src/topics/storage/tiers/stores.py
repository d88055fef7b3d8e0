"""SegmentStore: where whole segments can be kept, and the folder that does it (`docs/spec/storage.md#sec-13-1`).

One store is one topic in one tier. A copy is **complete** when both parts exist and agree; `.data` goes in first and
comes out first, so a lone `.idx` never looks like a copy. Calls block and run on pool threads only.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Literal, Protocol

from topics.formats.file_names import OWNER, parse_segment, segment_name
from topics.formats.segments.frame import DELETED_BYTE
from topics.formats.segments.idx import ENTRY_BYTES, FLAGS_AT, IDX_DELETED
from topics.storage.fs import Buffer, Fs, install, make_dirs, parent, read_file, read_full, write_all

Part = Literal["data", "idx"]
PARTS: tuple[Part, ...] = ("data", "idx")
FOLDER_LEVELS = 3
"""Folders that a cold root makes: the topic's, `topics`, and the root itself."""


class NoSuchObject(Exception):
    """There is no such part."""


class RangeOutOfBounds(Exception):
    """The range ends behind the part."""


class SegmentStore(Protocol):
    """`id` is the first seq of a segment."""

    @property
    def in_place(self) -> bool:
        """Whether stored bytes can change in place (`mark_deleted`)."""

    @property
    def label(self) -> str:
        """The store as errors name it."""

    def put(self, id: int, data: Buffer, idx: Buffer) -> None:
        """Durable when it returns; replaces."""

    def read_range(self, id: int, part: Part, offset: int, length: int) -> bytes:
        """Exactly `length` bytes, or RangeOutOfBounds or NotFound."""

    def delete(self, id: int) -> None:
        """Both parts; absent is success."""

    def list(self) -> builtins.list[int]:
        """Ids with both parts, ascending."""

    def list_any(self) -> builtins.list[int]:
        """Ids with any part, ascending."""

    def exists(self, id: int, part: Part) -> bool: ...

    def len(self, id: int, part: Part) -> int:
        """Size, or NotFound."""

    def mark_deleted(self, id: int, offsets: Sequence[int], *, slots: Sequence[int] = ()) -> None:
        """Write the delete flag at these offsets of `.data` and sync; then bit 2 of these slots of `.idx`, and sync."""


class LocalStore:
    """A folder, through `Fs`."""

    in_place = True

    def __init__(self, fs: Fs, path: str) -> None:
        self._fs = fs
        self.path = path
        self.label = path
        self._names_synced = False

    def _file(self, id: int, part: Part) -> str:
        return f"{self.path}/{segment_name(id, part)}"

    def put(self, id: int, data: Buffer, idx: Buffer) -> None:
        self._make_dirs()
        install(self._fs, self._file(id, "data"), data)
        install(self._fs, self._file(id, "idx"), idx)

    def _make_dirs(self) -> None:
        """The folder and those above it. One that is there may still have a name that a power cut could take."""
        if self._names_synced:
            return
        while not self._fs.is_dir(self.path):
            try:
                make_dirs(self._fs, self.path)
            except FileExistsError:  # another move made it meanwhile
                if self._fs.exists(self.path) and not self._fs.is_dir(self.path):
                    raise
        above = self.path
        for _ in range(FOLDER_LEVELS):
            above = parent(above)
            self._fs.sync_dir(above)
        self._names_synced = True

    def read_range(self, id: int, part: Part, offset: int, length: int) -> bytes:
        path = self._file(id, part)
        try:
            file = self._fs.open(path, "r")
        except FileNotFoundError as error:
            raise NoSuchObject(path) from error
        try:
            found = read_full(file, offset, length)
        finally:
            file.close()
        if len(found) != length:
            raise RangeOutOfBounds(f"{path}: {offset}+{length}")
        return found

    def delete(self, id: int) -> None:
        gone = [self._unlink(self._file(id, part)) for part in PARTS]
        if any(gone):
            self._fs.sync_dir(self.path)

    def _unlink(self, path: str) -> bool:
        try:
            self._fs.unlink(path)
        except FileNotFoundError:
            return False
        return True

    def list(self) -> builtins.list[int]:
        parts = self._parts()
        return sorted(id for id, found in parts.items() if found >= set(PARTS))

    def list_any(self) -> builtins.list[int]:
        return sorted(self._parts())

    def _parts(self) -> dict[int, set[str]]:
        try:
            names = self._fs.listdir(self.path)
        except FileNotFoundError:
            return {}
        parts: dict[int, set[str]] = {}
        for name in names:
            parsed = parse_segment(name)
            if parsed is not None and parsed.part != "tags" and name == segment_name(*parsed):
                parts.setdefault(parsed.first_seq, set()).add(parsed.part)
        return parts

    def exists(self, id: int, part: Part) -> bool:
        return self._fs.exists(self._file(id, part))

    def len(self, id: int, part: Part) -> int:
        try:
            return self._fs.stat_len(self._file(id, part))
        except FileNotFoundError as error:
            raise NoSuchObject(self._file(id, part)) from error

    def mark_deleted(self, id: int, offsets: Sequence[int], *, slots: Sequence[int] = ()) -> None:
        self._change(id, "data", [(at, DELETED_BYTE) for at in offsets])
        places = [slot * ENTRY_BYTES + FLAGS_AT for slot in slots]
        old = [self.read_range(id, "idx", at, 1)[0] for at in places]
        self._change(id, "idx", [(at, flags | IDX_DELETED) for at, flags in zip(places, old, strict=True)])

    def _change(self, id: int, part: Part, changes: Sequence[tuple[int, int]]) -> None:
        if not changes:
            return
        try:
            file = self._fs.open(self._file(id, part), "rw")
        except FileNotFoundError as error:
            raise NoSuchObject(self._file(id, part)) from error
        try:
            for at, value in changes:
                write_all(file, at, bytes((value,)))
            file.datasync()
        finally:
            file.close()


# --- whose cold root it is --------------------------------------------------------------------------------------------


def cold_owner(fs: Fs, root: str) -> str | None:
    """The instance that owns a cold folder; None when nobody does yet."""
    try:
        return read_file(fs, f"{root}/{OWNER}").decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None


def write_owner(fs: Fs, root: str, instance: str) -> None:
    make_dirs(fs, root)
    install(fs, f"{root}/{OWNER}", instance.encode("ascii") + b"\n")
