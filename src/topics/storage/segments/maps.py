"""MapCache: bounds how much of the sealed history is mapped at a time.

Each sealed segment maps its files on first use; this cache closes the least recently used ones once their `.idx` bytes
exceed `TOPICS_INDEX_CACHE_BYTES`, or once too many descriptors are tied up (a mapping holds one each). "Closing" is
dropping the segment's reference: readers that hold the old arrays keep the mapping alive until they finish.

Use is noted by a mark on the segment, not by reordering a list, so a look-up costs an attribute; the sweep gives marked
ones a second chance. Safe from any thread.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import Protocol

MAPPED_SEGMENTS_MAX = 256


class Mapped(Protocol):
    """A segment as its cache sees it."""

    recently_used: bool

    @property
    def idx_bytes(self) -> int: ...

    def unmap(self) -> None: ...


class MapCache:
    def __init__(self, bytes_max: int, *, segments_max: int = MAPPED_SEGMENTS_MAX) -> None:
        self._bytes_max = bytes_max
        self._segments_max = segments_max
        self._queue: deque[tuple[Mapped, int]] = deque()
        self._lock = Lock()
        self.bytes_mapped = 0

    def __len__(self) -> int:
        return len(self._queue)

    def admit(self, segment: Mapped) -> None:
        """Count a segment that was just mapped, and unmap others until all fit; at least this one stays."""
        segment.recently_used = False  # being mapped is no use yet; the next look is
        with self._lock:
            self._queue.append((segment, segment.idx_bytes))
            self.bytes_mapped += segment.idx_bytes
            victims = self._victims(segment)
        for victim in victims:
            victim.unmap()

    def _victims(self, newest: Mapped) -> list[Mapped]:
        victims: list[Mapped] = []
        chances = 2 * len(self._queue)
        while chances and len(self._queue) > 1 and self._too_much():
            chances -= 1
            segment, idx_bytes = self._queue.popleft()
            if segment is newest or (segment.recently_used and chances > len(self._queue)):
                segment.recently_used = False
                self._queue.append((segment, idx_bytes))
            else:
                self.bytes_mapped -= idx_bytes
                victims.append(segment)
        return victims

    def _too_much(self) -> bool:
        return self.bytes_mapped > self._bytes_max or len(self._queue) > self._segments_max

    def remove(self, segment: Mapped) -> None:
        """Forget a segment that unmapped itself (rewrite, relocation, drop)."""
        with self._lock:
            kept = [(other, n) for other, n in self._queue if other is not segment]
            if len(kept) < len(self._queue):
                self.bytes_mapped -= sum(n for other, n in self._queue if other is segment)
                self._queue = deque(kept)

    def close(self) -> None:
        """Unmap all: a map holds its file open, and would until somebody collects it."""
        with self._lock:
            mapped, self._queue, self.bytes_mapped = self._queue, deque(), 0
        for segment, _ in mapped:
            segment.unmap()
