"""Opening: what a start writes before anyone is served (`docs/spec/storage.md#sec-9-1`, steps 7 and 8).

    log_marks     what was declared lost, so that the next start says the same
    flag_again    deletes whose flags may not have reached the disk
    retire_dirs   directories of topics that are gone
    name_store    the first snapshot of a new directory
    Repair        where a stored frame is looked for that turns out damaged later

Called once, by recovery, in this order: the marks are synced before the lock's text vouches for anything. If there was
no space for them it does not vouch, until a snapshot has what they would have said (`Store.owes_marks`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial

from topics.core.capture import dead_ranges
from topics.core.retention.rules import floors_op
from topics.core.slots.checkpoint import flagged
from topics.core.state import State
from topics.engine.writing.encode import submission
from topics.errors import CommitFailed
from topics.formats.file_names import shard_of
from topics.formats.snapshot import GroupPosition, Snapshot
from topics.model.ops import Evict, HeadMark
from topics.runtime.store import Store
from topics.storage.segments.loading.segment_repair import repair_segment
from topics.storage.segments.replace import list_topic_dirs, retire_topic_dir
from topics.storage.segments.sealed_segment import SealedSegment
from topics.storage.segments.topic_dir import SegmentEnv
from topics.storage.wal.group import WalGroup
from topics.storage.wal.lookup import find_in_wal
from topics.storage.wal.wal_files import WalFiles


def log_marks(groups: list[WalGroup], marks: Sequence[HeadMark | Evict], *, now_ms: int) -> bool:
    """What was declared lost is synced before anyone is served. False if some of it is not: a group has no space, and
    reads must work all the same."""
    logged = True
    for index, group in enumerate(groups):
        mine = [mark for mark in marks if shard_of(mark.topic_id, len(groups)) == index]
        if mine:
            logged = _log_in(group, mine, now_ms=now_ms) and logged
    return logged


def _log_in(group: WalGroup, marks: Sequence[HeadMark | Evict], *, now_ms: int) -> bool:
    try:
        group.write(
            [
                submission([mark], None, topic_id=mark.topic_id, ts=now_ms, durable=True, client_frames=0)
                for mark in marks
            ]
        )
    except CommitFailed:
        if group.read_only != "no_space":
            raise
        return False
    group.sync()
    return True


def flag_again(state: State, store: Store) -> None:
    """Deletes whose flags are not known to be on disk get them now, so that another start finds nothing to do."""
    for topic_id, files in store.topics.items():
        topic = state.by_id[topic_id]
        for segment in topic.sealed:
            if segment.view.tier == "hot" and len(segment.unflagged()):
                store.flips.flip(segment.view, segment.unflagged())  # type: ignore[arg-type]
        if files.active is not None:
            first, end = files.active.first_seq, files.active.next_seq
            dead = [seq for lo, hi in dead_ranges(topic) for seq in range(max(lo, first), min(hi + 1, end))]
            store.flips.flip(files.active, [seq - first for seq in dead])
    for done in store.flips.sync() if len(store.flips) else ():
        flagged(state.by_id[done.topic_id], done.first_seq)


def floors_of(state: State, forsaken: Iterable[int]) -> list[Evict]:
    """Floors behind which a later start misses no segment, for topics whose directory is taken away."""
    topics = (state.by_id.get(topic_id) for topic_id in sorted(forsaken))
    return [floors_op(topic) for topic in topics if topic is not None and topic.head]


def retire_dirs(env: SegmentEnv, state: State, *, forsaken: Collection[int], keeps_all: bool) -> list[str]:
    """Directories of topics that are gone or want theirs no more, to be removed. After damage, or in a salvage run,
    all others stay."""
    found = list_topic_dirs(env.fs, env.topics_dir)
    if keeps_all:
        return found.deleted
    orphans = [topic_id for topic_id in found.ids if topic_id not in state.by_id and topic_id < state.next_topic_id]
    orphans += [topic_id for topic_id in found.ids if topic_id in state.by_id and topic_id in forsaken]
    retired = [retire_topic_dir(env, topic_id) for topic_id in orphans]
    return [*found.deleted, *(name for name in retired if name is not None)]


def name_store(store: Store, *, now_ms: int) -> None:
    """Snapshot 1, before the first write: from here on a log that ends early is damage and not a missing beginning."""
    store.snapshots.install(
        Snapshot(
            id=store.snapshots.next_number,
            instance=store.instance,
            boot=store.boot,
            clock_ms=now_ms,
            ts=now_ms,
            clean=False,
            gen=store.layout.gen,
            shards=store.layout.shards,
            next_topic_id=1,
            next_ckpt=store.next_ckpt,
            groups=tuple(
                GroupPosition(key=group.key, file=group.position.file, off=group.position.off) for group in store.groups
            ),
            topics=(),
            routers=(),
        )
    )


class Repair:
    """A stored frame turned out damaged: the log or the other tier may still have it."""

    def __init__(self, files: WalFiles) -> None:
        self._files = files

    def any(self, segment: SealedSegment, slots: Sequence[int]) -> bool:
        return repair_segment(segment, partial(find_in_wal, self._files), slots)

    def hot(self, segment: SealedSegment, slots: Sequence[int]) -> bool:
        """As `any`, on a pool that must not wait for the cold store."""
        return segment.place.cold is None and self.any(segment, slots)
