"""Append: admission of a write and its reservation (semantics.md sections 4, 7.2, 13).

    decide_append   idempotency, admission; reserves seqs and a timestamp, nothing is visible
    make_append     the op, once the frames are encoded
    release         a failed commit gives its reservation back

Publication is `core.publish`. Retention at `now` has run before `decide_append` (the engine logs what is due first).
The seq ceiling is the engine's.
"""

from __future__ import annotations

from array import array
from typing import Literal, NamedTuple

import msgspec

from topics.core.idempotency import WriteMemo
from topics.core.topic import TopicState
from topics.errors import RecordTooLarge, TopicFull
from topics.model.ops import HAS_NODE, HAS_TAG, HOPS_SHIFT, Append
from topics.model.record import WriteBatch


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """Seqs `first_seq .. first_seq + count - 1` belong to this write until it is applied or released."""

    first_seq: int
    count: int
    size: int
    ts: int
    key: bytes | None

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1


class Repeat(NamedTuple):
    """The key was used before: answer with the first write's numbers."""

    memo: WriteMemo


class Busy(NamedTuple):
    """A write with this key is being committed: take turns."""

    key: bytes


# --- deciding --------------------------------------------------------------------------------------------------------


def decide_append(topic: TopicState, batch: WriteBatch, now: int) -> Reservation | Repeat | Busy:
    """Raises RecordTooLarge or TopicFull; then nothing has changed, not even the key's memory."""
    key = batch.key if topic.config.idempotency_window_ms else None
    if key is not None:
        memo = topic.idem.find(key, now=now, window_ms=topic.config.idempotency_window_ms)
        if memo is not None:
            return Repeat(memo)
        if key in topic.idem.staged:
            return Busy(key)
    admit(topic, count=batch.count, size=batch.total_bytes, largest=batch.max_bytes)
    return reserve(topic, count=batch.count, size=batch.total_bytes, now=now, key=key)


def admit(topic: TopicState, *, count: int, size: int, largest: int) -> None:
    """The table of section 7.2. Writes being committed count as if they were there."""
    config = topic.config
    cap_records, cap_bytes = config.cap_records, config.cap_bytes
    if cap_bytes and largest > cap_bytes:
        raise RecordTooLarge(f"a record of {largest} bytes never fits the topic's cap_bytes of {cap_bytes}")
    if config.discard == "old":
        return
    if (cap_records and count > cap_records) or (cap_bytes and size > cap_bytes):
        raise RecordTooLarge(f"a batch of {count} records and {size} bytes never fits the topic's caps")
    over_records = cap_records and topic.count + topic.staged_count + count > cap_records
    over_bytes = cap_bytes and topic.bytes + topic.staged_bytes + size > cap_bytes
    if over_records or over_bytes:
        raise TopicFull(
            topic.name,
            cap_records=cap_records,
            cap_bytes=cap_bytes,
            head_seq=topic.head,
            earliest_seq=topic.earliest_seq,
        )


def reserve(topic: TopicState, *, count: int, size: int, now: int, key: bytes | None = None) -> Reservation:
    first_seq = topic.reserved_head + 1
    ts = max(now, topic.reserved_ts)
    topic.reserved_head += count
    topic.reserved_ts = ts
    topic.staged_count += count
    topic.staged_bytes += size
    if key is not None:
        topic.idem.staged.add(key)
    return Reservation(first_seq, count, size, ts, key)


def release(topic: TopicState, reservation: Reservation, *, reuse_seqs: bool) -> None:
    """A failed commit. `reuse_seqs` only if the frames are certainly not in the log. Whatever was reserved behind it
    fails as well, perhaps later: seqs are given back once the newest has."""
    topic.staged_count -= reservation.count
    topic.staged_bytes -= reservation.size
    if reservation.key is not None:
        topic.idem.staged.discard(reservation.key)
    if reuse_seqs and reservation.first_seq <= topic.reserved_head:
        topic.failed_from = min(topic.failed_from or reservation.first_seq, reservation.first_seq)
        if topic.reserved_head == reservation.last_seq:
            topic.reserved_head = topic.failed_from - 1
            topic.failed_from = 0


def make_append(
    topic: TopicState,
    reservation: Reservation,
    batch: WriteBatch,
    *,
    frames: bytes,
    offs: array[int],
    lens: array[int],
    hops: int = 0,
    ts: array[int] | None = None,
) -> Append:
    """The op of a reserved write. `file` and `base` are set once the frames are written. With `ts` each record has its
    own time."""
    count = batch.count
    return Append(
        topic_id=topic.id,
        first_seq=reservation.first_seq,
        count=count,
        ts=_repeated("Q", reservation.ts, count) if ts is None else ts,
        sizes=array("I", batch.sizes),
        flags=_flags(batch, hops),
        tags=batch.tags,
        offs=offs,
        lens=lens,
        frames=frames,
        hops=hops,
        key=reservation.key,
    )


def _flags(batch: WriteBatch, hops: int) -> array[int]:
    tags, nodes = batch.tags, batch.nodes
    common = hops << HOPS_SHIFT
    if isinstance(nodes, bytes):
        common |= HAS_NODE
    if tags is not None and None not in tags:
        common |= HAS_TAG
        tags = None
    flags = _repeated("B", common, batch.count)
    if tags is not None:
        flags = array("B", [flag if tag is None else flag | HAS_TAG for flag, tag in zip(flags, tags, strict=True)])
    if isinstance(nodes, list):
        flags = array("B", [flag if node is None else flag | HAS_NODE for flag, node in zip(flags, nodes, strict=True)])
    return flags


def _repeated(code: Literal["B", "Q"], value: int, count: int) -> array[int]:
    one: array[int] = array(code, (value,))
    return one if count == 1 else one * count
