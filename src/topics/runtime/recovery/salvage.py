"""Salvage: records whose topic neither snapshot nor log describes get a topic of their own
(`docs/spec/storage.md#sec-9-2`).

A topic is adopted before the log is replayed, so that what the log still has of it (records, deletes, floors) takes
effect as always. Not adopted is what is known to be deleted: by a TopicDelete in the log, or because a valid snapshot
has passed its id and lacks it. What lies between the segments that were found is announced as lost. Called by recovery.
Without TOPICS_SALVAGE a start gets here only with a valid snapshot, behind which the log was lost or damaged; with it
nothing is deleted in such a run.

`note_used` says how far seqs may have gone in bytes of the log that are gone or cannot be read
(`docs/spec/storage.md#sec-9-3`). Valid frames that are set aside say which seqs were used. Bytes between them that fail
their checks, and bytes that a log had before it was cut, say nothing, and may have held frames of any topic of the
group. Always holds: the answer is an upper bound, so that announcing up to it leaves out nothing that anyone had, and
starting above it uses no seq and no topic id twice. Called once replay knows the heads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from topics.core.lineage import new_epoch
from topics.core.retention.removal import blocks_from
from topics.core.state import State
from topics.core.topic import TopicLog
from topics.engine.recovery.replay import recovered_name
from topics.formats.file_names import group_keys, shard_of
from topics.formats.wal import WalColumns
from topics.formats.wal.bodies import TopicCreateBody
from topics.formats.wal.frame import APPEND_BYTES_MIN, OVERHEAD_BYTES
from topics.limits import SEQ_RESERVE_MAX
from topics.model.config import DEFAULT_CONFIG
from topics.model.ops import HeadMark, Lost
from topics.storage.wal.file_scan import GroupScan


def unexplained(dirs: Iterable[int], logs: Iterable[WalColumns], *, known_below: int, deleted: set[int]) -> list[int]:
    """Ids with a directory or with records, of which nothing says what they are. `known_below`: the snapshot's next
    topic id, 1 without one."""
    found, created = set(dirs), set()
    for columns in logs:
        found.update(columns.append_topics())
        created |= {
            int(columns.topic_id[row]) for row, body in columns.bodies.items() if isinstance(body, TopicCreateBody)
        }
    return sorted(topic_id for topic_id in found - created - deleted if topic_id >= known_below)


def adopt(state: State, topic_id: int, *, now_ms: int) -> TopicLog:
    """A topic for the records of an id; its segments are attached next."""
    epoch = new_epoch(state, now=now_ms, chance=topic_id)
    topic = TopicLog(
        topic_id=topic_id, name=recovered_name(topic_id), epoch=epoch, config=DEFAULT_CONFIG, created_ts=now_ms
    )
    topic.replaying = True
    state.add(topic)
    return topic


def announce_gaps(topics: Iterable[TopicLog]) -> Iterator[HeadMark]:
    """What was found of adopted topics may have lost its beginning and whole segments: readers are told."""
    for topic in topics:
        if gaps := tuple(_gaps(topic)):
            yield HeadMark(topic_id=topic.id, ceiling=topic.ceiling, lost=gaps)


def _gaps(topic: TopicLog) -> Iterator[Lost]:
    known = {seq for lost in topic.lost for seq in (lost.lo, lost.hi + 1)}
    at = max(topic.floors.earliest_seq, topic.floors.lost + 1)
    for block in blocks_from(topic, at):
        if block.first_seq > at and at not in known:
            yield at, block.first_seq - 1, "restart"
        at = max(at, block.first_seq + block.count)


UNABSORBED_BYTES: Final = 64 << 20
"""What is written behind a snapshot before the next one is asked for; where whole files are gone, they held about as
much as that."""


def note_used(state: State, scan: GroupScan, *, recorded_shards: int, file_bytes: int) -> None:
    """Raise `highest` of the group's end for every topic of the group, and for one topic id above those that the
    missing bytes can have created. `recorded_shards` is the layout that the position was recorded in."""
    shards = scan.layouts[-1].shards if scan.layouts and not scan.ends_early else recorded_shards
    if scan.key not in group_keys(shards):
        return
    missing = _missing_bytes(scan, file_bytes=file_bytes)
    shard = group_keys(shards).index(scan.key)
    highest = {**scan.end.highest, state.next_topic_id + missing // OVERHEAD_BYTES: 0}
    for topic in state.by_id.values():
        if shard_of(topic.id, shards) == shard:
            known = max(topic.reserved_head, topic.head, topic.floors.earliest_seq - 1)
            highest[topic.id] = max(highest.get(topic.id, 0), known) + _seqs_in(missing, state, topic)
    scan.end = replace(scan.end, highest=highest)


def _missing_bytes(scan: GroupScan, *, file_bytes: int) -> int:
    """From the end of the log to the end of the file that it was cut in."""
    start, last = scan.start, scan.last
    if scan.tail_lost:
        is_there = last is not None and last.number == scan.end.number
        return max(file_bytes, last.file.size()) - scan.tail if last is not None and is_there else file_bytes
    if not scan.ends_early:
        return scan.end.unread_bytes
    if start is None or last is None or last.number != start.file:
        return file_bytes + UNABSORBED_BYTES
    return max(file_bytes, last.file.size(), start.off) - min(scan.tail, start.off)


def _seqs_in(missing: int, state: State, topic: TopicLog) -> int:
    """A record takes a frame in its own topic and in no other; its copies take none, one for each router on their way.
    Records of ephemeral topics take none at all: what bounds those, and their copies, is the ceilings logged."""
    from_memory = any(other.config.is_ephemeral for other in state.by_id.values())
    fed = bool(state.routers.into(topic.id))
    if topic.config.is_ephemeral or (fed and from_memory):
        return missing // OVERHEAD_BYTES * SEQ_RESERVE_MAX
    return missing // APPEND_BYTES_MIN * (1 + len(state.routers) if fed else 1)
