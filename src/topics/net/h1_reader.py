"""HTTP/1 input: the bytes of one connection as heads and bodies, in order.

`H1Reader` is fed by `receive`; its caller then alternates `next_head` and, for each head, `read_body` (or
`discard_body`) until the body is complete. Each call says None or False while more bytes are needed. A fault is raised
as the error to answer with; after it the rest of the bytes means nothing and the connection must end. Always holds:
however the same bytes are cut, the same heads, bodies and faults come out.

`parse_head` reads the request line itself, since llhttp knows only the methods of its own list. llhttp (through
httptools) reads the fields and is strict about their syntax. What framing depends on (`Host`, `Content-Length`,
`Transfer-Encoding`) is then checked once more: request smuggling lives on two readers that disagree about where a
message ends. The answer to a doubt is always 400 and the end of the connection.
"""

from __future__ import annotations

import re

import httptools

from topics.errors import InvalidRequest
from topics.net.h1_chunked import ChunkedDecoder
from topics.net.http_grammar import AUTHORITY, REQUEST_LINE, LineChecker, content_length
from topics.net.messages import HttpVersion, RequestHead
from topics.net.transport_limits import (
    BLANK_LINES_MAX,
    CONTENT_LENGTH_DIGITS_MAX,
    FIELDS_MAX,
    HEAD_BYTES_MAX,
    TEMPLATE_BYTES_MAX,
)

_ABSOLUTE = re.compile(rb"https?://(?P<authority>[^/?]+)(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_NEUTRAL_LINE = b"GET / HTTP/1.1\r\n"  # stands before the fields when llhttp reads them
_LENGTH_FIELD = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)[ \t]*\r\n", re.IGNORECASE)
_LONG_LENGTH = re.compile(
    rb"(?<=\r\ncontent-length:)[ \t]*0*[1-9][0-9]{%d,}(?=[ \t]*\r\n)" % CONTENT_LENGTH_DIGITS_MAX, re.IGNORECASE
)  # llhttp refuses some of them as malformed, but to us they are too large


class HeadTemplate:
    """A head that came before on this connection, cut where its `Content-Length` digits were.

    Most clients send the same head over and over, but for the length of the body; then nothing needs parsing. A head
    that matches is byte for byte the one that was checked, so it needs no second check."""

    __slots__ = ("_after", "_before", "head", "length", "raw")

    def __init__(self, head: RequestHead, raw: bytes, length: int) -> None:
        field = _LENGTH_FIELD.search(raw)
        self.head = head
        self.raw = raw  # the last one that matched
        self.length = length  # of the body it declared, -1 if none
        self._before = raw if field is None else raw[: field.start(1)]
        self._after = b"" if field is None else raw[field.end(1) :]

    def match(self, raw: bytes) -> int | None:
        """The body length of a head that repeats this one, -1 if it declares none; None if it is another head."""
        if raw == self.raw:
            return self.length
        before, after = self._before, self._after
        if not after or not (raw.startswith(before) and raw.endswith(after)):
            return None
        digits = raw[len(before) : len(raw) - len(after)]
        if not digits.isdigit() or len(digits) > CONTENT_LENGTH_DIGITS_MAX:
            return None
        self.raw = raw
        self.length = int(digits)
        return self.length


class _Fields:
    """Collects what llhttp finds."""

    __slots__ = ("fields",)

    def __init__(self) -> None:
        self.fields: list[tuple[bytes, bytes]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value))


def parse_head(raw: bytes) -> tuple[RequestHead, int]:
    """The head in `raw`, which ends in its empty line, and the declared body length (-1: none declared)."""
    line = REQUEST_LINE.match(raw)
    if line is None:
        _name_the_line(raw)
    assert line is not None, "the checker refuses every request line that the pattern does not match"
    method, target, minor = line.groups()
    headers = _collect(_read_fields(raw, line.end()))
    version: HttpVersion = "1.1" if minor == b"1" else "1.0"
    _check_host(headers, version)
    length = _body_length(headers, version)
    path, query = _split_target(method, target)
    head = RequestHead(
        method=method.decode("ascii"),
        raw_path=path,
        query=query,
        headers=headers,
        version=version,
        keep_alive=_keep_alive(headers.get(b"connection"), version),
        chunked=headers.pop(b"transfer-encoding", None) is not None,
        expects_continue=version == "1.1" and _expects_continue(headers.get(b"expect")),
    )
    return head, length


def _read_fields(raw: bytes, start: int) -> list[tuple[bytes, bytes]]:
    sink = _Fields()
    lines = _NEUTRAL_LINE + raw[start:]
    try:
        httptools.HttpRequestParser(sink).feed_data(lines)
    except httptools.HttpParserUpgrade:
        pass  # the fields ask for another protocol; whether they get it is not the parser's decision
    except httptools.HttpParserError as error:
        _name_the_line(raw)
        if _LONG_LENGTH.search(lines) is not None:
            return _read_fields(_LONG_LENGTH.sub(b"9" * CONTENT_LENGTH_DIGITS_MAX, lines), len(_NEUTRAL_LINE))
        raise InvalidRequest(f"the request head is ambiguous: {error}") from None
    if len(sink.fields) > FIELDS_MAX:
        raise InvalidRequest(f"a request has at most {FIELDS_MAX} header fields")
    return sink.fields


def _name_the_line(raw: bytes) -> None:
    LineChecker(0).check(raw, len(raw))


def _collect(fields: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for name, value in fields:
        value = value.rstrip(b" \t")
        if name not in headers:
            headers[name] = value
        elif name in _ONCE:
            raise InvalidRequest(f"the header field {name.decode('ascii')} was sent more than once")
        else:
            headers[name] = b"%b, %b" % (headers[name], value)
    return headers


_ONCE = frozenset((b"host", b"content-length", b"transfer-encoding"))


def _check_host(headers: dict[bytes, bytes], version: HttpVersion) -> None:
    host = headers.get(b"host")
    if host is None:
        if version == "1.1":
            raise InvalidRequest("the header field host is missing")
    elif AUTHORITY.fullmatch(host) is None:
        raise InvalidRequest("the header field host is not a host and port")


def _body_length(headers: dict[bytes, bytes], version: HttpVersion) -> int:
    """The declared length, -1 without one. It is taken out of the headers, which repeated heads share."""
    length = headers.pop(b"content-length", None)
    coding = headers.get(b"transfer-encoding")
    if coding is not None:
        if length is not None:
            raise InvalidRequest("a request may not have both content-length and transfer-encoding")
        if version == "1.0" or coding.lower() != b"chunked":
            raise InvalidRequest("the only transfer-encoding is chunked, in HTTP/1.1")
    return -1 if length is None else content_length(length)


def _tokens(value: bytes) -> list[bytes]:
    return [token.strip(b" \t") for token in value.lower().split(b",")]


def _keep_alive(connection: bytes | None, version: HttpVersion) -> bool:
    if connection is None:
        return version == "1.1"
    tokens = _tokens(connection)
    return b"close" not in tokens and (version == "1.1" or b"keep-alive" in tokens)


def _expects_continue(expect: bytes | None) -> bool:
    """Other expectations are ignored, as RFC 9110 section 10.1.1 allows: the contract has no 417."""
    return expect is not None and b"100-continue" in _tokens(expect)


def _split_target(method: bytes, target: bytes) -> tuple[bytes, bytes]:
    """Path and query, both as they came; the query without its `?` (RFC 9112 section 3.2).

    Proxies send the absolute form, `OPTIONS` may send an asterisk, everybody else sends the origin form. `CONNECT` asks
    for a tunnel, which no endpoint is."""
    if method != b"CONNECT":
        if target[0] == 0x2F:  # "/"
            path, _, query = target.partition(b"?")
            return path, query
        if target == b"*" and method == b"OPTIONS":
            return target, b""
        absolute = _ABSOLUTE.fullmatch(target)
        if absolute is not None and AUTHORITY.fullmatch(absolute["authority"]):
            path, _, query = absolute["rest"].partition(b"?")
            return path or b"/", query
    raise InvalidRequest("the request target is neither a path nor an absolute http address")


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
        if template is None or template.head.fast_append is None or self._pos < len(self._buf):
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
