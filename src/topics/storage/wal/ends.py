"""Where a group's log ends and what lies behind the end (storage.md section 9.3).

Replay stops at the first bad frame; these values say what that means: nothing, a torn tail, a hole, or damage to bytes
that were synced once. Pure: bytes in, verdict out. Called by the reader.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from topics.formats.frame import FrameType
from topics.formats.search import Behind, scan_behind
from topics.formats.wal import Stop, WalColumns, complete_end

EndKind = Literal["clean", "torn", "hole", "damage"]
_STEP = 1 << 20


class CutPiece(msgspec.Struct, frozen=True):
    """Bytes `[start, end)` of a file that the log no longer reaches; a piece from 0 is the whole file."""

    number: int
    path: str
    start: int
    end: int


class GroupEnd(msgspec.Struct, frozen=True, kw_only=True):
    """End of one group. `number`, `offset`: where the good log stops. `highest`: per topic the highest seq among valid
    frames that are set aside, so that no seq is used twice."""

    kind: EndKind
    number: int = 0
    offset: int = 0
    reason: str = ""
    pieces: tuple[CutPiece, ...] = ()
    frames: int = 0
    highest: dict[int, int] = {}

    @property
    def cut_bytes(self) -> int:
        return sum(piece.end - piece.start for piece in self.pieces)

    @property
    def set_aside(self) -> bool:
        return self.kind in ("hole", "damage")


def end_of_data(buffer: bytes, start: int) -> int:
    """Behind the last byte that is not zero, at least `start`."""
    view = np.frombuffer(buffer, np.uint8)
    end = len(view)
    while end > start:
        lo = max(start, end - _STEP)
        used = np.flatnonzero(view[lo:end])
        if len(used):
            return lo + int(used[-1]) + 1
        end = lo
    return start


def log_end(columns: WalColumns, *, start: int) -> int:
    """End of the last whole submission, the file having been read from `start`."""
    return complete_end(columns, start)


def reads_clean(columns: WalColumns, end: int) -> bool:
    """Whether nothing but zeros, or nothing, follows the last whole submission."""
    return columns.stop is not Stop.BAD and columns.end == end


def valid_behind(buffer: bytes, start: int) -> Behind:
    """Valid frames at or behind `start`; linear in the bytes that are not trailing zeros."""
    # A frame may end in zero bytes of its checksum; eight more bytes cannot make one that was not there.
    return scan_behind(buffer, start, min(len(buffer), end_of_data(buffer, start) + 8))


def highest_seqs(behind: Behind, into: dict[int, int]) -> int:
    """Raise `into` (topic id to seq) by the Append frames found; gives the number of valid frames of any type."""
    frames = 0
    for columns in behind.stretches:
        frames += len(columns)
        appends = columns.type == FrameType.APPEND
        ids, seqs = columns.topic_id[appends], columns.seq[appends]
        for topic_id in np.unique(ids).tolist():
            into[topic_id] = max(into.get(topic_id, 0), int(seqs[ids == topic_id].max()))
    return frames


def has_frame_behind(behind: Behind, place: int) -> bool:
    """Whether a valid frame starts at or behind `place`, or the search could not rule it out."""
    return behind.exhausted or any(len(c) and int(c.offset[-1]) >= place for c in behind.stretches)
