"""Bodies of the control frames, types 2 to 13 (`docs/spec/storage.md#sec-3-7`): msgspec structs as msgpack maps.

Unknown keys are ignored, optional keys are left out when they hold their default, and a missing required key makes the
frame bad. `config` stays a plain map here: its typed form belongs to `topics.model`. Written by the engine's outbox and
the checkpointer, read back by `topics.formats.wal` as the last of its checks.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from topics.errors import Corruption
from topics.formats.wal.frame import FrameType

U64: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Selector: TypeAlias = tuple[Literal["Eq", "Glob"], str]
"""`[op, value]`; the value of a Glob is a literal prefix without its `*`."""
LostReason: TypeAlias = Literal["restart", "source_trim", "cap"]

CKPT_ITEMS_MAX: Final = 4096
"""Items per `ckpt` frame; more items make more frames of the same submission."""


class _Map(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A msgpack map with string keys."""


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """A msgpack array with fixed places."""


class LostRange(_Row, frozen=True):
    """Seqs `first..last`, both included, that are announced as lost."""

    first: U64
    last: U64
    reason: LostReason


class RouterMark(_Map, frozen=True, kw_only=True):
    """State of one router at one moment; `routed` of a source and `routers` of a checkpoint. The latter has `dead`:
    source seqs `first..last` above the cursor that were deleted by then; left out where that is not known."""

    name: str
    cursor: U64
    forwarded_total: U64
    dest_base: U64
    dead: tuple[tuple[U64, U64], ...] | None = None


class Pin(_Map, frozen=True, kw_only=True):
    """Router state that holds after a direct write to the router's destination."""

    router: str
    cursor: U64
    forwarded_total: U64
    dest_base: U64


class TopicCreate(_Map, frozen=True, kw_only=True):
    name: str
    epoch: U64
    config: dict[str, Any]
    created_ts: U64


class TopicDelete(_Map, frozen=True, kw_only=True):
    name: str
    epoch: U64


class ConfigUpdate(_Map, frozen=True, kw_only=True):
    """`config` is complete, not a delta."""

    name: str
    config: dict[str, Any]


class RouterCreate(_Map, frozen=True, kw_only=True):
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
    filter: Selector | None = None
    initial_cursor: U64
    initial_dest_base: U64
    created_ts: U64
    rev: U64


class RouterDelete(_Map, frozen=True, kw_only=True):
    name: str


class Delete(_Map, frozen=True, kw_only=True):
    """Either exactly `seqs`, or the live seqs below `min(before_seq, bound_head)` that `match`."""

    before_seq: U64 | None = None
    match: Selector | None = None
    seqs: tuple[U64, ...] | None = None
    bound_head: U64 | None = None
    reason: Literal["api", "ack", "dead_letter"]
    routed: tuple[RouterMark, ...] = ()

    def __post_init__(self) -> None:
        if self.seqs is None and self.bound_head is None:
            raise ValueError("bound_head is required unless seqs is given")


class EvictWatermark(_Map, frozen=True, kw_only=True):
    evict_floor: U64
    cap_lost: U64
    ttl_lost: U64
    trim_lost: U64
    restart_lost: U64
    earliest_seq: U64
    routed: tuple[RouterMark, ...] = ()


class Lease(_Map, frozen=True, kw_only=True):
    """`event`: 0 claimed, 1 released, 2 extended, 3 acked. The job's seq is the frame's. `stream`: claimed by a work
    stream, whose leases a restart releases at once. `error`, `final`: of a nack."""

    event: Annotated[int, msgspec.Meta(ge=0, le=3)]
    node: str
    lease_id: U64
    deadline: U64
    deliveries: U64
    ready_at: U64 | None = None
    stream: bool = False
    error: str = ""
    final: bool = False


class UniqueItem(_Row, frozen=True):
    """A unique key, and the first moment at which it stands no more; 0: it stands until its job is done."""

    key: str
    until: U64


class JobsFrame(_Map, frozen=True, kw_only=True):
    """Job fields of the records behind it in the submission, from seq `first` on. A column is left out if no job has
    such a field; all others have one entry for each job."""

    first: U64
    ready_at: tuple[U64, ...] = ()
    priority: tuple[Annotated[int, msgspec.Meta(ge=-127, le=127)], ...] = ()
    unique: tuple[UniqueItem | None, ...] = ()

    def __post_init__(self) -> None:
        if len({len(column) for column in (self.ready_at, self.priority, self.unique) if column}) > 1:
            raise ValueError("columns differ in length")


class Fork(_Row, frozen=True):
    """The topic's epoch from here on, and the head up to which the one before it is valid."""

    epoch: U64
    head: U64


class HeadWatermark(_Map, frozen=True, kw_only=True):
    """`lease_ceiling`: lease ids up to here may have been handed out without a frame of their own. `fork`: the
    directory was found to be a copy."""

    ceiling: U64
    resume_at: U64 | None = None
    lost: tuple[LostRange, ...] = ()
    pin: Pin | None = None
    lease_ceiling: U64 = 0
    fork: Fork | None = None


class CursorHoldRow(_Row, frozen=True):
    """Live records and bytes up to which a cursor holds back retention; 0 is no bound."""

    records: U64
    bytes: U64


class CursorFrame(_Map, frozen=True, kw_only=True):
    """A change of a named cursor. `event`: 0 commit, 1 put, 2 drop. A key that is left out is not changed; `meta` is
    JSON text. The time of the change is the frame's."""

    name: str
    event: Annotated[int, msgspec.Meta(ge=0, le=2)]
    seq: U64 | None = None
    fence: U64 | None = None
    owner: str | None = None
    meta: bytes | None = None
    hold: CursorHoldRow | None = None


class OpenMark(_Map, frozen=True, kw_only=True, tag_field="kind", tag="open"):
    """First frame of every WAL file."""

    gen: U64
    shards: U64
    first: U64
    group: str


class ActiveSegmentItem(_Row, frozen=True):
    """Marked lengths of a topic's active segment."""

    first: U64
    count: U64
    data_len: U64


class TopicMark(_Map, frozen=True, kw_only=True):
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


class CkptMark(_Map, frozen=True, kw_only=True, tag_field="kind", tag="ckpt"):
    """Checkpoint `n`: this group is absorbed up to byte `off` of file `file`."""

    n: U64
    file: U64
    off: U64
    topics: tuple[TopicMark, ...]
    routers: tuple[RouterMark, ...]


class TierMove(_Map, frozen=True, kw_only=True):
    id: U64
    first: U64
    count: U64
    tier: Literal["cold", "hot", "gone"]


class TierMark(_Map, frozen=True, kw_only=True, tag_field="kind", tag="tier"):
    moves: tuple[TierMove, ...]


CheckpointMark: TypeAlias = OpenMark | CkptMark | TierMark

Body: TypeAlias = (
    TopicCreate
    | TopicDelete
    | RouterCreate
    | RouterDelete
    | Delete
    | EvictWatermark
    | CheckpointMark
    | ConfigUpdate
    | Lease
    | HeadWatermark
    | JobsFrame
    | CursorFrame
)

_TYPES: Final[dict[FrameType, Any]] = {
    FrameType.TOPIC_CREATE: TopicCreate,
    FrameType.TOPIC_DELETE: TopicDelete,
    FrameType.ROUTER_CREATE: RouterCreate,
    FrameType.ROUTER_DELETE: RouterDelete,
    FrameType.DELETE: Delete,
    FrameType.EVICT_WATERMARK: EvictWatermark,
    FrameType.CHECKPOINT_MARK: CheckpointMark,
    FrameType.CONFIG_UPDATE: ConfigUpdate,
    FrameType.LEASE: Lease,
    FrameType.HEAD_WATERMARK: HeadWatermark,
    FrameType.JOBS_ADDED: JobsFrame,
    FrameType.CURSOR: CursorFrame,
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
_encode: Final = msgspec.msgpack.Encoder().encode

# What msgspec can raise on hostile bytes: its own errors are ValueErrors, nesting ends in RecursionError.
_DECODE_ERRORS: Final = (ValueError, TypeError, OverflowError, RecursionError)


def kind_of(body: Body) -> FrameType:
    """The frame type that carries this body."""
    return _KINDS[type(body)]


def encode_body(body: Body) -> bytes:
    """The msgpack map of a body."""
    return _encode(body)


def decode_body(kind: int, data: bytes | bytearray | memoryview) -> Body:
    """The body of a control frame; raises Corruption when it does not decode or misses a required key."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise Corruption(file="", offset=0, reason="type")
    try:
        body: Body = decoder.decode(data)
    except _DECODE_ERRORS as error:
        raise Corruption(file="", offset=0, reason="body") from error
    return body
