"""Append: admission of a write and its reservation (`docs/spec/semantics.md#sec-4`, `docs/spec/semantics.md#sec-7-2`
and `docs/spec/semantics.md#sec-13`).

    decide_append   idempotency, admission; reserves seqs and a timestamp, nothing is visible
    make_append     the op, once the frames are encoded
    release         a failed commit gives its reservation back

Publication is `core.publish`. Retention at `now` has run before `decide_append` (the engine logs what is due first).
The seq ceiling is the engine's.

Publish: a committed batch becomes visible; in recovery, its frames are applied again (`docs/spec/storage.md#sec-9-4`).

A batch may be known already, in part or as a whole, because a segment holds it; it may come ahead of its predecessors.
What always holds: after `apply_append` every record of the batch at or below the head has exactly one slot, and a topic
that evicts by count is within its cap. Called through `core.apply` only.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from topics.core.effects import Effect, OpResult
from topics.core.idempotency import WriteMemo
from topics.core.lineage import epoch_of
from topics.core.reading.newest import NewestSearch
from topics.core.reading.recent import RecentCache
from topics.core.retention.removal import Removal, blocks_from
from topics.core.retention.rules import trim_to_cap
from topics.core.slots.restore import written_until
from topics.core.slots.sealed_slots import Sealed
from topics.core.slots.tail import locations
from topics.core.topic import TopicLog
from topics.errors import RecordTooLarge, TopicFull, VersionConflict
from topics.model.names import TagMatch
from topics.model.ops import HAS_NODE, HAS_TAG, HOPS_SHIFT, RESIDENT, Append
from topics.model.record import Expected, WriteBatch


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


class ExpectedCheck:
    """Whether head and tags are as a write expects. Asked again each time a segment that it needed has been loaded: the
    searches for the tags then go on where they were."""

    def __init__(self, expected: Expected) -> None:
        self._head = expected.head
        self._tags = [(tag, seq, NewestSearch(TagMatch("Eq", tag))) for tag, seq in expected.tags]

    def needs(self, topic: TopicLog) -> Sealed | None:
        """Raises VersionConflict unless all is as expected, writes being committed included. Returns the segment that
        has to be loaded before that can be told."""
        self._check_head(topic)
        needed: Sealed | None = None
        for tag, seq, search in self._tags:
            actual = _newest_reserved(topic, tag.encode()) or search.seq(topic)
            if isinstance(actual, Sealed):  # all searches ask for the same one, or the newest one goes first
                needed = actual if needed is None or actual.first_seq > needed.first_seq else needed
            elif actual != seq and needed is None:
                raise VersionConflict(
                    f"the newest record with tag {tag!r} in topic {topic.name!r} is {actual}, not {seq}",
                    detail={"topic": topic.name, "tag": tag, "expected": seq, "actual": actual},
                )
        return needed

    def _check_head(self, topic: TopicLog) -> None:
        if self._head is None:
            return
        seq, epoch = self._head
        if seq != topic.reserved_head or (seq and epoch not in (None, epoch_of(topic, seq))):
            raise VersionConflict(
                f"the head of topic {topic.name!r} is {topic.reserved_head}, not {self._head}",
                detail={"topic": topic.name, "head_seq": topic.reserved_head},
            )


class IndexNeeded(NamedTuple):
    """Only this segment's tag index tells whether the write finds what it expects: load it, then decide again."""

    block: Sealed
    check: ExpectedCheck


# --- deciding --------------------------------------------------------------------------------------------------------


def decide_append(
    topic: TopicLog, batch: WriteBatch, now: int, check: ExpectedCheck | None = None
) -> Reservation | Repeat | Busy | IndexNeeded:
    """`check` is that of the decision before, if this one repeats it. Raises VersionConflict, RecordTooLarge or
    TopicFull; then nothing has changed, not even the key's memory."""
    key = batch.key if topic.config.idempotency_window_ms else None
    if key is not None:
        memo = topic.idem.find(key, now=now, window_ms=topic.config.idempotency_window_ms)
        if memo is not None:
            return Repeat(memo)
        if key in topic.idem.staged:
            return Busy(key)
    if batch.expected is not None:
        check = check or ExpectedCheck(batch.expected)
        if (needed := check.needs(topic)) is not None:
            return IndexNeeded(needed, check)
    admit(topic, count=batch.count, size=batch.total_bytes, largest=batch.max_bytes)
    return reserve(topic, count=batch.count, size=batch.total_bytes, now=now, key=key, tags=batch.tags)


def _newest_reserved(topic: TopicLog, tag: bytes) -> int:
    """The largest seq that a write being committed has reserved for a record with this tag; 0 if none has."""
    for first_seq, tags in reversed(topic.staged_tags):
        if topic.head < first_seq <= topic.reserved_head and tag in tags:
            return first_seq + max(at for at, found in enumerate(tags) if found == tag)
    return 0


def note_tags(topic: TopicLog, first_seq: int, tags: list[bytes | None]) -> None:
    """Remember the tags of reserved records until they are published."""
    staged = topic.staged_tags
    while staged and staged[0][0] <= topic.head:
        staged.popleft()
    staged.append((first_seq, tags))


def admit(topic: TopicLog, *, count: int, size: int, largest: int) -> None:
    """The table of `docs/spec/semantics.md#sec-7-2`. Writes being committed count as if they were there."""
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


def reserve(
    topic: TopicLog,
    *,
    count: int,
    size: int,
    now: int,
    key: bytes | None = None,
    tags: list[bytes | None] | None = None,
) -> Reservation:
    first_seq = topic.reserved_head + 1
    ts = max(now, topic.reserved_ts)
    topic.reserved_head += count
    topic.reserved_ts = ts
    topic.staged_count += count
    topic.staged_bytes += size
    if key is not None:
        topic.idem.staged.add(key)
    if tags is not None:
        note_tags(topic, first_seq, tags)
    return Reservation(first_seq, count, size, ts, key)


def release(topic: TopicLog, reservation: Reservation, *, reuse_seqs: bool) -> None:
    """A failed commit. `reuse_seqs` only if the frames are certainly not in the log. Whatever was reserved behind it
    fails as well, perhaps later: seqs are given back once the newest has."""
    topic.staged_count -= reservation.count
    topic.staged_bytes -= reservation.size
    if reservation.key is not None:
        topic.idem.staged.discard(reservation.key)
    if topic.staged_tags:
        first, last = reservation.first_seq, reservation.last_seq
        topic.staged_tags = deque([noted for noted in topic.staged_tags if not first <= noted[0] <= last])
    if reuse_seqs and reservation.first_seq <= topic.reserved_head:
        topic.failed_from = min(topic.failed_from or reservation.first_seq, reservation.first_seq)
        if topic.reserved_head == reservation.last_seq:
            topic.reserved_head = topic.failed_from - 1
            topic.failed_from = 0


def make_append(
    topic: TopicLog,
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


def apply_append(topic: TopicLog, op: Append, recent: RecentCache | None = None) -> Effect:
    """Publish a batch. Of records known already nothing changes; of a batch ahead of the head nothing happens yet."""
    if topic.config.durability == "ephemeral" and op.file != RESIDENT:
        return Effect(OpResult.IGNORED, topic.id)  # a frame from the time before the topic became ephemeral
    if op.first_seq > topic.head + 1:
        return Effect(OpResult.AHEAD, topic.id)
    if topic.config.ttl_ms and topic.config.cap_records and op.ts[0] != op.ts[-1]:
        return _apply_by_time(topic, op, recent)
    if op.first_seq <= topic.head:
        return _apply_overlap(topic, op, recent)
    size = total_bytes(op.sizes)
    _add_slots(topic, op, recent, size)
    head = topic.head = op.first_seq + op.count - 1
    ts = topic.last_write_ts = op.ts[-1]
    if ts > topic.last_ts:
        topic.last_ts = ts
    if topic.staged_count:  # never in recovery: the reservation is used up
        topic.staged_count -= op.count
        topic.staged_bytes -= size
    if topic.reserved_head < head:
        topic.reserved_head = head
    if topic.reserved_ts < topic.last_ts:
        topic.reserved_ts = topic.last_ts
    if op.key is not None and topic.config.idempotency_window_ms:
        topic.idem.staged.discard(op.key)
        topic.idem.remember(op.key, WriteMemo(op.ts[0], op.first_seq, op.count, head))
    removal = _trim_behind(topic, op) if topic.config.cap_records or topic.replaying else None
    return Effect(OpResult.APPLIED, topic.id, first_seq=op.first_seq, last_seq=head, removal=removal)


def _trim_behind(topic: TopicLog, op: Append) -> Removal | None:
    """The count cap follows from the log: also from records that are in segments already when their frames come by."""
    if topic.replaying:
        topic.replay_head = max(topic.replay_head, op.last_seq)
    cap = topic.config.cap_records
    return trim_to_cap(topic, now=op.ts[-1]) if cap and topic.count > cap else None


def _apply_by_time(topic: TopicLog, op: Append, recent: RecentCache | None) -> Effect:
    """Recovery joins writes. Where both cap and TTL rule, each moment is trimmed by itself, as it was then."""
    at = 0
    whole = Effect(OpResult.DUPLICATE, topic.id, removal=Removal())
    while at < op.count:
        stop = bisect_right(op.ts, op.ts[at], at)
        whole.join(apply_append(topic, sliced(op, at, stop), recent))
        at = stop
    return whole


def _apply_overlap(topic: TopicLog, op: Append, recent: RecentCache | None) -> Effect:
    """Some records are at or below the head: those without a slot are filled in, the ones above are published."""
    unknown = _unknown_runs(topic, op)
    for at, stop in unknown:
        filled = sliced(op, at, stop)
        _add_slots(topic, filled, None, total_bytes(filled.sizes))
    effect = Effect(OpResult.FILLED if unknown else OpResult.DUPLICATE, topic.id)
    known = min(topic.head + 1 - op.first_seq, op.count)
    written_until(topic, op.ts[known - 1])
    effect.removal = _trim_behind(topic, sliced(op, 0, known))
    if known < op.count:
        effect.join(apply_append(topic, sliced(op, known, op.count), recent))
    return effect


def _add_slots(topic: TopicLog, op: Append, recent: RecentCache | None, size: int) -> None:
    """Slots, tags and bytes of records that have none yet, and their share of the totals; `size` is the sum of their
    sizes."""
    run = topic.tail.run_for_append(op.first_seq)
    if op.count == 1:  # the commonest write of all
        run.push(op.file << 32 | op.base + op.offs[0], op.lens[0], op.ts[0], op.sizes[0], op.flags[0])
    else:
        run.extend(locs=locations(op.file, op.base, op.offs), lens=op.lens, ts=op.ts, sizes=op.sizes, flags=op.flags)
    below = topic.floors.earliest_seq - op.first_seq
    if below <= 0:
        topic.count_in(op.count, size)
    elif below < op.count:  # recovery: the floors had passed some of these records before
        topic.count_in(op.count - below, total_bytes(op.sizes[below:]))
    if op.tags is not None:
        topic.tags.add(op.first_seq, op.tags)
    if op.frames is not None:
        if op.file == RESIDENT:
            topic.resident.add(op.first_seq, op.frames, op.offs, op.flags)
        elif recent is not None:
            recent.add(topic.id, op.first_seq, op.frames, op.offs, op.flags)


def _unknown_runs(topic: TopicLog, op: Append) -> list[tuple[int, int]]:
    """Which records of the batch, at or below the head, have no slot: they are neither below the front, nor stored, nor
    lost."""
    runs: list[tuple[int, int]] = []
    seq, end = max(op.first_seq, topic.floors.earliest_seq), min(op.last_seq, topic.head) + 1
    while seq < end:
        lost = topic.lost.find(seq)
        block = next(blocks_from(topic, seq), None)
        if lost is not None:
            seq = lost.hi + 1
        elif block is not None and block.first_seq <= seq:
            seq = block.next_seq
        else:
            stop = min([end, *([] if block is None else [block.first_seq]), topic.lost.next_lo(seq) or end])
            runs.append((seq - op.first_seq, stop - op.first_seq))
            seq = stop
    return runs


def sliced(op: Append, at: int, stop: int) -> Append:
    """Records `at..stop-1` of a batch. Frames come along only where they lie in no file; elsewhere they are a cache."""
    frames, offs = None, op.offs[at:stop]
    if op.file == RESIDENT and op.frames is not None and stop > at:
        start = offs[0]
        frames = op.frames[start : offs[-1] + op.lens[stop - 1]]
        offs = array(offs.typecode, [off - start for off in offs])
    return Append(
        topic_id=op.topic_id,
        first_seq=op.first_seq + at,
        count=stop - at,
        ts=op.ts[at:stop],
        sizes=op.sizes[at:stop],
        flags=op.flags[at:stop],
        tags=None if op.tags is None else op.tags[at:stop],
        offs=offs,
        lens=op.lens[at:stop],
        frames=frames,
        file=op.file,
        base=op.base,
        hops=op.hops,
    )


def total_bytes(sizes: array[int]) -> int:
    """Sum of a size column."""
    if len(sizes) == 1:
        return sizes[0]
    return sum(sizes) if len(sizes) < 64 else int(np.frombuffer(sizes, np.uint32).sum(dtype=np.uint64))
