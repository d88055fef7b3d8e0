"""How far seqs may have gone in bytes of the log that are gone or cannot be read (`docs/spec/storage.md#sec-9-3`).

Valid frames that are set aside say which seqs were used. Bytes between them that fail their checks, and bytes that a
log had before it was cut, say nothing, and may have held frames of any topic of the group. Always holds: the answer is
an upper bound, so that announcing up to it leaves out nothing that anyone had, and starting above it uses no seq and no
topic id twice. Called by recovery, once replay knows the heads."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from topics.core.state import State
from topics.core.topic import TopicLog
from topics.formats.file_names import shard_of
from topics.formats.wal.frame import APPEND_BYTES_MIN, OVERHEAD_BYTES
from topics.limits import SEQ_RESERVE_MAX
from topics.storage.data_dir import group_keys
from topics.storage.wal.file_scan import GroupScan

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
