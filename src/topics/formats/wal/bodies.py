"""Bodies of the control frames, types 2 to 14 (`docs/spec/storage.md#sec-3-7`): msgspec structs as msgpack maps.

Unknown keys are ignored, optional keys are left out when they hold their default, and a missing required key makes the
frame bad. Most bodies are the ops themselves (`topics.model.ops.FrameOp`). Declared here are the others: marks, which
are no ops, and bodies with a config or a router, which stay plain here so that only their shape decides whether a frame
is bad. Written by the engine and the checkpointer, read back by `topics.formats.wal` as the last of its checks.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

from topics.errors import Corruption
from topics.formats.wal.frame import FrameType
from topics.model.names import TagMatch
from topics.model.ops import (
    U64,
    CursorChange,
    Delete,
    Evict,
    FrameOp,
    HeadMark,
    JobsAdded,
    LeaseEvent,
    RouterDelete,
    RouterMark,
    ScheduleChange,
    StoredMap,
    TopicDelete,
)

CKPT_ITEMS_MAX: Final = 4096
"""Items per `ckpt` frame; more items make more frames of the same submission."""


class TopicCreateBody(StoredMap, frozen=True, kw_only=True):
    name: str
    epoch: U64
    config: dict[str, Any]
    created_ts: U64


class ConfigUpdateBody(StoredMap, frozen=True, kw_only=True):
    """`config` is complete, not a delta."""

    name: str
    config: dict[str, Any]


class RouterCreate(StoredMap, frozen=True, kw_only=True):
    """Create and update alike; the highest `rev` counts."""

    name: str
    source: str
    dest: str
    source_id: U64
    dest_id: U64
    preserve_node: bool
    preserve_tag: bool
    create_dest: bool
    allow_cycle: bool
    guarantee: Literal["at_least_once", "exactly_once"]
    filter: TagMatch | None = None
    initial_cursor: U64
    initial_dest_base: U64
    created_ts: U64
    rev: U64


class OpenMark(StoredMap, frozen=True, kw_only=True, tag_field="kind", tag="open"):
    """First frame of every WAL file."""

    gen: U64
    shards: U64
    first: U64
    group: str


class ActiveSegmentItem(msgspec.Struct, frozen=True, array_like=True):
    """Marked lengths of a topic's active segment."""

    first: U64
    count: U64
    data_len: U64


class TopicMark(StoredMap, frozen=True, kw_only=True):
    """What a checkpoint made durable for one topic; `seq` is the highest seq in synced segments."""

    id: U64
    seq: U64
    ceiling: U64
    evict_floor: U64
    cap_lost: U64
    ttl_lost: U64
    trim_lost: U64
    restart_lost: U64
    earliest_seq: U64
    delete_below: U64
    active: ActiveSegmentItem | None
    sealed_to: U64


class CkptMark(StoredMap, frozen=True, kw_only=True, tag_field="kind", tag="ckpt"):
    """Checkpoint `n`: this group is absorbed up to byte `off` of file `file`."""

    n: U64
    file: U64
    off: U64
    topics: tuple[TopicMark, ...]
    routers: tuple[RouterMark, ...]


class TierMove(StoredMap, frozen=True, kw_only=True):
    id: U64
    first: U64
    count: U64
    tier: Literal["cold", "hot", "gone"]


class TierMark(StoredMap, frozen=True, kw_only=True, tag_field="kind", tag="tier"):
    moves: tuple[TierMove, ...]


CheckpointMark: TypeAlias = OpenMark | CkptMark | TierMark

Body: TypeAlias = FrameOp | TopicCreateBody | ConfigUpdateBody | RouterCreate | CheckpointMark

_TYPES: Final[dict[FrameType, Any]] = {
    FrameType.TOPIC_CREATE: TopicCreateBody,
    FrameType.TOPIC_DELETE: TopicDelete,
    FrameType.ROUTER_CREATE: RouterCreate,
    FrameType.ROUTER_DELETE: RouterDelete,
    FrameType.DELETE: Delete,
    FrameType.EVICT_WATERMARK: Evict,
    FrameType.CHECKPOINT_MARK: CheckpointMark,
    FrameType.CONFIG_UPDATE: ConfigUpdateBody,
    FrameType.LEASE: LeaseEvent,
    FrameType.HEAD_WATERMARK: HeadMark,
    FrameType.JOBS_ADDED: JobsAdded,
    FrameType.CURSOR: CursorChange,
    FrameType.SCHEDULE: ScheduleChange,
}
_DECODERS: Final[dict[int, msgspec.msgpack.Decoder[Any]]] = {
    kind: msgspec.msgpack.Decoder(body) for kind, body in _TYPES.items()
}
_KINDS: Final[dict[type[Any], FrameType]] = {
    **{body: kind for kind, body in _TYPES.items() if kind is not FrameType.CHECKPOINT_MARK},
    OpenMark: FrameType.CHECKPOINT_MARK,
    CkptMark: FrameType.CHECKPOINT_MARK,
    TierMark: FrameType.CHECKPOINT_MARK,
}
_LEFT_OUT: Final[dict[type[Any], dict[str, Any]]] = {
    body: {field.name: field.default for field in msgspec.structs.fields(body) if field.name in body.not_in_body}
    for body in _KINDS
    if issubclass(body, FrameOp)
}
"""Of each op, the fields that are not in its body, with the default by which they stay out of it."""
_encode: Final = msgspec.msgpack.Encoder().encode

# What msgspec can raise on hostile bytes: its own errors are ValueErrors, nesting ends in RecursionError.
_DECODE_ERRORS: Final = (ValueError, TypeError, OverflowError, RecursionError)


def kind_of(body: Body) -> FrameType:
    """The frame type that carries this body."""
    return _KINDS[type(body)]


def encode_body(body: Body) -> bytes:
    """The msgpack map of a body."""
    left_out = _LEFT_OUT.get(type(body))
    return _encode(msgspec.structs.replace(body, **left_out) if left_out else body)


def decode_body(kind: int, data: bytes | bytearray | memoryview) -> Body:
    """The body of a control frame, without what its header has (`with_header`); raises Corruption when it does not
    decode or misses a required key."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise Corruption(file="", offset=0, reason="type")
    try:
        body: Body = decoder.decode(data)
    except _DECODE_ERRORS as error:
        raise Corruption(file="", offset=0, reason="body") from error
    return body


def with_header(op: FrameOp, *, topic_id: int, seq: int, ts: int) -> FrameOp:
    """The op of a decoded body: what its frame's header says is put in."""
    header = {"topic_id": topic_id, "seq": seq, "ts": ts}
    return msgspec.structs.replace(op, **{name: header[name] for name in op.not_in_body if name in header})
