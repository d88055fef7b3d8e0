"""Extent: records to be fetched from one place. Planned by `core.read`, carried out by storage, checked there.

WAL      frames of WAL file number `file` (storage's table)
ACTIVE   frames of the topic's active segment
SEALED   slots `seqs - view.first_seq` of a sealed segment; `offs` and `lens` are empty
INDEX    no records: the columns of a sealed segment have to be loaded first (then `finish_cold_delete`, if the topic
         awaits it, and feed an empty run)
"""

from __future__ import annotations

from enum import Enum

import numpy as np

from topics.core.slots.sealed_slots import Sealed, SegmentView
from topics.core.slots.slot_range import I64, U32, Slots, shifted
from topics.core.slots.tail import TailRun
from topics.model.ops import IN_ACTIVE

_NONE: U32 = np.empty(0, np.uint32)


class RecordPlace(Enum):
    WAL = "wal"
    ACTIVE = "active"
    SEALED = "sealed"
    INDEX = "index"


class Extent:
    """`seqs` ascend, a range where none is left out; `sizes` are their accounted bytes."""

    __slots__ = ("file", "lens", "offs", "place", "seqs", "sizes", "view")

    def __init__(
        self,
        place: RecordPlace,
        seqs: range | I64,
        sizes: U32,
        *,
        file: int = -1,
        offs: U32 = _NONE,
        lens: U32 = _NONE,
        view: SegmentView | None = None,
    ) -> None:
        self.place = place
        self.seqs = seqs
        self.sizes = sizes
        self.file = file
        self.offs = offs
        self.lens = lens
        self.view = view

    @property
    def slots(self) -> range | I64:
        """Of a sealed segment."""
        assert self.view is not None
        return shifted(self.seqs, -self.view.first_seq)

    def __repr__(self) -> str:
        return f"Extent({self.place.value}, {self.seqs[0]}..{self.seqs[-1]}, {len(self.seqs)} records)"


def index_of(block: Sealed, seq: int) -> Extent:
    """What a read at `seq` has to wait for before it can even look."""
    return Extent(RecordPlace.INDEX, np.array([seq], np.int64), _NONE, view=block.view)


def extent_of(block: Slots, slots: range | I64, sizes: U32) -> Extent:
    """Where the first of these live slots lies, with as many of the others as lie in the same place."""
    if isinstance(block, Sealed):
        return Extent(RecordPlace.SEALED, shifted(slots, block.first_seq), sizes, view=block.view)
    assert isinstance(block, TailRun)
    slots = np.asarray(slots, np.int64)
    lo, hi = int(slots[0]), int(slots[-1]) + 1
    locs = np.frombuffer(block.locs[lo:hi], np.uint64)[slots - lo]
    files = locs >> np.uint64(32)
    same = files == files[0]
    count = len(same) if same.all() else int(same.argmin())
    file = int(files[0])
    return Extent(
        RecordPlace.ACTIVE if file == IN_ACTIVE else RecordPlace.WAL,
        slots[:count] + block.first_seq,
        sizes[:count],
        file=file,
        offs=locs[:count].astype(np.uint32),
        lens=np.frombuffer(block.lens[lo:hi], np.uint32)[(slots - lo)[:count]],
    )
