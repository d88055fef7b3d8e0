"""HTTP/2 header blocks (RFC 9113 sections 8.2, 8.3): `checked` before the `h2` library sees them, then `request_head`.

The library ends the connection for a malformed block, and for a body that is not as long as was declared, where only
one stream is at fault (section 8.1.1). So it checks no fields, and it is shown neither: a malformed block is replaced
by the field `MALFORMED`, a declared length is called `LENGTH`. No peer can send these names. `request_head` then checks
what a request needs (section 8.3.1), and its path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hpack import HeaderTuple

from topics.errors import InvalidRequest
from topics.net.http_grammar import AUTHORITY, TARGET, VALUE, content_length
from topics.net.messages import RequestHead
from topics.net.transport_limits import FIELDS_MAX

MALFORMED = b":malformed"  # its value says why
LENGTH = b":length"

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(rb"(?![ \t])%b*(?<![ \t])" % VALUE)
_PSEUDO = frozenset((b":method", b":scheme", b":authority", b":path", b":protocol"))
_OF_CONNECTIONS = frozenset((b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"))


def checked(fields: Sequence[HeaderTuple]) -> list[HeaderTuple]:
    """What the library may see of a block."""
    fault = _fault(fields)
    if fault is not None:
        return [HeaderTuple(MALFORMED, fault)]
    return [HeaderTuple(LENGTH, field[1]) if field[0] == b"content-length" else field for field in fields]


def _fault(fields: Sequence[HeaderTuple]) -> bytes | None:
    if len(fields) > len(_PSEUDO) + FIELDS_MAX:
        return b"a request has at most %d header fields" % FIELDS_MAX
    pseudo: set[bytes] = set()
    is_behind_pseudo = False
    for name, value in fields:
        if _VALUE.fullmatch(value) is None:
            return b"the value of a header field is malformed"
        if name in _PSEUDO:
            if is_behind_pseudo or name in pseudo:
                return b"a pseudo-header field is repeated or out of place"
            pseudo.add(name)
            continue
        is_behind_pseudo = True
        if _NAME.fullmatch(name) is None:
            return b"the name of a header field is malformed"
        if name in _OF_CONNECTIONS or (name == b"te" and value.lower() != b"trailers"):
            return b"a header field of the connection has no place in HTTP/2"
    return None


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
