"""The tag filter of a sidecar: says of most tags that a segment lacks that it lacks them, by one look.

A delete by tag asks every segment, and nearly all of them lack the tag. Three bits of one 64-bit word, chosen by the
tag's XXH3, are set for each tag; with five tags a word about one tag in thirty is not told apart. What always holds: a
tag that is there is never denied. Written and read by `sidecar`; drawn in docs/formats/sidecar.md.

The tag sidecar `seg-<first_seq>.tags` of a sealed segment: tags to slots, accounted sizes
(`docs/spec/storage.md#sec-12`).

Derived from the segment, rebuilt when missing, stale or bad, never evidence for anything. A reader works on the mapped
file: a lookup is a look at the filter and a binary search over the sorted tags, and what it returns is a slice of the
postings. Layout, drawn in docs/formats/sidecar.md:

    header | filter u64[] | sizes u32[count] | tag_ends u32[tags] | posting_ends u32[tags] | postings u32[] | texts
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final

import numpy as np
import numpy.typing as npt

from topics.errors import Corruption
from topics.formats.buffers import U32, U64, Buffer, byte_view, u32_view, xxh3, xxh3_all
from topics.formats.versions import SIDECAR_VERSION

WORD_BYTES: Final = 8
_TAGS_PER_WORD: Final = 5
_BIT: Final = np.uint64(63)


def words_of(tags: int) -> int:
    """How long the filter of so many tags is."""
    return -(-tags // _TAGS_PER_WORD)


def encode_filter(tags: Sequence[bytes]) -> bytes:
    words: U64 = np.zeros(words_of(len(tags)), np.uint64)
    if len(tags):
        hashes = xxh3_all(tags)
        one = np.uint64(1)
        masks = (
            one << (hashes & _BIT) | one << (hashes >> np.uint64(6) & _BIT) | one << (hashes >> np.uint64(12) & _BIT)
        )
        np.bitwise_or.at(words, (hashes >> np.uint64(32)) % np.uint64(len(words)), masks)
    return words.astype("<u8").tobytes()


@lru_cache(maxsize=1024)
def _place_and_mask(tag: bytes) -> tuple[int, int]:
    """What chooses the word of a tag, and its bits; remembered, since one tag is asked for in many filters."""
    found = xxh3(tag)
    return found >> 32, 1 << (found & 63) | 1 << (found >> 6 & 63) | 1 << (found >> 12 & 63)


class TagFilter:
    """A reader over the words of a filter."""

    __slots__ = ("_words",)

    def __init__(self, view: memoryview) -> None:
        native = sys.byteorder == "little"
        self._words = view.cast("Q") if native else np.frombuffer(view, "<u8").astype(np.uint64).data

    def may_have(self, tag: bytes) -> bool:
        words = self._words
        if not len(words):
            return False
        place, mask = _place_and_mask(tag)
        word: int = words[place % len(words)]
        return word & mask == mask

    @property
    def nbytes(self) -> int:
        return self._words.nbytes

    def copy(self) -> TagFilter:
        """The same words in memory of their own, so that it outlives the mapping."""
        return TagFilter(memoryview(self._words.tobytes()))


MAGIC: Final = b"TAG1"
# magic, version, xxh3 of everything behind it, data_len, count, tags, postings, text bytes
_HEADER: Final = struct.Struct("<4sIQQIIII")
HEADER_BYTES: Final = 40
_SUM_AT: Final = 8
_SUMMED_FROM: Final = 16

assert _HEADER.size == HEADER_BYTES


def encode_sidecar(*, tags: Sequence[bytes | None], sizes: npt.ArrayLike, data_len: int) -> bytes:
    """The sidecar of a segment from one tag (None = no tag) and one accounted size (0 = empty slot) per slot."""
    sizes_column = np.ascontiguousarray(sizes, "<u4")
    if len(sizes_column) != len(tags):
        raise ValueError(f"{len(tags)} tags for {len(sizes_column)} sizes")
    postings: dict[bytes, list[int]] = {}
    if tags.count(None) < len(tags):  # many topics have no tags at all
        for slot, tag in enumerate(tags):
            if tag is not None:
                postings.setdefault(tag, []).append(slot)
    ordered = sorted(postings)
    runs = [postings[tag] for tag in ordered]
    text = b"".join(ordered)
    columns = (sizes_column, _ends(map(len, ordered)), _ends(map(len, runs)), _u32([s for run in runs for s in run]))
    rest = b"".join((encode_filter(ordered), *(column.tobytes() for column in columns), text))
    counts = (data_len, len(tags), len(ordered), sum(map(len, runs)), len(text))
    return _with_sum(_HEADER.pack(MAGIC, SIDECAR_VERSION, 0, *counts) + rest)


def _u32(values: list[int]) -> U32:
    return np.array(values, "<u4")


def _ends(lengths: Iterable[int]) -> U32:
    return _u32(list(accumulate(lengths)))


def _with_sum(content: bytes) -> bytes:
    digest = struct.pack("<Q", xxh3(content[_SUMMED_FROM:]))
    return content[:_SUM_AT] + digest + content[_SUMMED_FROM:]


def sidecar_matches(buffer: Buffer, *, count: int, data_len: int) -> bool:
    """Whether a sidecar is whole, undamaged and of a segment with this count and data length."""
    try:
        sidecar = TagSidecar(buffer)
    except Corruption:
        return False
    return (sidecar.count, sidecar.data_len) == (count, data_len) and sidecar.verify()


class TagSidecar:
    """A reader over a sidecar's bytes; holds views of the buffer, so drop it before closing a mapping.

    The constructor checks header and lengths only; `verify` reads everything.
    """

    __slots__ = (
        "_digest",
        "_posting_ends",
        "_postings",
        "_tag_ends",
        "_text",
        "_view",
        "count",
        "data_len",
        "filter",
        "sizes",
    )

    def __init__(self, buffer: Buffer, *, file: str = "sidecar") -> None:
        view = byte_view(buffer)
        if len(view) < HEADER_BYTES:
            raise Corruption(file=file, offset=0, reason="short header")
        magic, version, self._digest, self.data_len, self.count, tags, postings, text_len = _HEADER.unpack_from(view)
        if magic != MAGIC or version != SIDECAR_VERSION:
            raise Corruption(file=file, offset=0, reason="magic or version")
        lengths = WORD_BYTES * words_of(tags), 4 * self.count, 4 * tags, 4 * tags, 4 * postings, text_len
        starts = list(accumulate(lengths, initial=HEADER_BYTES))
        if len(view) != starts[-1]:
            raise Corruption(file=file, offset=0, reason="length")
        self._view = view
        self.filter = TagFilter(view[starts[0] : starts[1]])
        self.sizes: U32 = np.frombuffer(view, "<u4", self.count, starts[1])
        """Accounted bytes of each slot."""
        self._tag_ends = u32_view(view[starts[2] : starts[3]])
        self._posting_ends: U32 = np.frombuffer(view, "<u4", tags, starts[3])
        self._postings: U32 = np.frombuffer(view, "<u4", postings, starts[4])
        self._text = view[starts[5] :]

    def verify(self) -> bool:
        """Whether the checksum matches; with it everything that the encoder guarantees holds."""
        return xxh3(self._view[_SUMMED_FROM:]) == int(self._digest)

    def __len__(self) -> int:
        """Number of distinct tags."""
        return len(self._tag_ends)

    def tag(self, rank: int) -> bytes:
        """The tag at a place in sorted order."""
        start = self._tag_ends[rank - 1] if rank else 0
        return bytes(self._text[start : self._tag_ends[rank]])

    def lookup_eq(self, tag: bytes) -> U32:
        """Slots with exactly this tag, ascending."""
        if not self.filter.may_have(tag):
            return self._postings[:0]
        rank = self._rank(tag)
        if rank == len(self) or self.tag(rank) != tag:
            return self._postings[:0]
        return self._postings[self._first_posting(rank) : self._first_posting(rank + 1)]

    def lookup_prefix(self, prefix: bytes) -> U32:
        """Slots whose tag starts with `prefix`, ascending."""
        low = self._rank(prefix)
        high = self._rank_behind(prefix, low)
        slots = self._postings[self._first_posting(low) : self._first_posting(high)]
        return slots if high - low <= 1 else np.sort(slots)

    def tags_after(self, after: bytes | None, prefix: bytes, limit: int) -> list[tuple[bytes, U32]]:
        """Up to so many tags with this prefix behind `after` (None: from the first on), ascending, and the slots of
        each."""
        rank = self._rank(prefix)
        if after is not None and after >= prefix:
            rank = max(rank, self._rank(after))
            rank += rank < len(self) and self.tag(rank) == after
        found: list[tuple[bytes, U32]] = []
        while rank < len(self) and len(found) < limit and (tag := self.tag(rank)).startswith(prefix):
            found.append((tag, self._postings[self._first_posting(rank) : self._first_posting(rank + 1)]))
            rank += 1
        return found

    def _first_posting(self, rank: int) -> int:
        return int(self._posting_ends[rank - 1]) if rank else 0

    def _rank(self, tag: bytes) -> int:
        """Number of tags below `tag`."""
        ends, text = self._tag_ends, self._text
        low, high = 0, len(ends)
        while low < high:
            middle = (low + high) >> 1
            if bytes(text[ends[middle - 1] if middle else 0 : ends[middle]]) < tag:
                low = middle + 1
            else:
                high = middle
        return low

    def _rank_behind(self, prefix: bytes, low: int) -> int:
        """First rank at or behind `low` whose tag does not start with `prefix`."""
        high = len(self)
        while low < high:
            middle = (low + high) // 2
            if self.tag(middle).startswith(prefix):
                low = middle + 1
            else:
                high = middle
        return low
