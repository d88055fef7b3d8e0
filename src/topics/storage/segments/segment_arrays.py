"""The opened files of one sealed segment, and records out of its frames; every frame is checked before it is served.

    SegmentArrays   both files as arrays, and whether some of their bytes are in memory
    all_of_segment  any number of records of a mapped segment that has no damage
    few_of_segment  a few records of a mapped segment
    few_frames      a few frames at given places
    few_slots       an active segment of a few records, told by its index, for a start
    run_of_columns  what the column decoder found, as a run

The column decoder pays for its generality with some dozens of numpy calls; for a single record, or for each of
thousands of topics at a start, that is most of the time. The functions for few records make the same checks with plain
integers. They answer None as soon as anything is out of the ordinary, so the decoder stays the only place that knows
what is wrong.
"""

from __future__ import annotations

import ctypes
import mmap
from array import array
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np

from topics.formats.buffers import I64, U8, U32, U64, Bools, xxh3
from topics.formats.segments.columns import FrameColumns, decode_columns
from topics.formats.segments.frame import (
    DELETED_BYTE,
    FLAGS_KNOWN,
    HAS_TAG,
    HEAD_BYTES,
    LEN_BYTES,
    OVERHEAD_BYTES,
    TAIL_BYTES,
)
from topics.formats.segments.idx import ENTRY_BYTES, IDX_DELETED, Idx
from topics.formats.wal.blob import HEAD, TAIL, accounted_size
from topics.limits import KIB
from topics.model.run import BODY_HEAD_BYTES, PRESENCE_MASK, SEGMENT_BODY_AT, RecordRun

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


def is_resident(start: int, stop: int) -> bool:
    """Are all pages of these addresses of a mapped file in memory?"""
    start -= start % mmap.PAGESIZE
    if _mincore is None:
        return False
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

FEW: Final = 16
FEW_SLOTS: Final = 64
"""Slots of a whole segment: more looks of the decoder are spared, so it pays up to more of them."""

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


def few_of_segment(pair: SegmentArrays, slots: Sequence[int], first_seq: int) -> RecordRun | None:
    """Records of a mapped segment; deleted ones are left out. None: ask the decoder."""
    assert pair.data is not None
    entries = [(*pair.entries[slot].item()[:4], first_seq + slot) for slot in slots]
    live = [entry for entry in entries if entry[1] and not entry[3] & IDX_DELETED]
    for offset, _, ts, bits, _ in live:
        if offset + HEAD_BYTES > len(pair.data):
            return None
        head = _HEAD.unpack_from(pair.data, offset)
        if (head[3], head[1]) != (ts, bits):  # the entry misdescribes its frame
            return None
    return few_frames(pair.data, ((offset, length, seq) for offset, length, _, _, seq in live))


def few_frames(buffer: bytes | memoryview, frames: Iterable[tuple[int, int, int]]) -> RecordRun | None:
    """Segment frames at `(offset, length, seq)`; flagged ones are left out. None: ask the decoder."""
    offs: list[int] = []
    flags = bytearray()
    for offset, length, seq in frames:
        end = offset + length
        if length < OVERHEAD_BYTES or end > len(buffer):
            return None
        if buffer[end - 1] == DELETED_BYTE:
            continue
        head = _good_head(buffer, offset, length, seq)
        if head is None:
            return None
        offs.append(offset + SEGMENT_BODY_AT)
        flags.append(head[0])
    return RecordRun(buffer, offs, bytes(flags))


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


def all_of_segment(pair: SegmentArrays, slots: range | I64, first_seq: int) -> RecordRun | None:
    """The records of these slots of a mapped segment; None if one of them is missing or damaged."""
    assert pair.data is not None
    if len(slots) <= FEW:
        run = few_of_segment(pair, slots if isinstance(slots, range) else slots.tolist(), first_seq)
    else:
        found = decode_columns(
            pair.data, pair.entries, first_seq=first_seq, slots=np.asarray(slots, np.int64), want=("node",)
        )
        run = None if found.bad else run_of_columns(found, pair.data)
    return run if run is not None and len(run.body_offs) == len(slots) else None


def run_of_columns(found: FrameColumns, data: Any, count: int | None = None) -> RecordRun:
    """The first `count` records that the decoder found in `data`, all of them if it is None."""
    assert found.node_offset is not None
    body_offs = (found.node_offset[:count] - BODY_HEAD_BYTES).tolist()
    return RecordRun(data, body_offs, (found.flags[:count] & PRESENCE_MASK).tobytes())
