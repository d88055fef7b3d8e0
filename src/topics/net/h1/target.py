"""The request target (RFC 9112 section 3.2): which path and query a request line means.

Proxies send the absolute form, `OPTIONS` may send an asterisk, everybody else the origin form. `CONNECT` asks for a
tunnel, which no endpoint is.
"""

import re

from topics.errors import InvalidRequest

_ABSOLUTE = re.compile(rb"https?://(?P<authority>[^/?]+)(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
AUTHORITY = re.compile(rb"(?:\[[0-9A-Fa-f:.%]+\]|[0-9A-Za-z\-._~%!$&'()*+;=]*)(?::[0-9]*)?")


def split_target(method: bytes, target: bytes) -> tuple[bytes, bytes]:
    """Path and query, both as they came; the query without its `?`."""
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
