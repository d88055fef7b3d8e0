"""The WAL frame: its layout, flags, types, and the encoders (`docs/spec/storage.md#sec-3-3` and
`docs/spec/storage.md#sec-3-6`).

One frame is a length-prefixed, checksummed record of a group's log; one submission is a run of frames, all but the
last with `more` set. `encode_appends` is the hot one: it turns a whole write into one run (`topics.formats.codec`).
Called by the engine's outbox; decoded by `topics.formats.wal`. Drawn to the byte in docs/formats/wal-frame.md.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np

from topics.formats import codec
from topics.formats.codec import plain_log
from topics.formats.codec.plain_log import EncodedAppends
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
    CURSOR = 13
    SCHEDULE = 14


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

assert HEAD_DTYPE.itemsize == HEAD_BYTES
assert FRAME_LEN_MIN == 42
assert FRAME_LEN_MAX == 67108864
assert HEAD_DTYPE.fields is not None
assert [HEAD_DTYPE.fields[name][1] for name in HEAD_DTYPE.names or ()] == [0, 4, 5, 6, 14, 22, 30, 32, 34]
assert [int(kind) for kind in FrameType] == list(range(1, 15))

encode_appends: Final = codec.log.encode_appends


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
    flags = (DURABLE if durable else 0) | (MORE if more else 0)
    return plain_log.encode_frame(kind, flags, topic_id, seq, ts, node, tag, data)
