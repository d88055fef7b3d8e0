"""The segment `.data` frame: its layout and encoders (`docs/spec/storage.md#sec-6-1`).

A segment frame is a WAL Append frame without type and topic id, with its own checksum and one trailing flag byte
outside it; node, tag and blob are the same bytes. Frames lie back to back from offset 0 in seq order. Written by the
checkpointer and the rewriter; the `.idx` entries that go with them are of `topics.formats.segments.idx`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from topics.errors import Corruption
from topics.formats.buffers import (
    I64,
    U8,
    Buffer,
    byte_view,
    first_true,
    gather_u8,
    gather_u64,
    hash_slices,
    xxh3_all,
)
from topics.formats.segments.idx import IDX_DTYPE, Idx
from topics.formats.wal import frame as wal_frame

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
_HEAD: Final = struct.Struct("<BQQHHI")
_LEN: Final = struct.Struct("<I")
unpack_len: Final = _LEN.unpack_from
# Checksum, flag byte and the next frame's length field lie side by side.
_TAIL_AND_LEN_DTYPE: Final[np.dtype[np.void]] = np.dtype([("sum", "<u8"), ("flag", "u1"), ("frame_len", "<u4")])

# Bytes [14, 38+N+M+P) of a WAL frame are bytes [5, 29+N+M+P) of its segment frame.
_WAL_SHARED_AT: Final = 14
_WAL_FLAGS_AT: Final = 5
_WAL_TS_AT: Final = 22
# Records per inner run: their bytes stay in the processor's cache.
_RUN: Final = 2048
_STRETCH_FACTOR: Final = 4

assert HEAD_DTYPE.itemsize == HEAD_BYTES
assert _HEAD.size == HEAD_BYTES - LEN_BYTES
assert FRAME_LEN_MIN == 34
assert wal_frame.HEAD_BYTES - _WAL_SHARED_AT == HEAD_BYTES - LEN_BYTES - 1
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
    rows = zip(seqs, ts, nodes or absent, tags or absent, datas, strict=True)
    bodies = [_body(*row) for row in rows]
    lens = np.array([len(body) + LEN_BYTES + TAIL_BYTES for body in bodies], np.int64)
    flags = np.array([body[0] for body in bodies], np.uint8)
    return SegmentFrames(_seal(bodies, lens - LEN_BYTES), _entries(lens, flags=flags, ts=ts, base=base))


def segment_frames_from_wal(
    wal_buffer: Buffer,
    offsets: npt.ArrayLike,
    lengths: npt.ArrayLike,
    *,
    base: int = 0,
    verify: bool = True,
    file: str = "wal",
) -> SegmentFrames:
    """Segment frames of the Append frames at `offsets`, to be written at offset `base` of `.data`.

    The WAL checksum is verified first, so that damage in the log cannot get a fresh, matching checksum: Corruption.
    """
    starts, sizes = np.asarray(offsets, np.int64), np.asarray(lengths, np.int64)
    view = byte_view(wal_buffer)
    if not len(starts):
        return SegmentFrames(b"", np.empty(0, IDX_DTYPE))
    ends = starts + sizes - wal_frame.SUM_BYTES
    if verify:
        _verify_wal(wal_buffer, view, starts, ends, file)
    flags: U8 = gather_u8(view, starts + _WAL_FLAGS_AT) & np.uint8(FLAGS_KNOWN)
    ts = gather_u64(view, starts + _WAL_TS_AT)
    lens = sizes - (wal_frame.OVERHEAD_BYTES - OVERHEAD_BYTES)
    runs = []
    for at in range(0, len(starts), _RUN):
        rows = slice(at, at + _RUN)
        bodies = _bodies_in_wal(view, starts[rows], ends[rows], flags[rows])
        runs.append(_seal(bodies, lens[rows] - LEN_BYTES))
    return SegmentFrames(b"".join(runs), _entries(lens, flags=flags, ts=ts, base=base))


_FLAG_BYTES: Final = tuple(bytes((flag,)) for flag in range(FLAGS_KNOWN + 1))


def _bodies_in_wal(view: memoryview, starts: I64, ends: I64, flags: U8) -> list[bytes]:
    """The checksummed parts of segment frames. In the log their flags do not lie in front of the rest; in a copy of a
    stretch they are put there, over the end of the topic id, so that each part is one slice."""
    low, high = int(starts.min()), int(ends.max())
    if high - low > _STRETCH_FACTOR * int((ends - starts).sum()):  # much of others lies in between
        triples = zip(flags.tolist(), (starts + _WAL_SHARED_AT).tolist(), ends.tolist(), strict=True)
        return [_FLAG_BYTES[flag] + view[a:b] for flag, a, b in triples]
    stretch = np.frombuffer(view[low:high], np.uint8).copy()
    begins = starts + (_WAL_SHARED_AT - 1 - low)
    stretch[begins] = flags
    source = stretch.tobytes()
    return [source[a:b] for a, b in zip(begins.tolist(), (ends - low).tolist(), strict=True)]


def _body(seq: int, ts: int, node: bytes | None, tag: bytes | None, data: bytes) -> bytes:
    """The checksummed part of one frame."""
    flags = (tag is not None) | (node is not None) << 1
    node, tag = node or b"", tag or b""
    return b"".join((_HEAD.pack(flags, seq, ts, len(node), len(tag), len(data)), node, tag, data))


def _seal(bodies: list[bytes], frame_lens: I64) -> bytes:
    """Puts length fields, checksums and flag bytes around the checksummed parts."""
    if not bodies:
        return b""
    between = np.zeros(len(bodies), _TAIL_AND_LEN_DTYPE)
    between["sum"] = xxh3_all(bodies)
    between["flag"] = LIVE_BYTE
    between["frame_len"][:-1] = frame_lens[1:]
    parts: list[Any] = [b""] * (2 * len(bodies) + 1)
    parts[0] = _LEN.pack(int(frame_lens[0]))
    parts[1::2] = bodies
    parts[2::2] = between.view(f"V{between.itemsize}").tolist()
    parts[-1] = parts[-1][:TAIL_BYTES]
    return b"".join(parts)


def _entries(lens: I64, *, flags: U8, ts: npt.ArrayLike, base: int) -> Idx:
    """Entries of frames of these lengths that lie back to back from `base` on."""
    idx = np.zeros(len(lens), IDX_DTYPE)
    idx["offset"] = base + np.cumsum(lens) - lens
    idx["len"] = lens
    idx["ts"] = ts
    idx["flags"] = flags
    return idx


def _verify_wal(buffer: Buffer, view: memoryview, starts: I64, ends: I64, file: str) -> None:
    matches = hash_slices(buffer, starts + LEN_BYTES, ends) == gather_u64(view, ends)
    bad = first_true(~matches)
    if bad < len(starts):
        raise Corruption(file=file, offset=int(starts[bad]), reason="xxh3")
