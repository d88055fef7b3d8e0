# cython: language_level=3
"""What the native modules share: layouts, reasons, arguments that are buffers and columns, and reads and writes at any
address. Little-endian machines only; `setup.py` builds it nowhere else."""

from cpython cimport array
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport malloc, realloc
from libc.string cimport memcmp, memcpy

cdef extern from "xxhash.h" nogil:
    uint64_t XXH3_64bits(const void *input, size_t length)


cdef enum:
    WAL_HEAD = 38
    WAL_OVERHEAD = 46
    SEGMENT_HEAD = 29
    SEGMENT_OVERHEAD = 38
    SEGMENT_TAIL = 9
    FRAME_LEN_MAX = 67108864
    HAS_TAG = 1
    HAS_NODE = 2
    DURABLE = 4
    MORE = 8
    ENTRY_BYTES = 20
    ENTRY_DELETED = 4
    DELETED_BYTE = 0xD5
    BLOB_MIN = 6
    BODY_HEAD = 24

# From so many bytes on the GIL is given away: less is over before another thread would have it. Encoding is done by the
# thread that answers, which may have to wait until it has the GIL back.
cdef enum:
    GIL_FREE_BYTES = 1 << 15
    ENCODE_GIL_FREE_BYTES = 1 << 20

# Why a frame is bad; `plain_log.REASONS` has the texts in this order.
cdef enum:
    OK
    SHORT
    FRAME_LEN
    SUM
    LENGTHS
    FLAGS
    PRESENCE
    TYPE
    UTF8
    BLOB
    SEQ
    IDX


cdef inline uint16_t u16(const uint8_t *at) noexcept nogil:
    cdef uint16_t value
    memcpy(&value, at, 2)
    return value


cdef inline uint32_t u32(const uint8_t *at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return value


cdef inline uint64_t u64(const uint8_t *at) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, at, 8)
    return value


cdef inline void put32(uint8_t *at, uint32_t value) noexcept nogil:
    memcpy(at, &value, 4)


cdef inline void put64(uint8_t *at, uint64_t value) noexcept nogil:
    memcpy(at, &value, 8)


# --- arguments --------------------------------------------------------------------------------------------------------


# A buffer while it is read; `release` must follow.
cdef struct Held:
    Py_buffer view
    const uint8_t *data
    int64_t size


cdef inline int hold(Held *held, object buffer) except -1:
    PyObject_GetBuffer(buffer, &held.view, PyBUF_SIMPLE)
    held.data, held.size = <const uint8_t *>held.view.buf, held.view.len
    return 0


cdef inline void release(Held *held) noexcept:
    PyBuffer_Release(&held.view)


cdef inline void *address(object column) except NULL:
    """Where the items of a contiguous array lie; it must be kept as long as they are used."""
    cdef Py_buffer view
    PyObject_GetBuffer(column, &view, PyBUF_SIMPLE)
    cdef void *at = view.buf
    PyBuffer_Release(&view)
    return at if at != NULL else <void *>1


cdef inline object int64s(object numbers):
    """Numbers side by side: a column as it is if it lies so, else a copy."""
    cdef array.array given, wide
    cdef Py_ssize_t at
    if isinstance(numbers, array.array):
        given = numbers
        if given.ob_descr.typecode == c"q":
            return given
        if given.ob_descr.typecode == c"I":  # as the tail and the recent cache have places
            wide = array.clone(array.array("q"), len(given), False)
            for at in range(len(given)):
                wide.data.as_longlongs[at] = given.data.as_uints[at]
            return wide
    as_type = getattr(numbers, "astype", None)
    return array.array("q", numbers) if as_type is None else as_type("i8", "C", "unsafe", True, False)


cdef inline void *reserve(size_t size) except NULL:
    cdef void *room = malloc(size if size else 1)
    if room == NULL:
        raise MemoryError
    return room


cdef inline void *with_room(void *rows, Py_ssize_t count, Py_ssize_t *room, size_t row_bytes) noexcept nogil:
    """The rows, or a larger copy of them, with room for one more; NULL if there is no memory, then they are as before."""
    cdef Py_ssize_t more
    if count < room[0]:
        return rows
    more = 2 * room[0] if room[0] else 64
    rows = realloc(rows, more * row_bytes)
    if rows != NULL:
        room[0] = more
    return rows


# --- bodies and blobs -------------------------------------------------------------------------------------------------


cdef inline int64_t body_size(const Held *held, int64_t offset) except -1:
    """Bytes of the body (`topics.model.run`) at an offset, all of which lie inside of the buffer."""
    cdef int64_t size = BODY_HEAD
    if offset >= 0 and offset <= held.size - BODY_HEAD:
        size += <int64_t>u16(held.data + offset + 16) + u16(held.data + offset + 18) + u32(held.data + offset + 20)
        if offset <= held.size - size:
            return size
    raise ValueError("a body lies outside of its buffer")


cdef inline bint is_blob(const uint8_t *blob, int64_t size) noexcept nogil:
    return size >= BLOB_MIN and memcmp(blob, b'{"d":', 5) == 0 and blob[size - 1] == c"}"


cdef inline int64_t mark_length(const uint8_t *blob, int64_t size) noexcept nogil:
    """`meta_length` by reading the brackets and strings of the data text up to its end."""
    cdef int64_t at = 5, depth = 0
    while at < size - 1:
        if blob[at] == c'"':
            at += 1
            while at < size - 1 and blob[at] != c'"':
                at += 2 if blob[at] == c"\\" else 1
        elif blob[at] == c"{" or blob[at] == c"[":
            depth += 1
        elif blob[at] == c"}" or blob[at] == c"]":
            depth -= 1
        elif depth == 0 and blob[at] == c"," and at + 5 < size and memcmp(blob + at, b',"m":', 5) == 0:
            return size - 6 - at
        at += 1
    return -1


cdef inline int64_t meta_length(const uint8_t *blob, int64_t size) noexcept nogil:
    """Of the meta text of one blob, -1 if it has none. Nearly every blob without meta is told by one pass over its bytes
    that decides nothing byte by byte, so that it runs many of them at a time."""
    cdef int64_t at
    cdef uint8_t hit = 0
    for at in range(5, size - 5):
        hit |= (blob[at] == c",") & (blob[at + 2] == c"m") & (blob[at + 4] == c":")
    return mark_length(blob, size) if hit else -1
