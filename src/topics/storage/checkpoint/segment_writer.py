"""SegmentWriter: one checkpoint's additions to one segment.

Starts from what the last synced mark says and leaves that alone: whatever lies behind it in the files (an abandoned
attempt) is cut off before the first byte is written. Nothing of the additions counts before the next mark, so a failure
needs no more than `cut_back`, and even that only to free the space.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Literal

import numpy as np

from topics.errors import StorageIo
from topics.formats.buffers import U32
from topics.formats.segments.idx import ENTRY_BYTES, Idx
from topics.storage.fs import Buffer, File, write_all
from topics.storage.segments.active_segment import ActiveSegment
from topics.storage.segments.sealed_segment import SealedSegment

if TYPE_CHECKING:
    from topics.storage.segments.topic_dir import TopicDir

PARTS: tuple[Literal["data", "idx"], ...] = ("data", "idx")


class SegmentWriter:
    def __init__(self, base: ActiveSegment, *, fresh: bool) -> None:
        self.base = base
        self.fresh = fresh
        self.count = base.count
        self.data_len = base.data_len
        self._entries: list[Idx] = []
        self._sizes = base.sizes[:]
        self._data: File | None = None
        self._idx: File | None = None

    @property
    def place(self) -> TopicDir:
        return self.base.place

    @property
    def next_seq(self) -> int:
        return self.base.first_seq + self.count

    @property
    def touched(self) -> bool:
        return self.fresh or bool(self._entries)

    def append(self, frames: Buffer, entries: Idx, sizes: U32) -> None:
        """Write frames to `.data`; their entries wait until `write_idx`."""
        file = self._data or self.open()
        if frames:
            write_all(file, self.data_len, frames)
        self.data_len += len(frames)
        self.count += len(entries)
        self._entries.append(entries)
        self._sizes.extend(array("I", np.ascontiguousarray(sizes, np.uint32).tobytes()))

    def open(self) -> File:
        """Both files or, if that fails, none."""
        fs, place, first = self.place.fs, self.place, self.base.first_seq
        mode: Literal["create", "rw"] = "create" if self.fresh else "rw"
        self._data = fs.open(place.file(first, "data"), mode)
        try:
            self._idx = fs.open(place.file(first, "idx"), mode)
        except BaseException:
            self.close()
            raise
        if not self.fresh:
            _trim(self._data, self.base.data_len)
            _trim(self._idx, self.base.count * ENTRY_BYTES)
        return self._data

    def sync_data(self) -> None:
        """`docs/spec/storage.md#c4`."""
        if self._data is not None:
            self._data.datasync()

    def write_idx(self) -> None:
        """`docs/spec/storage.md#c5`; only after `sync_data`."""
        if self._idx is not None and self._entries:
            write_all(self._idx, self.base.count * ENTRY_BYTES, np.concatenate(self._entries).tobytes())

    def sync_idx(self) -> None:
        """`docs/spec/storage.md#c6`."""
        if self._idx is not None:
            self._idx.datasync()

    def close(self) -> None:
        for file in (self._data, self._idx):
            if file is not None:
                file.close()
        self._data = self._idx = None

    def cut_back(self) -> None:
        """Take the additions away again. Failing is allowed: the next writer starts with the same cut."""
        self.close()
        try:
            if self.fresh:
                self._remove()
            else:
                self.open()
                self._sync_cut()
        except (OSError, StorageIo):
            pass
        finally:
            self.close()

    def _sync_cut(self) -> None:
        for file in (self._idx, self._data):
            assert file is not None
            file.fsync()

    def _remove(self) -> None:
        paths = [self.place.file(self.base.first_seq, part) for part in PARTS]
        for path in paths:
            if self.place.fs.exists(path):
                self.place.fs.unlink(path)
        self.place.env.files.forget(*paths)

    # --- what a synced mark turns it into -------------------------------------------------------------------------

    def as_active(self) -> ActiveSegment:
        return ActiveSegment(
            self.place,
            first_seq=self.base.first_seq,
            first_ts=self.base.first_ts,
            count=self.count,
            data_len=self.data_len,
            sizes=self._sizes,
            flips=self.base.flips,
        )

    def as_sealed(self) -> SealedSegment:
        return SealedSegment(
            self.place,
            first_seq=self.base.first_seq,
            count=self.count,
            data_len=self.data_len,
            flips=self.base.flips,
        )


def _trim(file: File, wanted: int) -> None:
    size = file.size()
    if size < wanted:
        raise StorageIo(f"{file.name} has {size} bytes, {wanted} were marked")
    if size > wanted:
        file.truncate(wanted)
