"""The grammar of a request (RFC 9112 sections 2 to 5): patterns that both HTTP versions share, and `LineChecker`.

A complete HTTP/1 head is parsed by `h1_reader.parse_head`, which is fast and accepts nothing that `LineChecker`
refuses. `LineChecker` refuses early, while a head still trickles in, and names the first line at fault: the same line,
however the same bytes are cut.
"""

import re

from topics.errors import InvalidRequest
from topics.net.transport_limits import CONTENT_LENGTH_DIGITS_MAX, METHOD_BYTES_MAX

AUTHORITY = re.compile(rb"(?:\[[0-9A-Fa-f:.%]+\]|[0-9A-Za-z\-._~%!$&'()*+;=]*)(?::[0-9]*)?")


TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
TARGET = (
    rb"[\x21\x22\x24-\x7e\x80-\xff]"  # visible, no fragment; the contract takes a raw `>`, and with it all of these
)
VALUE = rb"[\t\x20-\x7e\x80-\xff]"

REQUEST_LINE = re.compile(rb"(%b{1,%d}) (%b+) HTTP/1\.([01])\r\n" % (TOKEN, METHOD_BYTES_MAX, TARGET))
FIELD_LINE = re.compile(rb"%b+:%b*\r\n" % (TOKEN, VALUE))
_METHOD_BEGUN = re.compile(rb"%b{0,%d}(?: |\r?\Z)" % (TOKEN, METHOD_BYTES_MAX))
_NEVER = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n|\Z)|(?<!\r)\n")  # controls, a bare CR, a bare LF


def request_line_fault() -> InvalidRequest:
    return InvalidRequest("the request line is malformed")


def field_line_fault() -> InvalidRequest:
    return InvalidRequest("a header field is malformed")


def content_length(value: bytes) -> int:
    """The number a client declares. One that is too long to be meant counts as the largest, which no limit admits."""
    if not value.isdigit():
        raise InvalidRequest("the header field content-length is not a number")
    digits = value.lstrip(b"0") or b"0"
    return int(digits) if len(digits) <= CONTENT_LENGTH_DIGITS_MAX else 10**CONTENT_LENGTH_DIGITS_MAX - 1


class LineChecker:
    """Checks a growing head from `start` on; each byte is looked at a bounded number of times."""

    __slots__ = ("_checked", "_line", "_start")

    def __init__(self, start: int) -> None:
        self._start = start
        self._line = start  # where the last line begins that is not complete
        self._checked = start  # up to here no byte is forbidden

    def check(self, buf: bytes | bytearray, end: int) -> None:
        """Raise for the first line of `buf[start:end]` that cannot be, or cannot become, part of a head."""
        while (line_end := buf.find(b"\n", self._line, end)) >= 0:
            self._check_line(buf, line_end + 1)
            self._line = self._checked = line_end + 1
        self._check_rest(buf, end)
        self._checked = max(self._line, end - 1)  # the last byte may be a CR whose LF is to come

    def _check_line(self, buf: bytes | bytearray, end: int) -> None:
        if self._line == self._start:
            if REQUEST_LINE.fullmatch(buf, self._line, end) is None:
                raise request_line_fault()
        elif not buf.startswith(b"\r\n", self._line) and FIELD_LINE.fullmatch(buf, self._line, end) is None:
            raise field_line_fault()

    def _check_rest(self, buf: bytes | bytearray, end: int) -> None:
        first = self._line == self._start
        if _NEVER.search(buf, self._checked, end) is not None:
            raise request_line_fault() if first else field_line_fault()
        if first and end - self._start <= METHOD_BYTES_MAX + 1 and _METHOD_BEGUN.match(buf, self._start, end) is None:
            raise request_line_fault()
