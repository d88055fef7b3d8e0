"""Pair: a segment's `.data` and `.idx`, opened so that they belong together.

A rewrite replaces both files one after the other, under the same names; a reader between the two renames would hold an
index that describes other bytes. So the data file is opened once and kept, and a sealed pair must tile
(`docs/spec/storage.md#sec-6-3`). A pair that keeps disagreeing has lost its index: it is rebuilt in memory, as the
server would, and bytes that hold no frame are corruption. Called by scans and by the planner's look at slots.
"""

from __future__ import annotations

import time
from typing import Final

from topics.errors import Corruption
from topics.formats.segments import ENTRY_BYTES, Idx, idx_agrees, read_idx, rebuild_idx
from topics.spark.logs.read_files import Files, OpenFile
from topics.spark.planning.cut import SegmentBlock

_TRIES: Final = 4
_PAUSE_S: Final = 0.02


class OpenPair:
    """An open pair: `idx` has one entry for each slot of the block."""

    def __init__(self, files: Files, block: SegmentBlock, file: OpenFile, idx: Idx) -> None:
        self.block = block
        self.data = file
        self.idx = idx
        self.name = files.shown(f"{block.stem}.data")

    def close(self) -> None:
        self.data.close()


def open_pair(files: Files, block: SegmentBlock) -> OpenPair:
    """Raises FileNotFoundError when the segment is not there (any more), Corruption when it cannot be trusted."""
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


def _read_matching(files: Files, block: SegmentBlock, file: OpenFile) -> Idx | None:
    """The index if it fits the open data file."""
    try:
        raw = files.read(f"{block.stem}.idx", 0, None if block.is_sealed else block.count * ENTRY_BYTES)
    except FileNotFoundError:
        # Drops unlink `.data` first: a lone open data file is on its way out, or has really lost its index.
        return None
    if len(raw) < block.count * ENTRY_BYTES:
        return None
    if block.is_sealed and idx_agrees(raw, file.size) is not None:
        return None
    return read_idx(raw)[: block.count]


def _rebuilt(files: Files, block: SegmentBlock, file: OpenFile) -> Idx:
    files.size(f"{block.stem}.data")  # gone by now: FileNotFoundError, and the caller plans anew
    data_len = file.size if block.is_sealed else min(file.size, block.bytes)
    rebuilt = rebuild_idx(file.read(0, data_len), first_seq=block.first_seq, count=block.count)
    if rebuilt.bad:
        bad = rebuilt.bad[0]
        name = files.shown(f"{block.stem}.data")
        raise Corruption(file=name, offset=bad.offset, reason=f"no valid frame, seqs {bad.first_seq}..{bad.last_seq}")
    return rebuilt.idx
