# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Records as JSON in C: what `plain_render` says, a whole page at a time; `native_log` has the rules that hold here too."""

from cpython cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.ref cimport Py_DECREF, PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from topics.formats.codec.native cimport *

from array import array as _array

cdef array.array _LONGS = _array("q")

cdef extern from "Python.h":
    # By reference, because shortening may move the object.
    PyObject *new_bytes "PyBytes_FromStringAndSize" (const char *text, Py_ssize_t size) except NULL
    char *text_of "PyBytes_AS_STRING" (PyObject *text)
    int _PyBytes_Resize(PyObject **text, Py_ssize_t size) except -1


cdef enum:
    # Text of a record besides its strings and its payload: keys, two numbers of 20 digits, quotes and braces.
    TEXT_OVERHEAD = 120
    # A byte of a string takes at most this many, as \u001f.
    ESCAPED_MAX = 6
    # From here on a page is rendered by a thread of the pool, which has nobody waiting for it on the GIL.
    RENDER_GIL_FREE_BYTES = 1 << 18


cdef const uint8_t *DIGIT_PAIRS = (
    b"0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849"
    b"5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899"
)


# The last time that was written: records of one write have the same.
cdef struct Moment:
    uint64_t ts
    Py_ssize_t size
    uint8_t text[20]


cdef struct Page:
    const uint8_t *data
    const int64_t *offset
    const uint8_t *flags
    Py_ssize_t count
    bint with_data
    bint with_tags
    bint with_meta
    int64_t *end


def render_records(buffer, offsets, bytes flags, bint data, bint tags, bint meta):
    cdef Page page
    cdef Held held
    cdef Py_ssize_t row
    cdef int64_t room = 0, size = 0
    cdef const uint8_t *body
    cdef PyObject *text
    cdef uint8_t *out
    starts = int64s(offsets)
    page.count = len(starts)
    if PyBytes_GET_SIZE(flags) != page.count:
        raise ValueError(f"{len(flags)} flags for {page.count} records")
    cdef array.array ends = array.clone(_LONGS, page.count, zero=False)
    page.offset, page.end = <const int64_t *>address(starts), <int64_t *>ends.data.as_longlongs
    page.flags = <const uint8_t *>PyBytes_AS_STRING(flags)
    page.with_data, page.with_tags, page.with_meta = data, tags, meta
    hold(&held, buffer)
    try:
        page.data = held.data
        for row in range(page.count):
            size = body_size(&held, page.offset[row])
            body = page.data + page.offset[row]
            if u32(body + 20) < BLOB_MIN:
                raise ValueError("a body lies outside of its buffer")
            room += size + TEXT_OVERHEAD + (ESCAPED_MAX - 1) * (<int64_t>u16(body + 16) + u16(body + 18))
        text = new_bytes(NULL, room)
        out = <uint8_t *>text_of(text)
        # A buffer that can be written to may be one that grows, which it cannot while it is held: so nobody else runs.
        if room < RENDER_GIL_FREE_BYTES or not held.view.readonly:
            size = put_page(&page, out)
        else:
            with nogil:
                size = put_page(&page, out)
    finally:
        release(&held)
    _PyBytes_Resize(&text, size)
    whole = <object>text
    Py_DECREF(whole)  # `whole` has its own reference
    return whole, ends


cdef int64_t put_page(const Page *page, uint8_t *out) noexcept nogil:
    cdef uint8_t *at = out
    cdef Moment moment
    cdef Py_ssize_t row
    moment.size = 0
    for row in range(page.count):
        if row:
            at[0] = c","
            at += 1
        at = put_record(page, page.data + page.offset[row], page.flags[row], &moment, at)
        page.end[row] = at - out
    return at - out


cdef inline uint8_t *put_record(
    const Page *page, const uint8_t *body, uint8_t flags, Moment *moment, uint8_t *at
) noexcept nogil:
    cdef int64_t node_len = u16(body + 16), tag_len = u16(body + 18), blob_len = u32(body + 20), data_len, meta_len = -1
    cdef const uint8_t *blob = body + 24 + node_len + tag_len
    at = put_text(at, b'{"$seq":', 8)
    at = put_number(at, u64(body))
    if not moment.size or moment.ts != u64(body + 8):
        moment.ts = u64(body + 8)
        moment.size = put_number(moment.text, moment.ts) - moment.text
    at = put_text(put_text(at, b',"$ts":', 7), moment.text, moment.size)
    if flags & HAS_NODE:
        at = put_string(put_text(at, b',"$node":', 9), body + 24, node_len)
    if page.with_tags and flags & HAS_TAG:
        at = put_string(put_text(at, b',"$tag":', 8), body + 24 + node_len, tag_len)
    if page.with_data or page.with_meta:
        meta_len = meta_length(blob, blob_len)
    if page.with_data:
        data_len = blob_len - BLOB_MIN if meta_len < 0 else blob_len - 11 - meta_len
        at = put_text(put_text(at, b',"data":', 8), blob + 5, data_len)
    if page.with_meta and meta_len >= 0:
        at = put_text(put_text(at, b',"meta":', 8), blob + blob_len - 1 - meta_len, meta_len)
    at[0] = c"}"
    return at + 1


cdef inline uint8_t *put_text(uint8_t *at, const uint8_t *text, int64_t size) noexcept nogil:
    memcpy(at, text, size)
    return at + size


cdef inline uint8_t *put_number(uint8_t *at, uint64_t number) noexcept nogil:
    cdef uint8_t digits[20]
    cdef int first = 20
    while number >= 100:
        first -= 2
        memcpy(digits + first, DIGIT_PAIRS + 2 * (number % 100), 2)
        number //= 100
    if number >= 10:
        first -= 2
        memcpy(digits + first, DIGIT_PAIRS + 2 * number, 2)
    else:
        first -= 1
        digits[first] = <uint8_t>(c"0" + number)
    return put_text(at, digits + first, 20 - first)


cdef uint8_t *put_string(uint8_t *at, const uint8_t *text, int64_t size) noexcept nogil:
    cdef const uint8_t *hex_digits = b"0123456789abcdef"
    cdef const uint8_t *short_names = b"btn.fr"  # of 8 to 13
    cdef int64_t place
    cdef uint8_t char
    at[0] = c'"'
    at += 1
    for place in range(size):
        char = text[place]
        if char >= 0x20 and char != c'"' and char != c"\\":
            at[0] = char
            at += 1
            continue
        at[0] = c"\\"
        if char >= 0x20:
            at[1] = char
        elif 8 <= char <= 13 and char != 11:
            at[1] = short_names[char - 8]
        else:
            memcpy(at + 1, b"u00", 3)
            at[4] = hex_digits[char >> 4]
            at[5] = hex_digits[char & 15]
            at += 4
        at += 2
    at[0] = c'"'
    return at + 1
