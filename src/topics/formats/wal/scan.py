"""Scanning a WAL file: bytes to columns, one call for a whole buffer (`docs/spec/storage.md#sec-3-4` and
`docs/spec/storage.md#sec-3-5`).

`scan_wal` follows the length fields and checks each frame in the order of `docs/spec/storage.md#sec-3-5`
(`topics.formats.codec`); the first bad frame ends the scan and everything in front of it is good. A bad frame is a
result (`stop`, `reason`, `end`), never an exception, and nothing is allocated by a length that was not checked against
the buffer. Called by recovery, verification and the inspect command.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Final, TypeAlias

import numpy as np

from topics.errors import Corruption
from topics.formats import codec
from topics.formats.buffers import I64, U8, U16, U32, U64, Buffer, byte_view, is_zero
from topics.formats.wal.bodies import Body, decode_body
from topics.formats.wal.frame import HEAD_BYTES, MORE, FrameType


class Stop(Enum):
    """Why a scan ended."""

    CLEAN = "clean"
    """Only zeros follow: the end of the written part."""
    EOF = "eof"
    """The last frame ends exactly where the buffer does."""
    BAD = "bad"
    """A bad frame; `reason` says which check failed."""


Rows: TypeAlias = slice | I64
"""Some of the rows of columns, in order."""


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
        return self.tag_offset_of(slice(None))

    @property
    def data_offset(self) -> I64:
        """Start of each payload blob or body."""
        return self.data_offset_of(slice(None))

    def tag_offset_of(self, rows: Rows) -> I64:
        """Start of the tag text of some rows."""
        return self.offset[rows] + self.node_len[rows] + HEAD_BYTES

    def data_offset_of(self, rows: Rows) -> I64:
        """Start of the payload blob or body of some rows."""
        return self.tag_offset_of(rows) + self.tag_len[rows]

    def append_topics(self) -> set[int]:
        """The topics that have records here. They lie in stretches, so only the first of each stretch is looked at."""
        is_first = np.ones(len(self), np.bool_)
        is_first[1:] = (self.topic_id[1:] != self.topic_id[:-1]) | (self.type[1:] != self.type[:-1])
        firsts = np.flatnonzero(is_first)
        return set(self.topic_id[firsts[self.type[firsts] == FrameType.APPEND]].tolist())


_COLUMNS: Final = tuple(field.name for field in fields(WalColumns))[:10]


def scan_wal(buffer: Buffer, start: int = 0, end: int | None = None, *, verify: bool = True) -> WalColumns:
    """Every good frame from `start` on, up to the first bad one, the clean end, or `end` (the file's length).

    `verify=False` leaves out the checksums; use it only on bytes that were verified before.
    """
    view = byte_view(buffer)
    limit = len(view) if end is None else min(end, len(view))
    *columns, stopped_at, reason = codec.log.scan_wal_frames(view, start, limit, verify)
    found = WalColumns(*[*columns, {}, stopped_at, Stop.BAD if reason else Stop.EOF, reason])
    if reason in ("frame_len", "short") and is_zero(view[stopped_at:limit]):
        found = replace(found, stop=Stop.CLEAN, reason="")
    return _with_bodies(view, found)


def complete_end(columns: WalColumns, start: int = 0) -> int:
    """Where the last whole submission ends; a trailing run without its last frame (`more` clear) is left out."""
    count = complete_count(columns)
    return int(columns.offset[count - 1]) + int(columns.length[count - 1]) if count else start


def complete_count(columns: WalColumns) -> int:
    """How many leading rows belong to whole submissions."""
    lasts = np.flatnonzero((columns.flags & MORE) == 0)
    return int(lasts[-1]) + 1 if len(lasts) else 0


def _with_bodies(view: memoryview, found: WalColumns) -> WalColumns:
    """With the bodies of control frames; the first that cannot be decoded ends the scan, as the last of the checks."""
    controls = np.flatnonzero(found.type != FrameType.APPEND)
    starts = found.data_offset_of(controls).tolist()
    for row, at, length in zip(controls.tolist(), starts, found.data_len[controls].tolist(), strict=True):
        try:
            found.bodies[row] = decode_body(int(found.type[row]), view[at : at + length])
        except Corruption:
            kept = {name: getattr(found, name)[:row] for name in _COLUMNS}
            return replace(found, **kept, end=int(found.offset[row]), stop=Stop.BAD, reason="body")
    return found
