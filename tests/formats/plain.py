"""The formats once more, one frame at a time and written for plainness: what the fast decoders are compared with."""

import struct
from typing import NamedTuple

import xxhash

from topics.errors import Corruption
from topics.formats.wal.bodies import decode_body


class PlainFrame(NamedTuple):
    offset: int
    length: int
    type: int
    flags: int
    topic_id: int
    seq: int
    ts: int
    node: bytes
    tag: bytes
    data: bytes


def wal_frame_at(log: bytes, at: int) -> PlainFrame | str:
    """The frame at an offset, or why it is bad: the checks of `docs/spec/storage.md#sec-3-5` in their order."""
    if len(log) - at < 4:
        return "short"
    (frame_len,) = struct.unpack_from("<I", log, at)
    if not 42 <= frame_len <= 67108864:
        return "frame_len"
    if at + 4 + frame_len > len(log):
        return "short"
    raw = log[at : at + 4 + frame_len]
    if xxhash.xxh3_64(raw[4:-8]).intdigest() != struct.unpack("<Q", raw[-8:])[0]:
        return "xxh3"
    _, kind, flags, topic_id, seq, ts, n, m, p = struct.unpack_from("<IBBQQQHHI", raw)
    if n + m + p + 42 != frame_len:
        return "lengths"
    if flags & 0xF0:
        return "flags"
    if (m and not flags & 1) or (n and not flags & 2):
        return "presence"
    if not 1 <= kind <= 14:
        return "type"
    node, tag, data = raw[38 : 38 + n], raw[38 + n : 38 + n + m], raw[38 + n + m : -8]
    try:
        node.decode(), tag.decode()
    except UnicodeDecodeError:
        return "utf8"
    if kind == 1:
        if len(data) < 6 or not data.startswith(b'{"d":') or not data.endswith(b"}"):
            return "blob"
    else:
        try:
            decode_body(kind, data)
        except Corruption:
            return "body"
    return PlainFrame(at, len(raw), kind, flags, topic_id, seq, ts, node, tag, data)


def wal_frames(log: bytes, start: int = 0) -> tuple[list[PlainFrame], str]:
    """All good frames, and how it ended: "eof", "clean" or the reason of the bad frame."""
    found: list[PlainFrame] = []
    at = start
    while at < len(log):
        if not any(log[at:]):
            return found, "clean"
        frame = wal_frame_at(log, at)
        if isinstance(frame, str):
            return found, frame
        found.append(frame)
        at += frame.length
    return found, "eof"


class PlainRecord(NamedTuple):
    offset: int
    length: int
    flags: int
    seq: int
    ts: int
    node: bytes
    tag: bytes
    data: bytes
    del_flag: int


def segment_frame_at(data: bytes, at: int) -> PlainRecord | None:
    """The segment frame at an offset, or None when it is bad."""
    if len(data) - at < 38:
        return None
    frame_len, flags, seq, ts, n, m, p = struct.unpack_from("<IBQQHHI", data, at)
    if frame_len != 34 + n + m + p or frame_len > 67108864 or at + 4 + frame_len > len(data):
        return None
    if flags > 3 or (m and not flags & 1) or (n and not flags & 2):
        return None
    raw = data[at : at + 4 + frame_len]
    if xxhash.xxh3_64(raw[4:-9]).intdigest() != struct.unpack("<Q", raw[-9:-1])[0]:
        return None
    texts = raw[29:-9]
    return PlainRecord(at, len(raw), flags, seq, ts, texts[:n], texts[n : n + m], texts[n + m :], raw[-1])


def segment_frames(data: bytes) -> list[PlainRecord]:
    found: list[PlainRecord] = []
    at = 0
    while (frame := segment_frame_at(data, at)) is not None:
        found.append(frame)
        at += frame.length
    return found
