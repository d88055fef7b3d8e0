"""Segments: the `.data` and `.idx` pair of a run of seqs (`docs/spec/storage.md#sec-6`), by name in one place.

Layout and encoders are in `segment_frame`, entries and agreement in `idx`, scanning in `segment_scan`, repair of a lost
index in `rebuild`, the column decoder in `columns`.
"""

from topics.formats.segments.columns import BadSlot, FrameColumns, decode_columns, decode_frames
from topics.formats.segments.frame import (
    DELETED_BYTE,
    HEAD_BYTES,
    LIVE_BYTE,
    OVERHEAD_BYTES,
    SegmentFrames,
    encode_segment_frames,
    segment_frames_from_wal,
    segment_frames_of,
)
from topics.formats.segments.idx import (
    ENTRY_BYTES,
    IDX_DELETED,
    IDX_DTYPE,
    IDX_HAS_NODE,
    IDX_HAS_TAG,
    Idx,
    empty_slots,
    idx_agrees,
    is_empty_slot,
    read_idx,
)
from topics.formats.segments.rebuild import BadRange, RebuiltIdx, rebuild_idx
from topics.formats.segments.scan import SegmentColumns, scan_segment, verify_frames

__all__ = [
    "DELETED_BYTE",
    "ENTRY_BYTES",
    "HEAD_BYTES",
    "IDX_DELETED",
    "IDX_DTYPE",
    "IDX_HAS_NODE",
    "IDX_HAS_TAG",
    "LIVE_BYTE",
    "OVERHEAD_BYTES",
    "BadRange",
    "BadSlot",
    "FrameColumns",
    "Idx",
    "RebuiltIdx",
    "SegmentColumns",
    "SegmentFrames",
    "decode_columns",
    "decode_frames",
    "empty_slots",
    "encode_segment_frames",
    "idx_agrees",
    "is_empty_slot",
    "read_idx",
    "rebuild_idx",
    "scan_segment",
    "segment_frames_from_wal",
    "segment_frames_of",
    "verify_frames",
]
