"""Small blocks of any topics, read as one chunk: a segment of ten records costs one read and no decoding of its own.

Whole sealed segments and pieces of the log are put one after the other and decoded together; each row keeps the number
of its block, which says its topic. Frames say themselves where they end and which seq they have, so the index of a
segment is read only where frames are missing: then it has to show that their slots are empty. Anything that is not as
it should be (bytes that hold no frame, a seq that is not the next one, an index that shows another place) makes the
chunk `None`: the caller then reads block by block, which repairs what can be repaired and names what cannot. Called by
`topics.spark.scanning.task_scan` on executors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from topics.formats.segments import ENTRY_BYTES, idx_agrees, read_idx, scan_segment, segment_frames_from_wal
from topics.formats.segments.columns import decode_frames
from topics.spark.logs.read_files import Files
from topics.spark.planning.cut import I64, LogBlock, SegmentBlock
from topics.spark.planning.tasks import Slice, TopicPart
from topics.spark.scanning.arrow_columns import MixedOrigin, TextTest, passing, record_batch
from topics.storage.fs import read_full

SMALL_BYTES: Final = 128 << 10
"""Blocks up to this size are merged: opening and decoding one costs about as much as so many bytes."""


@dataclass(frozen=True, slots=True)
class SmallBlock:
    """One block: its frames back to back, and where they are from."""

    part: TopicPart
    piece: Slice
    data: bytes
    files: Files
    block: SegmentBlock | LogBlock


def is_small(part: TopicPart, piece: Slice, block: SegmentBlock | LogBlock) -> bool:
    """Whether a slice may be merged with others: nothing has to be left out of it, and nothing counted."""
    if part.limit is not None or part.dead or part.tag_deletes or block.bytes > SMALL_BYTES:
        return False
    if isinstance(block, LogBlock):
        offsets = block.offset_array
        return int(offsets[-1] - offsets[0]) <= SMALL_BYTES  # frames of other topics lie between them
    return block.is_sealed and piece.lo == block.first_seq and piece.hi == block.end_seq


def read_small(files: Files, part: TopicPart, piece: Slice, block: SegmentBlock | LogBlock) -> SmallBlock:
    """Raises FileNotFoundError where the block is not there (any more)."""
    if isinstance(block, SegmentBlock):
        return SmallBlock(part, piece, files.read_up_to(f"{block.stem}.data", block.bytes), files, block)
    offsets, lengths = block.offset_array, block.length_array
    base, end = int(offsets[0]), int(offsets[-1] + lengths[-1])
    file = files.open(block.path)
    try:
        raw = read_full(file, base, end - base)
    finally:
        file.close()
    if len(raw) < end - base:
        raise FileNotFoundError(block.path)
    frames = segment_frames_from_wal(raw, offsets - base, lengths, file=block.path)
    return SmallBlock(part, piece, bytes(frames.buffer), files, block)


def merged_batch(
    blocks: Sequence[SmallBlock], *, schema: pa.Schema, want: frozenset[str], tests: Sequence[TextTest], verify: bool
) -> pa.RecordBatch | None:
    """The rows of all blocks, in their order; None where something is wrong with one of them."""
    data = b"".join([block.data for block in blocks])
    frames = scan_segment(data, verify=verify)
    if frames.reason:
        return None
    ends = np.cumsum([len(block.data) for block in blocks])
    number = np.searchsorted(ends, frames.offset, side="right")
    counts = np.bincount(number, minlength=len(blocks))
    reached = np.concatenate(([0], frames.offset + frames.length))[np.cumsum(counts)]
    if (reached != ends).any():
        return None  # a frame that begins in one block and ends in another
    seqs = _seqs(blocks, counts)
    if seqs is None or not np.array_equal(seqs, frames.seq):
        return None
    columns = decode_frames(data, frames.offset, frames.length, want=want, verify=False)
    rows = passing(columns, data, tests=tests, dead=(), tag_deletes=())
    parts = [block.part for block in blocks]
    origin = MixedOrigin([part.topic for part in parts], [part.epoch for part in parts], number[columns.slot])
    return record_batch(columns, data, rows, origin=origin, schema=schema)


def _seqs(blocks: Sequence[SmallBlock], counts: I64) -> I64 | None:
    """The seqs that the frames of the blocks must have; None where nothing says why some are missing."""
    starts = np.cumsum(counts) - counts
    firsts = np.array([block.piece.lo for block in blocks])
    seqs: I64 = np.repeat(firsts - starts, counts) + np.arange(int(counts.sum()))
    slots = np.array([block.piece.count for block in blocks])
    for at in np.flatnonzero(slots != counts).tolist():
        known = _used_seqs(blocks[at])
        if known is None or len(known) != counts[at]:
            return None
        seqs[starts[at] : starts[at] + counts[at]] = known
    return seqs


def _used_seqs(small: SmallBlock) -> I64 | None:
    """Seqs of the block that have a frame, by its index; None where that does not fit the frames."""
    block = small.block
    if isinstance(block, LogBlock):
        return block.seq_array
    try:
        raw = small.files.read(f"{block.stem}.idx")
    except FileNotFoundError:
        return None
    if len(raw) != block.count * ENTRY_BYTES or idx_agrees(raw, len(small.data), small.data) is not None:
        return None
    return np.flatnonzero(read_idx(raw)["len"]) + block.first_seq
