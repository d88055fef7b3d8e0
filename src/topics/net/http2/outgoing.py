"""Outgoing: what one HTTP/2 stream still has to send, held back by the peer's flow control."""

from __future__ import annotations

from collections import deque


class Outgoing:
    __slots__ = ("_chunks", "_taken_bytes", "ended", "size_bytes")

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._taken_bytes = 0  # of the first chunk
        self.size_bytes = 0
        self.ended = False  # nothing will be added

    def add(self, data: bytes) -> None:
        if data:
            self._chunks.append(data)
            self.size_bytes += len(data)

    def take(self, max_bytes: int) -> bytes:
        """Up to `max_bytes` from the front; small chunks are joined, a large one is taken piece by piece."""
        parts: list[bytes] = []
        room = max_bytes
        while self._chunks and room:
            chunk, start = self._chunks[0], self._taken_bytes
            part = chunk[start : start + room]
            parts.append(part)
            room -= len(part)
            self._taken_bytes += len(part)
            if self._taken_bytes == len(chunk):
                self._chunks.popleft()
                self._taken_bytes = 0
        taken = parts[0] if len(parts) == 1 else b"".join(parts)
        self.size_bytes -= len(taken)
        return taken
