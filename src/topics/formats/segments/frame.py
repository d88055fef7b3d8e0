"""The segment `.data` frame: its layout and encoders (`docs/spec/storage.md#sec-6-1`).

A segment frame is a WAL Append frame without type and topic id, with its own checksum and one trailing flag byte
outside it; node, tag and blob are the same bytes. Frames lie back to back from offset 0 in seq order. Written by the
checkpointer and the rewriter; the `.idx` entries that go with them are of `topics.formats.segments.idx`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from topics.formats import codec
from topics.formats.buffers import Buffer
from topics.formats.codec import plain_log
from topics.formats.segments.idx import ENTRY, IDX_DTYPE, Idx
from topics.formats.wal import frame as wal_frame
from topics.model.run import BODY_HEAD, SEGMENT_BODY_AT, WAL_BODY_AT, RecordRun

HAS_TAG: Final = 0x01
HAS_NODE: Final = 0x02
FLAGS_KNOWN: Final = HAS_TAG | HAS_NODE
DELETED_BYTE: Final = 0xD5
LIVE_BYTE: Final = 0x00

LEN_BYTES: Final = 4
HEAD_BYTES: Final = 29
TAIL_BYTES: Final = 9
"""Checksum and flag byte."""
OVERHEAD_BYTES: Final = HEAD_BYTES + TAIL_BYTES
FRAME_LEN_MIN: Final = OVERHEAD_BYTES - LEN_BYTES
FRAME_LEN_MAX: Final = wal_frame.FRAME_LEN_MAX

HEAD_DTYPE: Final[np.dtype[np.void]] = np.dtype(
    [
        ("frame_len", "<u4"),
        ("flags", "u1"),
        ("seq", "<u8"),
        ("ts", "<u8"),
        ("node_len", "<u2"),
        ("tag_len", "<u2"),
        ("data_len", "<u4"),
    ]
)
unpack_len: Final = struct.Struct("<I").unpack_from

assert HEAD_DTYPE.itemsize == HEAD_BYTES
assert FRAME_LEN_MIN == 34
assert wal_frame.HEAD_BYTES - WAL_BODY_AT == HEAD_BYTES - SEGMENT_BODY_AT
assert HEAD_DTYPE.fields is not None
assert [HEAD_DTYPE.fields[name][1] for name in HEAD_DTYPE.names or ()] == [0, 4, 5, 13, 21, 23, 25]
assert (HAS_TAG, HAS_NODE) == (wal_frame.HAS_TAG, wal_frame.HAS_NODE)


class SegmentFrames(NamedTuple):
    """Frames back to back, and their `.idx` entries."""

    buffer: bytes
    idx: Idx


def encode_segment_frames(
    *,
    seqs: Sequence[int],
    ts: Sequence[int],
    datas: Sequence[bytes],
    nodes: Sequence[bytes | None] | None = None,
    tags: Sequence[bytes | None] | None = None,
    base: int = 0,
) -> SegmentFrames:
    """Frames for records that have no WAL frame (router copies), to be written at offset `base` of `.data`."""
    absent: Sequence[bytes | None] = [None] * len(datas)
    frames, entries = bytearray(), bytearray()
    for seq, moment, node, tag, data in zip(seqs, ts, nodes or absent, tags or absent, datas, strict=True):
        flags = (0 if tag is None else HAS_TAG) | (0 if node is None else HAS_NODE)
        node, tag = node or b"", tag or b""
        body = BODY_HEAD.pack(seq, moment, len(node), len(tag), len(data)) + node + tag + data
        frame = plain_log.segment_frame(flags, body)
        entries += ENTRY.pack(base + len(frames), len(frame), moment, flags)
        frames += frame
    return SegmentFrames(bytes(frames), np.frombuffer(entries, IDX_DTYPE))


def segment_frames_from_wal(
    wal_buffer: Buffer,
    offsets: npt.ArrayLike,
    lengths: npt.ArrayLike,
    *,
    seqs: npt.ArrayLike | None = None,
    base: int = 0,
    verify: bool = True,
    file: str = "wal",
) -> SegmentFrames:
    """Segment frames of the Append frames at `offsets`, to be written at offset `base` of `.data`.

    The WAL checksum is verified first, so that damage in the log cannot get a fresh, matching checksum: Corruption. So
    is a frame of another seq than `seqs` names.
    """
    frames, entries = codec.log.wal_to_segment(
        wal_buffer, offsets, lengths, seqs=seqs, base=base, verify=verify, file=file
    )
    return SegmentFrames(frames, entries.view(IDX_DTYPE))


def segment_frames_of(run: RecordRun) -> list[bytes]:
    """One frame per record of a run, wherever its bodies came from."""
    frames, bounds = codec.log.encode_bodies(run.buf, run.body_offs, run.flags)
    return [frames[a:b] for a, b in pairwise(bounds)]
