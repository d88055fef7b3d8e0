# cython: language_level=3
"""What the native modules share: layouts, reasons, and reads and writes at any address. Little-endian machines only;
`setup.py` builds it nowhere else."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport malloc
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


cdef inline void *address(object column) except NULL:
    """Where the items of a contiguous array lie; it must be kept as long as they are used."""
    cdef Py_buffer view
    PyObject_GetBuffer(column, &view, PyBUF_SIMPLE)
    cdef void *at = view.buf
    PyBuffer_Release(&view)
    return at if at != NULL else <void *>1


cdef inline void *reserve(size_t size) except NULL:
    cdef void *room = malloc(size if size else 1)
    if room == NULL:
        raise MemoryError
    return room


cdef inline bint is_blob(const uint8_t *blob, int64_t size) noexcept nogil:
    return size >= BLOB_MIN and memcmp(blob, b'{"d":', 5) == 0 and blob[size - 1] == c"}"
