"""RecordRun: stored records as bytes, wherever they came from.

A WAL frame's bytes `[14, 38+N+M+P)` equal a segment frame's `[5, 29+N+M+P)`: seq, ts, three lengths, node, tag, blob.
That piece is the **body**. A run is one buffer and the offset of each body in it; whoever renders or filters reads
bodies and never learns which file they lay in.

Always holds: bodies are in seq order, lie whole inside `buf`, were checked by whoever fetched them, and none was
flagged deleted when it was read. `buf` may be a mapping: it stays valid as long as the run is referenced. Made by
`storage.fetch` and by the recent cache.

    body   0 seq u64 | 8 ts u64 | 16 node_len u16 | 18 tag_len u16 | 20 data_len u32 | 24 node, tag, blob
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

Buffer = bytes | bytearray | memoryview

BODY_HEAD: Final = Struct("<QQHHI")
"""seq, ts, node_len, tag_len, data_len."""
BODY_HEAD_BYTES: Final = 24
WAL_BODY_AT: Final = 14
"""Where the body starts in a WAL frame; 8 bytes of checksum follow it."""
SEGMENT_BODY_AT: Final = 5
"""Where the body starts in a segment frame; 8 bytes of checksum and the flag byte follow it."""

HAS_TAG: Final = 1
HAS_NODE: Final = 2
PRESENCE_MASK: Final = HAS_TAG | HAS_NODE

assert BODY_HEAD.size == BODY_HEAD_BYTES


class StoredRecord(NamedTuple):
    """One record, sliced out. For the edges and for tests; hot paths read the columns of the run."""

    seq: int
    ts: int
    node: bytes | None
    tag: bytes | None
    blob: bytes


class RecordRun:
    """`flags[i]` has the presence bits of record i: an empty tag and no tag differ only there."""

    __slots__ = ("body_offs", "buf", "flags")

    def __init__(self, buf: Buffer, body_offs: Sequence[int], flags: bytes) -> None:
        self.buf = buf
        self.body_offs = body_offs
        self.flags = flags

    def __len__(self) -> int:
        return len(self.body_offs)

    def span_bytes(self) -> int:
        """From the first body to the end of the last: the size of all of them, or too much if they lie apart."""
        if not len(self.body_offs):
            return 0
        last = self.body_offs[-1]
        _, _, node_len, tag_len, data_len = BODY_HEAD.unpack_from(self.buf, last)
        size: int = last - self.body_offs[0] + BODY_HEAD_BYTES + node_len + tag_len + data_len
        return size

    def seq(self, index: int) -> int:
        """Seq of one record."""
        seq: int = BODY_HEAD.unpack_from(self.buf, self.body_offs[index])[0]
        return seq

    def record(self, index: int) -> StoredRecord:
        """One record, copied out."""
        at = self.body_offs[index]
        seq, ts, node_len, tag_len, data_len = BODY_HEAD.unpack_from(self.buf, at)
        node_at = at + BODY_HEAD_BYTES
        tag_at = node_at + node_len
        blob_at = tag_at + tag_len
        flags = self.flags[index]
        return StoredRecord(
            seq=seq,
            ts=ts,
            node=bytes(self.buf[node_at:tag_at]) if flags & HAS_NODE else None,
            tag=bytes(self.buf[tag_at:blob_at]) if flags & HAS_TAG else None,
            blob=bytes(self.buf[blob_at : blob_at + data_len]),
        )

    def records(self) -> Iterator[StoredRecord]:
        """Every record, copied out."""
        return map(self.record, range(len(self)))


EMPTY_RUN: Final = RecordRun(b"", (), b"")
