"""The fields of a header block, checked before the `h2` library sees them (RFC 9113 sections 8.2 and 8.3).

The library ends the connection for a malformed block, and for a body that is not as long as was declared, where only
one stream is at fault (section 8.1.1). So it checks no fields, and it is shown neither: a malformed block is replaced
by the field `MALFORMED`, a declared length is called `LENGTH`. No peer can send these names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hpack import HeaderTuple

from topics.net.h1.lines import VALUE
from topics.net.limits import FIELDS_MAX

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
