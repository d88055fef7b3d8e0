"""Outgoing: what one HTTP/2 stream still has to send, held back by the peer's flow control."""

from __future__ import annotations

from collections import deque


class Outgoing:
    __slots__ = ("_chunks", "ended", "size_bytes")

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self.size_bytes = 0
        self.ended = False  # nothing will be added

    def add(self, data: bytes) -> None:
        if data:
            self._chunks.append(data)
            self.size_bytes += len(data)

    def take(self, max_bytes: int) -> bytes:
        """Up to `max_bytes` from the front; small chunks are joined, a large one is cut."""
        parts: list[bytes] = []
        room = max_bytes
        while self._chunks and room:
            chunk = self._chunks.popleft()
            if len(chunk) > room:
                self._chunks.appendleft(chunk[room:])
                chunk = chunk[:room]
            parts.append(chunk)
            room -= len(chunk)
        taken = parts[0] if len(parts) == 1 else b"".join(parts)
        self.size_bytes -= len(taken)
        return taken
