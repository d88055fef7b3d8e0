"""Ops: the only way state changes. The log is a sequence of these; recovery decodes its frames into the same values.

One `Append` is a whole batch as columns. `core.apply` takes every op, live when its commit is done and again in
recovery, and must give the same state both times. Made by core's `decide_*` functions and by `engine.replay`; turned
into frames by `engine`. Seq ranges in ops are those of the log: `lost` is inclusive at both ends, as on disk.

A `FrameOp` is also the body of its frame (`topics.formats.wal.bodies`): what is declared here is what is on disk, names
and order of the fields included, and `tests/formats/golden` holds its bytes. The other three have a body of their own,
because a config or a router that a later version wrote must not make a frame look damaged.
"""

from array import array
from typing import Annotated, ClassVar, Final, Literal, NamedTuple

import msgspec

from topics.model.config import TopicConfig
from topics.model.names import TagMatch
from topics.model.router import RouterDef
from topics.model.schedules.schedule import StoredSchedule

# Bits of a slot's flags. Bits 0..2 are those of an index entry; the others live in memory only.
HAS_TAG: Final = 1
HAS_NODE: Final = 2
DELETED: Final = 4
HAS_META: Final = 8
HOPS_SHIFT: Final = 4
"""Bits 4..7: how many routers a copy has come through."""

RESIDENT: Final = 0xFFFF_FFFE
"""`file` of records that lie in no file: ephemeral ones, and router copies before their checkpoint."""
IN_ACTIVE: Final = 0xFFFF_FFFF
"""`file` of records that lie in the topic's active segment."""

U64 = Annotated[int, msgspec.Meta(ge=0)]
LostReason = Literal["restart", "source_trim", "cap"]
DeleteReason = Literal["api", "ack", "dead_letter", "compact"]
Lost = tuple[U64, U64, LostReason]
"""First and last lost seq, both included, and why."""


class StoredMap(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """On disk a msgpack map: its keys are the fields, and those that have their default are left out."""


class FrameOp(StoredMap, frozen=True, kw_only=True):
    """An op that is the body of its frame. The fields named in `not_in_body` have a default and are left out of it: the
    frame's header has them, or only memory does."""

    not_in_body: ClassVar[tuple[str, ...]] = ("topic_id",)


class RouterMark(StoredMap, frozen=True, kw_only=True):
    """Where one router stood: written beside what could otherwise take its source records away. `dead`, of a checkpoint
    only, are the ranges above the cursor that were deleted before their turn; None: not noted."""

    name: str
    cursor: U64
    forwarded_total: U64
    dest_base: U64
    dead: tuple[tuple[U64, U64], ...] | None = None


class Append(msgspec.Struct, gc=False):
    """Records `first_seq .. first_seq + count - 1` of one topic.

    `offs` and `lens` place each WAL frame relative to `base`, the submission's offset in WAL file number `file` (an
    index of storage's table). Both are known only after the write, so they are set late; everything else is final.
    `frames` are the encoded frames of a live write, for the recent cache; recovery leaves them out."""

    topic_id: int
    first_seq: int
    count: int
    ts: "array[int]"  # 'Q'
    sizes: "array[int]"  # 'I', accounted bytes
    flags: "array[int]"  # 'B'
    tags: list[bytes | None] | None  # None: no record has a tag
    offs: "array[int]"  # 'I'
    lens: "array[int]"  # 'I'
    file: int = RESIDENT
    base: int = 0
    frames: bytes | None = None
    hops: int = 0
    key: bytes | None = None
    jobs: "JobsAdded | None" = None  # where no frame in front of the records says it: in an ephemeral queue

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1


class TopicCreate(msgspec.Struct, frozen=True):
    topic_id: int
    name: str
    epoch: int
    config: TopicConfig
    created_ts: int


class TopicDelete(FrameOp, frozen=True, kw_only=True):
    topic_id: int = 0
    name: str
    epoch: U64


class ConfigUpdate(msgspec.Struct, frozen=True):
    """`config` is complete, never a delta. `ts` is when it was decided."""

    topic_id: int
    name: str
    config: TopicConfig
    ts: int = 0


class RouterPut(msgspec.Struct, frozen=True, kw_only=True):
    """Create and update alike; of one name the highest `rev` counts."""

    router: RouterDef
    source_id: int
    dest_id: int
    initial_cursor: int
    initial_dest_base: int
    created_ts: int
    rev: int


class RouterDelete(FrameOp, frozen=True, kw_only=True):
    not_in_body = ()

    name: str


class Delete(FrameOp, frozen=True, kw_only=True):
    """Either exactly `seqs`, or the live seqs below `min(before_seq, bound_head)` that `match`."""

    topic_id: int = 0
    before_seq: U64 | None = None
    match: TagMatch | None = None
    seqs: tuple[U64, ...] | None = None
    bound_head: U64 | None = None
    reason: DeleteReason
    routed: tuple[RouterMark, ...] = ()

    def __post_init__(self) -> None:
        if self.seqs is None and self.bound_head is None:
            raise ValueError("bound_head is required unless seqs is given")


class Evict(FrameOp, frozen=True, kw_only=True):
    """Floors, absolute. Applying takes the maximum of each, so an old one does no harm."""

    topic_id: int = 0
    evict_floor: U64
    cap_lost: U64
    ttl_lost: U64
    trim_lost: U64
    restart_lost: U64
    earliest_seq: U64
    routed: tuple[RouterMark, ...] = ()


class Pin(StoredMap, frozen=True, kw_only=True):
    """Router state that holds after a direct write to the router's destination."""

    router: str
    cursor: U64
    forwarded_total: U64
    dest_base: U64


class Fork(NamedTuple):
    """The epoch from here on, and the head up to which the one before it is valid."""

    epoch: U64
    head: U64


class HeadMark(FrameOp, frozen=True, kw_only=True):
    """Raises the seq ceiling; `resume_at` moves the head to just below it, `lost` says what lies in between.

    `lease_ceiling` is the same for lease ids: a restart hands out none at or below it, with or without a frame of their
    own. `fork`: the directory was found to be a copy."""

    topic_id: int = 0
    ceiling: U64
    resume_at: U64 | None = None
    lost: tuple[Lost, ...] = ()
    pin: Pin | None = None
    lease_ceiling: U64 = 0
    fork: Fork | None = None


class JobsAdded(FrameOp, frozen=True, kw_only=True):
    """What a write said about its jobs, `first_seq` and those behind it: a column is empty if no job has such a field.
    A time is 0 for at once; a unique key has the first moment at which it stands no more, 0 for until the job is done.
    It comes in front of the records, in the same submission."""

    topic_id: int = 0
    first_seq: U64 = msgspec.field(name="first")
    ready_at: tuple[U64, ...] = ()
    priority: tuple[Annotated[int, msgspec.Meta(ge=-127, le=127)], ...] = ()
    unique: tuple[tuple[str, U64] | None, ...] = ()

    def __post_init__(self) -> None:
        if len({len(column) for column in (self.ready_at, self.priority, self.unique) if column}) > 1:
            raise ValueError("columns differ in length")


class LeaseEvent(FrameOp, frozen=True, kw_only=True):
    """`event`: 0 claimed, 1 released, 2 extended, 3 acked. `stream`: a work stream claims, whose leases a restart
    releases at once; only memory knows which one, `stream_id`. `error` and `final` are those of a nack."""

    not_in_body = ("topic_id", "seq", "ts", "stream_id")

    topic_id: int = 0
    seq: int = 0
    ts: int = 0
    stream_id: int = 0
    event: Annotated[int, msgspec.Meta(ge=0, le=3)]
    node: str
    lease_id: U64
    deadline: U64
    deliveries: U64
    ready_at: U64 | None = None
    stream: bool = False
    error: str = ""
    final: bool = False


CURSOR_COMMIT: Final = 0
CURSOR_PUT: Final = 1
CURSOR_DROP: Final = 2

CursorHold = tuple[U64, U64]
"""Live records and live bytes up to which a cursor holds back retention; 0 is no bound. (0, 0): no hold."""


class CursorChange(FrameOp, frozen=True, kw_only=True):
    """`event`: a commit moves a named cursor forward, a put sets what it carries, a drop forgets the cursor. None:
    not part of the change. A commit with a `fence` counts only while the cursor has that fence. `meta` is JSON text."""

    not_in_body = ("topic_id", "ts")

    topic_id: int = 0
    ts: int = 0
    name: str
    event: Annotated[int, msgspec.Meta(ge=0, le=2)]
    seq: U64 | None = None
    fence: U64 | None = None
    owner: str | None = None
    meta: bytes | None = None
    hold: CursorHold | None = None


SCHEDULE_PUT: Final = 0
SCHEDULE_TICK: Final = 1
SCHEDULE_DROP: Final = 2


class ScheduleChange(FrameOp, frozen=True, kw_only=True):
    """`event`: a put sets the whole `schedule`, a tick moves its cursor to `at` and its count to `ticks`, a drop
    forgets it. A tick comes in front of the records that it appends, in the same submission."""

    topic_id: int = 0
    name: str
    event: Annotated[int, msgspec.Meta(ge=0, le=2)]
    schedule: StoredSchedule | None = None
    at: U64 = 0
    ticks: U64 = 0

    def __post_init__(self) -> None:
        if (self.event == SCHEDULE_PUT) != (self.schedule is not None):
            raise ValueError("a put, and only a put, has a schedule")


Op = Append | TopicCreate | ConfigUpdate | RouterPut | FrameOp
