"""Small blocks of any topics, read as one chunk: a segment of ten records costs two reads and no decoding of its own.

Whole sealed segments and pieces of the log are put one after the other, with their index entries, and decoded together;
each row keeps the number of its block, which says its topic. Anything that is not as it should be (an index that does
not tile, a bad frame, a seq that its slot does not have) makes the chunk `None`: the caller then reads block by block,
which repairs what can be repaired and names what cannot. Called by `topics.spark.scanning.task_scan` on executors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from topics.formats.segments import ENTRY_BYTES, read_idx, segment_frames_from_wal
from topics.formats.segments.columns import decode_frames
from topics.formats.segments.idx import IDX_DELETED
from topics.spark.logs.read_files import Files
from topics.spark.planning.cut import I64, LogBlock, SegmentBlock
from topics.spark.planning.tasks import Slice, TopicPart
from topics.spark.scanning.arrow_columns import MixedOrigin, TextTest, passing, record_batch
from topics.storage.fs import read_full

SMALL_BYTES: Final = 128 << 10
"""Blocks up to this size are merged: opening and decoding one costs about as much as so many bytes."""


@dataclass(frozen=True, slots=True)
class SmallBlock:
    """One block: its frames back to back, and their index entries."""

    part: TopicPart
    piece: Slice
    data: bytes
    idx: bytes
    seqs: bytes | None = None
    """Seqs of the entries, where they are not one after the other from `piece.lo` on."""


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
        return SmallBlock(part, piece, files.read(f"{block.stem}.data"), files.read(f"{block.stem}.idx"))
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
    return SmallBlock(part, piece, bytes(frames.buffer), frames.idx.tobytes(), block.seqs)


def merged_batch(
    blocks: Sequence[SmallBlock], *, schema: pa.Schema, want: frozenset[str], tests: Sequence[TextTest], verify: bool
) -> pa.RecordBatch | None:
    """The rows of all blocks, in their order; None where something is wrong with one of them."""
    counts = np.array([len(block.idx) // ENTRY_BYTES for block in blocks])
    if any(len(block.idx) % ENTRY_BYTES for block in blocks) or (counts < _counts(blocks)).any():
        return None
    sizes = np.array([len(block.data) for block in blocks])
    idx = read_idx(b"".join(block.idx for block in blocks))
    number = np.repeat(np.arange(len(blocks)), counts)
    lengths = idx["len"].astype(np.int64)
    ends = np.cumsum(lengths)
    bases = np.cumsum(sizes) - sizes
    offsets = idx["offset"].astype(np.int64) + bases[number]
    used = (lengths > 0) & ((idx["flags"] & IDX_DELETED) == 0)
    last = np.cumsum(counts) - 1
    if (ends[last] != bases + sizes).any() or (offsets[used] != (ends - lengths)[used]).any():
        return None
    data = b"".join(block.data for block in blocks)
    columns = decode_frames(data, offsets[used], lengths[used], want=want, verify=verify)
    if columns.bad or (columns.seq != _seqs(blocks, counts)[used][columns.slot]).any():
        return None
    rows = passing(columns, data, tests=tests, dead=(), tag_deletes=())
    parts = [block.part for block in blocks]
    origin = MixedOrigin([part.topic for part in parts], [part.epoch for part in parts], number[used][columns.slot])
    return record_batch(columns, data, rows, origin=origin, schema=schema)


def _counts(blocks: Sequence[SmallBlock]) -> I64:
    return np.array([block.piece.block.count for block in blocks])


def _seqs(blocks: Sequence[SmallBlock], counts: I64) -> I64:
    """The seq of every entry."""
    firsts = np.array([block.piece.lo for block in blocks])
    starts = np.cumsum(counts) - counts
    seqs: I64 = np.repeat(firsts - starts, counts) + np.arange(int(counts.sum()))
    for at, block in enumerate(blocks):
        if block.seqs is not None:
            seqs[starts[at] : starts[at] + counts[at]] = np.frombuffer(block.seqs, np.int64)
    return seqs
