"""Relocation: moves sealed segments between the hot and the cold tier (`docs/spec/storage.md#sec-13-2`,
`docs/spec/storage.md#sec-13-3` and `docs/spec/storage.md#sec-13-5`).

    T2 read and check the hot pair | T3 put | T4 read back and compare | T5 flags that changed | T6 mark, synced
    T7 switch | T8 delete hot

Until the mark is synced hot is in charge, and whatever fails leaves it so; afterwards there are two equal copies until
the hot one is gone. Every step can be repeated. No topic lock is held: deletes that arrive meanwhile are noted in the
segment's `UnsyncedFlags`. Runs on the cold pool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Literal

import numpy as np

from topics.errors import StorageIo
from topics.formats.buffers import I64, xxh3
from topics.formats.segments.frame import DELETED_BYTE
from topics.formats.segments.idx import IDX_DELETED, Idx, idx_agrees, read_idx
from topics.formats.wal.bodies import TierMove
from topics.storage.fs import install
from topics.storage.segments.flips import Flagged, write_flags
from topics.storage.segments.loading.heal import bad_frames
from topics.storage.segments.replace import remove_files
from topics.storage.segments.sealed_segment import SealedSegment
from topics.storage.segments.tags import sync_sidecar
from topics.storage.tiers.stores import PARTS, NoSuchObject, RangeOutOfBounds, SegmentStore

LogTierMark = Callable[[Sequence[TierMove]], None]
"""Logs a `tier` mark in the topic's group and returns when it is synced; raises when it cannot be."""


def plan_moves(sealed: Sequence[SealedSegment], *, retain_segments: int, retain_bytes: int) -> list[SealedSegment]:
    """Which sealed segments of a topic (ascending) are to leave the hot tier, oldest first."""
    kept = kept_bytes = 0
    for segment in reversed(sealed):
        kept_bytes += segment.data_len
        if kept == retain_segments or (retain_bytes and kept_bytes > retain_bytes):
            break
        kept += 1
    return [segment for segment in sealed[: len(sealed) - kept] if segment.tier == "hot" and not segment.damaged]


def relocate(segment: SealedSegment, log_tier_mark: LogTierMark) -> bool:
    """T2 to T8. False when the segment is busy or damaged; any error before T6 leaves hot in charge."""
    store, log = _store(segment), segment.flips
    if segment.tier != "hot" or not log.working.acquire(blocking=False):
        return False
    try:
        log.watch()
        copy = _checked_copy(segment)
        if copy is None:
            return False
        sync_sidecar(segment)
        data, idx, proven = _put_and_verify(segment, store, *copy)
        log_tier_mark([_move(segment, "cold")])
        segment.moved_to_cold(idx)
        log.replaced(proven=proven)
        _count(segment, len(data))
    except BaseException:
        segment.place.env.counters.relocation_failures += segment.tier == "hot"
        raise
    finally:
        log.thaw()
        log.working.release()
    delete_hot(segment)
    return True


def _store(segment: SealedSegment) -> SegmentStore:
    store = segment.place.cold
    assert store is not None, "relocation is off without a cold store"
    return store


def _move(segment: SealedSegment, tier: Literal["hot", "cold", "gone"]) -> TierMove:
    return TierMove(id=segment.place.topic_id, first=segment.first_seq, count=segment.count, tier=tier)


def _count(segment: SealedSegment, moved_bytes: int) -> None:
    segment.place.env.counters.relocated += 1
    segment.place.env.counters.relocated_bytes += moved_bytes


def _checked_copy(segment: SealedSegment) -> tuple[bytes, bytes] | None:
    """T2."""
    pair = segment.pair()
    if pair.data is None or pair.bad is not None:
        return None
    data, idx = bytes(pair.data), pair.entries.tobytes()
    bad = bad_frames(read_idx(idx), memoryview(data), segment.first_seq)
    if bad is not None:
        segment.mark_bad(np.flatnonzero(bad))
        return None
    return data, idx


def _put_and_verify(
    segment: SealedSegment, store: SegmentStore, data: bytes, idx: bytes
) -> tuple[bytes, bytes, set[int]]:
    """T3 to T5: a verified cold copy that has every flag the hot one has, and is frozen with it; and the deletes that
    only now it proves."""
    _put_verified(segment, store, data, idx)
    died = segment.flips.freeze()
    entries = read_idx(bytearray(idx))
    slots = _framed(entries, died)
    if not len(slots):
        return data, idx, died
    data, idx = _with_flags(data, entries, slots)
    if store.in_place:
        places = (entries["offset"][slots].astype(np.int64) + entries["len"][slots] - 1).tolist()
        store.mark_deleted(segment.first_seq, places, slots=slots.tolist())
    else:
        _put_verified(segment, store, data, idx)
    return data, idx, died


def _framed(entries: Idx, slots: Set[int]) -> I64:
    wanted: I64 = np.array(sorted(slots), np.int64)
    return wanted[entries["len"][wanted] > 0] if len(wanted) else wanted


def _with_flags(data: bytes, entries: Idx, slots: I64) -> tuple[bytes, bytes]:
    flagged = np.frombuffer(bytearray(data), np.uint8)
    flagged[entries["offset"][slots].astype(np.int64) + entries["len"][slots] - 1] = DELETED_BYTE
    entries["flags"][slots] |= IDX_DELETED
    return flagged.tobytes(), entries.tobytes()


def _put_verified(segment: SealedSegment, store: SegmentStore, data: bytes, idx: bytes) -> None:
    """T3 and T4."""
    first = segment.first_seq
    store.put(first, data, idx)
    for part, put in zip(PARTS, (data, idx), strict=True):
        try:
            same = store.len(first, part) == len(put) and xxh3(store.read_range(first, part, 0, len(put))) == xxh3(put)
        except (NoSuchObject, RangeOutOfBounds):
            same = False
        if not same:
            raise StorageIo(f"{store.label} did not keep segment {segment.label} of topic {segment.place.name!r}")


def delete_hot(segment: SealedSegment) -> bool:
    """T8; the sidecar stays. A failure leaves two copies, and the next sweep tries again."""
    try:
        remove_files(segment.place, {segment.first_seq: PARTS})
    except OSError:
        segment.hot_remnant = True
        return False
    segment.hot_remnant = False
    return True


# --- deletes in cold segments -----------------------------------------------------------------------------------------


def flush_cold_flips(segment: SealedSegment) -> Flagged | None:
    """Flag in the cold copy what was deleted there. None when there is nothing to do, or the store cannot change bytes.

    While the hot files could not be removed they are flagged too, so that both copies tell the same.
    """
    store, log = _store(segment), segment.flips
    if segment.tier != "cold" or not store.in_place or not log or not log.working.acquire(blocking=False):
        return None
    try:
        segment.load_index()
        entries = segment.pair().entries
        with log.lock:
            pending = log.unwritten | log.unsynced
        slots = _framed(entries, pending)
        places = (entries["offset"][slots].astype(np.int64) + entries["len"][slots] - 1).tolist()
        store.mark_deleted(segment.first_seq, places, slots=slots.tolist())
        if segment.hot_remnant:
            _flag_remnant(segment, places)
        entries["flags"][slots] |= IDX_DELETED
        with log.lock:
            log.unwritten -= pending
            log.unsynced -= pending
        segment.place.env.counters.flips += len(slots)
        return Flagged(segment.place.topic_id, segment.first_seq, np.array(sorted(pending), np.int64))
    finally:
        log.working.release()


def _flag_remnant(segment: SealedSegment, places: list[int]) -> None:
    try:
        write_flags(segment, places)
        with segment.place.env.files.borrow_writable(segment.place.file(segment.first_seq, "data")) as file:
            file.datasync()
    except FileNotFoundError:
        pass


def promote(segment: SealedSegment, log_tier_mark: LogTierMark) -> bool:
    """Bring a cold segment back to the hot tier, so that it can be flagged or rewritten. The cold copy stays."""
    store, log = _store(segment), segment.flips
    if segment.tier != "cold" or not log.working.acquire(blocking=False):
        return False
    try:
        segment.load_index()
        data = store.read_range(segment.first_seq, "data", 0, store.len(segment.first_seq, "data"))
        idx = store.read_range(segment.first_seq, "idx", 0, segment.idx_bytes)
        if (
            idx_agrees(idx, len(data), data)
            or bad_frames(read_idx(idx), memoryview(data), segment.first_seq) is not None
        ):
            return False
        log.freeze()
        install(segment.place.fs, segment.place.file(segment.first_seq, "data"), data)
        install(segment.place.fs, segment.place.file(segment.first_seq, "idx"), idx)
        log_tier_mark([_move(segment, "hot")])
        with segment.lock:
            segment.files_replaced(len(data))
        segment.hot_remnant = False
        log.replaced(proven=set())
        return True
    finally:
        log.thaw()
        log.working.release()
