"""The payload blob: `{"d":<data>}` or `{"d":<data>,"m":<meta>}` (`docs/spec/storage.md#sec-3-8`).

One blob is built and split by `topics.model.payload`; this module adds the plural forms over a buffer of frames. `data`
may contain the text `,"m":` itself, so a blob with that text is read bracket by bracket (`topics.formats.codec`): every
blob with meta has the text, hence "absent" proves "no meta". Bytes that are no blob (no writer of ours makes them)
never raise here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from topics.formats import codec
from topics.formats.buffers import I64, Buffer
from topics.model.payload import DATA_AT, META_MARK, make_blob, split_blob

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


def blob(data_text: bytes, meta_text: bytes | None = None) -> bytes:
    """The stored form of one record's texts."""
    return make_blob(data_text, meta_text)


def blobs(data_texts: Iterable[bytes]) -> list[bytes]:
    """The stored form of many records without meta."""
    return [b'{"d":%b}' % text for text in data_texts]


def accounted_size(stored: bytes) -> int:
    """Bytes of the `data` text plus those of the `meta` text (`docs/spec/semantics.md`: `bytes(r)`)."""
    if META not in stored:
        return len(stored) - BLOB_BYTES_MIN
    return int(accounted_sizes(stored, np.array([0]), np.array([len(stored)]))[0])


def meta_lengths(buffer: Buffer, starts: I64, lengths: I64) -> I64:
    """Byte length of the meta text of every blob, -1 where there is none; plural form of `split_blob`."""
    return codec.segment.meta_lengths(buffer, starts, lengths)


def accounted_sizes(buffer: Buffer, starts: I64, lengths: I64) -> I64:
    """`accounted_size` of every blob."""
    meta = meta_lengths(buffer, starts, lengths)
    return lengths - np.where(meta < 0, BLOB_BYTES_MIN, WRAP_META_BYTES)
