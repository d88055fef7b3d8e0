# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The log in C: what `plain_log` says, over whole batches.

A function takes the addresses it needs, then computes without any Python object, and without the GIL where there is
enough to compute that others gain by it. Always holds: a length read from a buffer is compared with the buffer's end
before anything behind it is touched.
"""

from cpython cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from topics.formats.codec.native cimport *

from array import array as _array

import numpy as np

from topics.errors import Corruption
from topics.formats.codec.plain_log import REASONS, WAL_TYPES, EncodedAppends

cdef array.array _UINTS = _array("I")


# --- encode -----------------------------------------------------------------------------------------------------------


cdef struct Source:
    const uint8_t *node
    const uint8_t *tag
    const uint8_t *data
    uint64_t ts
    uint32_t node_len
    uint32_t tag_len
    uint32_t data_len
    uint8_t flags


def encode_appends(
    *, topic_id, first_seq, ts, datas, nodes=None, tags=None, bint durable, bint more_after=False, runs=None
):
    cdef Py_ssize_t count = len(datas), row, end
    cdef object common = nodes if type(nodes) is bytes else None, kept_nodes, kept_tags, kept
    cdef uint64_t topic = topic_id, seq = first_seq
    cdef uint8_t flags = DURABLE if durable else 0
    if not count:
        return EncodedAppends(b"", _array("I"), _array("I"))
    # Tuples of bytes: nobody else can change them while the GIL is free.
    kept = as_bytes(datas)
    kept_nodes = None if nodes is None or common is not None else checked(nodes, count)
    kept_tags = None if tags is None else checked(tags, count)
    cdef Source *rows = <Source *>reserve(count * sizeof(Source))
    cdef Source *source
    try:
        for row in range(count):
            source = rows + row
            source.flags = flags | MORE
            source.data = bytes_of(kept[row], &source.data_len)
            source.node_len = source.tag_len = 0
            source.node = source.tag = source.data
            if common is not None:
                source.flags |= HAS_NODE
                source.node = bytes_of(common, &source.node_len)
            elif kept_nodes is not None and kept_nodes[row] is not None:
                source.flags |= HAS_NODE
                source.node = bytes_of(kept_nodes[row], &source.node_len)
            if kept_tags is not None and kept_tags[row] is not None:
                source.flags |= HAS_TAG
                source.tag = bytes_of(kept_tags[row], &source.tag_len)
            if source.node_len > 0xFFFF or source.tag_len > 0xFFFF:
                raise ValueError("a node or a tag has at most 65535 bytes")
        put_times(rows, ts, count)
        end = 0
        for run in (count,) if runs is None else runs:
            end += run
            if run < 1 or end > count:
                raise ValueError("the runs do not add up to the records")
            rows[end - 1].flags &= ~MORE
        if end != count:
            raise ValueError("the runs do not add up to the records")
        if more_after:
            rows[count - 1].flags |= MORE
        return encoded(rows, count, topic, seq)
    finally:
        free(rows)


cdef tuple as_bytes(object values):
    cdef tuple kept = tuple(values)
    for value in kept:
        if not PyBytes_CheckExact(value) and value is not None:
            return tuple([None if value is None else memoryview(value).tobytes() for value in kept])
    return kept


cdef tuple checked(object values, Py_ssize_t count):
    if len(values) != count:
        raise ValueError(f"{len(values)} nodes or tags for {count} records")
    return as_bytes(values)


cdef inline const uint8_t *bytes_of(object text, uint32_t *size) except NULL:
    cdef Py_ssize_t length = PyBytes_GET_SIZE(text)
    if length > FRAME_LEN_MAX:
        raise ValueError("a frame holds at most 67108864 bytes behind its length field")
    size[0] = <uint32_t>length
    return <const uint8_t *>PyBytes_AS_STRING(text)


cdef int put_times(Source *rows, object ts, Py_ssize_t count) except -1:
    cdef Py_ssize_t row
    cdef uint64_t moment
    if isinstance(ts, int):
        moment = ts
        for row in range(count):
            rows[row].ts = moment
        return 0
    if len(ts) != count:
        raise ValueError(f"{len(ts)} times for {count} records")
    for row in range(count):
        rows[row].ts = ts[row]
    return 0


cdef object encoded(Source *rows, Py_ssize_t count, uint64_t topic, uint64_t seq):
    cdef array.array offsets = array.clone(_UINTS, count, zero=False)
    cdef array.array lengths = array.clone(_UINTS, count, zero=False)
    cdef uint32_t *offset = offsets.data.as_uints
    cdef uint32_t *length = lengths.data.as_uints
    cdef uint64_t total = 0, size
    cdef Py_ssize_t row
    for row in range(count):
        size = <uint64_t>WAL_OVERHEAD + rows[row].node_len + rows[row].tag_len + rows[row].data_len
        if size - 4 > FRAME_LEN_MAX:
            raise ValueError("a frame holds at most 67108864 bytes behind its length field")
        offset[row] = <uint32_t>total
        length[row] = <uint32_t>size
        total += size
    if total > 0xFFFFFFFFu:
        raise ValueError("a run of frames has less than 4 GiB")
    frames = PyBytes_FromStringAndSize(NULL, total)
    cdef uint8_t *out = <uint8_t *>PyBytes_AS_STRING(frames)
    if total < ENCODE_GIL_FREE_BYTES:
        put_appends(out, rows, count, topic, seq)
    else:
        with nogil:
            put_appends(out, rows, count, topic, seq)
    return EncodedAppends(frames, offsets, lengths)


cdef void put_appends(uint8_t *out, const Source *rows, Py_ssize_t count, uint64_t topic, uint64_t seq) noexcept nogil:
    cdef Py_ssize_t row
    cdef const Source *source
    cdef uint32_t size
    cdef uint8_t *at
    for row in range(count):
        source = rows + row
        size = WAL_OVERHEAD - 4 + source.node_len + source.tag_len + source.data_len
        put32(out, size)
        out[4] = 1
        out[5] = source.flags
        put64(out + 6, topic)
        put64(out + 14, seq + row)
        put64(out + 22, source.ts)
        put32(out + 30, source.node_len | source.tag_len << 16)
        put32(out + 34, source.data_len)
        at = out + WAL_HEAD
        memcpy(at, source.node, source.node_len)
        at += source.node_len
        memcpy(at, source.tag, source.tag_len)
        at += source.tag_len
        memcpy(at, source.data, source.data_len)
        at += source.data_len
        put64(at, XXH3_64bits(out + 4, size - 8))
        out = at + 8


# --- scan the log -----------------------------------------------------------------------------------------------------


cdef struct WalRow:
    uint64_t topic_id
    uint64_t seq
    uint64_t ts
    uint32_t length
    uint32_t data_len
    uint16_t node_len
    uint16_t tag_len
    uint8_t kind
    uint8_t flags


# Where the columns lie that rows are put into.
cdef struct WalOut:
    int64_t *offset
    uint32_t *length
    uint8_t *kind
    uint8_t *flags
    uint64_t *topic_id
    uint64_t *seq
    uint64_t *ts
    uint16_t *node_len
    uint16_t *tag_len
    uint32_t *data_len


def scan_wal_frames(buffer, int64_t start, int64_t limit, bint verify):
    cdef Held held
    cdef WalOut out
    cdef Py_ssize_t room, count = 0
    cdef int64_t end = start
    cdef int reason
    hold(&held, buffer)
    try:
        if start < 0 or limit > held.size:
            raise ValueError("the log's end lies outside of its buffer")
        if limit - start < GIL_FREE_BYTES:
            room = count_lengths(held.data, start, limit)
        else:
            with nogil:
                room = count_lengths(held.data, start, limit)
        columns = wal_columns(room, &out)
        if limit - start < GIL_FREE_BYTES:
            reason = walk_wal(held.data, limit, verify, &out, room, &count, &end)
        else:
            with nogil:
                reason = walk_wal(held.data, limit, verify, &out, room, &count, &end)
    finally:
        release(&held)
    if count < room:
        columns = [column[:count] for column in columns]
    return (*columns, end, REASONS[reason])


cdef Py_ssize_t count_lengths(const uint8_t *log, int64_t at, int64_t limit) noexcept nogil:
    """How many frames there are at most: those that the length fields lead to."""
    cdef Py_ssize_t count = 0
    cdef uint32_t frame_len
    while limit - at >= 4:
        frame_len = u32(log + at)
        if frame_len < WAL_OVERHEAD - 4 or frame_len > FRAME_LEN_MAX or <int64_t>frame_len + 4 > limit - at:
            break
        at += frame_len + 4
        count += 1
    return count


cdef list wal_columns(Py_ssize_t room, WalOut *out):
    cdef list columns = [np.empty(room, dtype) for dtype in WAL_TYPES]
    out.offset = <int64_t *>address(columns[0])
    out.length = <uint32_t *>address(columns[1])
    out.kind = <uint8_t *>address(columns[2])
    out.flags = <uint8_t *>address(columns[3])
    out.topic_id = <uint64_t *>address(columns[4])
    out.seq = <uint64_t *>address(columns[5])
    out.ts = <uint64_t *>address(columns[6])
    out.node_len = <uint16_t *>address(columns[7])
    out.tag_len = <uint16_t *>address(columns[8])
    out.data_len = <uint32_t *>address(columns[9])
    return columns


cdef int walk_wal(
    const uint8_t *log, int64_t limit, bint verify, const WalOut *out, Py_ssize_t room, Py_ssize_t *count, int64_t *end,
) noexcept nogil:
    """Put the good frames from `end` on into the columns, and give what ends them. The log may be changed meanwhile by
    its writer, so there may be more of them than were counted."""
    cdef WalRow row
    cdef int reason
    cdef Py_ssize_t at = 0
    while end[0] < limit:
        reason = check_wal(log + end[0], limit - end[0], verify, &row)
        if reason != OK:
            return reason
        if at == room:
            return SHORT
        out.offset[at] = end[0]
        out.length[at] = row.length
        out.kind[at] = row.kind
        out.flags[at] = row.flags
        out.topic_id[at] = row.topic_id
        out.seq[at] = row.seq
        out.ts[at] = row.ts
        out.node_len[at] = row.node_len
        out.tag_len[at] = row.tag_len
        out.data_len[at] = row.data_len
        end[0] += row.length
        at += 1
        count[0] = at
    return OK


cdef int check_wal(const uint8_t *frame, int64_t left, bint verify, WalRow *row) noexcept nogil:
    cdef uint32_t frame_len
    cdef const uint8_t *blob
    if left < 4:
        return SHORT
    frame_len = u32(frame)
    if frame_len < WAL_OVERHEAD - 4 or frame_len > FRAME_LEN_MAX:
        return FRAME_LEN
    if <int64_t>frame_len + 4 > left:
        return SHORT
    if verify and XXH3_64bits(frame + 4, frame_len - 8) != u64(frame + frame_len - 4):
        return SUM
    row.length = frame_len + 4
    row.kind = frame[4]
    row.flags = frame[5]
    row.topic_id = u64(frame + 6)
    row.seq = u64(frame + 14)
    row.ts = u64(frame + 22)
    row.node_len = u16(frame + 30)
    row.tag_len = u16(frame + 32)
    row.data_len = u32(frame + 34)
    if <uint64_t>row.node_len + row.tag_len + row.data_len + WAL_OVERHEAD != row.length:
        return LENGTHS
    if row.flags > 15:
        return FLAGS
    if (row.tag_len and not row.flags & HAS_TAG) or (row.node_len and not row.flags & HAS_NODE):
        return PRESENCE
    if row.kind < 1 or row.kind > 14:
        return TYPE
    if not is_utf8(frame + WAL_HEAD, row.node_len) or not is_utf8(frame + WAL_HEAD + row.node_len, row.tag_len):
        return UTF8
    blob = frame + WAL_HEAD + row.node_len + row.tag_len
    if row.kind == 1 and not is_blob(blob, row.data_len):
        return BLOB
    return OK


cdef bint is_utf8(const uint8_t *text, Py_ssize_t size) noexcept nogil:
    """As Python's strict decoder has it: no surrogates, nothing longer than needed."""
    cdef Py_ssize_t at = 0, more
    cdef uint8_t first, low, high
    while at < size:
        first = text[at]
        if first < 0x80:
            at += 1
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= first <= 0xDF:
            more = 1
        elif 0xE0 <= first <= 0xEF:
            more = 2
            low = 0xA0 if first == 0xE0 else 0x80
            high = 0x9F if first == 0xED else 0xBF
        elif 0xF0 <= first <= 0xF4:
            more = 3
            low = 0x90 if first == 0xF0 else 0x80
            high = 0x8F if first == 0xF4 else 0xBF
        else:
            return False
        if at + more >= size or not low <= text[at + 1] <= high:
            return False
        at += 2
        more -= 1
        while more:
            if not 0x80 <= text[at] <= 0xBF:
                return False
            at += 1
            more -= 1
    return True


# --- log to segment ---------------------------------------------------------------------------------------------------


def wal_to_segment(buffer, offsets, lengths, *, seqs=None, int64_t base, bint verify, str file):
    cdef object starts = int64s(offsets), sizes = int64s(lengths), wanted = None
    cdef Py_ssize_t count = len(starts), row
    cdef int64_t *offset = <int64_t *>address(starts)
    cdef int64_t *length = <int64_t *>address(sizes)
    cdef uint64_t *seq = NULL
    cdef int64_t total = 0
    cdef int reason = OK
    cdef Py_ssize_t bad = 0
    cdef Held held
    if len(sizes) != count:
        raise ValueError(f"{len(sizes)} lengths for {count} offsets")
    if seqs is not None:
        wanted = np.ascontiguousarray(seqs).astype(np.uint64)
        if len(wanted) != count:
            raise ValueError(f"{len(wanted)} seqs for {count} offsets")
        seq = <uint64_t *>address(wanted)
    hold(&held, buffer)
    try:
        for row in range(count):
            if length[row] < WAL_OVERHEAD or offset[row] < 0 or offset[row] > held.size - length[row]:
                raise Corruption(file=file, offset=offset[row], reason="short")
            total += length[row] - (WAL_OVERHEAD - SEGMENT_OVERHEAD)
        frames = PyBytes_FromStringAndSize(NULL, total)
        entries = np.zeros(count * ENTRY_BYTES, np.uint8)
        reason = convert_all(
            held.data,
            offset,
            length,
            seq,
            count,
            base,
            verify,
            <uint8_t *>PyBytes_AS_STRING(frames),
            <uint8_t *>address(entries),
            total >= GIL_FREE_BYTES,
            &bad,
        )
    finally:
        release(&held)
    if reason != OK:
        raise Corruption(file=file, offset=offset[bad], reason=REASONS[reason])
    return frames, entries


cdef int convert_all(
    const uint8_t *log, const int64_t *offset, const int64_t *length, const uint64_t *seq, Py_ssize_t count, int64_t base,
    bint verify, uint8_t *out, uint8_t *entry, bint without_gil, Py_ssize_t *bad,
) noexcept:
    if not without_gil:
        return convert(log, offset, length, seq, count, base, verify, out, entry, bad)
    with nogil:
        return convert(log, offset, length, seq, count, base, verify, out, entry, bad)


cdef int convert(
    const uint8_t *log, const int64_t *offset, const int64_t *length, const uint64_t *seq, Py_ssize_t count, int64_t base,
    bint verify, uint8_t *out, uint8_t *entry, Py_ssize_t *bad,
) noexcept nogil:
    cdef Py_ssize_t row
    cdef const uint8_t *frame
    cdef int64_t size, shared
    for row in range(count):
        frame, size = log + offset[row], length[row]
        bad[0] = row
        if seq != NULL and u64(frame + 14) != seq[row]:
            return SEQ
        if verify and XXH3_64bits(frame + 4, size - 12) != u64(frame + size - 8):
            return SUM
        shared = size - 22  # seq to the end of the payload: the same bytes in both
        size -= WAL_OVERHEAD - SEGMENT_OVERHEAD
        put32(out, <uint32_t>(size - 4))
        out[4] = frame[5] & (HAS_TAG | HAS_NODE)
        memcpy(out + 5, frame + 14, shared)
        put64(out + 5 + shared, XXH3_64bits(out + 4, shared + 1))
        out[size - 1] = 0
        put32(entry, <uint32_t>base)
        put32(entry + 4, <uint32_t>size)
        memcpy(entry + 8, frame + 22, 8)
        entry[16] = out[4]
        base += size
        out += size
        entry += ENTRY_BYTES
    return OK


def encode_bodies(buffer, offsets, bytes flags):
    """Segment frames of bodies (`topics.model.run`), back to back, and where each begins."""
    cdef object starts = int64s(offsets)
    cdef Py_ssize_t count = len(starts), row
    cdef int64_t *offset = <int64_t *>address(starts)
    cdef const uint8_t *bits = <const uint8_t *>PyBytes_AS_STRING(flags)
    cdef uint8_t *out
    cdef int64_t total = 0, size
    cdef Held held
    if PyBytes_GET_SIZE(flags) != count:
        raise ValueError(f"{len(flags)} flags for {count} records")
    bounds = _array("q", [0]) * (count + 1)
    cdef int64_t *bound = <int64_t *>address(bounds)
    hold(&held, buffer)
    try:
        for row in range(count):
            total += body_size(&held, offset[row]) + 14
            bound[row + 1] = total
        frames = PyBytes_FromStringAndSize(NULL, total)
        out = <uint8_t *>PyBytes_AS_STRING(frames)
        for row in range(count):
            size = bound[row + 1] - bound[row] - 14
            put32(out, <uint32_t>(size + 10))
            out[4] = bits[row] & (HAS_TAG | HAS_NODE)
            memcpy(out + 5, held.data + offset[row], size)
            put64(out + 5 + size, XXH3_64bits(out + 4, size + 1))
            out[13 + size] = 0
            out += size + 14
    finally:
        release(&held)
    return frames, bounds
