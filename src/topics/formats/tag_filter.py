"""The tag filter of a sidecar: says of most tags that a segment lacks that it lacks them, by one look.

A delete by tag asks every segment, and nearly all of them lack the tag. Three bits of one 64-bit word, chosen by the
tag's XXH3, are set for each tag; with five tags a word about one tag in thirty is not told apart. What always holds: a
tag that is there is never denied. Written and read by `sidecar`; drawn in docs/formats/sidecar.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import numpy as np

from topics.formats.buffers import U64, xxh3, xxh3_all

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
        found = xxh3(tag)
        mask = 1 << (found & 63) | 1 << (found >> 6 & 63) | 1 << (found >> 12 & 63)
        word: int = words[(found >> 32) % len(words)]
        return word & mask == mask
