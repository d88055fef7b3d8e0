"""The one column decoder of segment frames: recovery, verification, reads and Spark all use it
(`docs/spec/pipeline.md`, rule 3).

Input is a `.data` buffer and entries of its `.idx`; output says, for every live record asked for, where its node, tag,
data and meta texts lie in that buffer. No Python object per record is made, so a caller can build Arrow arrays straight
from the offsets. What is not asked for is neither read nor decoded. Bad frames are listed, never skipped silently.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy.typing as npt

from topics.formats import codec
from topics.formats.buffers import I64, U8, Bools, Buffer
from topics.formats.segments.frame import HAS_NODE, HAS_TAG
from topics.formats.segments.idx import Idx

ALL: Final = frozenset({"node", "tag", "data", "meta"})
BLOB: Final = frozenset({"blob"})
"""Every check, and no column but the whole payload's, which all others have as well."""


class BadSlot(NamedTuple):
    """A slot whose bytes fail a check.

    `reason` is "short", "frame_len", "lengths", "xxh3", "blob" or "seq" for a bad frame, and "idx" for a good frame
    that its entry misdescribes (ts or flags).
    """

    slot: int
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class FrameColumns:
    """Live records in slot order. Offsets count from the start of the buffer; a column not asked for is None.

    Absent node and tag have a clear bit in `flags`; absent meta has length -1. `blob` is the whole stored payload.
    """

    slot: I64
    seq: I64
    ts: I64
    flags: U8
    node_offset: I64 | None
    node_len: I64 | None
    tag_offset: I64 | None
    tag_len: I64 | None
    blob_offset: I64 | None
    blob_len: I64 | None
    data_offset: I64 | None
    data_len: I64 | None
    meta_offset: I64 | None
    meta_len: I64 | None
    bad: tuple[BadSlot, ...]

    def __len__(self) -> int:
        return len(self.slot)

    @property
    def has_node(self) -> Bools:
        """Which records have a node."""
        present: Bools = (self.flags & HAS_NODE) != 0
        return present

    @property
    def has_tag(self) -> Bools:
        """Which records have a tag."""
        present: Bools = (self.flags & HAS_TAG) != 0
        return present


def decode_columns(
    data: Buffer,
    idx: Idx,
    *,
    first_seq: int,
    slots: npt.ArrayLike | None = None,
    want: Collection[str] = ALL,
    verify: bool = True,
    base: int = 0,
    include_dead: bool = False,
) -> FrameColumns:
    """Columns of the records in `slots` (all when None), which must ascend.

    `idx` is the whole index of the segment and `first_seq` the seq of its slot 0. `base` is the `.data` offset of the
    buffer's first byte, for callers that fetched only a range. Empty slots never appear; deleted ones (entry bit or
    flag byte) only with `include_dead`, then with bit 2 set in `flags`. Without any of `want` only flag bytes are read.
    """
    found = codec.segment.decode_entries(data, idx, slots, first_seq, base, want, verify, include_dead)
    return _columns(found)


def decode_frames(
    data: Buffer,
    offsets: npt.ArrayLike,
    lengths: npt.ArrayLike,
    *,
    want: Collection[str] = ALL,
    verify: bool = True,
    include_dead: bool = False,
) -> FrameColumns:
    """Columns of frames that come without an index (the frame endpoint); seq, ts and flags are the frames' own."""
    found = codec.segment.decode_at(data, offsets, lengths, want, verify, include_dead)
    return _columns(found)


def _columns(found: tuple[Any, ...]) -> FrameColumns:
    *columns, bad = found
    return FrameColumns(*[*columns, tuple(BadSlot(*one) for one in bad)])
