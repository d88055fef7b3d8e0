"""The fields of an HTTP/2 request -> `RequestHead`.

The `h2` library has checked names, pseudo-header rules and connection-specific fields; what remains is the path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from topics.errors import InvalidRequest
from topics.net.h1.lines import TARGET, content_length
from topics.net.limits import FIELDS_MAX
from topics.net.messages import RequestHead

_PATH = re.compile(rb"/%b*|/" % TARGET)


def request_head(fields: Iterable[tuple[bytes, bytes]]) -> tuple[RequestHead, int | None]:
    """The head and the declared body length; raises InvalidRequest with what to answer."""
    pseudo: dict[bytes, bytes] = {}
    headers: dict[bytes, bytes] = {}
    for name, value in fields:
        if name[:1] == b":":
            pseudo[name] = value
        else:
            headers[name] = headers[name] + b", " + value if name in headers else value
    if len(headers) > FIELDS_MAX:
        raise InvalidRequest(f"a request has at most {FIELDS_MAX} header fields")
    if b":authority" in pseudo:
        headers.setdefault(b"host", pseudo[b":authority"])
    method = pseudo.get(b":method", b"").decode("ascii", "replace")
    path, query = _split(method, pseudo.get(b":path", b""))
    head = RequestHead(
        method=method,
        raw_path=path,
        query=query,
        headers=headers,
        version="2",
        expects_continue=headers.get(b"expect", b"").lower() == b"100-continue",
    )
    length = headers.pop(b"content-length", None)
    return head, None if length is None else content_length(length)


def _split(method: str, target: bytes) -> tuple[bytes, bytes]:
    if target == b"*" and method == "OPTIONS":
        return target, b""
    if _PATH.fullmatch(target) is None:
        raise InvalidRequest("the request target is not a path")
    path, _, query = target.partition(b"?")
    return path, query
