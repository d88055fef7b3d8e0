"""The log in plain Python: one frame at a time, as docs/formats/wal-frame.md draws it. `native_log` does the same in C.

    WAL frame       0 frame_len u32 | 4 type u8 | 5 flags u8 | 6 topic_id u64 | 14 seq u64 | 22 ts u64
                    30 node_len u16 | 32 tag_len u16 | 34 data_len u32 | 38 node, tag, data | xxh3 u64
    segment frame   0 frame_len u32 | 4 flags u8 | 5 seq ... data, as in the log | xxh3 u64 | flag byte
    body            0 seq ... data: what both share

`frame_len` counts what follows it, and the checksum covers all between the two. A bad frame is a result with a reason.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from topics.errors import Corruption

REASONS: Final = (
    "",
    "short",
    "frame_len",
    "xxh3",
    "lengths",
    "flags",
    "presence",
    "type",
    "utf8",
    "blob",
    "seq",
    "idx",
)
"""Why a frame is bad."""

_HEAD: Final = Struct("<IBBQQQHHI")
_BODY_HEAD: Final = Struct("<QQHHI")
_ENTRY: Final = Struct("<IIQB3x")
_LEN: Final = Struct("<I")
_SUM: Final = Struct("<Q")
_OVERHEAD, _SHARED_AT = 46, 14
_FRAME_LEN_MAX: Final = 64 << 20
_HAS_TAG, _HAS_NODE, _DURABLE, _MORE = 1, 2, 4, 8
_PRESENCE: Final = _HAS_TAG | _HAS_NODE

_xxh3: Final = xxhash.xxh3_64_intdigest


class EncodedAppends(NamedTuple):
    """A run of Append frames and where each one lies in it; `lengths` are of whole frames."""

    buffer: bytes
    offsets: array[int]
    lengths: array[int]


def encode_appends(
    *,
    topic_id: int,
    first_seq: int,
    ts: int | Sequence[int],
    datas: Sequence[bytes],
    nodes: Sequence[bytes | None] | bytes | None = None,
    tags: Sequence[bytes | None] | None = None,
    durable: bool,
    more_after: bool = False,
    runs: Sequence[int] | None = None,
) -> EncodedAppends:
    """Append frames with seqs from `first_seq` on.

    `datas` are payload blobs. `nodes` is one node for all records or one entry each, and so is `ts`. With `runs` they
    are several writes that only travel together, of so many records each. All frames of a run but its last have `more`
    set; the very last has it too when frames of the same submission follow (`more_after`).
    """
    count, buffer, offsets, lengths = len(datas), bytearray(), array("I"), array("I")
    if not count:
        return EncodedAppends(b"", offsets, lengths)
    lasts = _lasts(count, runs)
    if more_after:
        lasts.discard(count - 1)
    each_node = _one_each(nodes, count)
    each_tag = _one_each(tags, count)
    times = [ts] * count if isinstance(ts, int) else ts
    if len(times) != count:
        raise ValueError(f"{len(times)} times for {count} records")
    for row, (moment, node, tag, data) in enumerate(zip(times, each_node, each_tag, datas, strict=True)):
        flags = (_DURABLE if durable else 0) | (0 if row in lasts else _MORE)
        frame = encode_frame(1, flags, topic_id, first_seq + row, moment, node, tag, data)
        offsets.append(len(buffer))
        lengths.append(len(frame))
        buffer += frame
    return EncodedAppends(bytes(buffer), offsets, lengths)


def _lasts(count: int, runs: Sequence[int] | None) -> set[int]:
    """The rows that end a run."""
    lasts, end = set(), 0
    for run in (count,) if runs is None else runs:
        end += run
        if run < 1:
            raise ValueError("the runs do not add up to the records")
        lasts.add(end - 1)
    if end != count:
        raise ValueError("the runs do not add up to the records")
    return lasts


def _one_each(values: Sequence[bytes | None] | bytes | None, count: int) -> Sequence[bytes | None]:
    if values is None or isinstance(values, bytes):
        return [values] * count
    if len(values) != count:
        raise ValueError(f"{len(values)} nodes or tags for {count} records")
    return values


def encode_frame(
    kind: int, flags: int, topic_id: int, seq: int, ts: int, node: bytes | None, tag: bytes | None, data: bytes
) -> bytes:
    """One frame of any type; `flags` come without the presence bits."""
    flags |= (0 if tag is None else _HAS_TAG) | (0 if node is None else _HAS_NODE)
    node, tag = node or b"", tag or b""
    if len(node) > 0xFFFF or len(tag) > 0xFFFF:
        raise ValueError("a node or a tag has at most 65535 bytes")
    frame_len = _OVERHEAD - 4 + len(node) + len(tag) + len(data)
    if frame_len > _FRAME_LEN_MAX:
        raise ValueError("a frame holds at most 67108864 bytes behind its length field")
    head = _HEAD.pack(frame_len, kind, flags, topic_id, seq, ts, len(node), len(tag), len(data))
    body = b"".join((head[4:], node, tag, data))
    return head[:4] + body + _SUM.pack(_xxh3(body))


def scan_wal_frames(buffer: Any, start: int, limit: int, verify: bool) -> tuple[Any, ...]:
    """Columns of the good frames in `[start, limit)` (offset, length and the fields of the header behind its length),
    the place where they end, and why they end there: empty at `limit`. Bodies of control frames are not looked at."""
    view = memoryview(buffer).cast("B")
    if start < 0 or limit > len(view):
        raise ValueError("the log's end lies outside of its buffer")
    rows: list[tuple[int, ...]] = []
    at, reason = start, ""
    while at < limit and not reason:
        reason = wal_frame_problem(view[at:limit], verify=verify)
        if not reason:
            frame_len, *fields = _HEAD.unpack_from(view, at)
            rows.append((at, frame_len + 4, *fields))
            at += frame_len + 4
    columns = zip(*rows, strict=True) if rows else [()] * len(WAL_TYPES)
    return (*(np.array(column, kind) for column, kind in zip(columns, WAL_TYPES, strict=True)), at, reason)


WAL_TYPES: Final[tuple[npt.DTypeLike, ...]] = ("i8", "u4", "u1", "u1", "u8", "u8", "u8", "u2", "u2", "u4")
"""Of the columns of `scan_wal_frames`."""


def wal_frame_problem(view: memoryview, *, verify: bool) -> str:
    """The check that the frame at the start of `view` fails first (`docs/spec/storage.md#sec-3-5`), or nothing."""
    if len(view) < 4:
        return "short"
    (frame_len,) = _LEN.unpack_from(view)
    if not _OVERHEAD - 4 <= frame_len <= _FRAME_LEN_MAX:
        return "frame_len"
    if frame_len + 4 > len(view):
        return "short"
    end = frame_len + 4 - 8
    if verify and _xxh3(view[4:end]) != _SUM.unpack_from(view, end)[0]:
        return "xxh3"
    _, kind, flags, _, _, _, node_len, tag_len, data_len = _HEAD.unpack_from(view)
    if node_len + tag_len + data_len + _OVERHEAD != frame_len + 4:
        return "lengths"
    if flags > _HAS_TAG | _HAS_NODE | _DURABLE | _MORE:
        return "flags"
    if (tag_len and not flags & _HAS_TAG) or (node_len and not flags & _HAS_NODE):
        return "presence"
    if not 1 <= kind <= 14:
        return "type"
    tag_at = _HEAD.size + node_len
    if not (is_utf8(view[_HEAD.size : tag_at]) and is_utf8(view[tag_at : tag_at + tag_len])):
        return "utf8"
    return "blob" if kind == 1 and not is_blob(view[tag_at + tag_len : end]) else ""


def is_utf8(text: memoryview) -> bool:
    try:
        str(text, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def is_blob(text: memoryview) -> bool:
    """Whether it is wrapped as a payload is: `{"d":...}`."""
    return len(text) >= 6 and text[:5].tobytes() == b'{"d":' and text[-1] == ord("}")


def wal_to_segment(
    buffer: Any,
    offsets: npt.ArrayLike,
    lengths: npt.ArrayLike,
    *,
    seqs: npt.ArrayLike | None = None,
    base: int,
    verify: bool,
    file: str,
) -> tuple[bytes, npt.NDArray[np.uint8]]:
    """Segment frames of the Append frames at `offsets`, and the bytes of their entries, as they lie from `base` of
    `.data` on. Corruption of `file` if one lies outside of the buffer, is not of its seq, or fails its checksum."""
    view = memoryview(buffer).cast("B")
    places, sizes = np.asarray(offsets, np.int64).tolist(), np.asarray(lengths, np.int64).tolist()
    wanted = [None] * len(places) if seqs is None else np.asarray(seqs).tolist()
    rows = list(zip(places, sizes, wanted, strict=True))
    for at, length, _ in rows:
        if length < _OVERHEAD or not 0 <= at <= len(view) - length:
            raise Corruption(file=file, offset=at, reason="short")
    frames, entries = bytearray(), bytearray()
    for at, length, wanted_seq in rows:
        end = at + length - 8
        _, _, flags, _, seq, ts, _, _, _ = _HEAD.unpack_from(view, at)
        if wanted_seq is not None and seq != wanted_seq:
            raise Corruption(file=file, offset=at, reason="seq")
        if verify and _xxh3(view[at + 4 : end]) != _SUM.unpack_from(view, end)[0]:
            raise Corruption(file=file, offset=at, reason="xxh3")
        frame = segment_frame(flags & _PRESENCE, bytes(view[at + _SHARED_AT : end]))
        entries += _ENTRY.pack(base + len(frames), len(frame), ts, flags & _PRESENCE)
        frames += frame
    return bytes(frames), np.frombuffer(entries, np.uint8)


def segment_frame(flags: int, body: bytes) -> bytes:
    """The segment frame of a body, not flagged deleted."""
    summed = bytes((flags,)) + body
    return _LEN.pack(len(summed) + 9) + summed + _SUM.pack(_xxh3(summed)) + b"\0"


def encode_bodies(buffer: Any, offsets: Sequence[int], flags: bytes) -> tuple[bytes, array[int]]:
    """Segment frames of the bodies at `offsets`, back to back, and where each begins; the last bound is the end."""
    view = memoryview(buffer).cast("B")
    if len(flags) != len(offsets):
        raise ValueError(f"{len(flags)} flags for {len(offsets)} records")
    frames, bounds = bytearray(), array("q", [0])
    for at, bits in zip(offsets, flags, strict=True):
        if not 0 <= at <= len(view) - _BODY_HEAD.size:
            raise ValueError("a body lies outside of its buffer")
        _, _, node_len, tag_len, data_len = _BODY_HEAD.unpack_from(view, at)
        size = _BODY_HEAD.size + node_len + tag_len + data_len
        if at > len(view) - size:
            raise ValueError("a body lies outside of its buffer")
        frames += segment_frame(bits & _PRESENCE, bytes(view[at : at + size]))
        bounds.append(len(frames))
    return bytes(frames), bounds
