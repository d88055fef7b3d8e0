"""Healing: what to make of a pair of files that do not agree (`docs/spec/storage.md#sec-6-3` and
`docs/spec/storage.md#sec-6-5`).

Pure: bytes in, an index out. The rule behind every branch: a rebuilt index is installed only when each byte of `.data`
is a valid frame, so that nothing is ever turned into "deleted" that was merely unreadable. Otherwise the files stay as
they are, and the slots without a readable frame are `bad`: reads of them report corruption.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topics.formats.buffers import Bools
from topics.formats.segments.columns import decode_columns
from topics.formats.segments.idx import ENTRY_BYTES, IDX_DELETED, IDX_DTYPE, Idx, idx_agrees, read_idx
from topics.formats.segments.rebuild import RebuiltIdx, rebuild_idx


class Healed(NamedTuple):
    """An index to work with; `install` says that it belongs on disk, `reason` why the old one does not."""

    entries: Idx
    bad: Bools | None
    install: bool
    reason: str


def heal(
    idx: memoryview | None, data: memoryview, *, first_seq: int, count: int | None, data_len: int | None
) -> Healed:
    """`count` and `data_len` are what a snapshot or mark recorded, None when nothing did."""
    entries, why = _self_consistent(idx, data, count)
    if entries is not None and _end_of(entries) == len(data):
        return Healed(entries, None, False, "")
    rebuilt = rebuild_idx(data, first_seq=first_seq, count=count, data_len=None if entries is not None else data_len)
    if entries is not None and _is_cut(entries, rebuilt, data, first_seq):
        lost = _beyond(entries, len(data)) & ((entries["flags"] & IDX_DELETED) == 0)
        return Healed(entries, lost, False, "short")
    if not rebuilt.bad:
        return Healed(rebuilt.idx, None, True, why)
    if entries is not None and (count is not None or len(entries) >= len(rebuilt.idx)):
        return Healed(entries, bad_frames(entries, data, first_seq), False, "frames")
    return Healed(rebuilt.idx, gap_mask(rebuilt, first_seq), False, "frames")


def heal_without_data(idx: memoryview | None, *, count: int | None) -> Healed:
    """`.data` is gone: every slot that was not deleted is bad."""
    entries, _ = _self_consistent(idx, None, count)
    if entries is None:
        entries = np.zeros(count or 0, IDX_DTYPE)
    bad: Bools = (entries["flags"] & IDX_DELETED) == 0
    return Healed(entries, bad, False, "missing")


def bad_frames(entries: Idx, data: memoryview, first_seq: int) -> Bools | None:
    """Which slots have a frame that fails its checks; None when all are good."""
    found = decode_columns(data, entries, first_seq=first_seq, want=("node",), include_dead=True).bad
    slots = [slot.slot for slot in found if slot.reason != "idx"]
    if not slots:
        return None
    bad: Bools = np.zeros(len(entries), np.bool_)
    bad[slots] = True
    return bad


def _self_consistent(idx: memoryview | None, data: memoryview | None, count: int | None) -> tuple[Idx | None, str]:
    """The entries if they could be right, judged by themselves and by the flag bytes that can be seen; else why not."""
    if idx is None:
        return None, "missing"
    if len(idx) % ENTRY_BYTES:
        return None, "length"
    entries = read_idx(idx)
    if count is not None and len(entries) != count:
        return None, "count"
    ends = _end_of(entries)
    problem = idx_agrees(entries, ends, data if data is not None and ends <= len(data) else None)
    return (None, problem) if problem else (entries, "tiling")


def _end_of(entries: Idx) -> int:
    return int(entries["len"].astype(np.int64).sum())


def _is_cut(entries: Idx, rebuilt: RebuiltIdx, data: memoryview, first_seq: int) -> bool:
    """Whether `.data` lost its end, as against an index that says too much of it or speaks of other bytes."""
    if _end_of(entries) <= len(data) or len(rebuilt.idx) > len(entries):
        return False
    found = rebuilt.idx["len"] > 0
    live = (entries["len"] > 0) & ((entries["flags"] & IDX_DELETED) == 0)
    found = np.pad(found, (0, len(entries) - len(found)))
    all_there = not rebuilt.bad and bool(found[live].all())
    return not all_there and _describes(entries, data, first_seq)


def _describes(entries: Idx, data: memoryview, first_seq: int) -> bool:
    """Whether the index speaks of these bytes: the frames that lie whole in the file are where it says."""
    inside = ~_beyond(entries, len(data)) & (entries["len"] > 0)
    slots = np.flatnonzero(inside)
    found = decode_columns(data, entries, first_seq=first_seq, slots=slots, want=("node",), include_dead=True)
    return not len(slots) or len(found) > len(slots) // 2


def _beyond(entries: Idx, size: int) -> Bools:
    """Slots whose frame does not lie whole below `size`."""
    ends = entries["offset"].astype(np.int64) + entries["len"]
    beyond: Bools = (ends > size) & (entries["len"] > 0)
    return beyond


def gap_mask(rebuilt: RebuiltIdx, first_seq: int) -> Bools:
    """The slots whose frames were not found where bytes are damaged or gone: unreadable, not deleted."""
    bad: Bools = np.zeros(len(rebuilt.idx), np.bool_)
    for gap in rebuilt.bad:
        bad[gap.first_seq - first_seq : max(gap.last_seq + 1, gap.first_seq) - first_seq] = True
    rebuilt.idx["flags"][bad] = 0
    return bad
