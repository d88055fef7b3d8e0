"""Chunked bodies (RFC 9112 section 7.1): framing off, payload out.

Trailer fields are checked and dropped. Called by `H1Reader`, which owns the buffer; the decoder only says how far it
got. Nothing is buffered here but the payload, and that is bounded by `limit_bytes`.

H1Reader: the bytes of one connection as heads and bodies, in order.

The caller feeds bytes with `receive`, then alternates: `next_head`, and for each head `read_body` (or `discard_body`)
until it is complete. Each call says None or False while more bytes are needed. A fault is raised as the error to
answer with; after it the reader's place in the bytes means nothing and the connection must end.

Always holds: however the same bytes are cut, the same heads, bodies and faults come out.
"""

from __future__ import annotations

import re

from topics.errors import InvalidRequest, PayloadTooLarge
from topics.net.h1.head import HeadTemplate, parse_head
from topics.net.h1.lines import FIELD_LINE, VALUE, LineChecker
from topics.net.messages import RequestHead
from topics.net.transport_limits import (
    BLANK_LINES_MAX,
    CHUNK_BYTES_MEAN_MIN,
    CHUNK_LINE_BYTES_MAX,
    CHUNKS_FREE,
    HEAD_BYTES_MAX,
    TEMPLATE_BYTES_MAX,
    TRAILER_BYTES_MAX,
)

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


_HEAD_END = b"\r\n\r\n"


class H1Reader:
    __slots__ = (
        "_blanks_skipped",
        "_buf",
        "_checker",
        "_chunked",
        "_limit_bytes",
        "_parts",
        "_pos",
        "_scanned",
        "_template",
        "_to_come",
        "content_length",
    )

    def __init__(self, body_limit_bytes: int) -> None:
        self._limit_bytes = body_limit_bytes
        self._buf: bytes | bytearray = b""
        self._pos = 0  # everything before it is consumed
        self._scanned = 0  # no head ends before here
        self._blanks_skipped = 0
        self._checker: LineChecker | None = None  # only while a head is incomplete
        self._template: HeadTemplate | None = None
        self._chunked: ChunkedDecoder | None = None
        self._to_come = 0  # bytes of a body of known length
        self._parts: list[bytes] | None = None  # what came of it, if it did not come whole
        self.content_length: int | None = None  # of the last head

    # --- input --------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        buf = self._buf
        if self._pos >= len(buf):
            self._buf = data
            self._restart(0)
        else:
            if not isinstance(buf, bytearray):
                buf = self._buf = bytearray(buf)
            if self._pos and self._checker is None:
                del buf[: self._pos]
                self._restart(0)
            buf += data

    def waiting_bytes(self) -> int:
        """Bytes received and not yet consumed: part of a head, or requests behind the current one."""
        return len(self._buf) - self._pos

    def held_bytes(self) -> int:
        """Bytes of an incomplete body that are kept here."""
        if self._chunked is not None:
            return self._chunked.received_bytes()
        return (self.content_length or 0) - self._to_come if self._parts else 0

    def take_rest(self) -> bytes:
        """Everything not consumed, for the protocol that takes over the connection."""
        rest = bytes(self._buf[self._pos :])
        self._buf = b""
        self._restart(0)
        return rest

    def forget_template(self) -> None:
        """Give back the memory of a connection that will not send another head for long."""
        self._template = None

    # --- heads --------------------------------------------------------------------------------------------------------

    def next_head(self) -> RequestHead | None:
        buf, pos = self._buf, self._pos
        if pos >= len(buf):
            return None
        end = buf.find(_HEAD_END, self._scanned)
        template = self._template
        if template is None or end < 0:
            return self._new_head(end)
        end += 4
        raw = bytes(buf[pos:end])
        length = template.match(raw)
        if length is None:
            return self._new_head(end - 4)
        self._blanks_skipped = 0
        self._restart(end)
        self._expect_body(template.head, length)
        return template.head

    def repeated(self, data: bytes) -> tuple[RequestHead, bytes] | None:
        """The head and body if `data`, not received yet, is one whole request that repeats the last head."""
        template = self._template
        if template is None or template.head.express is None or self._pos < len(self._buf):
            return None
        length: int | None
        if data.startswith(template.raw):  # which ends where a head ends
            end, length = len(template.raw), template.length
        else:
            end = data.find(_HEAD_END) + 4
            length = template.match(data[:end])
        if length is None or length != len(data) - end or length > self._limit_bytes:
            return None
        self._blanks_skipped = 0
        return template.head, data[end:]

    def _new_head(self, end: int) -> RequestHead | None:
        """A head that was not seen before; `end` is where its empty line begins, negative if it has not come yet."""
        buf, pos = self._buf, self._pos
        while self._blanks_skipped < BLANK_LINES_MAX and buf.startswith(b"\r\n", pos):  # RFC 9112 section 2.2
            self._blanks_skipped += 1
            pos += 2
            self._restart(pos)
            end = buf.find(_HEAD_END, pos)
        if end < 0 or end + 4 - pos > HEAD_BYTES_MAX:
            self._check_partial()
            return None
        end += 4
        self._blanks_skipped = 0
        raw = bytes(buf[pos:end])
        head, length = parse_head(raw)
        self._template = HeadTemplate(head, raw, length) if len(raw) <= TEMPLATE_BYTES_MAX else None
        self._restart(end)
        self._expect_body(head, length)
        return head

    def _check_partial(self) -> None:
        buf, pos = self._buf, self._pos
        end = len(buf)
        if end == pos:
            return
        if self._checker is None:
            self._checker = LineChecker(pos)
        self._checker.check(buf, min(end, pos + HEAD_BYTES_MAX))
        if end - pos > HEAD_BYTES_MAX:
            raise InvalidRequest(f"a request head has at most {HEAD_BYTES_MAX} bytes")
        self._scanned = max(pos, end - 3)

    def _restart(self, pos: int) -> None:
        self._pos = self._scanned = pos
        self._checker = None

    # --- bodies -------------------------------------------------------------------------------------------------------

    def _expect_body(self, head: RequestHead, length: int) -> None:
        self.content_length = length if length >= 0 else None
        self._to_come = length if length > 0 else 0
        if head.chunked:
            self._chunked = ChunkedDecoder(self._limit_bytes)

    def read_body(self) -> bytes | None:
        """The whole body of the last head, empty if it has none; None while it is incomplete."""
        if self._chunked is not None:
            return self._read_chunked(self._chunked)
        to_come = self._to_come
        if not to_come:
            return b""
        start = self._pos
        end = start + to_come
        if end <= len(self._buf) and self._parts is None:
            self._to_come = 0
            self._restart(end)
            return bytes(self._buf[start:end])
        return self._read_part()

    def _read_part(self) -> bytes | None:
        if self._parts is None:
            self._parts = []
        part = bytes(self._buf[self._pos : self._pos + self._to_come])
        if part:
            self._parts.append(part)
            self._to_come -= len(part)
            self._restart(self._pos + len(part))
        if self._to_come:
            return None
        parts, self._parts = self._parts, None
        return b"".join(parts)

    def _read_chunked(self, decoder: ChunkedDecoder) -> bytes | None:
        self._restart(decoder.feed(self._buf, self._pos))
        if not decoder.done:
            return None
        self._chunked = None
        return decoder.body()

    def bytes_to_come(self) -> int | None:
        """Bytes of the current body not received yet; None if it is chunked and nobody knows."""
        if self._chunked is not None:
            return None
        return max(0, self._to_come - (len(self._buf) - self._pos))

    def discard_body(self) -> bool:
        """Throw away what there is of the current body; True once its end was passed."""
        self._parts = None
        if self._chunked is not None:
            self._chunked.discard()
            self._restart(self._chunked.feed(self._buf, self._pos))
            if not self._chunked.done:
                return False
            self._chunked = None
            return True
        gone = min(self._to_come, len(self._buf) - self._pos)
        self._to_come -= gone
        self._restart(self._pos + gone)
        return not self._to_come
