"""A handful of records, checked one by one.

The column decoder pays for its generality some dozens of numpy calls; for a single job of a queue that is most of the
time. These functions make the same checks with plain integers and answer None as soon as anything is out of the
ordinary, so that the decoder stays the only place that knows what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final

from topics.formats.blob import HEAD, TAIL
from topics.formats.buffers import xxh3
from topics.formats.idx import IDX_DELETED
from topics.formats.segment_frame import DELETED_BYTE, FLAGS_KNOWN, HEAD_BYTES, LEN_BYTES, OVERHEAD_BYTES, TAIL_BYTES
from topics.model.run import SEGMENT_BODY_AT, RecordRun
from topics.storage.segments.pair import Pair

FEW: Final = 16

_HEAD: Final = Struct("<IBQQHHI")
_SUM: Final = Struct("<Q")

assert _HEAD.size == HEAD_BYTES


def few_of_segment(pair: Pair, slots: Sequence[int], first_seq: int) -> RecordRun | None:
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
        bits = _good_flags(buffer, offset, length, seq)
        if bits is None:
            return None
        offs.append(offset + SEGMENT_BODY_AT)
        flags.append(bits)
    return RecordRun(buffer, offs, bytes(flags))


def _good_flags(buffer: bytes | memoryview, offset: int, length: int, seq: int) -> int | None:
    """The presence bits of a frame that passes every check."""
    frame_len, bits, found, _, node_len, tag_len, data_len = _HEAD.unpack_from(buffer, offset)
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
    return int(bits)
