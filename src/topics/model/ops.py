"""Ops: the only way state changes. The log is a sequence of these; recovery decodes its frames into the same values.

One `Append` is a whole batch as columns. `core.apply` takes every op, live when its commit is done and again in
recovery, and must give the same state both times. Made by core's `decide_*` functions and by `engine.replay`; turned
into frames by `engine`. Seq ranges in ops are those of the log: `lost` is inclusive at both ends, as on disk.
"""

from array import array
from typing import Final, Literal, NamedTuple

import msgspec

from topics.model.config import TopicConfig
from topics.model.names import TagMatch
from topics.model.router import RouterDef

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

LostReason = Literal["restart", "source_trim", "cap"]
DeleteReason = Literal["api", "ack", "dead_letter"]
Lost = tuple[int, int, LostReason]
"""First and last lost seq, both included, and why."""


class RouterMark(msgspec.Struct, frozen=True, kw_only=True):
    """Where one router stood: written beside what could otherwise take its source records away. `dead`, of a checkpoint
    only, are the ranges above the cursor that were deleted before their turn; None: not noted."""

    name: str
    cursor: int
    forwarded_total: int
    dest_base: int
    dead: tuple[tuple[int, int], ...] | None = None


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


class TopicDelete(msgspec.Struct, frozen=True):
    topic_id: int
    name: str
    epoch: int


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


class RouterDelete(msgspec.Struct, frozen=True):
    name: str


class Delete(msgspec.Struct, frozen=True, kw_only=True):
    """Either exactly `seqs`, or the live seqs below `min(before_seq, bound_head)` that `match`."""

    topic_id: int
    before_seq: int | None = None
    match: TagMatch | None = None
    seqs: tuple[int, ...] | None = None
    bound_head: int | None = None
    reason: DeleteReason = "api"
    routed: tuple[RouterMark, ...] = ()


class Evict(msgspec.Struct, frozen=True, kw_only=True):
    """Floors, absolute. Applying takes the maximum of each, so an old one does no harm."""

    topic_id: int
    evict_floor: int
    cap_lost: int
    ttl_lost: int
    trim_lost: int
    restart_lost: int
    earliest_seq: int
    routed: tuple[RouterMark, ...] = ()


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """Router state that holds after a direct write to the router's destination."""

    router: str
    cursor: int
    forwarded_total: int
    dest_base: int


class Fork(NamedTuple):
    """The epoch from here on, and the head up to which the one before it is valid."""

    epoch: int
    head: int


class HeadMark(msgspec.Struct, frozen=True, kw_only=True):
    """Raises the seq ceiling; `resume_at` moves the head to just below it, `lost` says what lies in between.

    `lease_ceiling` is the same for lease ids: a restart hands out none at or below it. `fork`: the directory was found
    to be a copy."""

    topic_id: int
    ceiling: int
    resume_at: int | None = None
    lost: tuple[Lost, ...] = ()
    pin: Pin | None = None
    lease_ceiling: int = 0
    fork: Fork | None = None


class JobsAdded(msgspec.Struct, frozen=True, kw_only=True):
    """What a write said about its jobs, `first_seq` and those behind it: a column is empty if no job has such a field.
    A time is 0 for at once; a unique key has the first moment at which it stands no more, 0 for until the job is done.
    It comes in front of the records, in the same submission."""

    topic_id: int
    first_seq: int
    ready_at: tuple[int, ...] = ()
    priority: tuple[int, ...] = ()
    unique: tuple[tuple[str, int] | None, ...] = ()


class LeaseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """`event`: 0 claimed, 1 released, 2 extended, 3 acked. `stream` is the work stream that claims; the log keeps only
    that there was one. `error` and `final` are those of a nack."""

    topic_id: int
    seq: int
    event: int
    node: str
    lease_id: int
    deadline: int
    deliveries: int
    ready_at: int | None = None
    stream: int = 0
    ts: int = 0
    error: str = ""
    final: bool = False


CURSOR_COMMIT: Final = 0
CURSOR_PUT: Final = 1
CURSOR_DROP: Final = 2

CursorHold = tuple[int, int]
"""Live records and live bytes up to which a cursor holds back retention; 0 is no bound. (0, 0): no hold."""


class CursorChange(msgspec.Struct, frozen=True, kw_only=True):
    """`event`: a commit moves a named cursor forward, a put sets what it carries, a drop forgets the cursor. None:
    not part of the change. A commit with a `fence` counts only while the cursor has that fence."""

    topic_id: int
    name: str
    event: int
    ts: int
    seq: int | None = None
    fence: int | None = None
    owner: str | None = None
    meta: bytes | None = None
    hold: CursorHold | None = None


Op = (
    Append
    | TopicCreate
    | TopicDelete
    | ConfigUpdate
    | RouterPut
    | RouterDelete
    | Delete
    | Evict
    | HeadMark
    | LeaseEvent
    | JobsAdded
    | CursorChange
)
