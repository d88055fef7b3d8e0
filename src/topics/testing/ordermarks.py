"""What the synced part of a log allows: tier moves and floors, read from the frames themselves.

Called by the order monitor after each sync of a log file, so that no test has to tell it what the engine logged.
Only whole submissions count, as in recovery; the frames were written by the engine under test and are taken as good.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from topics.formats.bodies import CkptMark, Delete, EvictWatermark, TierMark, decode_body
from topics.formats.frame import HEAD_BYTES, LEN_BYTES, MORE, FrameType

_HEAD = struct.Struct("<IBBQQQHHI")
_READ = frozenset({FrameType.DELETE, FrameType.EVICT_WATERMARK, FrameType.CHECKPOINT_MARK})
assert _HEAD.size == HEAD_BYTES


class TierMoved(NamedTuple):
    topic_id: int
    first_seq: int
    tier: str


class FloorMoved(NamedTuple):
    """No seq below `floor` is needed any more."""

    topic_id: int
    floor: int


Mark = TierMoved | FloorMoved


def read_marks(log: bytes) -> tuple[list[Mark], int]:
    """The marks of the whole submissions at the start of `log`, and where the last of these ends."""
    marks: list[Mark] = []
    held: list[Mark] = []
    at = end = 0
    while at + HEAD_BYTES <= len(log):
        frame_len, kind, flags, topic_id, _, _, node_len, tag_len, data_len = _HEAD.unpack_from(log, at)
        if not frame_len or at + LEN_BYTES + frame_len > len(log):
            break
        if kind in _READ:
            start = at + HEAD_BYTES + node_len + tag_len
            held += _marks(kind, topic_id, log[start : start + data_len])
        at += LEN_BYTES + frame_len
        if not flags & MORE:
            marks += held
            held.clear()
            end = at
    return marks, end


def _marks(kind: int, topic_id: int, data: bytes) -> Iterator[Mark]:
    body = decode_body(kind, data)
    if isinstance(body, TierMark):
        yield from (TierMoved(move.id, move.first, move.tier) for move in body.moves)
    elif isinstance(body, EvictWatermark):
        yield FloorMoved(topic_id, body.earliest_seq)
    elif isinstance(body, CkptMark):
        yield from (FloorMoved(topic.id, topic.earliest_seq) for topic in body.topics)
    elif isinstance(body, Delete) and body.match is None and body.before_seq is not None:
        yield FloorMoved(topic_id, min(body.before_seq, body.bound_head or 0))
