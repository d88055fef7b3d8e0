"""Gathers and checksums over one byte buffer: the numpy floor under the WAL and segment decoders.

A gather reads a fixed-size field at many unaligned offsets at once. It works on an overlapping view of the buffer
(one item per byte position, stride 1), so no byte is copied but the ones asked for. Callers have checked that every
offset plus the field's width lies inside the buffer; numpy raises IndexError if they have not.

Results never alias the buffer, so an mmap can be closed as soon as the call returned.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from topics.formats import codec

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap

U8: TypeAlias = npt.NDArray[np.uint8]
U16: TypeAlias = npt.NDArray[np.uint16]
U32: TypeAlias = npt.NDArray[np.uint32]
U64: TypeAlias = npt.NDArray[np.uint64]
I64: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Rows: TypeAlias = npt.NDArray[np.void]

xxh3: Final[Callable[[Any], int]] = xxhash.xxh3_64_intdigest

_PIECES_RUN: Final = 1024
_STRETCH_BYTES_MAX: Final = 1 << 20


def byte_view(buffer: Buffer) -> memoryview:
    """A flat read view of any buffer."""
    view = memoryview(buffer)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def xxh3_all(pieces: Iterable[bytes]) -> U64:
    """The checksums of many pieces; their bytes are cheaper to collect than so many ints."""
    return np.frombuffer(b"".join(map(xxhash.xxh3_64_digest, pieces)), ">u8").astype(np.uint64)


def u32_view(view: memoryview) -> memoryview:
    """Little-endian u32s, for picking few of them one by one: much cheaper than picking from an array."""
    return view.cast("I") if sys.byteorder == "little" else np.frombuffer(view, "<u4").astype(np.uint32).data


def gather_rows(view: memoryview, offsets: I64, dtype: np.dtype[np.void]) -> Rows:
    """One packed struct per offset; plain memory copies, whatever the struct holds."""
    width = dtype.itemsize
    if not len(offsets):
        return np.empty(0, dtype)
    windows: Any = np.ndarray((len(view) - width + 1,), f"V{width}", buffer=view, strides=(1,))
    rows: Rows = windows[offsets].view(dtype)
    return rows


def gather_u64(view: memoryview, offsets: I64) -> U64:
    """The little-endian u64 at each offset."""
    found: U64 = _gather(view, offsets, "<u8", 8)
    return found


def gather_u32(view: memoryview, offsets: I64) -> U32:
    """The little-endian u32 at each offset."""
    found: U32 = _gather(view, offsets, "<u4", 4)
    return found


def gather_u8(view: memoryview, offsets: I64) -> U8:
    """The byte at each offset."""
    found: U8 = _gather(view, offsets, "u1", 1)
    return found


def _gather(view: memoryview, offsets: I64, code: str, width: int) -> Any:
    if not len(offsets):
        return np.empty(0, code)
    return np.ndarray((len(view) - width + 1,), code, buffer=view, strides=(1,))[offsets]


def hash_slices(buffer: Buffer, starts: I64, ends: I64) -> U64:
    """XXH3-64 of every `[start, end)` of the buffer."""
    return codec.segment.hash_slices(buffer, starts, ends - starts)


def pieces(buffer: Buffer, starts: I64, lengths: I64) -> list[bytes]:
    """Every `[start, start + length)` of the buffer, in ascending order of place."""
    found: list[bytes] = []
    view = byte_view(buffer)
    for at in range(0, len(starts), _PIECES_RUN):
        begins = starts[at : at + _PIECES_RUN]
        ends = begins + lengths[at : at + _PIECES_RUN]
        low, high = int(begins[0]), int(ends[-1])
        if high - low <= _STRETCH_BYTES_MAX:  # one copy of all that lies there: bytes are cut faster than views
            stretch = bytes(view[low:high])
            pairs = zip((begins - low).tolist(), (ends - low).tolist(), strict=True)
            found += [stretch[a:b] for a, b in pairs]
        else:
            found += [bytes(view[a:b]) for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
    return found


def first_true(mask: Bools) -> int:
    """Index of the first True, or the length when there is none."""
    if not len(mask):
        return 0
    at = int(mask.argmax())
    return at if mask[at] else len(mask)


def is_zero(view: memoryview) -> bool:
    """Whether every byte is zero; reads in steps, so that a non-zero byte near the front ends it early."""
    step = 1 << 20
    return not any(np.frombuffer(view[at : at + step], np.uint8).any() for at in range(0, len(view), step))
