"""Rewrite: gives back the space of deleted records in a sealed segment (`docs/spec/storage.md#sec-11-3`).

    W1 check every frame | W2, W3 write and sync the copies | W4 flag what died meanwhile | W5 rename | W6 swap

The live set is the same at every step, and slots keep their numbers: dropped ones become empty slots. Nobody waits for
it: deletes that arrive during W4 to W6 are noted and flagged afterwards, and readers keep the mapping they have. Runs
on a background thread, one job per segment at a time (`UnsyncedFlags.working`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from topics.formats.buffers import I64, Bools
from topics.formats.file_names import TMP_SUFFIX
from topics.formats.segments.idx import IDX_DELETED, Idx, empty_slots
from topics.storage.fs import Buffer, write_all
from topics.storage.segments.flips import FLAG, write_idx_bits
from topics.storage.segments.loading.heal import bad_frames
from topics.storage.segments.replace import remove_temps, rename_temps, write_temps
from topics.storage.segments.sealed_segment import SealedSegment
from topics.storage.segments.segment_arrays import SegmentArrays
from topics.storage.segments.tags import build_sidecar, write_sidecar

PIECE_BYTES = 1 << 20

Throttle = Callable[[int], None]
"""Called with the number of bytes about to be copied; waits as long as the rate limit asks for."""


@dataclass(frozen=True, slots=True)
class RewriteRules:
    dead_ratio: float = 0.5
    min_dead_bytes: int = 1 << 20

    def wants(self, segment: SealedSegment, dead: Bools) -> bool:
        """Whether deleted bytes make the segment a candidate. `dead` holds deletes only, never evicted slots."""
        if not self.dead_ratio or segment.tier != "hot" or segment.damaged or not segment.data_len:
            return False
        dead_bytes = int(segment.lens[dead].sum(dtype=np.int64))
        return dead_bytes >= self.min_dead_bytes and dead_bytes >= self.dead_ratio * segment.data_len


def rewrite(segment: SealedSegment, dead: Bools, *, throttle: Throttle = lambda _: None) -> bool:
    """Write the segment anew without its `dead` slots. False: it is busy or damaged. OSError leaves it as it was."""
    log = segment.flips
    if not log.working.acquire(blocking=False):
        return False
    try:
        log.watch()
        pair = segment.pair()
        if segment.tier != "hot" or pair.data is None or _is_damaged(segment, pair):
            return False
        keep = (pair.lens > 0) & ~dead & ((pair.flags & IDX_DELETED) == 0)
        entries = _new_entries(pair, keep)
        _replace(segment, _live_pieces(pair, keep, throttle), entries, pair)
        segment.place.env.counters.rewritten += 1
        return True
    finally:
        log.thaw()
        log.working.release()


def _is_damaged(segment: SealedSegment, pair: SegmentArrays) -> bool:
    """W1."""
    if pair.bad is not None or pair.data is None:
        return True
    bad = bad_frames(pair.entries, pair.data, segment.first_seq)
    if bad is not None:
        segment.mark_bad(np.flatnonzero(bad))
    return bad is not None


def _new_entries(pair: SegmentArrays, keep: Bools) -> Idx:
    entries = empty_slots(pair.ts)
    lens = pair.lens[keep].astype(np.int64)
    entries["offset"][keep] = np.cumsum(lens) - lens
    entries["len"][keep] = lens
    entries["flags"][keep] = pair.flags[keep] & ~np.uint8(IDX_DELETED)
    return entries


def _live_pieces(pair: SegmentArrays, keep: Bools, throttle: Throttle) -> Iterator[Buffer]:
    """The kept frames, as few and as large slices of the mapping as they lie."""
    assert pair.data is not None
    offs = pair.offs[keep].astype(np.int64)
    ends = offs + pair.lens[keep]
    breaks = np.flatnonzero(offs[1:] != ends[:-1]) + 1
    starts, stops = offs[np.concatenate(([0], breaks))[: len(offs)]], ends[np.concatenate((breaks, [len(offs)])) - 1]
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=False):
        for at in range(start, stop, PIECE_BYTES):
            piece = pair.data[at : min(at + PIECE_BYTES, stop)]
            throttle(len(piece))
            yield piece


def replace_frames(segment: SealedSegment, frames: Iterable[Buffer], entries: Idx) -> None:
    """Put other files in the place of a damaged segment's; the same steps as a rewrite."""
    log = segment.flips
    with log.working:
        log.watch()
        try:
            _replace(segment, frames, entries, None)
        finally:
            log.thaw()


def _replace(segment: SealedSegment, frames: Iterable[Buffer], entries: Idx, old: SegmentArrays | None) -> None:
    place, first, log = segment.place, segment.first_seq, segment.flips
    renamed = False
    try:
        write_temps(place, first, data=frames, idx=entries.tobytes())
        proven = _flag_meanwhile(segment, entries, log.freeze(), old)
        with segment.lock:  # whoever maps the files now sees both old or both new
            renamed = True
            rename_temps(place, first)
            segment.files_replaced(int(entries["len"].sum(dtype=np.int64)))
    except BaseException:
        if renamed:  # perhaps one of two: the next look at the files rebuilds the index
            segment.files_replaced(place.fs.stat_len(place.file(first, "data")))
        else:
            remove_temps(place, first)
        raise
    log.dir_unsynced = True
    place.fs.sync_dir(place.path)
    log.dir_unsynced = False
    log.replaced(proven=proven)
    _renew_sidecar(segment)


def _flag_meanwhile(segment: SealedSegment, entries: Idx, died: set[int], old: SegmentArrays | None) -> set[int]:
    """W4: flag in the copies what died since they were planned; gives the slots that they prove."""
    if old is not None:
        died |= set(np.flatnonzero(old.flags & IDX_DELETED).tolist())
    slots: I64 = np.array(sorted(died), np.int64)
    framed = slots[entries["len"][slots] > 0] if len(slots) else slots
    if len(framed):
        chosen = entries[framed]
        path = segment.place.file(segment.first_seq, "data") + TMP_SUFFIX
        _write_bytes(segment, path, (chosen["offset"].astype(np.int64) + chosen["len"] - 1).tolist())
        idx = segment.place.fs.open(segment.place.file(segment.first_seq, "idx") + TMP_SUFFIX, "rw")
        try:
            write_idx_bits(idx, framed, chosen)
            idx.datasync()
        finally:
            idx.close()
    return set(slots.tolist())


def _write_bytes(segment: SealedSegment, path: str, places: list[int]) -> None:
    file = segment.place.fs.open(path, "rw")
    try:
        for at in places:
            write_all(file, at, FLAG)
        file.datasync()
    finally:
        file.close()


def _renew_sidecar(segment: SealedSegment) -> None:
    pair = segment.pair()
    if pair.data is not None and pair.bad is None:
        made = build_sidecar(pair.entries, pair.data, first_seq=segment.first_seq)
        write_sidecar(segment.place, segment.first_seq, made)
