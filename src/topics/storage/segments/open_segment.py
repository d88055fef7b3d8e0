"""Opening: the files of a sealed segment as a `Pair`, checked before anybody uses a byte of it.

    open_hot      map both files; a pair that disagrees is healed from its frames, a missing `.data` is corruption
    open_cold     fetch the index from the cold store; one that disagrees is judged by the whole cold `.data`
    open_anew     build the index again from the frames, because a read found an entry that misdescribes its frame

An index that could be rebuilt is written again (`install`), or as soon as writing is allowed; a failure to do so costs
nothing but another rebuild. I/O errors are raised as they come. Called by `SealedSegment` with its lock held."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from topics.errors import StorageIo
from topics.formats.buffers import I64, U8, gather_u8
from topics.formats.segments.frame import DELETED_BYTE
from topics.formats.segments.idx import ENTRY_BYTES, FLAGS_AT, IDX_DELETED, Idx, idx_agrees, read_idx
from topics.storage.disk_spans import read_spans
from topics.storage.fs import install, write_all
from topics.storage.segments.findings import CORRUPT, IDX_REBUILT
from topics.storage.segments.flips import FLAG
from topics.storage.segments.loading.heal import Healed, heal, heal_without_data
from topics.storage.segments.loading.leftovers import adopt_idx_temp
from topics.storage.segments.segment_arrays import SegmentArrays

if TYPE_CHECKING:
    from topics.storage.segments.sealed_segment import SealedSegment
    from topics.storage.segments.topic_dir import TopicDir
    from topics.storage.tiers.stores import SegmentStore


def found_flags(place: TopicDir, first_seq: int, pair: SegmentArrays, *, again: bool) -> SegmentArrays:
    """Believe the frames, and make sure of them. A delete that was acked without a sync (a job's ack, a `memory` topic)
    flags frames before its log frame is durable: a power cut can keep the flag and lose the rest, and then only the
    frame tells. `again`: it was looked at before and closed for lack of room; until recovery may write, its index still
    lacks what the frames say."""
    if place.env.may_write or pair.data is None:
        return pair
    flags = frame_flags(pair.entries, pair.data)
    if not again:
        keep_flags(place, first_seq, pair.entries, flags)
    if np.array_equal(flags, pair.flags):
        return pair
    entries = pair.entries.copy()
    entries["flags"] = flags
    return SegmentArrays(entries, pair.data, pair.bad)


def frame_flags(entries: Idx, data: memoryview) -> U8:
    """Entry flags; a flagged frame is deleted even if its entry does not say so yet."""
    flags: U8 = entries["flags"].copy()
    framed = np.flatnonzero((entries["len"] > 0) & ((flags & IDX_DELETED) == 0))
    framed = framed[_places(entries, framed) < len(data)]  # a damaged file may be short
    flags[framed[gather_u8(data, _places(entries, framed)) == DELETED_BYTE]] |= IDX_DELETED
    return flags


def keep_flags(place: TopicDir, first_seq: int, entries: Idx, flags: U8) -> None:
    """Flags that an earlier process set: are they durable?

    A delete is replayed from the log until a snapshot has passed it, and that waits until its flags are synced. A
    process that was killed in between leaves flags in the page cache. The next one finds them set, so it does not set
    them again, and would take them for proof. Syncing the file is not enough: where a sync failed before, the kernel
    takes the bytes for written, and no later sync writes them. So the segments that recovery looks at get their flags
    once more, and are synced, before it lets anything pass.

    The boot id would not spare us that: a start that was killed before it wrote its own boot line may have set flags,
    too.

    Once recovery may write: set these flags again, and in the index what only the frames say; nobody would do it
    later, because the slots count as dead already."""
    if place.env.may_write:
        return
    flagged = np.flatnonzero(((flags & IDX_DELETED) != 0) & (entries["len"] > 0))
    if not len(flagged):
        return
    mirrored = flagged[flags[flagged] != entries["flags"][flagged]]
    bits = dict(zip(mirrored.tolist(), flags[mirrored].tolist(), strict=True))
    place.env.write_or_defer(partial(_write_anew, place, first_seq, _places(entries, flagged).tolist(), bits))


def _places(entries: Idx, slots: I64) -> I64:
    places: I64 = entries["offset"][slots].astype(np.int64) + entries["len"][slots] - 1
    return places


def _write_anew(place: TopicDir, first_seq: int, places: list[int], bits: dict[int, int]) -> None:
    """`.data` first: a flag in the index must never be older than the one it mirrors."""
    with place.env.files.borrow_writable(place.file(first_seq, "data")) as data:
        for at in places:
            write_all(data, at, FLAG)
        data.datasync()
    with place.env.files.borrow_writable(place.file(first_seq, "idx")) as idx:
        for slot, value in bits.items():
            write_all(idx, slot * ENTRY_BYTES + FLAGS_AT, bytes((value,)))
        idx.datasync()


COLD_FLAG_READS_MAX: Final = 16
"""Flag bytes that are fetched one by one; each may cost a request to an object store."""


def open_hot(segment: SealedSegment) -> SegmentArrays:
    data = _map(segment, "data")
    idx = _map(segment, "idx")
    if data is None:
        return _without_data(segment, idx)
    condition = segment.condition
    if idx is not None and (condition.checked or _agrees(segment, idx, data)):
        pair = SegmentArrays(read_idx(idx), data, condition.known_bad(segment.count))
        pair = found_flags(segment.place, segment.first_seq, pair, again=condition.checked)
        condition.checked = True
        segment.data_len = len(data)
        return pair
    if adopt_idx_temp(segment.place, segment.first_seq):
        return open_hot(segment)
    return _healed(segment, idx, data)


def open_cold(segment: SealedSegment) -> SegmentArrays:
    """May wait for the store."""
    store = segment.place.cold
    if store is None:
        raise StorageIo(f"segment {segment.label} of topic {segment.place.name!r} is cold and there is no cold store")
    raw = bytearray(store.read_range(segment.first_seq, "idx", 0, segment.idx_bytes))
    condition = segment.condition
    if not condition.checked:
        segment.data_len = store.len(segment.first_seq, "data")
        if idx_agrees(raw, segment.data_len) is not None or not _deletes_agree(segment, store, read_idx(raw)):
            return _heal_cold(segment, memoryview(raw))
    condition.checked = True
    return SegmentArrays(read_idx(raw), None, condition.known_bad(segment.count))


def _deletes_agree(segment: SealedSegment, store: SegmentStore, entries: Idx) -> bool:
    """Whether every entry that says "deleted" has its flag byte in the cold `.data`: a spoiled bit of the index must
    not hide a live record. A few bytes are asked for one by one, more of them by reading the whole file."""
    dead = np.flatnonzero(((entries["flags"] & IDX_DELETED) != 0) & (entries["len"] > 0))
    places = entries["offset"][dead].astype(np.int64) + entries["len"][dead] - 1
    if len(dead) > COLD_FLAG_READS_MAX:
        flags = gather_u8(memoryview(segment.read_cold_data()), places)
    else:
        read = partial(store.read_range, segment.first_seq, "data")
        found = read_spans(read, places, np.ones(len(places), np.int64))
        flags = gather_u8(memoryview(found.buffer), found.offs)
    return bool((flags == DELETED_BYTE).all())


def open_anew(segment: SealedSegment) -> SegmentArrays | None:
    """None if there are no frames to build it from."""
    data = _map(segment, "data")
    return None if data is None else _healed(segment, None, data)


def _map(segment: SealedSegment, part: Literal["data", "idx"]) -> memoryview | None:
    try:
        file = segment.place.read_fs.open(segment.place.file(segment.first_seq, part))
    except FileNotFoundError:
        return None
    try:
        return file.mmap()
    finally:
        file.close()


def _agrees(segment: SealedSegment, idx: memoryview, data: memoryview) -> bool:
    return len(idx) == segment.idx_bytes and idx_agrees(idx, len(data), data) is None


def _heal(segment: SealedSegment, idx: memoryview | None, data: memoryview) -> Healed:
    return heal(idx, data, first_seq=segment.first_seq, count=segment.count, data_len=segment.data_len)


def _heal_cold(segment: SealedSegment, raw: memoryview) -> SegmentArrays:
    """The store is left as it is."""
    healed = _heal(segment, raw, memoryview(segment.read_cold_data()))
    counter = CORRUPT if healed.bad is not None else ""
    segment.condition.report(segment, "index does not agree with its data in the cold store", counter)
    return SegmentArrays(healed.entries, None, healed.bad)


def _healed(segment: SealedSegment, idx: memoryview | None, data: memoryview) -> SegmentArrays:
    healed, condition = _heal(segment, idx, data), segment.condition
    segment.data_len = len(data)
    if healed.bad is not None:
        what = f"{int(healed.bad.sum())} records are damaged ({healed.reason})"
        condition.report(segment, what, CORRUPT, error=True)
        return SegmentArrays(healed.entries, data, healed.bad)
    if healed.install:
        condition.report(segment, f"index rebuilt from its data ({healed.reason})", IDX_REBUILT)
        segment.place.env.counters.idx_rebuilt += 1
        try:
            segment.place.env.write_or_defer(lambda: _install_idx(segment, healed))
        except OSError as error:  # it serves from memory as well; the next mapping tries again
            condition.report(segment, f"rebuilt index could not be written: {error}", "")
    return SegmentArrays(healed.entries, data)


def _install_idx(segment: SealedSegment, healed: Healed) -> None:
    with segment.lock:
        path = segment.place.file(segment.first_seq, "idx")
        install(segment.place.fs, path, healed.entries.tobytes())
        segment.place.env.files.forget(path)
        segment.unmap()  # from now on flags are set in the file, so look at the file


def _without_data(segment: SealedSegment, idx: memoryview | None) -> SegmentArrays:
    healed = heal_without_data(idx, count=segment.count)
    segment.condition.report(segment, "data file is missing", CORRUPT, error=True)
    return SegmentArrays(healed.entries, memoryview(b""), healed.bad)
