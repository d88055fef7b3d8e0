"""Scanning a WAL file: bytes to columns, one call for a whole buffer (`docs/spec/storage.md#sec-3-4` and
`docs/spec/storage.md#sec-3-5`).

`scan_wal` walks the length fields, then checks all frames of a stretch together in the order of
`docs/spec/storage.md#sec-3-5`; the first bad frame ends the scan and everything in front of it is good. A bad frame is
a result (`stop`, `reason`, `end`), never an exception, and nothing is allocated by a length that was not checked
against the buffer. Called by recovery, verification and the inspect command.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final, TypeAlias

import numpy as np

from topics.errors import Corruption
from topics.formats.buffers import (
    I64,
    U8,
    U16,
    U32,
    U64,
    Bools,
    Buffer,
    all_ascii,
    byte_view,
    first_true,
    gather_rows,
    gather_u8,
    gather_u32,
    gather_u64,
    hash_slices,
    is_zero,
    valid_utf8,
)
from topics.formats.wal import blob as _blob
from topics.formats.wal.bodies import Body, decode_body
from topics.formats.wal.frame import (
    FLAGS_KNOWN,
    FRAME_LEN_MAX,
    FRAME_LEN_MIN,
    HAS_NODE,
    HAS_TAG,
    HEAD_BYTES,
    HEAD_DTYPE,
    LEN_BYTES,
    MORE,
    SUM_BYTES,
    FrameType,
)

_Columns: TypeAlias = dict[str, Any]


class Stop(Enum):
    """Why a scan ended."""

    CLEAN = "clean"
    """Only zeros follow: the end of the written part."""
    EOF = "eof"
    """The last frame ends exactly where the buffer does."""
    BAD = "bad"
    """A bad frame; `reason` says which check failed."""


@dataclass(frozen=True, slots=True)
class WalColumns:
    """All good frames of one stretch of log, one column per header field.

    `offset` is absolute in the scanned buffer, `length` counts the whole frame. `bodies` holds the decoded body of
    every control frame by its row. `end` is where scanning stopped: behind the last good frame.
    """

    offset: I64
    length: U32
    type: U8
    flags: U8
    topic_id: U64
    seq: U64
    ts: U64
    node_len: U16
    tag_len: U16
    data_len: U32
    bodies: dict[int, Body]
    end: int
    stop: Stop
    reason: str

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def node_offset(self) -> I64:
        """Start of each node text."""
        return self.offset + HEAD_BYTES

    @property
    def tag_offset(self) -> I64:
        """Start of each tag text."""
        return self.offset + (self.node_len.astype(np.int64) + HEAD_BYTES)

    @property
    def data_offset(self) -> I64:
        """Start of each payload blob or body."""
        return self.tag_offset + self.tag_len


# A stretch ends after so many frames or bytes: it stays in the processor's cache, and the Python integers alive at a
# time are bounded. Stretches grow from the first size on, so that a scan which ends soon costs little.
_STRETCH_FRAMES_MIN: Final = 64
_STRETCH_FRAMES_MAX: Final = 4096
_STRETCH_BYTES: Final = 1 << 20
_COLUMNS: Final = tuple(field.name for field in fields(WalColumns))[:10]
_unpack_len: Final = struct.Struct("<I").unpack_from

_HEAD_WORD: Final = int.from_bytes(_blob.HEAD[:4], "little")
_HEAD_LAST: Final = _blob.HEAD[4]
_TAIL_BYTE: Final = _blob.TAIL[0]


def scan_wal(buffer: Buffer, start: int = 0, end: int | None = None, *, verify: bool = True) -> WalColumns:
    """Every good frame from `start` on, up to the first bad one, the clean end, or `end` (the file's length).

    `verify=False` leaves out the checksums; use it only on bytes that were verified before.
    """
    view = byte_view(buffer)
    limit = len(view) if end is None else min(end, len(view))
    stretches: list[_Columns] = []
    bodies: dict[int, Body] = {}
    rows, at, reason, more = 0, start, "", True
    frames_max = _STRETCH_FRAMES_MIN
    while more:
        offsets, stopped_at, reason = _walk(view, at, limit, frames_max)
        frames_max = min(2 * frames_max, _STRETCH_FRAMES_MAX)
        columns, failed = _check_stretch(bytes(view[at:stopped_at]), offsets - at, verify=verify)
        columns["offset"] += at
        more = not reason and not failed and stopped_at < limit
        reason = failed or reason
        bodies.update((rows + row, body) for row, body in columns.pop("bodies").items())
        stretches.append(columns)
        if len(columns["offset"]):
            at = int(columns["offset"][-1]) + int(columns["length"][-1])
            rows += len(columns["offset"])
    return _finish(view, stretches, bodies, at, limit, reason)


def complete_end(columns: WalColumns, start: int = 0) -> int:
    """Where the last whole submission ends; a trailing run without its last frame (`more` clear) is left out."""
    count = complete_count(columns)
    return int(columns.offset[count - 1]) + int(columns.length[count - 1]) if count else start


def complete_count(columns: WalColumns) -> int:
    """How many leading rows belong to whole submissions."""
    lasts = np.flatnonzero((columns.flags & MORE) == 0)
    return int(lasts[-1]) + 1 if len(lasts) else 0


def _walk(view: memoryview, at: int, limit: int, frames_max: int) -> tuple[I64, int, str]:
    """Frame starts found by following length fields (check 1), the place where that ended, and why."""
    starts: list[int] = []
    add = starts.append
    unpack, low, high = _unpack_len, FRAME_LEN_MIN, FRAME_LEN_MAX
    last_start, reason = min(limit - LEN_BYTES, at + _STRETCH_BYTES), ""
    for _ in range(frames_max):
        if at > last_start:
            reason = "short" if limit - LEN_BYTES < at < limit else ""
            break
        (frame_len,) = unpack(view, at)
        if not low <= frame_len <= high:
            reason = "frame_len"
            break
        following = at + LEN_BYTES + frame_len
        if following > limit:
            reason = "short"
            break
        add(at)
        at = following
    return np.array(starts, np.int64), at, reason


def _check_stretch(source: bytes, offset: I64, *, verify: bool) -> tuple[_Columns, str]:
    """Columns of the leading frames that pass checks 2 to 5, and the check that the next one failed.

    `source` is a copy of the stretch: slices of bytes are the cheapest there are, and offsets count from its start.
    """
    view = memoryview(source)
    head = gather_rows(view, offset, HEAD_DTYPE)
    columns: _Columns = {name: np.ascontiguousarray(head[name]) for name in HEAD_DTYPE.names or ()}
    length = columns.pop("frame_len") + np.uint32(LEN_BYTES)
    columns = {"offset": offset, "length": length, **columns}
    failed = ""
    for reason, check in _CHECKS:
        good = first_true(~check(source, view, columns)) if verify or reason != "xxh3" else len(offset)
        if good < len(columns["offset"]):
            columns, failed = {name: column[:good] for name, column in columns.items()}, reason
    bodies, good = _decode_bodies(view, columns)
    if good < len(columns["offset"]):
        columns, failed = {name: column[:good] for name, column in columns.items()}, "body"
    return {**columns, "bodies": bodies}, failed


def _sum_matches(source: bytes, view: memoryview, c: _Columns) -> Bools:
    ends = c["offset"] + (c["length"].astype(np.int64) - SUM_BYTES)
    matches: Bools = hash_slices(source, c["offset"] + LEN_BYTES, ends) == gather_u64(view, ends)
    return matches


def _lengths_add_up(_: bytes, __: memoryview, c: _Columns) -> Bools:
    inner = c["node_len"].astype(np.int64) + c["tag_len"] + c["data_len"]
    matches: Bools = inner + (FRAME_LEN_MIN + LEN_BYTES) == c["length"]
    return matches


def _flags_known(_: bytes, __: memoryview, c: _Columns) -> Bools:
    known: Bools = (c["flags"] & ~np.uint8(FLAGS_KNOWN)) == 0
    return known


def _presence_holds(_: bytes, __: memoryview, c: _Columns) -> Bools:
    tag: Bools = (c["tag_len"] == 0) | ((c["flags"] & HAS_TAG) != 0)
    node: Bools = (c["node_len"] == 0) | ((c["flags"] & HAS_NODE) != 0)
    both: Bools = tag & node
    return both


def _type_known(_: bytes, __: memoryview, c: _Columns) -> Bools:
    known: Bools = (c["type"] >= FrameType.APPEND) & (c["type"] <= FrameType.JOBS_ADDED)
    return known


def _texts_valid(source: bytes, _: memoryview, c: _Columns) -> Bools:
    node_at, node_len = c["offset"] + HEAD_BYTES, c["node_len"].astype(np.int64)
    tag_len = c["tag_len"].astype(np.int64)
    count = len(node_at)
    # Node and tag are neighbours, so texts that are all ASCII need one piece per frame.
    if all_ascii(source, node_at, node_len + tag_len):
        return np.ones(count, np.bool_)
    starts, lengths = np.concatenate((node_at, node_at + node_len)), np.concatenate((node_len, tag_len))
    if valid_utf8(source, starts, lengths):
        return np.ones(count, np.bool_)
    singles = [valid_utf8(source, starts[i::count], lengths[i::count]) for i in range(count)]
    return np.array(singles, np.bool_)


def _blob_wrapped(_: bytes, view: memoryview, c: _Columns) -> Bools:
    data_len = c["data_len"].astype(np.int64)
    at = c["offset"] + (c["node_len"].astype(np.int64) + c["tag_len"] + HEAD_BYTES)
    is_append = c["type"] == FrameType.APPEND
    good: Bools = ~is_append | (data_len >= _blob.BLOB_BYTES_MIN)
    rows = np.flatnonzero(is_append & good)
    start, last = at[rows], at[rows] + data_len[rows] - 1
    good[rows] = (
        (gather_u32(view, start) == _HEAD_WORD)
        & (gather_u8(view, start + 4) == _HEAD_LAST)
        & (gather_u8(view, last) == _TAIL_BYTE)
    )
    return good


# The checks of `docs/spec/storage.md#sec-3-5` in its order; each check may rely on all before it. Bodies follow apart,
# as they yield values.
_CHECKS: Final = (
    ("xxh3", _sum_matches),
    ("lengths", _lengths_add_up),
    ("flags", _flags_known),
    ("presence", _presence_holds),
    ("type", _type_known),
    ("utf8", _texts_valid),
    ("blob", _blob_wrapped),
)


def _decode_bodies(view: memoryview, c: _Columns) -> tuple[dict[int, Body], int]:
    """Decoded control bodies by row, and the number of leading frames that are good."""
    bodies: dict[int, Body] = {}
    for row in np.flatnonzero(c["type"] != FrameType.APPEND).tolist():
        at = int(c["offset"][row]) + HEAD_BYTES + int(c["node_len"][row]) + int(c["tag_len"][row])
        try:
            bodies[row] = decode_body(int(c["type"][row]), view[at : at + int(c["data_len"][row])])
        except Corruption:
            return bodies, int(row)
    return bodies, len(c["offset"])


def _finish(
    view: memoryview, stretches: list[_Columns], bodies: dict[int, Body], at: int, limit: int, reason: str
) -> WalColumns:
    stop = Stop.BAD if reason else Stop.EOF
    if reason in ("frame_len", "short") and is_zero(view[at:limit]):
        stop, reason = Stop.CLEAN, ""
    columns: _Columns = {name: np.concatenate([s[name] for s in stretches]) for name in _COLUMNS}
    return WalColumns(**columns, bodies=bodies, end=at, stop=stop, reason=reason)
