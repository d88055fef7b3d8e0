"""Scanning a `.data` file: frames to columns, checksums of many frames at once (`docs/spec/storage.md#sec-6-1` and
`docs/spec/storage.md#sec-6-3`).

A bad frame is a result (`reason`, `end`), never an exception. `scan_segment` stops at the first one; `rebuild_idx` in
`topics.formats.segments.rebuild` goes on behind it. Called by recovery, rewrite, relocation, verification and Spark.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from topics.formats import codec
from topics.formats.buffers import I64, U8, U16, U32, U64, Bools, Buffer, byte_view, gather_u64
from topics.formats.segments.frame import (
    DELETED_BYTE,
    FLAGS_KNOWN,
    HAS_NODE,
    HAS_TAG,
    HEAD_BYTES,
    LEN_BYTES,
    OVERHEAD_BYTES,
    TAIL_BYTES,
)


@dataclass(frozen=True, slots=True)
class SegmentColumns:
    """Frames of a `.data` buffer by header field.

    `end` is where the scan stopped and `reason` why: empty at the end of the buffer.
    """

    offset: I64
    length: U32
    seq: U64
    ts: U64
    flags: U8
    node_len: U16
    tag_len: U16
    data_len: U32
    del_flag: U8
    end: int
    reason: str

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def deleted(self) -> Bools:
        """Which frames carry the delete flag."""
        flagged: Bools = self.del_flag == DELETED_BYTE
        return flagged

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
        """Start of each payload blob."""
        return self.tag_offset + self.tag_len


def scan_segment(
    buffer: Buffer, start: int = 0, *, verify: bool = True, frames_max: int | None = None
) -> SegmentColumns:
    """Every good frame from `start` on, up to the first bad one; a bad frame is a result, not an exception.

    With `frames_max` the scan may also end, without a reason, after that many frames.
    """
    columns = codec.segment.scan_segment_frames(
        buffer, start, sys.maxsize if frames_max is None else frames_max, verify
    )
    return SegmentColumns(*columns)


def verify_frames(buffer: Buffer, offsets: npt.ArrayLike, lengths: npt.ArrayLike) -> Bools:
    """Whether each frame's checksum matches; frames must lie inside the buffer and be at least 38 bytes long."""
    starts, sizes = np.asarray(offsets, np.int64), np.asarray(lengths, np.int64)
    ends = starts + sizes - TAIL_BYTES
    sums = codec.segment.hash_slices(buffer, starts + LEN_BYTES, sizes - (LEN_BYTES + TAIL_BYTES))
    matches: Bools = sums == gather_u64(byte_view(buffer), ends)
    return matches


def head_holds(columns: Any, length: Any) -> Bools:
    """Lengths add up, no unknown flag, no text behind a clear presence bit."""
    node_len, tag_len = columns["node_len"].astype(np.int64), columns["tag_len"].astype(np.int64)
    flags = columns["flags"]
    holds: Bools = node_len + tag_len + columns["data_len"] + OVERHEAD_BYTES == length
    holds &= flags <= FLAGS_KNOWN
    holds &= (node_len == 0) | ((flags & HAS_NODE) != 0)
    holds &= (tag_len == 0) | ((flags & HAS_TAG) != 0)
    return holds
