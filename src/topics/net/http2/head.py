"""The fields of an HTTP/2 request -> `RequestHead`.

`fields.checked` has looked at each field; what remains is what a request needs (RFC 9113 section 8.3.1), and the path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from topics.errors import InvalidRequest
from topics.net.h1.lines import TARGET, content_length
from topics.net.h1.target import AUTHORITY
from topics.net.http2.fields import LENGTH, MALFORMED
from topics.net.messages import RequestHead

_NEEDED = frozenset((b":method", b":scheme", b":path"))
_PATH = re.compile(rb"/%b*|/" % TARGET)


class Malformed(InvalidRequest):
    """RFC 9113 section 8.1.1: the stream ends with an error, whatever is answered before."""


def request_head(fields: Iterable[tuple[bytes, bytes]]) -> tuple[RequestHead, int | None]:
    """The head and the declared body length; raises InvalidRequest with what to answer."""
    pseudo: dict[bytes, bytes] = {}
    headers: dict[bytes, bytes] = {}
    for name, value in fields:
        if name[:1] == b":":
            pseudo[name] = value if name not in pseudo else b"%b, %b" % (pseudo[name], value)
        else:
            headers[name] = headers[name] + b", " + value if name in headers else value
    _check(pseudo, headers)
    method = pseudo[b":method"].decode("ascii", "replace")
    path, query = _split(method, pseudo[b":path"])
    head = RequestHead(
        method=method,
        raw_path=path,
        query=query,
        headers=headers,
        version="2",
        expects_continue=headers.get(b"expect", b"").lower() == b"100-continue",
    )
    length = pseudo.get(LENGTH)
    return head, None if length is None else content_length(length)


def _check(pseudo: dict[bytes, bytes], headers: dict[bytes, bytes]) -> None:
    if MALFORMED in pseudo:
        raise Malformed(pseudo[MALFORMED].decode("ascii"))
    if not pseudo.keys() >= _NEEDED or b":protocol" in pseudo or pseudo[b":method"] == b"CONNECT":
        raise Malformed("a request has a method, a scheme and a path, and opens no tunnel")
    if b":authority" in pseudo:
        headers.setdefault(b"host", pseudo[b":authority"])
    host = headers.get(b"host")
    if host is None or host != pseudo.get(b":authority", host) or AUTHORITY.fullmatch(host) is None:
        raise InvalidRequest("a request names one host, and may name its port")


def _split(method: str, target: bytes) -> tuple[bytes, bytes]:
    if target == b"*" and method == "OPTIONS":
        return target, b""
    if not target:
        raise Malformed("the request target is empty")
    if _PATH.fullmatch(target) is None:
        raise InvalidRequest("the request target is not a path")
    path, _, query = target.partition(b"?")
    return path, query
