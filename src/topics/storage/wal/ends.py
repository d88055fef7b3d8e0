"""Where a group's log ends and what lies behind the end (`docs/spec/storage.md#sec-9-3`).

Replay stops at the first bad frame; these values say what that means: nothing, a torn tail, a hole, or damage to bytes
that were synced once. Pure: bytes in, verdict out. Called by the reader.
"""

from __future__ import annotations

from struct import Struct
from typing import Literal

import msgspec
import numpy as np

from topics.formats.buffers import Buffer
from topics.formats.wal.bodies import Body, CkptMark
from topics.formats.wal.frame import (
    FRAME_LEN_MAX,
    FRAME_LEN_MIN,
    HEAD_BYTES,
    LEN_BYTES,
    OVERHEAD_BYTES,
    SUM_BYTES,
    FrameType,
)
from topics.formats.wal.search import Behind, scan_behind
from topics.model.ops import Delete, HeadMark

EndKind = Literal["clean", "torn", "hole", "damage"]
_STEP = 1 << 16
_LENGTHS = Struct("<HHI")


class CutPiece(msgspec.Struct, frozen=True):
    """Bytes `[start, end)` of a file that the log no longer reaches; a piece from 0 is the whole file."""

    number: int
    path: str
    start: int
    end: int


class GroupEnd(msgspec.Struct, frozen=True, kw_only=True):
    """End of one group. `number`, `offset`: where the good log stops. `highest`: per topic the highest seq that valid
    frames set aside prove to be used, so that no seq names two records; 0 for a topic of which only the id is known.
    `unread_bytes`: how many bytes of the pieces belong to no valid frame, and may have held frames all the same."""

    kind: EndKind
    number: int = 0
    offset: int = 0
    reason: str = ""
    pieces: tuple[CutPiece, ...] = ()
    frames: int = 0
    unread_bytes: int = 0
    highest: dict[int, int] = {}

    @property
    def cut_bytes(self) -> int:
        return sum(piece.end - piece.start for piece in self.pieces)

    @property
    def set_aside(self) -> bool:
        return self.kind in ("hole", "damage")


def end_of_data(buffer: Buffer, start: int) -> int:
    """Behind the last byte that is not zero, at least `start`."""
    view = np.frombuffer(buffer, np.uint8)
    end = len(view)
    while end > start:
        lo = max(start, end - _STEP)
        used = view[lo:end] != 0
        if used.any():
            return end - int(used[::-1].argmax())
        end = lo
    return start


def valid_behind(buffer: Buffer, start: int) -> Behind:
    """Valid frames at or behind `start`; linear in the bytes that are not trailing zeros."""
    # A frame may end in zero bytes of its checksum; eight more bytes cannot make one that was not there.
    return scan_behind(buffer, start, min(len(buffer), end_of_data(buffer, start) + SUM_BYTES))


def highest_seqs(behind: Behind, into: dict[int, int]) -> int:
    """Raise `into` (topic id to seq) by all that the frames prove to be used; gives the number of valid frames.

    Frames between the valid ones are lost, so not only Appends count: a ceiling or a delete bound that was logged
    proves that seqs up to it may have been handed out. A topic without any seq gets 0: its id is used."""
    frames = 0
    for columns in behind.stretches:
        frames += len(columns)
        for topic_id in np.unique(columns.topic_id[columns.topic_id > 0]).tolist():
            seqs = columns.seq[(columns.topic_id == topic_id) & (columns.type == FrameType.APPEND)]
            _raise(into, topic_id, int(seqs.max()) if len(seqs) else 0)
        for row, body in columns.bodies.items():
            _raise_by_body(into, int(columns.topic_id[row]), body)
    return frames


def _raise_by_body(into: dict[int, int], topic_id: int, body: Body) -> None:
    if isinstance(body, HeadMark):
        _raise(into, topic_id, max(body.ceiling, (body.resume_at or 1) - 1))
    elif isinstance(body, Delete):
        _raise(into, topic_id, max((body.bound_head or 1) - 1, *(body.seqs or (0,))))
    elif isinstance(body, CkptMark):
        for mark in body.topics:
            _raise(into, mark.id, max(mark.seq, mark.ceiling))


def _raise(into: dict[int, int], topic_id: int, seq: int) -> None:
    into[topic_id] = max(into.get(topic_id, 0), seq)


def whole_size(buffer: Buffer, at: int) -> int:
    """Bytes of the frame at `at` as its length field has it; 0 if that is none."""
    frame_len = int.from_bytes(buffer[at : at + LEN_BYTES], "little")
    return LEN_BYTES + frame_len if FRAME_LEN_MIN <= frame_len <= FRAME_LEN_MAX else 0


def lengths_agree(buffer: Buffer, at: int) -> bool:
    """Whether the lengths in the head of the frame at `at` add up to that of the frame: then none of them is wrong."""
    node_len, tag_len, data_len = _LENGTHS.unpack_from(buffer, at + HEAD_BYTES - _LENGTHS.size)
    return bool(whole_size(buffer, at) == OVERHEAD_BYTES + node_len + tag_len + data_len)


def synced_behind(behind: Behind, place: tuple[int, int]) -> bool:
    """Whether a frame behind `place` proves that it was synced: a `ckpt` mark is written once the log is synced up to
    the position in it."""
    bodies = [body for columns in behind.stretches for body in columns.bodies.values()]
    return any(isinstance(body, CkptMark) and (body.file, body.off) > place for body in bodies)


def has_frame_behind(behind: Behind, place: int) -> bool:
    """Whether a valid frame starts at or behind `place`, or the search could not rule it out."""
    return behind.exhausted or any(len(c) and int(c.offset[-1]) >= place for c in behind.stretches)
