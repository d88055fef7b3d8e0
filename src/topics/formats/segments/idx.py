"""The `.idx` entry: 20 bytes per seq, so that a record's place is arithmetic (`docs/spec/storage.md#sec-6-2` and
`docs/spec/storage.md#sec-6-3`).

Entry of seq `s` is at `(s - first_seq) * 20`. A slot without a frame is an *empty slot* (flags 0x04, offset and len 0);
an all-zero entry is an unwritten tail and invalid. Files are read with `numpy.frombuffer`; agreement with `.data` is
checked for a whole file at once.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from topics.formats.buffers import I64, Bools, Buffer, byte_view, gather_u8

Idx: TypeAlias = npt.NDArray[np.void]

ENTRY_BYTES: Final = 20
IDX_DTYPE: Final[np.dtype[np.void]] = np.dtype(
    [("offset", "<u4"), ("len", "<u4"), ("ts", "<u8"), ("flags", "u1"), ("pad", "V3")]
)
ENTRY: Final = Struct("<IIQB3x")
IDX_HAS_TAG: Final = 0x01
IDX_HAS_NODE: Final = 0x02
IDX_DELETED: Final = 0x04
FLAGS_KNOWN: Final = IDX_HAS_TAG | IDX_HAS_NODE | IDX_DELETED
FLAGS_AT: Final = 16
"""Byte of an entry that a delete sets bit 2 in."""

_DELETED_BYTE: Final = 0xD5
_FRAME_BYTES_MIN: Final = 38

assert IDX_DTYPE.itemsize == ENTRY.size == ENTRY_BYTES
assert IDX_DTYPE.fields is not None
assert [IDX_DTYPE.fields[name][1] for name in IDX_DTYPE.names or ()] == [0, 4, 8, FLAGS_AT, 17]


def read_idx(buffer: Buffer) -> Idx:
    """Whole entries of an `.idx` file, as a view of the buffer; a torn last entry is left out."""
    view = byte_view(buffer)
    return np.frombuffer(view, IDX_DTYPE, count=len(view) // ENTRY_BYTES)


def empty_slots(ts: npt.ArrayLike) -> Idx:
    """Entries of seqs that have no frame; `ts` are the records' times."""
    times = np.asarray(ts, np.uint64)
    idx: Idx = np.zeros(len(times), IDX_DTYPE)
    idx["ts"] = times
    idx["flags"] = IDX_DELETED
    return idx


def is_empty_slot(idx: Idx) -> Bools:
    """Which slots have no frame."""
    empty: Bools = idx["len"] == 0
    return empty


def idx_agrees(idx: Buffer | Idx, data_len: int, data: Buffer | None = None) -> str | None:
    """Why the pair does not agree, or None when it does.

    With `data` the delete flags are compared with their bytes; without it only what the lengths can tell is checked.
    """
    if not isinstance(idx, np.ndarray):
        if len(byte_view(idx)) % ENTRY_BYTES:
            return "length"
        idx = read_idx(idx)
    return _shape_problem(idx) or _tiling_problem(idx, data_len) or _flag_problem(idx, data)


def _shape_problem(idx: Idx) -> str | None:
    raw: Any = np.ascontiguousarray(idx).view(np.uint8).reshape(-1, ENTRY_BYTES)
    flags = idx["flags"]
    if raw[:, FLAGS_AT + 1 :].any():
        return "pad"
    if (flags > FLAGS_KNOWN).any():
        return "flags"
    if (flags[idx["len"] == 0] != IDX_DELETED).any():
        return "empty"
    ts = idx["ts"]
    return "ts" if (ts[1:] < ts[:-1]).any() else None


def _tiling_problem(idx: Idx, data_len: int) -> str | None:
    lengths = idx["len"].astype(np.int64)
    used = lengths > 0
    ends = np.cumsum(lengths)
    if (lengths[used] < _FRAME_BYTES_MIN).any():
        return "len"
    expected: I64 = np.where(used, ends - lengths, 0)
    if (idx["offset"] != expected).any():
        return "offset"
    return "tiling" if (int(ends[-1]) if len(ends) else 0) != data_len else None


def _flag_problem(idx: Idx, data: Buffer | None) -> str | None:
    if data is None:
        return None
    dead = idx[((idx["flags"] & IDX_DELETED) != 0) & (idx["len"] > 0)]
    last = dead["offset"].astype(np.int64) + dead["len"] - 1
    return "deleted" if (gather_u8(byte_view(data), last) != _DELETED_BYTE).any() else None
