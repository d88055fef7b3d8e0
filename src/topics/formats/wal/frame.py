"""The WAL frame: its layout, flags, types, and the encoders (`docs/spec/storage.md#sec-3-3` and
`docs/spec/storage.md#sec-3-6`).

One frame is a length-prefixed, checksummed record of a group's log; one submission is a run of frames, all but the
last with `more` set. `encode_appends` is the hot one: it turns a whole write into one run with loops that stay in C.
Called by the engine's outbox; decoded by `topics.formats.wal`. Drawn to the byte in docs/formats/wal-frame.md.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import accumulate, chain, count, repeat
from operator import add
from typing import Any, Final, NamedTuple, cast

import numpy as np

from topics.formats.buffers import U32, xxh3, xxh3_all
from topics.formats.wal.blob import accounted_size, blob, blobs, split_blob

__all__ = [
    "APPEND_BYTES_MIN",
    "DURABLE",
    "FLAGS_KNOWN",
    "FRAME_LEN_MAX",
    "FRAME_LEN_MIN",
    "HAS_NODE",
    "HAS_TAG",
    "HEAD_BYTES",
    "HEAD_DTYPE",
    "LEN_BYTES",
    "MORE",
    "OVERHEAD_BYTES",
    "SUM_BYTES",
    "EncodedAppends",
    "FrameType",
    "accounted_size",
    "blob",
    "blobs",
    "encode_appends",
    "encode_frame",
    "split_blob",
]


class FrameType(IntEnum):
    """What a frame carries; every other value makes it bad."""

    APPEND = 1
    TOPIC_CREATE = 2
    TOPIC_DELETE = 3
    ROUTER_CREATE = 4
    ROUTER_DELETE = 5
    DELETE = 6
    EVICT_WATERMARK = 7
    CHECKPOINT_MARK = 8
    CONFIG_UPDATE = 9
    LEASE = 10
    HEAD_WATERMARK = 11
    JOBS_ADDED = 12


HAS_TAG: Final = 0x01
HAS_NODE: Final = 0x02
DURABLE: Final = 0x04
MORE: Final = 0x08
FLAGS_KNOWN: Final = HAS_TAG | HAS_NODE | DURABLE | MORE

LEN_BYTES: Final = 4
HEAD_BYTES: Final = 38
"""Fixed part in front of node, tag and data, the length field included."""
SUM_BYTES: Final = 8
OVERHEAD_BYTES: Final = HEAD_BYTES + SUM_BYTES
APPEND_BYTES_MIN: Final = OVERHEAD_BYTES + len(b'{"d":0}')
"""Bytes of a whole frame beyond node, tag and data."""
FRAME_LEN_MIN: Final = OVERHEAD_BYTES - LEN_BYTES
FRAME_LEN_MAX: Final = 64 * 1024 * 1024

HEAD_DTYPE: Final[np.dtype[np.void]] = np.dtype(
    [
        ("frame_len", "<u4"),
        ("type", "u1"),
        ("flags", "u1"),
        ("topic_id", "<u8"),
        ("seq", "<u8"),
        ("ts", "<u8"),
        ("node_len", "<u2"),
        ("tag_len", "<u2"),
        ("data_len", "<u4"),
    ]
)

# As a plain int: an enum member costs a conversion in every pack.
_APPEND: Final = int(FrameType.APPEND)

# What the checksum covers in front of node, tag and data: the header without its length field.
_HEAD: Final = struct.Struct("<BBQQQHHI")
# The same in pieces, the first of them (type, flags, topic_id) made once for a run; what differs from frame to frame is
# packed anew.
_FRONT: Final = struct.Struct("<BBQ")
_MIXED: Final = struct.Struct("<10sQQHHI")
# For a run alike in all but seq and data_len, (ts, node_len, tag_len) are made once too.
_ALIKE: Final = struct.Struct("<10sQ12sI")
_ALIKE_BACK: Final = struct.Struct("<QHH")
# The checksum of one frame and the length field of the next lie side by side, so one call packs both.
_SUM_AND_LEN: Final = struct.Struct("<QI")
_LEN: Final = struct.Struct("<I")
_SUM: Final = struct.Struct("<Q")

assert HEAD_DTYPE.itemsize == HEAD_BYTES
assert _HEAD.size == HEAD_BYTES - LEN_BYTES
_SUM_AND_LEN_DTYPE: Final = np.dtype([("sum", "<u8"), ("len", "<u4")])
_ALIKE_DTYPE: Final = np.dtype([("front", "V10"), ("seq", "<u8"), ("ts", "<u8"), ("lens", "V4"), ("data_len", "<u4")])
_MANY: Final = 256
"""Frames from which on columns are worth their making."""

assert _SUM_AND_LEN_DTYPE.itemsize == _SUM_AND_LEN.size
assert _ALIKE_DTYPE.itemsize == _ALIKE.size
assert _HEAD.size == _MIXED.size == _ALIKE.size
assert (_FRONT.size, _ALIKE_BACK.size) == (10, 12)
assert FRAME_LEN_MIN == 42
assert FRAME_LEN_MAX == 67108864
assert HEAD_DTYPE.fields is not None
assert [HEAD_DTYPE.fields[name][1] for name in HEAD_DTYPE.names or ()] == [0, 4, 5, 6, 14, 22, 30, 32, 34]
assert [int(kind) for kind in FrameType] == list(range(1, 13))

_ONE_FRAME_MAX: Final = "a frame holds at most 67108864 bytes behind its length field"


class EncodedAppends(NamedTuple):
    """A run of Append frames and where each one lies in it; `lengths` are of whole frames."""

    buffer: bytes
    offsets: list[int] | array[int]
    lengths: list[int] | array[int]


def encode_frame(
    kind: int,
    *,
    ts: int,
    data: bytes,
    topic_id: int = 0,
    seq: int = 0,
    node: bytes | None = None,
    tag: bytes | None = None,
    durable: bool = False,
    more: bool = False,
) -> bytes:
    """One frame of any type; for control frames `data` is the body of `encode_body`."""
    gate = (DURABLE if durable else 0) | (MORE if more else 0)
    return _frame(kind, gate, topic_id, seq, ts, node, tag, data)


def _frame(
    kind: int, flags: int, topic_id: int, seq: int, ts: int, node: bytes | None, tag: bytes | None, data: bytes
) -> bytes:
    """One frame; `flags` come without the presence bits. Few steps, as many writes are of one record."""
    if node is None:
        node = b""
    else:
        flags |= HAS_NODE
    if tag is None:
        tag = b""
    else:
        flags |= HAS_TAG
    body = _HEAD.pack(kind, flags, topic_id, seq, ts, len(node), len(tag), len(data)) + node + tag + data
    frame_len = len(body) + SUM_BYTES
    if frame_len > FRAME_LEN_MAX:
        raise ValueError(_ONE_FRAME_MAX)
    return _LEN.pack(frame_len) + body + _SUM.pack(xxh3(body))


def encode_appends(
    *,
    topic_id: int,
    first_seq: int,
    ts: int | Sequence[int],
    datas: Sequence[bytes],
    nodes: Sequence[bytes | None] | bytes | None = None,
    tags: Sequence[bytes | None] | None = None,
    durable: bool,
    more_after: bool = False,
    runs: Sequence[int] | None = None,
) -> EncodedAppends:
    """One submission of Append frames with seqs from `first_seq` on.

    `datas` are payload blobs. `nodes` is one node for all records or one entry each, and so is `ts`. All frames but the
    last have `more` set; the last has it too when frames of the same submission follow (`more_after`). With `runs` they
    are several writes that only travel together, each a run by itself: that many records each.
    """
    if len(datas) == 1:
        node = nodes if nodes is None or isinstance(nodes, bytes) else nodes[0]
        tag = None if tags is None else tags[0]
        gate = (DURABLE if durable else 0) | (MORE if more_after else 0)
        moment = ts if isinstance(ts, int) else ts[0]
        frame = _frame(_APPEND, gate, topic_id, first_seq, moment, node, tag, datas[0])
        return EncodedAppends(frame, [0], [len(frame)])
    if not datas:
        return EncodedAppends(b"", [], [])
    alone = runs is not None and len(runs) == len(datas)
    gate = (DURABLE if durable else 0) | (0 if alone else MORE)
    fronts = [_FRONT.pack(_APPEND, gate | presence, topic_id) for presence in range(4)]
    lens: U32 | None = None  # of the bodies, where somebody has counted already
    if tags is None and not nodes and len(datas) >= _MANY:
        bodies, lens = _alike_many(fronts[0 if nodes is None else HAS_NODE], first_seq, ts, datas)
    elif tags is None and (nodes is None or isinstance(nodes, bytes)) and isinstance(ts, int):
        bodies = _alike(fronts, first_seq, ts, nodes, datas)
    else:
        bodies = _mixed(fronts, first_seq, ts, nodes, tags, datas)
    if not (more_after or alone):
        for end in (len(bodies),) if runs is None else accumulate(runs):
            bodies[end - 1] = _clear_more(bodies[end - 1])
    return _seal(bodies) if len(bodies) < _MANY else _seal_many(bodies, lens)


def _alike(fronts: Sequence[bytes], first_seq: int, ts: int, node: bytes | None, datas: Sequence[bytes]) -> list[bytes]:
    """Checksummed parts of frames without tags and with at most one node for all."""
    pack, front = _ALIKE.pack, fronts[0 if node is None else HAS_NODE]
    back = _ALIKE_BACK.pack(ts, len(node or b""), 0)
    if node:
        return [pack(front, seq, back, len(data)) + node + data for seq, data in enumerate(datas, first_seq)]
    return [pack(front, seq, back, len(data)) + data for seq, data in enumerate(datas, first_seq)]


def _alike_many(
    front: bytes, first_seq: int, ts: int | Sequence[int], datas: Sequence[bytes]
) -> tuple[list[bytes], U32]:
    """The same by columns, without a node; and the lengths."""
    count = len(datas)
    data_lens = np.fromiter(map(len, datas), np.uint32, count)
    heads = np.frombuffer(bytearray(_ALIKE.pack(front, 0, bytes(_ALIKE_BACK.size), 0) * count), _ALIKE_DTYPE)
    heads["ts"] = np.frombuffer(ts, np.uint64) if isinstance(ts, array) else ts
    heads["seq"] = np.arange(first_seq, first_seq + count, dtype=np.uint64)
    heads["data_len"] = data_lens
    return list(map(add, heads.view(f"V{_ALIKE.size}").tolist(), datas)), data_lens + np.uint32(_ALIKE.size)


def _mixed(
    fronts: Sequence[bytes],
    first_seq: int,
    ts: int | Sequence[int],
    nodes: Sequence[bytes | None] | bytes | None,
    tags: Sequence[bytes | None] | None,
    datas: Sequence[bytes],
) -> list[bytes]:
    """Checksummed parts of frames whose tags, nodes or times differ."""
    node_texts, node_bits = _optional(nodes, HAS_NODE, len(datas))
    tag_texts, tag_bits = _optional(tags, HAS_TAG, len(datas))
    pack = _MIXED.pack
    moments = repeat(ts) if isinstance(ts, int) else ts
    rows = zip(node_bits, tag_bits, count(first_seq), moments, node_texts, tag_texts, datas, strict=False)
    return [
        pack(fronts[a | b], seq, moment, len(node), len(tag), len(data)) + node + tag + data
        for a, b, seq, moment, node, tag, data in rows
    ]


def _optional(
    values: Sequence[bytes | None] | bytes | None, bit: int, size: int
) -> tuple[Iterable[bytes], Iterable[int]]:
    """The texts of an optional column and its presence bits."""
    if values is None:
        return repeat(b"", size), repeat(0, size)
    if isinstance(values, bytes):
        return repeat(values, size), repeat(bit, size)
    if len(values) != size:
        raise ValueError(f"{len(values)} nodes or tags for {size} records")
    if None not in values:
        return cast(Sequence[bytes], values), repeat(bit, size)
    return [value or b"" for value in values], [0 if value is None else bit for value in values]


def _clear_more(body: bytes) -> bytes:
    """The same checksummed part as that of a submission's last frame."""
    return b"%c%c%b" % (body[0], body[1] & ~MORE, body[2:])


def _seal(bodies: list[bytes]) -> EncodedAppends:
    """Puts length fields and checksums around the checksummed parts."""
    frame_lens = [len(body) + SUM_BYTES for body in bodies]
    lengths = [n + LEN_BYTES for n in frame_lens]
    parts: list[Any] = [b""] * (2 * len(bodies) + 1)
    parts[0] = _LEN.pack(frame_lens[0])
    parts[1::2] = bodies
    parts[2::2] = map(_SUM_AND_LEN.pack, map(xxh3, bodies), chain(frame_lens[1:], (0,)))
    parts[-1] = parts[-1][:SUM_BYTES]
    offsets = list(accumulate(lengths, initial=0))
    if offsets.pop() > FRAME_LEN_MAX and max(frame_lens) > FRAME_LEN_MAX:
        raise ValueError(_ONE_FRAME_MAX)
    return EncodedAppends(b"".join(parts), offsets, lengths)


def _seal_many(bodies: list[bytes], lens: U32 | None) -> EncodedAppends:
    """The same, by columns."""
    frame_lens = (np.fromiter(map(len, bodies), np.uint32, len(bodies)) if lens is None else lens) + np.uint32(
        SUM_BYTES
    )
    if int(frame_lens.max()) > FRAME_LEN_MAX:
        raise ValueError(_ONE_FRAME_MAX)
    between = np.zeros(len(bodies), _SUM_AND_LEN_DTYPE)
    between["sum"] = xxh3_all(bodies)
    between["len"][:-1] = frame_lens[1:]
    parts: list[Any] = [b""] * (2 * len(bodies) + 1)
    parts[0] = _LEN.pack(int(frame_lens[0]))
    parts[1::2] = bodies
    parts[2::2] = between.view(f"V{_SUM_AND_LEN.size}").tolist()
    parts[-1] = parts[-1][:SUM_BYTES]
    lengths = frame_lens + LEN_BYTES
    offsets = np.cumsum(lengths, dtype=np.uint32) - lengths
    return EncodedAppends(b"".join(parts), array("I", offsets.tobytes()), array("I", lengths.tobytes()))
