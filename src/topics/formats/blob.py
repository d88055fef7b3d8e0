"""The payload blob: `{"d":<data>}` or `{"d":<data>,"m":<meta>}` (storage.md section 3.8).

Client texts are carried byte for byte; the blob has no white space of its own. The same bytes lie in WAL and segment
frames. `data` may contain the text `,"m":` itself, so a blob with that text is split by a JSON parser and every other
blob by arithmetic: in valid JSON the text cannot lie inside a string, hence "absent" proves "no meta".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from topics.errors import Corruption
from topics.formats.buffers import I64, Bools, Buffer, byte_view

HEAD: Final = b'{"d":'
META: Final = b',"m":'
TAIL: Final = b"}"
BLOB_BYTES_MIN: Final = len(HEAD) + len(TAIL)
"""Wrapper bytes of a blob without meta."""
WRAP_META_BYTES: Final = len(HEAD) + len(META) + len(TAIL)
"""Wrapper bytes of a blob with meta."""

assert BLOB_BYTES_MIN == 6
assert WRAP_META_BYTES == 11


class _Parts(msgspec.Struct, gc=False):
    d: msgspec.Raw
    m: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_parse: Final = msgspec.json.Decoder(_Parts).decode


def blob(data_text: bytes, meta_text: bytes | None = None) -> bytes:
    """The stored form of one record's texts."""
    if meta_text is None:
        return b'{"d":%b}' % data_text
    return b'{"d":%b,"m":%b}' % (data_text, meta_text)


def blobs(data_texts: Iterable[bytes]) -> list[bytes]:
    """The stored form of many records without meta."""
    return [b'{"d":%b}' % text for text in data_texts]


def split_blob(stored: bytes) -> tuple[bytes, bytes | None]:
    """The texts of `data` and `meta`, exactly as they were given to `blob`."""
    at = _meta_at(stored)
    if at < 0:
        return stored[len(HEAD) : -len(TAIL)], None
    return stored[len(HEAD) : at], stored[at + len(META) : -len(TAIL)]


def accounted_size(stored: bytes) -> int:
    """Bytes of the `data` text plus those of the `meta` text (semantics.md: `bytes(r)`)."""
    return len(stored) - (BLOB_BYTES_MIN if _meta_at(stored) < 0 else WRAP_META_BYTES)


def _meta_at(stored: bytes) -> int:
    """Offset of the `,"m":` that parts data and meta; -1 without meta."""
    if META not in stored:
        return -1
    try:
        meta = _parse(stored).m
    except (ValueError, RecursionError) as error:
        raise Corruption(file="", offset=0, reason="blob") from error
    if not isinstance(meta, msgspec.Raw):
        return -1
    return len(stored) - len(bytes(meta)) - len(META) - len(TAIL)


def meta_lengths(buffer: Buffer, starts: I64, lengths: I64) -> I64:
    """Byte length of the meta text of every blob, -1 where there is none; plural form of `split_blob`.

    Blobs must come from frames that passed their checks; one that does not parse raises Corruption.
    """
    found = np.full(len(starts), -1, np.int64)
    view = byte_view(buffer)
    for row in np.flatnonzero(_mentions_meta(view, starts, lengths)).tolist():
        start = int(starts[row])
        at = _meta_at(bytes(view[start : start + int(lengths[row])]))
        if at >= 0:
            found[row] = int(lengths[row]) - at - len(META) - len(TAIL)
    return found


def accounted_sizes(buffer: Buffer, starts: I64, lengths: I64) -> I64:
    """`accounted_size` of every blob."""
    meta = meta_lengths(buffer, starts, lengths)
    return lengths - np.where(meta < 0, BLOB_BYTES_MIN, WRAP_META_BYTES)


def _mentions_meta(view: memoryview, starts: I64, lengths: I64) -> Bools:
    pieces: Sequence[Any] = [bytes(view[a : a + n]) for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)]
    return np.array([META in piece for piece in pieces], np.bool_)
