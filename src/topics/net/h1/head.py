"""A complete HTTP/1 head: bytes -> `RequestHead` and the length of its body.

The request line is read here, since llhttp knows only the methods of its own list; the fields are read by llhttp,
which is strict about their syntax; what framing depends on (`Host`, `Content-Length`, `Transfer-Encoding`) is then
checked once more, because a second opinion on where a message ends is what request smuggling lives on.
"""

from __future__ import annotations

import re

import httptools

from topics.errors import InvalidRequest
from topics.net.h1.lines import AUTHORITY, REQUEST_LINE, LineChecker, content_length, split_target
from topics.net.messages import HttpVersion, RequestHead
from topics.net.transport_limits import CONTENT_LENGTH_DIGITS_MAX, FIELDS_MAX

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
    path, query = split_target(method, target)
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
