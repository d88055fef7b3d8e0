"""The opened files of one sealed segment, and records out of its frames; every frame is checked before it is served.

    SegmentArrays   both files as arrays, and whether some of their bytes are in memory
    run_of_slots    records of a mapped segment that has no damage
    run_of_columns  what the column decoder found, as a run
    few_slots       an active segment of a few records, told by its index, for a start

The column decoder tells everything about records, and what is wrong with them. Who only wants good ones asks for less:
`run_of_slots` and `few_slots` make the same checks, and answer None as soon as anything is out of the ordinary.
"""

from __future__ import annotations

import ctypes
import mmap
from array import array
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np

from topics.formats import codec
from topics.formats.buffers import I64, U8, U32, U64, Bools, xxh3
from topics.formats.segments.columns import FrameColumns
from topics.formats.segments.frame import (
    DELETED_BYTE,
    FLAGS_KNOWN,
    HAS_TAG,
    HEAD_BYTES,
    LEN_BYTES,
    OVERHEAD_BYTES,
    TAIL_BYTES,
)
from topics.formats.segments.idx import ENTRY_BYTES, Idx
from topics.formats.wal.blob import HEAD, TAIL, accounted_size
from topics.limits import KIB
from topics.model.run import BODY_HEAD_BYTES, PRESENCE_MASK, RecordRun

RESIDENT_BYTES_MAX: Final = 256 * KIB
"""More than this is never read on the owner's thread: checking it would take a millisecond."""


def _find_mincore() -> Callable[[int, int, ctypes.Array[ctypes.c_char]], int] | None:
    """The system call that tells which pages of a mapping are in memory. Called without giving the GIL away: it takes
    a microsecond, and getting the GIL back may take milliseconds."""
    try:
        mincore = ctypes.PyDLL(None).mincore
    except (OSError, AttributeError):  # not there: nothing counts as resident, and every read goes to a pool
        return None
    mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    mincore.restype = ctypes.c_int
    return mincore


_mincore: Final = _find_mincore()
_OnePage: Final = ctypes.c_char * 1


def is_resident(start: int, stop: int) -> bool:
    """Are all pages of these addresses of a mapped file in memory?"""
    start -= start % mmap.PAGESIZE
    if _mincore is None:
        return False
    if stop - start <= mmap.PAGESIZE:  # a single record, as a read by tag asks for them, segment after segment
        page = _OnePage()
        return _mincore(start, stop - start, page) == 0 and page.raw[0] & 1 == 1
    pages = ctypes.create_string_buffer(-(-(stop - start) // mmap.PAGESIZE))
    return _mincore(start, stop - start, pages) == 0 and all(page & 1 for page in pages.raw)


class SegmentArrays:
    """`data` is None while the bytes are in the cold tier. `bad` marks slots that are damaged, None for none.

    Immutable. A rewrite or a move makes new arrays; whoever holds the old ones goes on reading the old bytes, because
    the arrays keep their mappings alive. Columns are views of the `.idx` bytes, so a flag that is set on disk shows."""

    __slots__ = ("_data_address", "bad", "data", "entries", "flags", "lens", "offs", "ts")

    def __init__(self, entries: Idx, data: memoryview | None, bad: Bools | None = None) -> None:
        self.entries = entries
        self.data = data
        self.bad = bad
        self.ts: U64 = entries["ts"]
        self.flags: U8 = entries["flags"]
        self.lens: U32 = entries["len"]
        self.offs: U32 = entries["offset"]
        self._data_address = 0  # 0: not a mapped file, so always in memory
        if data is not None and isinstance(data.obj, mmap.mmap):
            self._data_address = int(np.frombuffer(data, np.uint8).__array_interface__["data"][0])

    def is_resident(self, first: int, last: int) -> bool:
        """Can the frames of the slots `first` to `last` be read at once, without waiting for the disk? Says no for
        many, and for a segment with damage. A page may still be evicted before it is read; that costs one wait."""
        if self.data is None or self.bad is not None:
            return False
        lo, hi = int(self.offs[first]), int(self.offs[last]) + int(self.lens[last])
        if not lo < hi <= min(len(self.data), lo + RESIDENT_BYTES_MAX):
            return False
        return not self._data_address or is_resident(self._data_address + lo, self._data_address + hi)


# --- records --------------------------------------------------------------------------------------------------------

FEW_SLOTS: Final = 64

_HEAD: Final = Struct("<IBQQHHI")
_SUM: Final = Struct("<Q")
_ENTRY: Final = Struct("<IIQBBH")
"""Of an index; its last two fields are the pad."""

assert _HEAD.size == HEAD_BYTES
assert _ENTRY.size == ENTRY_BYTES


class FewSlots(NamedTuple):
    """What an active segment of a few records tells the tail beyond its index."""

    sizes: array[int]
    tags: list[bytes | None]


def few_slots(idx: bytes, data: bytes, *, first_seq: int, count: int, data_len: int) -> FewSlots | None:
    """A segment that is exactly what its mark says: `count` live records in `data_len` bytes, each frame good and told
    by its entry, none flagged, nothing behind them. None: ask the decoder."""
    if not 0 < count <= FEW_SLOTS or len(idx) != count * ENTRY_BYTES or len(data) != data_len:
        return None
    sizes, tags = array("I"), []
    at = last_ts = 0
    for seq, (offset, length, ts, bits, pad, pads) in enumerate(_ENTRY.iter_unpack(idx), first_seq):
        end = at + length
        if offset != at or ts < last_ts or pad or pads or length < OVERHEAD_BYTES or end > data_len:
            return None
        head = _good_head(data, at, length, seq)
        if head is None or head[:2] != (bits, ts) or data[end - 1] == DELETED_BYTE:
            return None
        _, _, node_len, tag_len, blob_len = head
        tag_at = at + HEAD_BYTES + node_len
        tags.append(data[tag_at : tag_at + tag_len] if bits & HAS_TAG else None)
        sizes.append(accounted_size(data[end - TAIL_BYTES - blob_len : end - TAIL_BYTES]))
        at, last_ts = end, ts
    return FewSlots(sizes, tags) if at == data_len else None


def _good_head(buffer: bytes | memoryview, offset: int, length: int, seq: int) -> tuple[int, int, int, int, int] | None:
    """Presence bits, time, and the lengths of node, tag and blob, of a frame that passes every check."""
    frame_len, bits, found, ts, node_len, tag_len, data_len = _HEAD.unpack_from(buffer, offset)
    sum_at = offset + length - TAIL_BYTES
    blob_at = sum_at - data_len
    if (
        found != seq
        or frame_len + LEN_BYTES != length
        or bits > FLAGS_KNOWN
        or node_len + tag_len + data_len + OVERHEAD_BYTES != length
        or xxh3(buffer[offset + LEN_BYTES : sum_at]) != _SUM.unpack_from(buffer, sum_at)[0]
        or buffer[blob_at : blob_at + len(HEAD)] != HEAD
        or buffer[sum_at - 1] != TAIL[0]
    ):
        return None
    return bits, ts, node_len, tag_len, data_len


def run_of_slots(pair: SegmentArrays, slots: range | I64, first_seq: int) -> RecordRun | None:
    """The live ones among these slots of a segment whose bytes are here; None if one of them is damaged."""
    assert pair.data is not None
    found = codec.segment.live_bodies(pair.data, pair.entries, slots, first_seq)
    return None if found is None else RecordRun(pair.data, *found)


def run_of_columns(found: FrameColumns, data: Any, count: int | None = None) -> RecordRun:
    """The first `count` records that the decoder found in `data`, all of them if it is None."""
    assert found.node_offset is not None
    body_offs = array("q", (found.node_offset[:count] - BODY_HEAD_BYTES).tobytes())
    return RecordRun(data, body_offs, (found.flags[:count] & PRESENCE_MASK).tobytes())
