"""Capture: a topic as a metadata snapshot keeps it, and back (`docs/spec/storage.md#sec-8-2`).

Records are not in it. Field names are those of the snapshot's topic item, so the engine converts by name; segment rows
lack only what storage knows of the active segment. Everything may be newer than the checkpoint's positions, because
replay converges, except `config`: a cap that came later must not be applied to appends before it, so the engine passes
the config that was in force at the recorded position.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from topics.core.idempotency import IdemWindow, WriteMemo
from topics.core.retention.floors import LostRanges
from topics.core.retention.removal import ACTIVE_LOC, blocks_from
from topics.core.slots.slot_range import I64
from topics.core.topic import TopicLog
from topics.errors import ColdUnavailable
from topics.model.config import TopicConfig
from topics.model.cursor import NamedCursor
from topics.model.ops import RESIDENT, Lost
from topics.model.schedules.schedule import StoredSchedule

DELETED_RANGES_MAX = 1024
"""Of one router's lag in a mark: some 10 KB."""

SealedRow = tuple[int, int, int, bool, str, int, int]
"""first, count, data_len, sealed, tier, live, live_bytes."""
IdemRow = tuple[str, int, int, int, int]
"""key, ts, first_seq, count, head."""


class TopicImage(msgspec.Struct, frozen=True, kw_only=True):
    """`active` is the number and bytes of the live records in the active segment, whose row storage completes."""

    id: int
    name: str
    epoch: int
    ancestors: tuple[tuple[int, int], ...] = ()
    config: TopicConfig
    created_ts: int
    last_ts: int
    head: int
    ceiling: int
    ckpt_seq: int
    base_seq: int
    earliest_seq: int
    evict_floor: int
    cap_lost: int
    ttl_lost: int
    trim_lost: int
    restart_lost: int
    delete_below: int
    count: int
    bytes: int
    lost: list[Lost]
    dead: list[tuple[int, int]]
    segments: list[SealedRow]
    active: tuple[int, int]
    idem: list[IdemRow]
    cursors: list[NamedCursor] = []
    schedules: list[StoredSchedule] = []


def capture(topic: TopicLog, *, config: TopicConfig | None = None, clean: bool = False) -> TopicImage:
    """The topic as it is published. `clean` is for the last snapshot of a clean stop: nothing can be above the head."""
    floors = topic.floors
    return TopicImage(
        id=topic.id,
        name=topic.name,
        epoch=topic.epoch,
        ancestors=topic.ancestors,
        config=config or topic.config,
        created_ts=topic.created_ts,
        last_ts=topic.last_ts,
        head=topic.head,
        ceiling=topic.head if clean else max(topic.ceiling, topic.head),
        ckpt_seq=durable_seq(topic),
        base_seq=topic.base_seq,
        earliest_seq=topic.earliest_seq,
        evict_floor=topic.evict_floor,
        cap_lost=floors.cap_lost,
        ttl_lost=floors.ttl_lost,
        trim_lost=floors.trim_lost,
        restart_lost=floors.restart_lost,
        delete_below=floors.delete_below,
        count=topic.count,
        bytes=topic.bytes,
        lost=[(lost.lo, lost.hi, lost.reason) for lost in topic.lost],
        dead=dead_ranges(topic),
        segments=[(s.first_seq, s.count, s.view.data_len, True, s.tier, s.live, s.live_bytes) for s in topic.sealed],
        active=_active_totals(topic),
        idem=[(key.decode(), m.ts, m.first_seq, m.count, m.head) for key, m in topic.idem.items()],
        cursors=list(topic.cursors.values()),
        schedules=list(topic.schedules.values()),
    )


def restore(image: TopicImage) -> TopicLog:
    """The topic without its records: its segments are loaded next, then the log. `head` is not taken over: it only
    raises the ceiling, for replay must not skip frames that are still needed."""
    topic = TopicLog(
        topic_id=image.id, name=image.name, epoch=image.epoch, config=image.config, created_ts=image.created_ts
    )
    topic.ancestors = image.ancestors
    floors = topic.floors
    floors.cap_lost = image.cap_lost
    floors.ttl_lost = image.ttl_lost
    floors.trim_lost = image.trim_lost
    floors.restart_lost = image.restart_lost
    floors.delete_below = image.delete_below
    floors.earliest_seq = max(image.earliest_seq, 1)
    topic.logged_lost = floors.lost
    topic.lost = LostRanges(image.lost)
    topic.last_ts = topic.reserved_ts = image.last_ts
    topic.last_write_ts = image.last_ts or None  # every record there was has come by a write
    topic.ceiling = max(image.ceiling, image.head)
    topic.ckpt_seq = image.ckpt_seq
    topic.head = topic.reserved_head = image.ckpt_seq
    topic.idem = IdemWindow.restored((row[0].encode(), WriteMemo(*row[1:])) for row in image.idem)
    topic.cursors = {cursor.name: cursor for cursor in image.cursors}
    topic.schedules = {schedule.name: schedule for schedule in image.schedules}
    topic.replaying = True
    topic.replay_head = image.ckpt_seq
    return topic


def durable_seq(topic: TopicLog) -> int:
    """Where replay may start: everything up to here lies in segments, is lost, or never was."""
    for run in topic.tail.runs:
        placed = np.frombuffer(run.locs[:], np.uint64) >= ACTIVE_LOC
        if not placed.all():
            return run.first_seq + int(placed.argmin()) - 1
    return topic.head


def dead_ranges(topic: TopicLog) -> list[tuple[int, int]]:
    """Deleted seqs above the front whose flag is not known to be in their segment; inclusive ranges."""
    pieces: list[I64] = [segment.unflagged() + segment.first_seq for segment in topic.sealed]
    for run in topic.tail.runs:
        if run.deleted:
            framed = np.frombuffer(run.locs[:], np.uint64) >= ACTIVE_LOC
            framed &= np.frombuffer(run.lens[:], np.uint32) > 0
            pieces.append(np.flatnonzero(run.dead(0, run.count) & framed) + run.first_seq)
    return _ranges(np.concatenate(pieces)) if pieces else []


def deleted_after(topic: TopicLog, seq: int) -> tuple[tuple[int, int], ...] | None:
    """Seqs above `seq` that were deleted on request, as inclusive ranges; None where an index is not loaded or where
    they are too many to note. What retention took counts as deleted only where the record had been deleted before."""
    if seq >= topic.head:
        return ()
    pieces: list[I64] = []
    try:
        for block in blocks_from(topic, seq + 1):
            if block.deleted:
                lo = max(seq + 1 - block.first_seq, 0)
                pieces.append(np.flatnonzero(block.dead(lo, block.count)) + lo + block.first_seq)
    except ColdUnavailable:
        return None
    ranges = _ranges(np.concatenate(pieces)) if pieces else []
    front = max(seq + 1, topic.evict_floor), min(topic.floors.delete_below - 1, topic.head)
    if front[0] <= front[1]:
        ranges = [front, *(found for found in ranges if not front[0] <= found[0] <= found[1] <= front[1])]
    return tuple(ranges) if len(ranges) <= DELETED_RANGES_MAX else None


def dead_in_files(topic: TopicLog) -> list[int]:
    """Deleted seqs above the front whose records lie in a file that does not say so for certain."""
    pieces: list[I64] = [segment.unflagged() + segment.first_seq for segment in topic.sealed]
    for run in topic.tail.runs:
        if run.deleted:
            filed = (np.frombuffer(run.locs[:], np.uint64) >> np.uint64(32)) != RESIDENT
            pieces.append(np.flatnonzero(run.dead(0, run.count) & filed) + run.first_seq)
    return [seq for piece in pieces for seq in piece.tolist() if seq >= topic.floors.earliest_seq]


def _ranges(seqs: I64) -> list[tuple[int, int]]:
    if not len(seqs):
        return []
    breaks = np.flatnonzero(np.diff(seqs) > 1)
    firsts: Iterable[int] = [int(seqs[0]), *seqs[breaks + 1].tolist()]
    lasts: Iterable[int] = [*seqs[breaks].tolist(), int(seqs[-1])]
    return list(zip(firsts, lasts, strict=True))


def _active_totals(topic: TopicLog) -> tuple[int, int]:
    live = size = 0
    for run in topic.tail.runs:
        placed = int(np.count_nonzero(np.frombuffer(run.locs[:], np.uint64) >= ACTIVE_LOC))
        lo = max(topic.floors.earliest_seq - run.first_seq, 0)
        totals = run.live_totals(lo, placed)
        live += totals[0]
        size += totals[1]
    return live, size
