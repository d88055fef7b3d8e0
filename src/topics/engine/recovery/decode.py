"""Frames to ops: the inverse of `engine.encode`, for recovery.

A stretch of Append frames of one topic with contiguous seqs becomes one `Append`, whatever number of writes it came
from: columns in, columns out, no object per record. Bodies were decoded and checked by `formats.wal`."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from topics.formats.buffers import Buffer
from topics.formats.wal import WalColumns, bodies
from topics.formats.wal.blob import BLOB_BYTES_MIN, WRAP_META_BYTES, meta_lengths
from topics.formats.wal.frame import HAS_NODE, HAS_TAG
from topics.model import ops
from topics.model.config import TopicConfig
from topics.model.names import TagMatch
from topics.model.router import RouterDef

_PRESENCE = HAS_TAG | HAS_NODE


Rows = slice | npt.NDArray[np.int64]


def append_of(columns: WalColumns, rows: Rows, *, buffer: Buffer, file: int) -> ops.Append:
    """The op of some rows, in order: Append frames of one topic whose seqs follow each other."""
    seqs = columns.seq[rows]
    blob_lens = columns.data_len[rows].astype(np.int64)
    metas = meta_lengths(buffer, columns.data_offset[rows], blob_lens)
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
    starts = columns.tag_offset[rows].tolist()
    ends = (columns.tag_offset[rows] + columns.tag_len[rows]).tolist()
    return [
        bytes(view[start:end]) if has else None for has, start, end in zip(tagged.tolist(), starts, ends, strict=True)
    ]


def control_op(body: bodies.Body, *, topic_id: int, seq: int, ts: int) -> ops.Op:
    """The op of a control frame; marks (checkpoint, open, tier) are no ops and must not come here."""
    return _OPS[type(body)](body, topic_id, seq, ts)


def _match(selector: Sequence[str] | None) -> TagMatch | None:
    return None if selector is None else TagMatch.from_stored(list(selector))


def _routed(marks: Sequence[bodies.RouterMark]) -> tuple[ops.RouterMark, ...]:
    return tuple(ops.RouterMark(**msgspec.structs.asdict(mark)) for mark in marks)


def _router_put(body: bodies.RouterCreate, _id: int, _seq: int, _ts: int) -> ops.RouterPut:
    return ops.RouterPut(
        router=RouterDef(
            name=body.name,
            source=body.source,
            dest=body.dest,
            preserve_node=body.preserve_node,
            preserve_tag=body.preserve_tag,
            create_dest=body.create_dest,
            allow_cycle=body.allow_cycle,
            guarantee=body.guarantee,
            filter=_match(body.filter),
        ),
        source_id=body.source_id,
        dest_id=body.dest_id,
        initial_cursor=body.initial_cursor,
        initial_dest_base=body.initial_dest_base,
        created_ts=body.created_ts,
        rev=body.rev,
    )


def _delete(body: bodies.Delete, topic_id: int, _seq: int, _ts: int) -> ops.Delete:
    return ops.Delete(
        topic_id=topic_id,
        before_seq=body.before_seq,
        match=_match(body.match),
        seqs=body.seqs,
        bound_head=body.bound_head,
        reason=body.reason,
        routed=_routed(body.routed),
    )


def _evict(body: bodies.EvictWatermark, topic_id: int, _seq: int, _ts: int) -> ops.Evict:
    return ops.Evict(
        topic_id=topic_id,
        evict_floor=body.evict_floor,
        cap_lost=body.cap_lost,
        ttl_lost=body.ttl_lost,
        trim_lost=body.trim_lost,
        restart_lost=body.restart_lost,
        earliest_seq=body.earliest_seq,
        routed=_routed(body.routed),
    )


def _head(body: bodies.HeadWatermark, topic_id: int, _seq: int, _ts: int) -> ops.HeadMark:
    return ops.HeadMark(
        topic_id=topic_id,
        ceiling=body.ceiling,
        resume_at=body.resume_at,
        lost=tuple((lost.first, lost.last, lost.reason) for lost in body.lost),
        pin=None if body.pin is None else ops.Pin(**msgspec.structs.asdict(body.pin)),
        lease_ceiling=body.lease_ceiling,
        fork=None if body.fork is None else ops.Fork(body.fork.epoch, body.fork.head),
    )


def _lease(body: bodies.Lease, topic_id: int, seq: int, ts: int) -> ops.LeaseEvent:
    return ops.LeaseEvent(
        topic_id=topic_id,
        seq=seq,
        event=body.event,
        node=body.node,
        lease_id=body.lease_id,
        deadline=body.deadline,
        deliveries=body.deliveries,
        ready_at=body.ready_at,
        stream=int(body.stream),
        ts=ts,
        error=body.error,
        final=body.final,
    )


def _jobs_added(body: bodies.JobsFrame, topic_id: int, _seq: int, _ts: int) -> ops.JobsAdded:
    return ops.JobsAdded(
        topic_id=topic_id,
        first_seq=body.first,
        ready_at=body.ready_at,
        priority=body.priority,
        unique=tuple(None if item is None else (item.key, item.until) for item in body.unique),
    )


def _create(body: bodies.TopicCreate, topic_id: int, _seq: int, _ts: int) -> ops.TopicCreate:
    return ops.TopicCreate(topic_id, body.name, body.epoch, TopicConfig.from_stored(body.config), body.created_ts)


def _config(body: bodies.ConfigUpdate, topic_id: int, _seq: int, ts: int) -> ops.ConfigUpdate:
    return ops.ConfigUpdate(topic_id, body.name, TopicConfig.from_stored(body.config), ts)


def _cursor(body: bodies.CursorFrame, topic_id: int, _seq: int, ts: int) -> ops.CursorChange:
    return ops.CursorChange(
        topic_id=topic_id,
        name=body.name,
        event=body.event,
        ts=ts,
        seq=body.seq,
        fence=body.fence,
        owner=body.owner,
        meta=body.meta,
        hold=None if body.hold is None else (body.hold.records, body.hold.bytes),
    )


_OPS: dict[type[Any], Callable[[Any, int, int, int], ops.Op]] = {
    bodies.TopicCreate: _create,
    bodies.TopicDelete: lambda body, topic_id, _seq, _ts: ops.TopicDelete(topic_id, body.name, body.epoch),
    bodies.ConfigUpdate: _config,
    bodies.RouterCreate: _router_put,
    bodies.RouterDelete: lambda body, _id, _seq, _ts: ops.RouterDelete(body.name),
    bodies.Delete: _delete,
    bodies.EvictWatermark: _evict,
    bodies.Lease: _lease,
    bodies.JobsFrame: _jobs_added,
    bodies.HeadWatermark: _head,
    bodies.CursorFrame: _cursor,
}
