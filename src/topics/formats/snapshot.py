"""The metadata snapshot: envelope and body (`docs/spec/storage.md#sec-8`).

A file is valid only if magic, version and reserved match, its length is exactly `24 + body_len`, the checksum matches
and the body decodes with all required fields. A file of another version is told apart (`UnsupportedVersion`) from a
damaged one (`Corruption`), because a directory with only unknown versions must not be opened. Used by
`topics.storage.snapshots`.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Final, Literal

import msgspec

from topics.errors import Corruption, UnsupportedVersion
from topics.formats.buffers import Buffer, byte_view, xxh3
from topics.formats.versions import SNAPSHOT_VERSION
from topics.formats.wal.bodies import RouterCreate
from topics.model.ops import U64, Lost
from topics.model.schedules.schedule import StoredSchedule

MAGIC: Final = b"SNP1"
_HEADER: Final = struct.Struct("<4sIIIQ")
HEADER_BYTES: Final = 24

assert _HEADER.size == HEADER_BYTES
assert bytes.fromhex("534e5031") == MAGIC


class _Map(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A msgpack map with string keys."""


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """A msgpack array with fixed places."""


class GroupPosition(_Map, frozen=True, kw_only=True):
    """Absorbed position of a group found on disk, by directory name ("" = flat)."""

    key: str
    file: U64
    off: U64


class DeadRange(_Row, frozen=True):
    """Deleted seqs `first..last` whose flag bytes are not yet durable in their segment."""

    first: U64
    last: U64


class SegmentItem(_Row, frozen=True):
    first: U64
    count: U64
    data_len: U64
    sealed: bool
    tier: Literal["hot", "cold"]
    live: U64
    live_bytes: U64


class LeaseItem(_Row, frozen=True):
    seq: U64
    node: str
    lease_id: U64
    deadline: U64
    deliveries: U64


class DeliveriesItem(_Row, frozen=True):
    seq: U64
    n: U64


class DelayedItem(_Row, frozen=True):
    ready_at: U64
    seq: U64


class NoteItem(_Row, frozen=True):
    """More about a job that was handed out."""

    seq: U64
    lease_id: U64
    first_ts: U64
    last_ts: U64
    priority: int
    final: bool
    error: str


class UniqueKeyItem(_Row, frozen=True):
    key: str
    seq: U64
    until: U64


class QueueItem(_Map, frozen=True, kw_only=True):
    """`claim_cursor` is not written any more. `fields` are seqs, times and priorities of jobs with fields, as columns:
    u64, u64, i8."""

    next_lease_id: U64
    dead_lettered: U64
    claim_cursor: U64 | None = None
    leases: tuple[LeaseItem, ...] = ()
    deliveries: tuple[DeliveriesItem, ...] = ()
    reclaim: tuple[U64, ...] = ()
    delayed: tuple[DelayedItem, ...] = ()
    streamed: tuple[U64, ...] = ()
    notes: tuple[NoteItem, ...] = ()
    fields: tuple[bytes, bytes, bytes] | None = None
    unique: tuple[UniqueKeyItem, ...] = ()


class IdemItem(_Row, frozen=True):
    """One entry of a retained idempotency window."""

    key: str
    ts: U64
    first_seq: U64
    count: U64
    head: U64


class CursorItem(_Row, frozen=True):
    """A named cursor; `meta` is JSON text, `hold` live records and bytes."""

    name: str
    seq: U64
    updated_ts: U64
    fence: U64
    owner: str | None
    meta: bytes | None
    hold: tuple[U64, U64] | None


class AncestorItem(_Row, frozen=True):
    """An earlier epoch of a topic that was forked, and the head up to which it is valid."""

    epoch: U64
    head: U64


class TopicItem(_Map, frozen=True, kw_only=True):
    """State of one topic; `base_seq` is the lowest seq with a slot."""

    id: U64
    name: str
    epoch: U64
    config: dict[str, Any]
    created_ts: U64
    last_ts: U64
    head: U64
    ceiling: U64
    ckpt_seq: U64
    base_seq: U64
    earliest_seq: U64
    evict_floor: U64
    cap_lost: U64
    ttl_lost: U64
    trim_lost: U64
    restart_lost: U64
    delete_below: U64
    count: U64
    bytes: U64
    lost: tuple[Lost, ...]
    dead: tuple[DeadRange, ...]
    segments: tuple[SegmentItem, ...]
    queue: QueueItem | None = None
    idem: tuple[IdemItem, ...] = ()
    ancestors: tuple[AncestorItem, ...] = ()
    cursors: tuple[CursorItem, ...] = ()
    schedules: tuple[StoredSchedule, ...] = ()


class RouterItem(RouterCreate, frozen=True, kw_only=True):
    """A router as created, with its state as of the checkpoint; `dead` as in the checkpoint's mark."""

    cursor: U64
    forwarded_total: U64
    dest_base: U64
    dead: tuple[tuple[U64, U64], ...] | None = None


class Snapshot(_Map, frozen=True, kw_only=True):
    """The body of a snapshot file."""

    id: U64
    instance: Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{32}$")]
    clock_ms: U64
    ts: U64
    clean: bool
    gen: U64
    shards: U64
    next_topic_id: U64
    next_ckpt: U64
    groups: tuple[GroupPosition, ...]
    topics: tuple[TopicItem, ...]
    routers: tuple[RouterItem, ...]
    boot: str = ""
    """Boot id of the writer, as in the lock file; empty if unknown."""
    last_epoch: U64 = 0
    """The highest epoch that was given; 0 if the writer did not say."""


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Snapshot).decode


def wrap_body(body: bytes) -> bytes:
    """The file that holds an encoded body."""
    return _HEADER.pack(MAGIC, SNAPSHOT_VERSION, len(body), 0, xxh3(body)) + body


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The whole file."""
    return wrap_body(_encode(snapshot))


def decode_snapshot(buffer: Buffer, *, file: str = "snapshot") -> Snapshot:
    """The body of a valid file; raises UnsupportedVersion or Corruption, naming `file`."""
    body = unwrap_body(buffer, file=file)
    try:
        return _decode(body)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise Corruption(file=file, offset=HEADER_BYTES, reason=f"body: {error}") from error


def unwrap_body(buffer: Buffer, *, file: str = "snapshot") -> memoryview:
    """The checked but undecoded body."""
    view = byte_view(buffer)
    if len(view) < HEADER_BYTES:
        raise Corruption(file=file, offset=0, reason="short header")
    magic, version, body_len, reserved, digest = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise Corruption(file=file, offset=0, reason="magic")
    if version != SNAPSHOT_VERSION:
        raise UnsupportedVersion(f"{file} has snapshot version {version}; this version reads {SNAPSHOT_VERSION}")
    if reserved:
        raise Corruption(file=file, offset=12, reason="reserved")
    if len(view) != HEADER_BYTES + body_len:
        raise Corruption(file=file, offset=8, reason="body_len")
    body = view[HEADER_BYTES:]
    if xxh3(body) != digest:
        raise Corruption(file=file, offset=16, reason="xxh3")
    return body
