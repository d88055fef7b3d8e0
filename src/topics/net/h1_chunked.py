"""ChunkedDecoder: chunked request bodies (RFC 9112 section 7.1), framing off and payload out.

`H1Reader` owns the buffer; the decoder says how far it got, and keeps nothing but the payload, up to `limit_bytes`.
Trailer fields are checked and dropped.
"""

from __future__ import annotations

import re

from topics.errors import InvalidRequest, PayloadTooLarge
from topics.net.http_grammar import FIELD_LINE, VALUE
from topics.net.transport_limits import CHUNK_BYTES_MEAN_MIN, CHUNK_LINE_BYTES_MAX, CHUNKS_FREE, TRAILER_BYTES_MAX

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]+)(?:[ \t]*;%b*)?\r\n" % VALUE)
_SIZE_BEGUN = re.compile(rb"[0-9A-Fa-f]*(?:[ \t]*(?:;%b*)?)?\r?" % VALUE)
_FIELD_BEGUN = re.compile(rb"(?:%b*\r?)?" % VALUE)

_SIZE, _DATA, _DATA_END, _TRAILER = range(4)


def _fault() -> InvalidRequest:
    return InvalidRequest("the chunked body is malformed")


class ChunkedDecoder:
    __slots__ = ("_chunks", "_left", "_limit_bytes", "_parts", "_state", "_trailer_bytes", "done", "total_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._parts: list[bytes] | None = []
        self._state = _SIZE
        self._left = 0
        self._chunks = 0
        self._trailer_bytes = 0
        self.total_bytes = 0
        self.done = False

    def received_bytes(self) -> int:
        """Payload that is here, without what the open chunk still promises."""
        return self.total_bytes - self._left

    def discard(self) -> None:
        """From now on only find the end; what was collected is dropped and no limit applies."""
        self._parts = None

    def body(self) -> bytes:
        assert self.done, "the body is not complete"
        assert self._parts is not None, "the body was discarded"
        return b"".join(self._parts)

    def feed(self, buf: bytes | bytearray, pos: int) -> int:
        """Take what can be taken from `buf[pos:]`; returns where the rest begins."""
        while not self.done:
            moved = _STEPS[self._state](self, buf, pos)
            if moved < 0:
                return pos
            pos = moved
        return pos

    def _size_line(self, buf: bytes | bytearray, pos: int) -> int:
        line = _SIZE_LINE.match(buf, pos, pos + CHUNK_LINE_BYTES_MAX)
        if line is None:
            if len(buf) - pos >= CHUNK_LINE_BYTES_MAX or _SIZE_BEGUN.fullmatch(buf, pos) is None:
                raise _fault()
            return -1
        self._open_chunk(int(line[1], 16))
        return line.end()

    def _open_chunk(self, size: int) -> None:
        self._left = size
        self._state = _DATA if size else _TRAILER
        self._chunks += 1
        self.total_bytes += size
        if self._parts is not None and self.total_bytes > self._limit_bytes:
            raise PayloadTooLarge(self._limit_bytes)
        if self._chunks > CHUNKS_FREE and self.total_bytes < self._chunks * CHUNK_BYTES_MEAN_MIN:
            raise InvalidRequest("the chunks of the body are too small")

    def _data(self, buf: bytes | bytearray, pos: int) -> int:
        end = min(pos + self._left, len(buf))
        if end == pos:
            return -1
        if self._parts is not None:
            self._parts.append(bytes(buf[pos:end]))
        self._left -= end - pos
        if not self._left:
            self._state = _DATA_END
        return end

    def _data_end(self, buf: bytes | bytearray, pos: int) -> int:
        end = buf[pos : pos + 2]
        if end == b"\r\n":
            self._state = _SIZE
            return pos + 2
        if end not in (b"", b"\r"):
            raise _fault()
        return -1

    def _trailer(self, buf: bytes | bytearray, pos: int) -> int:
        if buf.startswith(b"\r\n", pos):
            self.done = True
            return pos + 2
        line_end = buf.find(b"\n", pos)
        if self._trailer_bytes + (len(buf) if line_end < 0 else line_end) - pos > TRAILER_BYTES_MAX:
            raise InvalidRequest("the trailer of the chunked body is too long")
        if line_end < 0:
            if _FIELD_BEGUN.fullmatch(buf, pos) is None:
                raise _fault()
            return -1
        if FIELD_LINE.fullmatch(buf, pos, line_end + 1) is None:
            raise _fault()
        self._trailer_bytes += line_end + 1 - pos
        return line_end + 1


_STEPS = (ChunkedDecoder._size_line, ChunkedDecoder._data, ChunkedDecoder._data_end, ChunkedDecoder._trailer)
