"""The one column decoder of segment frames: recovery, verification, reads and Spark all use it
(`docs/spec/pipeline.md`, rule 3).

Input is a `.data` buffer and entries of its `.idx`; output says, for every live record asked for, where its node, tag,
data and meta texts lie in that buffer. No Python object per record is made, so a caller can build Arrow arrays straight
from the offsets. What is not asked for is neither read nor decoded. Bad frames are listed, never skipped silently.

Segment frames of a record run, wherever its bodies came from: header, body as it is, checksum, a clear flag byte.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from topics.formats.buffers import (
    I64,
    U8,
    U64,
    Bools,
    Buffer,
    Summing,
    byte_view,
    gather_rows,
    gather_u8,
    gather_u64,
    hash_slices,
    xxh3,
)
from topics.formats.segments.frame import (
    DELETED_BYTE,
    FLAGS_KNOWN,
    HAS_NODE,
    HAS_TAG,
    HEAD_BYTES,
    HEAD_DTYPE,
    LEN_BYTES,
    OVERHEAD_BYTES,
    TAIL_BYTES,
)
from topics.formats.segments.idx import IDX_DELETED, Idx
from topics.formats.segments.scan import verify_frames
from topics.formats.wal import blob as _blob
from topics.model.run import BODY_HEAD, BODY_HEAD_BYTES, PRESENCE_MASK, RecordRun

ALL: Final = frozenset({"node", "tag", "data", "meta"})

_SEQ_AT, _TS_AT, _LENGTHS_AT = 5, 13, 21
"""Places in a frame; the lengths of node, tag and blob make one word (u16, u16, u32)."""
_U16: Final = np.uint64(0xFFFF)
_U32: Final = np.uint64(0xFFFF_FFFF)
# The first word of a blob without what lies behind its head.
_BLOB_MASK: Final = np.uint64((1 << 8 * len(_blob.HEAD)) - 1)
_BLOB_WORD: Final = np.uint64(int.from_bytes(_blob.HEAD, "little"))

assert HEAD_DTYPE.fields is not None
assert [HEAD_DTYPE.fields[name][1] for name in ("seq", "ts", "node_len")] == [_SEQ_AT, _TS_AT, _LENGTHS_AT]


class BadSlot(NamedTuple):
    """A slot whose bytes fail a check.

    `reason` is "short", "frame_len", "lengths", "xxh3", "blob" or "seq" for a bad frame, and "idx" for a good frame
    that its entry misdescribes (ts or flags).
    """

    slot: int
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class FrameColumns:
    """Live records in slot order. Offsets count from the start of the buffer; a column not asked for is None.

    Absent node and tag have a clear bit in `flags`; absent meta has length -1. `blob` is the whole stored payload.
    """

    slot: I64
    seq: I64
    ts: I64
    flags: U8
    node_offset: I64 | None
    node_len: I64 | None
    tag_offset: I64 | None
    tag_len: I64 | None
    blob_offset: I64 | None
    blob_len: I64 | None
    data_offset: I64 | None
    data_len: I64 | None
    meta_offset: I64 | None
    meta_len: I64 | None
    bad: tuple[BadSlot, ...]

    def __len__(self) -> int:
        return len(self.slot)

    @property
    def has_node(self) -> Bools:
        """Which records have a node."""
        present: Bools = (self.flags & HAS_NODE) != 0
        return present

    @property
    def has_tag(self) -> Bools:
        """Which records have a tag."""
        present: Bools = (self.flags & HAS_TAG) != 0
        return present


def decode_columns(
    data: Buffer,
    idx: Idx,
    *,
    first_seq: int,
    slots: npt.ArrayLike | None = None,
    want: Collection[str] = ALL,
    verify: bool = True,
    base: int = 0,
    include_dead: bool = False,
    sums: Summing = hash_slices,
) -> FrameColumns:
    """Columns of the records in `slots` (all when None), which must ascend.

    `idx` is the whole index of the segment and `first_seq` the seq of its slot 0. `base` is the `.data` offset of the
    buffer's first byte, for callers that fetched only a range. Empty slots never appear; deleted ones (entry bit or
    flag byte) only with `include_dead`, then with bit 2 set in `flags`. Without any of `want` only flag bytes are read.
    `sums` computes the checksums.
    """
    view = byte_view(data)
    slot = np.arange(len(idx), dtype=np.int64) if slots is None else np.asarray(slots, np.int64)
    entries = idx if slots is None else idx[slot]
    present = entries["len"] != 0
    if not include_dead:
        present &= (entries["flags"] & IDX_DELETED) == 0
    if not present.all():
        slot, entries = slot[present], entries[present]
    rows = _Rows(
        slot=slot,
        seq=slot + first_seq,
        ts=entries["ts"].astype(np.int64),
        flags=entries["flags"].copy(),
        offset=entries["offset"].astype(np.int64) - base,
        length=entries["len"].astype(np.int64),
    )
    frames = _Frames(data, view, sums)
    return _decode(frames, rows, frozenset(want), verify=verify, include_dead=include_dead)


def decode_frames(
    data: Buffer,
    offsets: npt.ArrayLike,
    lengths: npt.ArrayLike,
    *,
    want: Collection[str] = ALL,
    verify: bool = True,
    include_dead: bool = False,
) -> FrameColumns:
    """Columns of frames that come without an index (the frame endpoint); seq, ts and flags are the frames' own.

    The frames must be the ones that `scan_segment` found in this buffer.
    """
    view = byte_view(data)
    offset, length = np.asarray(offsets, np.int64), np.asarray(lengths, np.int64)
    head = gather_rows(view, offset, HEAD_DTYPE)
    rows = _Rows(
        slot=np.arange(len(offset), dtype=np.int64),
        seq=head["seq"].astype(np.int64),
        ts=head["ts"].astype(np.int64),
        flags=np.ascontiguousarray(head["flags"]),
        offset=offset,
        length=length,
    )
    frames = _Frames(data, view, hash_slices)
    return _decode(frames, rows, frozenset(want), verify=verify, include_dead=include_dead)


class _Frames(NamedTuple):
    """Where the frames are, and who computes their checksums."""

    data: Buffer
    view: memoryview
    sums: Summing


@dataclass(slots=True)
class _Columns:
    """Columns of the rows still standing; `keep` drops the others."""

    def keep(self, mask: Bools) -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name)[mask])


@dataclass(slots=True)
class _Rows(_Columns):
    slot: I64
    seq: I64
    ts: I64
    flags: U8
    offset: I64
    length: I64


@dataclass(slots=True)
class _Heads(_Columns):
    """What headers say; `word` is length and flags."""

    word: U64
    node_len: I64
    tag_len: I64
    blob_len: I64
    blob_at: I64


def _decode(frames: _Frames, rows: _Rows, want: frozenset[str], *, verify: bool, include_dead: bool) -> FrameColumns:
    bad: list[BadSlot] = []
    _reject(rows, bad, _is_inside(rows, len(frames.view)), "short")
    _reject(rows, bad, rows.length >= OVERHEAD_BYTES, "lengths")
    flagged = gather_u8(frames.view, rows.offset + rows.length - 1) == DELETED_BYTE
    if include_dead:
        rows.flags = rows.flags | (flagged * np.uint8(IDX_DELETED))
    elif flagged.any():
        rows.keep(~flagged)
    if not want:
        return _columns(rows, want, None, None, bad)
    head = _checked_heads(frames, rows, bad, verify=verify)
    meta = _blob.meta_lengths(frames.data, head.blob_at, head.blob_len) if want & {"data", "meta"} else None
    return _columns(rows, want, head, meta, bad)


def _is_inside(rows: _Rows, size: int) -> Bools:
    inside: Bools = (rows.offset >= 0) & (rows.offset + rows.length <= size)
    return inside


def _reject(rows: _Rows, bad: list[BadSlot], holds: Bools, reason: str) -> bool:
    """Moves rows for which something does not hold to `bad`; False when there are none."""
    if holds.all():
        return False
    pairs = zip(rows.slot[~holds].tolist(), rows.offset[~holds].tolist(), strict=True)
    bad.extend(BadSlot(slot, offset, reason) for slot, offset in pairs)
    rows.keep(holds)
    return True


def _checked_heads(frames: _Frames, rows: _Rows, bad: list[BadSlot], *, verify: bool) -> _Heads:
    """Headers of the rows that pass every check; the others move from `rows` to `bad`."""
    head = _heads(frames.view, rows.offset)
    for reason, check in _CHECKS if verify else _CHECKS_UNVERIFIED:
        holds = check(frames, rows, head)
        if _reject(rows, bad, holds, reason):
            head.keep(holds)
    return head


def _heads(view: memoryview, offset: I64) -> _Heads:
    lengths = gather_u64(view, offset + _LENGTHS_AT)
    node_len, tag_len = (lengths & _U16).view(np.int64), (lengths >> np.uint64(16) & _U16).view(np.int64)
    return _Heads(
        word=gather_u64(view, offset),
        node_len=node_len,
        tag_len=tag_len,
        blob_len=(lengths >> np.uint64(32)).view(np.int64),
        blob_at=offset + node_len + tag_len + HEAD_BYTES,
    )


def _frame_len_fits(_: _Frames, rows: _Rows, head: _Heads) -> Bools:
    fits: Bools = (head.word & _U32).view(np.int64) + LEN_BYTES == rows.length
    return fits


def _sum_matches(frames: _Frames, rows: _Rows, _: _Heads) -> Bools:
    return verify_frames(frames.data, rows.offset, rows.length, sums=frames.sums)


def _lengths_add_up(_: _Frames, rows: _Rows, head: _Heads) -> Bools:
    ends = head.blob_at + head.blob_len
    holds: Bools = (ends + TAIL_BYTES == rows.offset + rows.length) & (head.blob_len >= _blob.BLOB_BYTES_MIN)
    return holds


def _blob_wrapped(frames: _Frames, _: _Rows, head: _Heads) -> Bools:
    # A whole word is there even of the shortest blob: the checksum follows it.
    first, last = gather_u64(frames.view, head.blob_at), gather_u8(frames.view, head.blob_at + head.blob_len - 1)
    wrapped: Bools = (first & _BLOB_MASK == _BLOB_WORD) & (last == _blob.TAIL[0])
    return wrapped


def _seq_is_the_slots(frames: _Frames, rows: _Rows, _: _Heads) -> Bools:
    same: Bools = gather_u64(frames.view, rows.offset + _SEQ_AT) == rows.seq.view(np.uint64)
    return same


def _entry_describes(frames: _Frames, rows: _Rows, head: _Heads) -> Bools:
    flags = (head.word >> np.uint64(32)).astype(np.uint8)
    ts = gather_u64(frames.view, rows.offset + _TS_AT)
    same: Bools = (ts == rows.ts.view(np.uint64)) & (flags == (rows.flags & FLAGS_KNOWN))
    return same


_CHECKS: Final = (
    ("frame_len", _frame_len_fits),
    ("xxh3", _sum_matches),
    ("lengths", _lengths_add_up),
    ("blob", _blob_wrapped),
    ("seq", _seq_is_the_slots),
    ("idx", _entry_describes),
)
# Without checksums still nothing may be cut outside its frame.
_CHECKS_UNVERIFIED: Final = tuple((reason, check) for reason, check in _CHECKS if reason in ("frame_len", "lengths"))


def _columns(
    rows: _Rows, want: frozenset[str], head: _Heads | None, meta: I64 | None, bad: list[BadSlot]
) -> FrameColumns:
    texts: dict[str, I64 | None] = {f"{name}_{part}": None for name in _TEXTS for part in ("offset", "len")}
    if head is not None:
        node_at = rows.offset + HEAD_BYTES
        texts |= {"blob_offset": head.blob_at, "blob_len": head.blob_len}
        if "node" in want:
            texts |= {"node_offset": node_at, "node_len": head.node_len}
        if "tag" in want:
            texts |= {"tag_offset": node_at + head.node_len, "tag_len": head.tag_len}
        if meta is not None:
            texts |= _split(head.blob_at, head.blob_len, meta, want)
    return FrameColumns(slot=rows.slot, seq=rows.seq, ts=rows.ts, flags=rows.flags, **texts, bad=tuple(sorted(bad)))


_TEXTS: Final = ("node", "tag", "blob", "data", "meta")


def _split(blob_at: I64, blob_len: I64, meta: I64, want: frozenset[str]) -> dict[str, I64 | None]:
    """Places of the data and meta texts inside their blobs."""
    wrap: I64 | int = _blob.BLOB_BYTES_MIN
    if (meta >= 0).any():
        wrap = np.where(meta < 0, _blob.BLOB_BYTES_MIN, meta + _blob.WRAP_META_BYTES)
    texts: dict[str, I64 | None] = {}
    if "data" in want:
        texts |= {"data_offset": blob_at + len(_blob.HEAD), "data_len": blob_len - wrap}
    if "meta" in want:
        end = blob_at + blob_len - len(_blob.TAIL)
        texts |= {"meta_offset": end - np.maximum(meta, 0), "meta_len": meta}
    return texts


_LEN = Struct("<I")
_SUM_AND_FLAG = Struct("<QB")
_FLAGS = [bytes((flags & PRESENCE_MASK,)) for flags in range(256)]


def segment_frames_of(run: RecordRun) -> list[bytes]:
    """One frame per record."""
    buf, unpack = run.buf, BODY_HEAD.unpack_from
    frames: list[bytes] = []
    for off, flags in zip(run.body_offs, run.flags, strict=True):
        _, _, node_len, tag_len, data_len = unpack(buf, off)
        body = _FLAGS[flags] + buf[off : off + BODY_HEAD_BYTES + node_len + tag_len + data_len]
        frames.append(_LEN.pack(len(body) + 9) + body + _SUM_AND_FLAG.pack(xxh3(body), 0))
    return frames
