"""ColdCache: ranges of cold `.data` files that were fetched lately (`TOPICS_COLD_CACHE_BYTES`, all topics).

Bytes are kept in blocks of fixed size by segment and version of its files, so that a reader walking through history
fetches each block once and never gets one of files that were replaced. Safe from any thread; the store is asked without
the lock, so a slow range delays nobody else.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Final

from topics.errors import ColdUnavailable, CorruptSegment
from topics.storage.segments.sealed_segment import SealedSegment
from topics.storage.tiers.stores import NoSuchObject, RangeOutOfBounds

BLOCK_BYTES: Final = 256 * 1024

Key = tuple[int, int, int, int]  # topic id, first seq, version, block number


class ColdCache:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._blocks: OrderedDict[Key, bytes] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    @property
    def bytes_held(self) -> int:
        return self._bytes

    def read(self, segment: SealedSegment, offset: int, length: int) -> tuple[bytes, bool]:
        """Bytes of the segment's `.data`, and whether the store had to be asked."""
        low, high = offset // BLOCK_BYTES, (offset + length - 1) // BLOCK_BYTES + 1
        base = (segment.place.topic_id, segment.first_seq, segment.version)
        blocks = self._known(base, low, high)
        missing = [number for number in range(low, high) if number not in blocks]
        if missing:
            blocks |= self._fetch(segment, base, missing[0], missing[-1] + 1)
        start = offset - low * BLOCK_BYTES
        joined = blocks[low] if high - low == 1 else b"".join(blocks[number] for number in range(low, high))
        found = joined[start : start + length]
        if len(found) != length:
            raise CorruptSegment(segment.place.name, seq=segment.first_seq, segment=segment.label)
        return found, bool(missing)

    def _known(self, base: tuple[int, int, int], low: int, high: int) -> dict[int, bytes]:
        known: dict[int, bytes] = {}
        with self._lock:
            for number in range(low, high):
                key = (*base, number)
                block = self._blocks.get(key)
                if block is not None:
                    self._blocks.move_to_end(key)
                    known[number] = block
        return known

    def _fetch(self, segment: SealedSegment, base: tuple[int, int, int], low: int, high: int) -> dict[int, bytes]:
        """Blocks `low..high-1` with one request."""
        end = min(high * BLOCK_BYTES, segment.data_len)
        start = low * BLOCK_BYTES
        data = read_cold(segment, start, end - start)
        segment.place.env.counters.cold_reads += 1
        fetched = {low + i: data[i * BLOCK_BYTES : (i + 1) * BLOCK_BYTES] for i in range(high - low)}
        with self._lock:
            for number, block in fetched.items():
                self._keep((*base, number), block)
        return fetched

    def _keep(self, key: Key, block: bytes) -> None:
        old = self._blocks.pop(key, b"")
        self._blocks[key] = block
        self._bytes += len(block) - len(old)
        while self._bytes > self._bytes_max and self._blocks:
            _, gone = self._blocks.popitem(last=False)
            self._bytes -= len(gone)

    def forget(self, segment: SealedSegment) -> None:
        """The cold bytes of this segment are gone or were replaced."""
        with self._lock:
            for key in [key for key in self._blocks if key[:2] == (segment.place.topic_id, segment.first_seq)]:
                self._bytes -= len(self._blocks.pop(key))


def read_cold(segment: SealedSegment, offset: int, length: int) -> bytes:
    """A range of a cold `.data`. No answer from the store is ColdUnavailable; bytes that are not there, corruption."""
    store = segment.place.cold
    if store is None:
        raise ColdUnavailable(segment.label, reason="no cold store is configured")
    try:
        return store.read_range(segment.first_seq, "data", offset, length)
    except (NoSuchObject, RangeOutOfBounds) as error:
        raise CorruptSegment(segment.place.name, seq=segment.first_seq, segment=segment.label) from error
    except OSError as error:
        raise ColdUnavailable(store.label, reason=str(error)) from error
