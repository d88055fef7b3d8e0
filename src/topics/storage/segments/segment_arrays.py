"""SegmentArrays: the opened files of one sealed segment as arrays.

Immutable. A rewrite or a move makes new ones; whoever has the old ones goes on reading the old bytes, because the
arrays keep their mappings alive. Columns are views of the `.idx` bytes, so a flag that is set on disk shows here.
"""

from __future__ import annotations

from topics.formats.buffers import U8, U32, U64, Bools
from topics.formats.segments.idx import Idx


class SegmentArrays:
    """`data` is None while the bytes are in the cold tier. `bad` marks slots that are damaged, None for none."""

    __slots__ = ("bad", "data", "entries", "flags", "lens", "offs", "ts")

    def __init__(self, entries: Idx, data: memoryview | None, bad: Bools | None = None) -> None:
        self.entries = entries
        self.data = data
        self.bad = bad
        self.ts: U64 = entries["ts"]
        self.flags: U8 = entries["flags"]
        self.lens: U32 = entries["len"]
        self.offs: U32 = entries["offset"]
