"""Content codings: gzip off a request body, within a bound, and gzip on a response.

Pure functions; whoever calls them decides on which thread (`delivery.md` section 11: nothing large on the loop).
"""

from __future__ import annotations

import re
import zlib

from topics.errors import PayloadTooLarge
from topics.net.limits import INFLATE_INLINE_BYTES_MAX

_GZIP_WBITS = 31  # zlib's code for a gzip wrapper
_LEVEL = 5  # JSON shrinks hardly more at 9, at four times the cost
_MEMBERS_MAX = 16  # gzip files glued together; nobody sends more, and each costs a copy of the rest
_ADMITS = re.compile(rb"\s*(?P<name>[^\s;,]+)\s*(?:;\s*q=(?P<q>[0-9.]+)\s*)?", re.IGNORECASE)


class BrokenCoding(Exception):
    """The bytes are not what their content coding says."""


def inflate(body: bytes, limit_bytes: int) -> bytes:
    """The decoded body; decoding stops as soon as it exceeds the limit, so a bomb costs no more than that."""
    parts: list[bytes] = []
    room = limit_bytes
    for _ in range(_MEMBERS_MAX):
        member = zlib.decompressobj(_GZIP_WBITS)
        part = _inflate_member(member, body, room + 1)
        room -= len(part)
        if room < 0:
            raise PayloadTooLarge(limit_bytes)
        if not member.eof:
            raise BrokenCoding("the gzip data ends too early")
        parts.append(part)
        body = member.unused_data
        if not body:
            return b"".join(parts)
    raise BrokenCoding("the gzip data has too many members")


def _inflate_member(member: zlib._Decompress, body: bytes, max_bytes: int) -> bytes:
    try:
        return member.decompress(body, max_bytes)
    except zlib.error as error:
        raise BrokenCoding(f"the gzip data is broken: {error}") from None


def inflate_small(body: bytes, limit_bytes: int) -> bytes | None:
    """As `inflate`, but None if that is too much work to be done on the loop."""
    if len(body) > INFLATE_INLINE_BYTES_MAX:
        return None
    if limit_bytes <= INFLATE_INLINE_BYTES_MAX:
        return inflate(body, limit_bytes)
    try:
        return inflate(body, INFLATE_INLINE_BYTES_MAX)
    except PayloadTooLarge:
        return None


def deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_WBITS)
    return packer.compress(body) + packer.flush()


def admits_gzip(accept_encoding: bytes | None) -> bool:
    """Whether a client takes gzip (RFC 9110 section 12.5.3); one that says nothing about codings is not asked to."""
    if not accept_encoding:
        return False
    weights: dict[bytes, bool] = {}
    for member in accept_encoding.split(b","):
        match = _ADMITS.fullmatch(member)
        if match is not None:
            weights[match["name"].lower()] = match["q"] is None or match["q"].strip(b"0.") != b""
    return weights.get(b"gzip", weights.get(b"*", False))
