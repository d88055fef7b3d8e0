"""ActiveSegment: the newest segment of a topic, as far as the last synced mark knows it.

A value: a checkpoint makes a new one and the old one stays true for its readers, because the files only grow. Only the
checkpointer appends (`writer`); it is never mapped, dropped, rewritten or moved. Reads are `pread`s of offsets that the
tail remembers.
"""

from __future__ import annotations

from array import array
from struct import Struct
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from topics.errors import CorruptSegment, StorageIo
from topics.formats.file_names import segment_name
from topics.formats.segments.idx import ENTRY_BYTES, Idx, read_idx
from topics.storage.fs import read_full
from topics.storage.segments.flips import UnsyncedFlags

if TYPE_CHECKING:
    from topics.storage.segments.topic_dir import TopicDir


_PLACE = Struct("<II")


class ActiveSegment:
    """`sizes` are the accounted bytes of its slots, kept for the sidecar; 4 bytes a slot."""

    __slots__ = ("count", "data_len", "first_seq", "first_ts", "flips", "place", "sizes")

    tier = "hot"

    def __init__(
        self,
        place: TopicDir,
        *,
        first_seq: int,
        first_ts: int,
        count: int = 0,
        data_len: int = 0,
        sizes: array[int] | None = None,
        flips: UnsyncedFlags | None = None,
    ) -> None:
        self.place = place
        self.first_seq = first_seq
        self.first_ts = first_ts
        self.count = count
        self.data_len = data_len
        self.sizes: array[int] = array("I") if sizes is None else sizes
        self.flips = UnsyncedFlags() if flips is None else flips

    @property
    def next_seq(self) -> int:
        return self.first_seq + self.count

    @property
    def mark(self) -> tuple[int, int, int]:
        """`[first, count, data_len]` as a checkpoint mark carries it."""
        return self.first_seq, self.count, self.data_len

    @property
    def label(self) -> str:
        return segment_name(self.first_seq, "data").removesuffix(".data")

    def __repr__(self) -> str:
        return f"ActiveSegment({self.place.topic_id}, {self.first_seq}+{self.count})"

    def entries_at(self, slots: npt.NDArray[np.int64]) -> Idx:
        """Index entries of some slots, from the file."""
        low, high = int(slots.min()), int(slots.max()) + 1
        with self.place.env.files.borrow(self.place.file(self.first_seq, "idx")) as file:
            raw = read_full(file, low * ENTRY_BYTES, (high - low) * ENTRY_BYTES)
        return read_idx(raw)[slots - low]

    def entry_at(self, slot: int) -> tuple[int, int]:
        """Offset and length of one frame; length 0 for an empty slot."""
        with self.place.env.files.borrow(self.place.file(self.first_seq, "idx")) as file:
            raw = read_full(file, slot * ENTRY_BYTES, _PLACE.size)
        if len(raw) < _PLACE.size:
            raise StorageIo(f"{self.label} of topic {self.place.name!r} has no entry {slot}")
        offset, length = _PLACE.unpack(raw)
        return offset, length

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of `.data`; fewer only at its end."""
        with self.place.env.files.borrow(self.place.file(self.first_seq, "data")) as file:
            return read_full(file, offset, length)

    def corrupt(self, seq: int) -> CorruptSegment:
        return CorruptSegment(self.place.name, seq=seq, segment=self.label)
