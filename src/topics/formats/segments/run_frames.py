"""Segment frames of a record run, wherever its bodies came from: header, body as it is, checksum, a clear flag byte."""

from __future__ import annotations

from struct import Struct

from topics.formats.buffers import xxh3
from topics.model.run import BODY_HEAD, BODY_HEAD_BYTES, PRESENCE_MASK, RecordRun

_LEN = Struct("<I")
_SUM_AND_FLAG = Struct("<QB")
_FLAGS = [bytes((flags & PRESENCE_MASK,)) for flags in range(256)]


def segment_frames_of(run: RecordRun) -> list[bytes]:
    """One frame per record."""
    buf, unpack = run.buf, BODY_HEAD.unpack_from
    frames: list[bytes] = []
    for off, flags in zip(run.body_offs, run.flags, strict=True):
        _, _, node_len, tag_len, data_len = unpack(buf, off)
        body = _FLAGS[flags] + buf[off : off + BODY_HEAD_BYTES + node_len + tag_len + data_len]
        frames.append(_LEN.pack(len(body) + 9) + body + _SUM_AND_FLAG.pack(xxh3(body), 0))
    return frames
