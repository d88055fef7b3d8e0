"""The cold copy of a segment, looked at from the hot side: is it complete, how long is it (storage.md section 13.4)."""

from __future__ import annotations

from topics.formats.idx import ENTRY_BYTES, idx_agrees
from topics.storage.stores import NotFound, RangeOutOfBounds, SegmentStore


def cold_is_complete(store: SegmentStore, first_seq: int, count: int) -> bool:
    """Whether both parts exist and agree. A store that does not answer has no complete copy as far as we know."""
    try:
        if store.len(first_seq, "idx") != count * ENTRY_BYTES:
            return False
        data_len = store.len(first_seq, "data")
        return idx_agrees(store.read_range(first_seq, "idx", 0, count * ENTRY_BYTES), data_len) is None
    except (OSError, NotFound, RangeOutOfBounds):
        return False


def cold_is_gone(store: SegmentStore, first_seq: int) -> bool:
    """Whether the store answers that it lacks a part. One that does not answer may have both."""
    try:
        return not (store.exists(first_seq, "data") and store.exists(first_seq, "idx"))
    except OSError:
        return False


def cold_length(store: SegmentStore, first_seq: int) -> int:
    """Bytes of the cold `.data`; 0 when the store does not say."""
    try:
        return store.len(first_seq, "data")
    except (OSError, NotFound):
        return 0
