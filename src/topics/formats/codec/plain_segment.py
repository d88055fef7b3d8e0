"""Segments in plain Python: one frame at a time, as docs/formats/segment.md draws it. `native_segment` does the same.

frame   0 frame_len u32 | 4 flags u8 | 5 seq u64 | 13 ts u64 | 21 node_len u16 | 23 tag_len u16 | 25 data_len u32
        29 node, tag, blob | xxh3 u64 | flag byte
entry   0 offset u32 | 4 len u32 | 8 ts u64 | 16 flags u8 | 17 pad
blob    {"d":<data>} or {"d":<data>,"m":<meta>}
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Sequence
from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from topics.formats.codec.plain_log import is_blob

_HEAD: Final = Struct("<IBQQHHI")
_ENTRY: Final = Struct("<IIQB3x")
_LEN: Final = Struct("<I")
_SUM: Final = Struct("<Q")
_OVERHEAD, _TAIL, _BODY_HEAD = 38, 9, 24
_FRAME_LEN_MAX: Final = 64 << 20
_HAS_TAG, _HAS_NODE, _DELETED = 1, 2, 4
_PRESENCE: Final = _HAS_TAG | _HAS_NODE
_DELETED_BYTE: Final = 0xD5
_MARK: Final = b',"m":'

_xxh3: Final = xxhash.xxh3_64_intdigest
_I64 = npt.NDArray[np.int64]


def scan_segment_frames(buffer: Any, start: int, frames_max: int, verify: bool) -> tuple[Any, ...]:
    """Columns of the good frames from `start` on (offset, length, fields of the header, flag byte), where they end, and
    why: empty at the end of the buffer, or where there are `frames_max`."""
    view = memoryview(buffer).cast("B")
    if start < 0:
        raise ValueError("a scan starts inside of its buffer")
    rows: list[tuple[int, ...]] = []
    at, reason = start, ""
    while at < len(view) and len(rows) < frames_max and not reason:
        reason = _problem(view[at:], verify=verify)
        if not reason:
            frame_len, flags, seq, ts, *lens = _HEAD.unpack_from(view, at)
            end = at + frame_len + 4
            rows.append((at, frame_len + 4, seq, ts, flags, *lens, view[end - 1]))
            at = end
    columns = zip(*rows, strict=True) if rows else [()] * len(_TYPES)
    return (*(np.array(column, kind) for column, kind in zip(columns, _TYPES, strict=True)), at, reason)


_TYPES: Final[tuple[npt.DTypeLike, ...]] = ("i8", "u4", "u8", "u8", "u1", "u2", "u2", "u4", "u1")


def _problem(view: memoryview, *, verify: bool) -> str:
    """The check that the frame at the start of `view` fails first, or nothing."""
    if len(view) < _OVERHEAD:
        return "short"
    frame_len, flags, _, _, node_len, tag_len, data_len = _HEAD.unpack_from(view)
    if not _OVERHEAD - 4 <= frame_len <= _FRAME_LEN_MAX:
        return "frame_len"
    if frame_len + 4 > len(view):
        return "short"
    if node_len + tag_len + data_len + _OVERHEAD != frame_len + 4 or flags > _PRESENCE:
        return "lengths"
    if (tag_len and not flags & _HAS_TAG) or (node_len and not flags & _HAS_NODE):
        return "lengths"
    end = frame_len + 4 - _TAIL
    return "xxh3" if verify and _xxh3(view[4:end]) != _SUM.unpack_from(view, end)[0] else ""


def decode_entries(
    buffer: Any,
    entries: npt.NDArray[np.void],
    slots: npt.ArrayLike | None,
    first_seq: int,
    base: int,
    want: Collection[str],
    verify: bool,
    include_dead: bool,
) -> tuple[Any, ...]:
    """The columns of `topics.formats.segments.columns.FrameColumns`, of the frames that entries describe."""
    found = _Decoding(buffer, want, verify=verify, include_dead=include_dead)
    raw = np.ascontiguousarray(entries).tobytes()
    count = len(raw) // _ENTRY.size
    for slot in range(count) if slots is None else np.asarray(slots, np.int64).tolist():
        if not 0 <= slot < count:
            raise IndexError(f"slot {slot} of {count}")
        offset, length, ts, flags = _ENTRY.unpack_from(raw, slot * _ENTRY.size)
        if length and (include_dead or not flags & _DELETED):
            found.add(slot, offset - base, length, (first_seq + slot, ts, flags))
    return found.columns()


def decode_at(
    buffer: Any, offsets: npt.ArrayLike, lengths: npt.ArrayLike, want: Collection[str], verify: bool, include_dead: bool
) -> tuple[Any, ...]:
    """The same of frames without entries: seq, ts and flags are their own."""
    found = _Decoding(buffer, want, verify=verify, include_dead=include_dead)
    places, sizes = np.asarray(offsets, np.int64).tolist(), np.asarray(lengths, np.int64).tolist()
    for slot, (offset, length) in enumerate(zip(places, sizes, strict=True)):
        found.add(slot, offset, length, None)
    return found.columns()


def live_bodies(
    buffer: Any, entries: npt.NDArray[np.void], slots: Sequence[int] | _I64, first_seq: int
) -> tuple[array[int], bytes] | None:
    """Where the bodies (`topics.model.run`) of the live ones among these slots lie, and which have a node and a tag.
    None if a frame or its entry is damaged."""
    *found, bad = decode_entries(buffer, entries, slots, first_seq, 0, {"node"}, True, False)
    if bad:
        return None
    flags, node_offset = found[3], found[4]
    return array("q", (node_offset - _BODY_HEAD).tobytes()), (flags & _PRESENCE).tobytes()


class _Decoding:
    def __init__(self, buffer: Any, want: Collection[str], *, verify: bool, include_dead: bool) -> None:
        self.view = memoryview(buffer).cast("B")
        self.want = want
        self.verify = verify
        self.include_dead = include_dead
        self.rows: list[tuple[int, ...]] = []
        self.bad: list[tuple[int, int, str]] = []

    def add(self, slot: int, offset: int, length: int, entry: tuple[int, int, int] | None) -> None:
        """One frame; `entry` has the seq, ts and flags that it must have."""
        if offset < 0 or length < 0 or offset > len(self.view) - length:
            self.bad.append((slot, offset, "short"))
            return
        if length < _OVERHEAD:
            self.bad.append((slot, offset, "lengths"))
            return
        is_flagged = self.view[offset + length - 1] == _DELETED_BYTE
        if is_flagged and not self.include_dead:
            return
        if entry is None:
            _, flags, seq, ts, _, _, _ = _HEAD.unpack_from(self.view, offset)
            entry = seq, ts, flags
        reason = self._problem(self.view[offset : offset + length], entry) if self.want else ""
        if reason:
            self.bad.append((slot, offset, reason))
            return
        seq, ts, flags = entry
        texts = self._texts(offset) if self.want else ()
        self.rows.append((slot, _signed(seq), _signed(ts), flags | (_DELETED if is_flagged else 0), *texts))

    def _problem(self, frame: memoryview, entry: tuple[int, int, int]) -> str:
        frame_len, flags, seq, ts, node_len, tag_len, blob_len = _HEAD.unpack_from(frame)
        end = len(frame) - _TAIL
        if frame_len + 4 != len(frame):
            return "frame_len"
        if self.verify and _xxh3(frame[4:end]) != _SUM.unpack_from(frame, end)[0]:
            return "xxh3"
        if node_len + tag_len + blob_len + _OVERHEAD != len(frame) or blob_len < 6:
            return "lengths"
        if not self.verify:
            return ""
        if not is_blob(frame[end - blob_len : end]):
            return "blob"
        if seq != entry[0]:
            return "seq"
        return "" if (ts, flags) == (entry[1], entry[2] & _PRESENCE) else "idx"

    def _texts(self, offset: int) -> tuple[int, ...]:
        """Places and lengths of node, tag, blob, data and meta."""
        _, _, _, _, node_len, tag_len, blob_len = _HEAD.unpack_from(self.view, offset)
        node_at = offset + _HEAD.size
        tag_at = node_at + node_len
        blob_at = tag_at + tag_len
        meta_len = meta_length(self.view[blob_at : blob_at + blob_len].tobytes())
        end = blob_at + blob_len - 1
        data_len = blob_len - 6 if meta_len < 0 else blob_len - 11 - meta_len
        data = blob_at + 5, data_len
        return node_at, node_len, tag_at, tag_len, blob_at, blob_len, *data, end - max(meta_len, 0), meta_len

    def columns(self) -> tuple[Any, ...]:
        wanted = [name in self.want for name in ("node", "tag")] + [bool(self.want)]
        wanted += [name in self.want for name in ("data", "meta")]
        kinds = ["i8", "i8", "i8", "u1"] + ["i8" if is_wanted else None for is_wanted in wanted for _ in range(2)]
        columns = list(zip(*self.rows, strict=True)) if self.rows else [()] * len(kinds)
        columns += [()] * (len(kinds) - len(columns))
        made = [None if kind is None else np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        return *made, self.bad


def _signed(value: int) -> int:
    """As a column of signed integers has it."""
    return value - (value >> 63 << 64)


def meta_length(blob: bytes) -> int:
    """Length of the meta text, -1 if there is none. A mark has bare quotes, so it lies in no string; it is the one
    between data and meta if no bracket of data is open in front of it."""
    at, depth, end = 5, 0, len(blob) - 1
    while _MARK in blob and at < end:
        char = blob[at : at + 1]
        if char == b'"':
            at += 1
            while at < end and blob[at : at + 1] != b'"':
                at += 2 if blob[at : at + 1] == b"\\" else 1
        elif char in b"{[":
            depth += 1
        elif char in b"}]":
            depth -= 1
        elif depth == 0 and blob.startswith(_MARK, at, end):
            return end - at - len(_MARK)
        at += 1
    return -1


def meta_lengths(buffer: Any, starts: npt.ArrayLike, lengths: npt.ArrayLike) -> _I64:
    """Byte length of the meta text of every blob, -1 where there is none."""
    return np.array([meta_length(piece.tobytes()) for piece in _pieces(buffer, starts, lengths)], np.int64)


def hash_slices(buffer: Any, starts: npt.ArrayLike, lengths: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """XXH3-64 of every piece."""
    return np.array([_xxh3(piece) for piece in _pieces(buffer, starts, lengths)], np.uint64)


def gather_texts(buffer: Any, starts: npt.ArrayLike, lengths: npt.ArrayLike) -> tuple[npt.NDArray[np.int32], bytes]:
    """The pieces back to back, and their bounds, as Arrow has strings."""
    texts = [piece.tobytes() for piece in _pieces(buffer, starts, lengths)]
    ends = np.cumsum([0, *map(len, texts)])
    if ends[-1] > 2**31 - 1:
        raise ValueError("texts of one column have less than 2 GiB")
    return ends.astype(np.int32), b"".join(texts)


def _pieces(buffer: Any, starts: npt.ArrayLike, lengths: npt.ArrayLike) -> Iterator[memoryview]:
    view = memoryview(buffer).cast("B")
    places, sizes = np.asarray(starts, np.int64), np.asarray(lengths, np.int64)
    if len(places) != len(sizes):
        raise ValueError(f"{len(sizes)} lengths for {len(places)} pieces")
    if ((places < 0) | (sizes < 0) | (places > len(view) - sizes)).any():
        raise IndexError("a piece lies outside of its buffer")
    return (view[start : start + size] for start, size in zip(places.tolist(), sizes.tolist(), strict=True))
