# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Segments in C: what `plain_segment` says, over whole batches; `native_log` has the rules that hold here too."""

from cpython cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from topics.formats.codec.native cimport *

from array import array as _array

import numpy as np

from topics.formats.codec.plain_log import REASONS

cdef array.array _LONGS = _array("q")

cdef enum:
    # Up to here reads are those of the thread that answers, which would have to wait until it has the GIL back.
    OWNER_SLOTS_MAX = 4096


# --- scan -------------------------------------------------------------------------------------------------------------


cdef struct SegmentRow:
    int64_t offset
    uint64_t seq
    uint64_t ts
    uint32_t length
    uint32_t data_len
    uint16_t node_len
    uint16_t tag_len
    uint8_t flags
    uint8_t del_flag


cdef struct SegmentRows:
    SegmentRow *rows
    Py_ssize_t count
    Py_ssize_t room
    int64_t end
    int reason


def scan_segment_frames(buffer, int64_t start, Py_ssize_t frames_max, bint verify):
    cdef Held held
    cdef SegmentRows found
    found.rows, found.count, found.room, found.end, found.reason = NULL, 0, 0, start, OK
    hold(&held, buffer)
    try:
        if start < 0:
            raise ValueError("a scan starts inside of its buffer")
        if held.size - start < GIL_FREE_BYTES:
            walk_segment(held.data, held.size, frames_max, verify, &found)
        else:
            with nogil:
                walk_segment(held.data, held.size, frames_max, verify, &found)
        if found.reason < 0:
            raise MemoryError
        return segment_columns(&found)
    finally:
        free(found.rows)
        release(&held)


cdef void walk_segment(
    const uint8_t *data, int64_t limit, Py_ssize_t frames_max, bint verify, SegmentRows *found
) noexcept nogil:
    cdef SegmentRow *row
    while found.end < limit and found.count < frames_max:
        row = <SegmentRow *>with_room(found.rows, found.count, &found.room, sizeof(SegmentRow))
        if row == NULL:
            found.reason = -1
            return
        found.rows = row
        row = found.rows + found.count
        found.reason = check_segment(data + found.end, limit - found.end, verify, row)
        if found.reason != OK:
            return
        row.offset = found.end
        found.end += row.length
        found.count += 1


cdef int check_segment(const uint8_t *frame, int64_t left, bint verify, SegmentRow *row) noexcept nogil:
    cdef uint32_t frame_len
    if left < SEGMENT_OVERHEAD:
        return SHORT
    frame_len = u32(frame)
    if frame_len < SEGMENT_OVERHEAD - 4 or frame_len > FRAME_LEN_MAX:
        return FRAME_LEN
    if <int64_t>frame_len + 4 > left:
        return SHORT
    row.length = frame_len + 4
    row.flags = frame[4]
    row.seq = u64(frame + 5)
    row.ts = u64(frame + 13)
    row.node_len = u16(frame + 21)
    row.tag_len = u16(frame + 23)
    row.data_len = u32(frame + 25)
    row.del_flag = frame[row.length - 1]
    if <uint64_t>row.node_len + row.tag_len + row.data_len + SEGMENT_OVERHEAD != row.length:
        return LENGTHS
    if row.flags > 3 or (row.tag_len and not row.flags & HAS_TAG) or (row.node_len and not row.flags & HAS_NODE):
        return LENGTHS
    if verify and XXH3_64bits(frame + 4, frame_len - 9) != u64(frame + frame_len - 5):
        return SUM
    return OK


cdef tuple segment_columns(const SegmentRows *found):
    cdef Py_ssize_t count = found.count, row
    cdef const SegmentRow *from_
    columns = (
        np.empty(count, np.int64),
        np.empty(count, np.uint32),
        np.empty(count, np.uint64),
        np.empty(count, np.uint64),
        np.empty(count, np.uint8),
        np.empty(count, np.uint16),
        np.empty(count, np.uint16),
        np.empty(count, np.uint32),
        np.empty(count, np.uint8),
    )
    cdef int64_t *offset = <int64_t *>address(columns[0])
    cdef uint32_t *length = <uint32_t *>address(columns[1])
    cdef uint64_t *seq = <uint64_t *>address(columns[2])
    cdef uint64_t *ts = <uint64_t *>address(columns[3])
    cdef uint8_t *flags = <uint8_t *>address(columns[4])
    cdef uint16_t *node_len = <uint16_t *>address(columns[5])
    cdef uint16_t *tag_len = <uint16_t *>address(columns[6])
    cdef uint32_t *data_len = <uint32_t *>address(columns[7])
    cdef uint8_t *del_flag = <uint8_t *>address(columns[8])
    with nogil:
        for row in range(count):
            from_ = found.rows + row
            offset[row] = from_.offset
            length[row] = from_.length
            seq[row] = from_.seq
            ts[row] = from_.ts
            flags[row] = from_.flags
            node_len[row] = from_.node_len
            tag_len[row] = from_.tag_len
            data_len[row] = from_.data_len
            del_flag[row] = from_.del_flag
    return (*columns, found.end, REASONS[found.reason])


# --- decode -----------------------------------------------------------------------------------------------------------


cdef struct Bad:
    int64_t slot
    int64_t offset
    int reason


cdef struct Decoding:
    # what is asked
    const uint8_t *data
    int64_t size
    const uint8_t *entries
    const int64_t *slots
    const int64_t *offsets
    const int64_t *lengths
    Py_ssize_t count
    int64_t first_slot
    int64_t first_seq
    int64_t base
    bint verify
    bint include_dead
    bint heads
    bint splits
    # what is found; a column that nobody wants is NULL
    int64_t *slot
    int64_t *seq
    int64_t *ts
    uint8_t *flags
    int64_t *texts[10]
    int64_t *body
    Bad *bad
    Py_ssize_t kept
    Py_ssize_t bads


def decode_entries(buffer, entries, slots, int64_t first_seq, int64_t base, want, bint verify, bint include_dead):
    cdef Decoding job
    cdef Py_ssize_t row, size
    raw = np.ascontiguousarray(entries).view(np.uint8)
    size = len(raw) // ENTRY_BYTES
    job.entries = <const uint8_t *>address(raw)
    job.offsets = job.lengths = job.slots = NULL
    job.count, job.first_slot = size, 0
    if slots is not None:
        slots = int64s(slots)
        job.slots = <const int64_t *>address(slots)
        job.count = len(slots)
        for row in range(job.count):
            if job.slots[row] < 0 or job.slots[row] >= size:
                raise IndexError(f"slot {job.slots[row]} of {size}")
    job.first_seq, job.base = first_seq, base
    job.verify, job.include_dead = verify, include_dead
    return decoded(&job, buffer, want)


def decode_at(buffer, offsets, lengths, want, bint verify, bint include_dead):
    cdef Decoding job
    offsets, lengths = int64s(offsets), int64s(lengths)
    if len(offsets) != len(lengths):
        raise ValueError(f"{len(lengths)} lengths for {len(offsets)} offsets")
    job.entries, job.slots = NULL, NULL
    job.offsets, job.lengths = <const int64_t *>address(offsets), <const int64_t *>address(lengths)
    job.count = len(offsets)
    job.first_slot = job.first_seq = job.base = 0
    job.verify, job.include_dead = verify, include_dead
    return decoded(&job, buffer, want)


cdef tuple decoded(Decoding *job, object buffer, object want):
    cdef Held held
    cdef Py_ssize_t count = job.count, at
    cdef bint failed = False
    job.heads = bool(want)
    job.splits = "data" in want or "meta" in want
    given = job.heads, job.heads, "node" in want, "node" in want, "tag" in want, "tag" in want
    given = (given[2], given[3], given[4], given[5], job.heads, job.heads)
    given += ("data" in want, "data" in want, "meta" in want, "meta" in want)
    texts = [np.empty(count, np.int64) if is_given else None for is_given in given]
    for at in range(10):
        job.texts[at] = NULL if texts[at] is None else <int64_t *>address(texts[at])
    slot, seq, ts = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    flags = np.empty(count, np.uint8)
    job.slot, job.seq, job.ts = <int64_t *>address(slot), <int64_t *>address(seq), <int64_t *>address(ts)
    job.flags = <uint8_t *>address(flags)
    job.kept = job.bads = 0
    job.bad, job.body = NULL, NULL
    hold(&held, buffer)
    try:
        job.data, job.size = held.data, held.size
        if count < 256:
            failed = decode_all(job)
        else:
            with nogil:
                failed = decode_all(job)
        if failed:
            raise MemoryError
        bad = [(job.bad[at].slot, job.bad[at].offset, REASONS[job.bad[at].reason]) for at in range(job.bads)]
    finally:
        free(job.bad)
        release(&held)
    columns = [slot, seq, ts, flags, *texts]
    if job.kept < count:
        columns = [None if column is None else column[: job.kept] for column in columns]
    return (*columns, bad)


def live_bodies(buffer, entries, slots, int64_t first_seq):
    cdef Decoding job
    cdef Held held, index
    cdef bint failed = False
    cdef Py_ssize_t row, size
    cdef array.array offsets
    memset(&job, 0, sizeof(job))
    job.first_seq, job.verify, job.heads = first_seq, True, True
    job.count = len(slots)
    if type(slots) is range and (not job.count or slots[job.count - 1] - slots[0] == job.count - 1):
        job.first_slot = slots[0] if job.count else 0
    else:
        slots = int64s(slots)
        job.slots = <const int64_t *>address(slots)
    flags = PyBytes_FromStringAndSize(NULL, job.count)
    offsets = array.clone(_LONGS, job.count, zero=False)
    job.flags, job.body = <uint8_t *>PyBytes_AS_STRING(flags), <int64_t *>offsets.data.as_longlongs
    hold(&index, entries)
    try:
        job.entries, size = index.data, index.size // ENTRY_BYTES
        for row in range(job.count):
            if not 0 <= (job.first_slot + row if job.slots == NULL else job.slots[row]) < size:
                raise IndexError(f"a slot outside of {size}")
        hold(&held, buffer)
        job.data, job.size = held.data, held.size
        if job.count < OWNER_SLOTS_MAX:
            failed = decode_all(&job)
        else:
            with nogil:
                failed = decode_all(&job)
        release(&held)
    finally:
        free(job.bad)
        release(&index)
    if failed:
        raise MemoryError
    if job.bads:
        return None
    return (offsets, flags) if job.kept == job.count else (offsets[: job.kept], flags[: job.kept])


cdef bint decode_all(Decoding *job) noexcept nogil:
    """True if there is no memory."""
    cdef Py_ssize_t row, slot
    cdef const uint8_t *entry
    cdef int64_t offset, length
    cdef int reason
    cdef Bad *bad
    for row in range(job.count):
        slot = job.first_slot + row if job.slots == NULL else job.slots[row]
        if job.entries != NULL:
            entry = job.entries + slot * ENTRY_BYTES
            length = u32(entry + 4)
            if not length or (entry[16] & ENTRY_DELETED and not job.include_dead):
                continue
            offset = <int64_t>u32(entry) - job.base
        else:
            entry = NULL
            offset, length = job.offsets[row], job.lengths[row]
        reason = decode_one(job, slot, entry, offset, length)
        if reason > OK:
            if job.bads & (job.bads - 1) == 0:  # full at every power of two
                bad = <Bad *>realloc(job.bad, sizeof(Bad) * (2 * job.bads if job.bads else 1))
                if bad == NULL:
                    return True
                job.bad = bad
            job.bad[job.bads].slot = slot
            job.bad[job.bads].offset = offset
            job.bad[job.bads].reason = reason
            job.bads += 1
    return False


cdef inline int decode_one(
    Decoding *job, int64_t slot, const uint8_t *entry, int64_t offset, int64_t length
) noexcept nogil:
    """The row of one frame, if it is good and wanted."""
    cdef const uint8_t *frame
    cdef int64_t node_len, tag_len, blob_len, blob_at, meta, wrap, seq, ts, row = job.kept
    cdef uint8_t flags
    cdef bint is_flagged
    if offset < 0 or length < 0 or offset > job.size - length:
        return SHORT
    if length < SEGMENT_OVERHEAD:
        return LENGTHS
    frame = job.data + offset
    is_flagged = frame[length - 1] == DELETED_BYTE
    if is_flagged and not job.include_dead:
        return OK
    flags = frame[4] if entry == NULL else entry[16]
    seq = u64(frame + 5) if entry == NULL else job.first_seq + slot
    ts = u64(frame + 13 if entry == NULL else entry + 8)
    if job.slot != NULL:
        job.slot[row] = slot
        job.seq[row] = seq
        job.ts[row] = ts
    job.flags[row] = flags | ENTRY_DELETED if is_flagged else flags
    if not job.heads:
        job.kept += 1
        return OK
    if <int64_t>u32(frame) + 4 != length:
        return FRAME_LEN
    if job.verify and XXH3_64bits(frame + 4, length - 13) != u64(frame + length - SEGMENT_TAIL):
        return SUM
    node_len, tag_len, blob_len = u16(frame + 21), u16(frame + 23), u32(frame + 25)
    if node_len + tag_len + blob_len + SEGMENT_OVERHEAD != length or blob_len < BLOB_MIN:
        return LENGTHS
    blob_at = offset + SEGMENT_HEAD + node_len + tag_len
    if job.verify:
        if not is_blob(job.data + blob_at, blob_len):
            return BLOB
        if u64(frame + 5) != <uint64_t>seq:
            return SEQ
        if u64(frame + 13) != <uint64_t>ts or frame[4] != flags & (HAS_TAG | HAS_NODE):
            return IDX
    if job.body != NULL:
        job.body[row] = offset + SEGMENT_HEAD - BODY_HEAD
        job.flags[row] &= HAS_TAG | HAS_NODE
    if job.texts[0] != NULL:
        job.texts[0][row] = offset + SEGMENT_HEAD
        job.texts[1][row] = node_len
    if job.texts[2] != NULL:
        job.texts[2][row] = offset + SEGMENT_HEAD + node_len
        job.texts[3][row] = tag_len
    if job.texts[4] != NULL:
        job.texts[4][row] = blob_at
        job.texts[5][row] = blob_len
    if job.splits:
        meta = meta_length(job.data + blob_at, blob_len)
        wrap = BLOB_MIN if meta < 0 else meta + 11
        if job.texts[6] != NULL:
            job.texts[6][row] = blob_at + 5
            job.texts[7][row] = blob_len - wrap
        if job.texts[8] != NULL:
            job.texts[8][row] = blob_at + blob_len - 1 - (meta if meta > 0 else 0)
            job.texts[9][row] = meta
    job.kept += 1
    return OK


# --- texts ------------------------------------------------------------------------------------------------------------


cdef class _Pieces:
    """_Pieces of a buffer, all of which lie inside of it; the buffer is held as long as this lives."""

    cdef Held held
    cdef object starts, lengths
    cdef const int64_t *start
    cdef const int64_t *size
    cdef Py_ssize_t count

    def __cinit__(self, buffer, starts, lengths):
        cdef Py_ssize_t row
        self.starts, self.lengths = int64s(starts), int64s(lengths)
        self.start, self.size = <const int64_t *>address(self.starts), <const int64_t *>address(self.lengths)
        self.count = len(self.starts)
        hold(&self.held, buffer)
        if len(self.lengths) != self.count:
            raise ValueError(f"{len(self.lengths)} lengths for {self.count} pieces")
        for row in range(self.count):
            if self.start[row] < 0 or self.size[row] < 0 or self.start[row] > self.held.size - self.size[row]:
                raise IndexError("a piece lies outside of its buffer")

    def __dealloc__(self):
        release(&self.held)

    cdef const uint8_t *at(self, Py_ssize_t row) noexcept nogil:
        return self.held.data + self.start[row]


def meta_lengths(buffer, starts, lengths):
    cdef _Pieces pieces = _Pieces(buffer, starts, lengths)
    cdef Py_ssize_t row
    found = np.empty(pieces.count, np.int64)
    cdef int64_t *meta = <int64_t *>address(found)
    with nogil:
        for row in range(pieces.count):
            meta[row] = meta_length(pieces.at(row), pieces.size[row])
    return found


def hash_slices(buffer, starts, lengths):
    cdef _Pieces pieces = _Pieces(buffer, starts, lengths)
    cdef Py_ssize_t row
    found = np.empty(pieces.count, np.uint64)
    cdef uint64_t *sums = <uint64_t *>address(found)
    with nogil:
        for row in range(pieces.count):
            sums[row] = XXH3_64bits(pieces.at(row), pieces.size[row])
    return found


def gather_texts(buffer, starts, lengths):
    cdef _Pieces pieces = _Pieces(buffer, starts, lengths)
    cdef Py_ssize_t row
    cdef int64_t total = 0
    cdef uint8_t *out
    bounds = np.empty(pieces.count + 1, np.int32)
    cdef int32_t *bound = <int32_t *>address(bounds)
    for row in range(pieces.count):
        bound[row] = <int32_t>total
        total += pieces.size[row]
        if total > 0x7FFFFFFF:
            raise ValueError("texts of one column have less than 2 GiB")
    bound[pieces.count] = <int32_t>total
    texts = PyBytes_FromStringAndSize(NULL, total)
    out = <uint8_t *>PyBytes_AS_STRING(texts)
    with nogil:
        for row in range(pieces.count):
            memcpy(out + bound[row], pieces.at(row), pieces.size[row])
    return bounds, texts
