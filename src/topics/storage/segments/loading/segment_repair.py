"""Repair: puts a good frame in the place of a damaged one, from the log or the other tier
(`docs/spec/storage.md#sec-6-5`).

The damaged file is never written into: the whole segment is replaced, as by a rewrite. Without a good source nothing
changes, and reads of the damaged seqs go on reporting corruption. `find_wal` looks up Append frames that are still in
the log; it may be slow, because this is rare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from topics.errors import TopicsError
from topics.formats.buffers import Buffer
from topics.formats.segments.columns import decode_columns
from topics.formats.segments.frame import segment_frames_from_wal
from topics.formats.segments.idx import IDX_DELETED, Idx, read_idx
from topics.storage.segments.findings import Finding
from topics.storage.segments.loading.loaded import LoadedTopic
from topics.storage.segments.rewrite import replace_frames
from topics.storage.segments.sealed_segment import SealedSegment
from topics.storage.segments.segment_arrays import SegmentArrays
from topics.storage.tiers.stores import NoSuchObject, RangeOutOfBounds

FindWal = Callable[[int, Sequence[int]], Mapping[int, bytes]]
"""`(topic id, seqs)`: the Append frames of those seqs that are still in the log, by seq."""


def repair_loaded(loaded: LoadedTopic, find_wal: FindWal) -> None:
    """Repair what loading found damaged or missing. In memory at once, on disk when writing is allowed."""
    loaded.not_found = {segment.first_seq for segment in loaded.missing}
    for segment in loaded.damaged:
        repair_segment(segment, find_wal)
    loaded.missing = [segment for segment in loaded.missing if segment.damaged]
    loaded.findings += loaded.place.env.take_findings()


def repair_segment(segment: SealedSegment, find_wal: FindWal, slots: Sequence[int] | None = None) -> bool:
    """Replace the damaged frames among `slots` (all known ones when None). Whether all of them are good now."""
    pair = segment.pair()
    bad = np.flatnonzero(pair.bad).tolist() if pair.bad is not None else []
    wanted = sorted({*bad, *(slots or ())})
    frames = _frames_from_wal(segment, wanted, find_wal)
    missing = [slot for slot in wanted if slot not in frames]
    if missing:
        frames |= _frames_from_cold(segment, missing)
    if not wanted or any(slot not in frames for slot in wanted):
        return False
    rebuilt = _rebuilt(pair, _data_of(segment, pair), frames)
    if rebuilt is None:
        return False
    pieces, entries = rebuilt
    segment.stand_in(SegmentArrays(entries, memoryview(b"".join(pieces))))
    try:
        segment.place.env.write_or_defer(lambda: _put_on_disk(segment, pieces, entries))
    except OSError:  # flags must never be written by places that the files do not have
        segment.stand_in(None)
        return False
    segment.place.env.report(
        Finding(
            topic_id=segment.place.topic_id,
            file=segment.place.file(segment.first_seq, "data"),
            message=f"segment {segment.label} of topic {segment.place.name!r}: {len(wanted)} records repaired",
        )
    )
    return True


def _put_on_disk(segment: SealedSegment, pieces: Sequence[Buffer], entries: Idx) -> None:
    segment.place.make()
    replace_frames(segment, pieces, entries)  # type: ignore[arg-type]
    segment.place.fs.sync_dir(segment.place.env.topics_dir)


def _frames_from_wal(segment: SealedSegment, slots: Sequence[int], find_wal: FindWal) -> dict[int, bytes]:
    found = find_wal(segment.place.topic_id, [segment.first_seq + slot for slot in slots])
    return {
        seq - segment.first_seq: segment_frames_from_wal(frame, [0], [len(frame)]).buffer
        for seq, frame in found.items()
    }


def _frames_from_cold(segment: SealedSegment, slots: Sequence[int]) -> dict[int, bytes]:
    """Good frames of the cold copy, if there is one."""
    store, first = segment.place.cold, segment.first_seq
    if store is None or segment.tier == "cold":
        return {}
    try:
        idx = read_idx(store.read_range(first, "idx", 0, segment.idx_bytes))
        data = store.read_range(first, "data", 0, store.len(first, "data"))
    except (OSError, TopicsError, NoSuchObject, RangeOutOfBounds):
        return {}
    good = decode_columns(data, idx, first_seq=first, slots=slots, want=("node",), include_dead=True).slot.tolist()
    starts, lens = idx["offset"].tolist(), idx["len"].tolist()
    return {slot: data[starts[slot] : starts[slot] + lens[slot]] for slot in good}


def _data_of(segment: SealedSegment, pair: SegmentArrays) -> memoryview:
    """The bytes of the frames that stay as they are. Those of a cold segment are fetched."""
    if pair.data is not None or segment.tier == "hot":
        return pair.data if pair.data is not None else memoryview(b"")
    try:
        return memoryview(segment.read_cold_data())
    except (OSError, TopicsError, NoSuchObject, RangeOutOfBounds):
        return memoryview(b"")


def _rebuilt(pair: SegmentArrays, data: memoryview, frames: Mapping[int, bytes]) -> tuple[list[bytes], Idx] | None:
    """All frames back to back with the good ones in place, and their entries. None if the bytes of another frame are
    not there: what is written would have lost it."""
    entries = pair.entries.copy()
    pieces: list[bytes] = []
    at = 0
    for slot, (start, length) in enumerate(zip(pair.offs.tolist(), pair.lens.tolist(), strict=True)):
        frame = frames.get(slot) or bytes(data[start : start + length])
        if slot not in frames and len(frame) != length:
            return None
        entries["offset"][slot] = at if frame else 0
        entries["len"][slot] = len(frame)
        pieces.append(frame)
        at += len(frame)
    _describe(entries, frames)
    return [piece for piece in pieces if piece], entries


def _describe(entries: Idx, frames: Mapping[int, bytes]) -> None:
    """ts and flags of the replaced slots, from their frames; times never fall, also over slots that had none."""
    for slot, frame in frames.items():
        entries["ts"][slot] = int.from_bytes(frame[13:21], "little")
        entries["flags"][slot] = frame[4] | (IDX_DELETED if frame[-1] == 0xD5 else 0)
