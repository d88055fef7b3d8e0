"""The payload blob: `{"d":<data>}` or `{"d":<data>,"m":<meta>}` (`docs/spec/storage.md#sec-3-8`).

One blob is built and split by `topics.model.payload`; this module adds the plural forms over a buffer of frames. `data`
may contain the text `,"m":` itself, so a blob with that text is split by a JSON parser and every other one by
arithmetic: every blob with meta has the text, hence "absent" proves "no meta". Bytes that are no blob (no writer of
ours makes them) never raise here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
import numpy as np

from topics.formats.buffers import I64, Bools, Buffer, byte_view, gather_u32
from topics.model.payload import DATA_AT, META_MARK, make_blob, meta_at, split_blob

__all__ = ["accounted_size", "accounted_sizes", "blob", "blobs", "meta_lengths", "split_blob"]

HEAD: Final = b'{"d":'
META: Final = META_MARK
TAIL: Final = b"}"
BLOB_BYTES_MIN: Final = len(HEAD) + len(TAIL)
"""Wrapper bytes of a blob without meta."""
WRAP_META_BYTES: Final = len(HEAD) + len(META) + len(TAIL)
"""Wrapper bytes of a blob with meta."""

assert len(HEAD) == DATA_AT
assert META == b',"m":'
assert BLOB_BYTES_MIN == 6
assert WRAP_META_BYTES == 11


class _Meta(msgspec.Struct, gc=False):
    """Only `m` is wanted: the parser walks over `d` without making an object of it."""

    m: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_parse: Final = msgspec.json.Decoder(_Meta).decode
_parse_array: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
# Texts checked per call of the parser: one that it does not take costs its run a second look.
_RUN: Final = 512
_META_WORD: Final = np.uint32(int.from_bytes(META[:4], "little"))
_M, _COLON = np.uint8(META[2]), np.uint8(META[4])
# Bytes searched per numpy call: what it makes of them stays in the processor's cache.
_WINDOW: Final = 1 << 17


def blob(data_text: bytes, meta_text: bytes | None = None) -> bytes:
    """The stored form of one record's texts."""
    return make_blob(data_text, meta_text)


def blobs(data_texts: Iterable[bytes]) -> list[bytes]:
    """The stored form of many records without meta."""
    return [b'{"d":%b}' % text for text in data_texts]


def accounted_size(stored: bytes) -> int:
    """Bytes of the `data` text plus those of the `meta` text (`docs/spec/semantics.md`: `bytes(r)`)."""
    has_meta = META in stored and _meta_length(stored) >= 0
    return len(stored) - (WRAP_META_BYTES if has_meta else BLOB_BYTES_MIN)


def _meta_length(stored: bytes) -> int:
    """Length of the meta text of a blob that contains `,"m":`; -1 when that text is part of its data."""
    try:
        meta = _parse(stored).m
    except (ValueError, RecursionError):
        return _meta_length_leniently(stored)
    if meta is msgspec.UNSET:
        return -1
    at = len(stored) - len(TAIL) - len(meta) - len(META)
    return len(meta) if stored.startswith(META, at) else _meta_length_leniently(stored)


def _meta_length_leniently(stored: bytes) -> int:
    """The same for a blob that msgspec does not read: one with an escaped lone surrogate, or no blob at all."""
    try:
        at = meta_at(stored)
    except (ValueError, RecursionError):
        return -1
    return max(len(stored) - len(TAIL) - len(META) - at, -1) if at >= len(HEAD) else -1


def meta_lengths(buffer: Buffer, starts: I64, lengths: I64) -> I64:
    """Byte length of the meta text of every blob, -1 where there is none; plural form of `split_blob`.

    The first `,"m":` of a blob is decided by what follows it: the text up to the last brace is JSON if it is meta, and
    has a brace too many if it is the rest of an object inside data. One call of the parser checks many such texts.
    """
    found = np.full(len(starts), -1, np.int64)
    view = byte_view(buffer)
    rows, marks = _first_marks(view, starts, lengths)
    begins = marks + len(META)
    ends = starts[rows] + lengths[rows] - len(TAIL)
    decided = _all_json(buffer, view, begins, ends)
    found[rows[decided]] = (ends - begins)[decided]
    for row in rows[~decided].tolist():
        found[row] = _meta_length(bytes(view[int(starts[row]) : int(starts[row] + lengths[row])]))
    return found


def accounted_sizes(buffer: Buffer, starts: I64, lengths: I64) -> I64:
    """`accounted_size` of every blob."""
    meta = meta_lengths(buffer, starts, lengths)
    return lengths - np.where(meta < 0, BLOB_BYTES_MIN, WRAP_META_BYTES)


def _all_json(buffer: Buffer, view: memoryview, begins: I64, ends: I64) -> Bools:
    """For each text whether its run is JSON throughout; a text in a run with one that is not counts as undecided."""
    source: Any = buffer if isinstance(buffer, bytes) else view
    decided = np.zeros(len(begins), np.bool_)
    for at in range(0, len(begins), _RUN):
        pairs = zip(begins[at : at + _RUN].tolist(), ends[at : at + _RUN].tolist(), strict=True)
        texts = [source[a:b] for a, b in pairs]
        decided[at : at + _RUN] = _is_array_of(b"[%b]" % b",".join(texts), len(texts))
    return decided


def _is_array_of(text: bytes, count: int) -> bool:
    try:
        return len(_parse_array(text)) == count
    except (ValueError, RecursionError):
        return False


def _first_marks(view: memoryview, starts: I64, lengths: I64) -> tuple[I64, I64]:
    """The first `,"m":` of every blob that has one: the blob's row and the place."""
    if not len(starts):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    ends = starts + lengths
    low, high = int(starts[0]), int(ends[-1])
    if (starts[1:] < ends[:-1]).any() or high - low > 2 * int(lengths.sum()) + _WINDOW:
        return _first_marks_row_by_row(view, starts, ends)
    places = _find_marks(view, low, high)
    rows = np.searchsorted(starts, places, side="right") - 1
    inside = places + len(META) <= ends[rows]
    rows, places = rows[inside], places[inside]
    first = np.ones(len(rows), np.bool_)
    first[1:] = rows[1:] != rows[:-1]
    return rows[first], places[first]


def _first_marks_row_by_row(view: memoryview, starts: I64, ends: I64) -> tuple[I64, I64]:
    """The same for blobs that are not in order, or few in a large buffer."""
    pairs = zip(starts.tolist(), ends.tolist(), strict=True)
    at = np.array([bytes(view[a:b]).find(META) for a, b in pairs], np.int64)
    rows = np.flatnonzero(at >= 0)
    return rows, starts[rows] + at[rows]


def _find_marks(view: memoryview, low: int, high: int) -> I64:
    """Every place of `,"m":` in `[low, high)`, ascending."""
    found = [np.empty(0, np.int64)]
    last = high - len(META) + 1
    codes = np.frombuffer(view, np.uint8)
    room = bytearray(min(_WINDOW, max(last - low, 0)))
    differs, second = np.frombuffer(room, np.uint8), np.empty(len(room), np.uint8)
    for at in range(low, last, _WINDOW):
        size = min(_WINDOW, last - at)
        # Zero where both `m` and `:` are in place, which texts rarely have; bytes need no alignment, as words would.
        np.bitwise_xor(codes[at + 2 : at + 2 + size], _M, out=differs[:size])
        np.bitwise_xor(codes[at + 4 : at + 4 + size], _COLON, out=second[:size])
        np.bitwise_or(differs[:size], second[:size], out=differs[:size])
        if room.find(0, 0, size) >= 0:
            places = np.flatnonzero(differs[:size] == 0) + at
            found.append(places[gather_u32(view, places) == _META_WORD])
    return np.concatenate(found)
