"""H1Renderer: responses as HTTP/1.1 bytes.

A head costs one dictionary look-up: status line, date and content type are kept ready for each combination that was
used, until the date changes. One renderer serves all connections of a server.
"""

from collections.abc import Sequence
from http import HTTPStatus

from topics.net.messages import Headers, Response

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"

_OK = b"%bContent-Length: %d\r\n\r\n%b"
_KEEP = b""
_CLOSE = b"Connection: close\r\n"
_KEEP_1_0 = b"Connection: keep-alive\r\n"
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}


def connection_field(*, keep_alive: bool, version: str) -> bytes:
    """What an answer says about its connection: nothing where the version's default is meant."""
    if not keep_alive:
        return _CLOSE
    return _KEEP_1_0 if version == "1.0" else _KEEP


def field_lines(headers: Headers) -> bytes:
    lines = b"".join([b"%b: %b\r\n" % field for field in headers])
    if lines.count(b"\n") != len(headers) or lines.count(b"\r") != len(headers):
        raise ValueError("a header field may not hold a line break")
    return lines


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class H1Renderer:
    __slots__ = ("_date", "_ok", "_prefixes")

    def __init__(self) -> None:
        self._date = b""
        self._ok = b""  # what all answers of `ok` begin with
        self._prefixes: dict[tuple[int, bytes], bytes] = {}

    def set_date(self, date: bytes) -> None:
        """The value of `Date` from now on (RFC 9110 section 5.6.7), to be renewed every second."""
        if date != self._date:
            self._date = date
            self._prefixes.clear()
            self._ok = b""

    def ok(self, body: bytes) -> bytes:
        """`response` for status 200 and JSON on a connection that stays open."""
        return _OK % (self._ok or self._ok_prefix(), len(body), body)

    def ok_head(self, size: int) -> bytes:
        """What `ok` puts before a body of this size."""
        return _OK % (self._ok or self._ok_prefix(), size, b"")

    def ok_all(self, bodies: Sequence[bytes]) -> list[bytes]:
        prefix = self._ok or self._ok_prefix()
        return [_OK % (prefix, len(body), body) for body in bodies]

    def _ok_prefix(self) -> bytes:
        prefix = self._ok = self._prefix(Response(200, b""))
        return prefix

    def response(self, response: Response, connection: bytes = b"", *, with_body: bool = True) -> bytes:
        body = response.body
        prefix = self._prefixes.get((response.status, response.content_type)) or self._prefix(response)
        if response.headers:
            connection += field_lines(response.headers)
        return b"%b%bContent-Length: %d\r\n\r\n%b" % (prefix, connection, len(body), body if with_body else b"")

    def _prefix(self, response: Response) -> bytes:
        lines = b"%bContent-Type: %b\r\n" % (self._status_line(response.status), response.content_type)
        self._prefixes[(response.status, response.content_type)] = lines
        return lines

    def stream_head(self, status: int, headers: Headers, connection: bytes, *, chunked: bool) -> bytes:
        framing = b"Transfer-Encoding: chunked\r\n" if chunked else b""
        return b"%b%b%b%b\r\n" % (self._status_line(status), connection, framing, field_lines(headers))

    def _status_line(self, status: int) -> bytes:
        date = b"Date: %b\r\n" % self._date if self._date else b""
        return b"HTTP/1.1 %d %b\r\n%b" % (status, _REASONS.get(status, b"Unknown"), date)
