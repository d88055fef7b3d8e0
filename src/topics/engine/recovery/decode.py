"""Frames to ops: the inverse of `engine.encode`, for recovery.

A stretch of Append frames of one topic with contiguous seqs becomes one `Append`, whatever number of writes it came
from: columns in, columns out, no object per record. Bodies were decoded and checked by `formats.wal`."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from topics.formats.buffers import Buffer
from topics.formats.wal import WalColumns, bodies
from topics.formats.wal.blob import BLOB_BYTES_MIN, WRAP_META_BYTES, meta_lengths
from topics.formats.wal.frame import HAS_NODE, HAS_TAG
from topics.formats.wal.scan import Rows
from topics.model import ops
from topics.model.config import TopicConfig
from topics.model.router import RouterDef

_PRESENCE = HAS_TAG | HAS_NODE


def append_of(columns: WalColumns, rows: Rows, *, buffer: Buffer, file: int) -> ops.Append:
    """The op of some rows, in order: Append frames of one topic whose seqs follow each other."""
    seqs = columns.seq[rows]
    blob_lens = columns.data_len[rows].astype(np.int64)
    metas = meta_lengths(buffer, columns.data_offset_of(rows), blob_lens)
    has_meta = metas > 0
    sizes = blob_lens - np.where(has_meta, WRAP_META_BYTES, BLOB_BYTES_MIN)
    flags = (columns.flags[rows] & _PRESENCE) | (has_meta * np.uint8(ops.HAS_META)).astype(np.uint8)
    return ops.Append(
        topic_id=int(columns.topic_id[rows][0]),
        first_seq=int(seqs[0]),
        count=len(seqs),
        ts=_column("Q", columns.ts[rows], np.uint64),
        sizes=_column("I", sizes, np.uint32),
        flags=_column("B", flags, np.uint8),
        tags=_tags(columns, rows, buffer),
        offs=_column("I", columns.offset[rows], np.uint32),
        lens=_column("I", columns.length[rows], np.uint32),
        file=file,
        base=0,
    )


def _column(code: str, values: Any, dtype: Any) -> array[int]:
    return array(code, values.astype(dtype, copy=False).tobytes())


def _tags(columns: WalColumns, rows: Rows, buffer: Buffer) -> list[bytes | None] | None:
    tagged = (columns.flags[rows] & HAS_TAG) != 0
    if not tagged.any():
        return None
    view = memoryview(buffer)
    starts, ends = columns.tag_offset_of(rows).tolist(), columns.data_offset_of(rows).tolist()
    return [
        bytes(view[start:end]) if has else None for has, start, end in zip(tagged.tolist(), starts, ends, strict=True)
    ]


def control_op(body: bodies.Body, *, topic_id: int, seq: int, ts: int) -> ops.Op:
    """The op of a control frame; marks (checkpoint, open, tier) are no ops and must not come here."""
    match body:
        case ops.FrameOp():
            return bodies.with_header(body, topic_id=topic_id, seq=seq, ts=ts)
        case bodies.TopicCreateBody():
            return ops.TopicCreate(
                topic_id, body.name, body.epoch, TopicConfig.from_stored(body.config), body.created_ts
            )
        case bodies.ConfigUpdateBody():
            return ops.ConfigUpdate(topic_id, body.name, TopicConfig.from_stored(body.config), ts)
        case bodies.RouterCreate():
            return router_put(body)
        case _:
            raise TypeError(f"{type(body).__name__} is no op")


def router_put(body: bodies.RouterCreate) -> ops.RouterPut:
    """The op of a router's frame, or of its entry in a snapshot."""
    return ops.RouterPut(
        router=RouterDef(**{name: getattr(body, name) for name in RouterDef.__struct_fields__}),
        source_id=body.source_id,
        dest_id=body.dest_id,
        initial_cursor=body.initial_cursor,
        initial_dest_base=body.initial_dest_base,
        created_ts=body.created_ts,
        rev=body.rev,
    )
