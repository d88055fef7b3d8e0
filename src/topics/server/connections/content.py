"""Content codings between connection and application: gzip off request bodies, within a bound, and on responses.

Small bodies are coded at once, large ones on a thread (`docs/spec/delivery.md#sec-11`: nothing large on the loop);
either way the callback comes on the loop. The order of refusals is `docs/spec/http-api.md#sec-3`: too large beats a
wrong content type beats a broken body.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from functools import partial

from topics.errors import PayloadTooLarge
from topics.limits import RENDER_INLINE_BYTES_MAX
from topics.net.messages import JSON, BodyFault, Request, RequestHead, Response
from topics.net.transport_limits import INFLATE_INLINE_BYTES_MAX
from topics.server.connections.callbacks import log
from topics.server.connections.hub import Hub

_GZIP_WBITS = 31  # zlib's code for a gzip wrapper
_LEVEL = 5  # JSON shrinks hardly more at 9, at four times the cost
_MEMBERS_MAX = 16  # gzip files glued together; nobody sends more, and each costs a copy of the rest
_ADMITS = re.compile(rb"\s*(?P<name>[^\s;,]+)\s*(?:;\s*q=(?P<q>[0-9.]+)\s*)?", re.IGNORECASE)


class BrokenCoding(Exception):
    """The bytes are not what their content coding says."""


def inflate(body: bytes, limit_bytes: int) -> bytes:
    """The decoded body; decoding stops as soon as it exceeds the limit, so a bomb costs no more than that."""
    parts: list[bytes] = []
    left_bytes = limit_bytes
    for _ in range(_MEMBERS_MAX):
        member = zlib.decompressobj(_GZIP_WBITS)
        part = _inflate_member(member, body, left_bytes + 1)
        left_bytes -= len(part)
        if left_bytes < 0:
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


_VARY = (b"Vary", b"Accept-Encoding")
_GZIPPED = (b"Content-Encoding", b"gzip")


def decode_body(hub: Hub, request: Request, body: bytes, then: Callable[[bool], None]) -> None:
    """Give `request` its body, then call back; with True if the body was found too large."""
    if request.headers[b"content-encoding"].lower() != b"gzip":
        request.body_fault = BodyFault.UNSUPPORTED_CODING
        request.body = b""
        then(False)
        return
    try:
        decoded = inflate_small(body, hub.settings.max_body_bytes)
    except (BrokenCoding, PayloadTooLarge) as error:
        _decoded(request, then, error)
        return
    if decoded is not None:
        _decoded(request, then, decoded)
    else:
        hub.off_loop(partial(inflate, body, hub.settings.max_body_bytes), partial(_decoded, request, then))


def _decoded(request: Request, then: Callable[[bool], None], outcome: bytes | BaseException) -> None:
    if isinstance(outcome, bytes):
        request.body = outcome
        then(False)
        return
    request.body = b""
    if isinstance(outcome, PayloadTooLarge):
        then(True)
        return
    if not isinstance(outcome, BrokenCoding):
        log.error("decoding a request body failed", exc_info=outcome)
    request.body_fault = BodyFault.BROKEN_CODING
    then(False)


def encode_response(hub: Hub, head: RequestHead, response: Response, then: Callable[[Response], None]) -> None:
    """Compress a response that is large enough, if the client wants that, then call back with what to send."""
    if not response.content_type.startswith(JSON):
        then(response)
        return
    response = Response(response.status, response.body, response.content_type, (*response.headers, _VARY))
    if not admits_gzip(head.headers.get(b"accept-encoding")):
        then(response)
    elif len(response.body) <= RENDER_INLINE_BYTES_MAX:
        then(_compressed(response, deflate(response.body)))
    else:
        hub.off_loop(partial(deflate, response.body), partial(_deflated, response, then))


def _deflated(response: Response, then: Callable[[Response], None], outcome: bytes | BaseException) -> None:
    if isinstance(outcome, bytes):
        response = _compressed(response, outcome)
    else:
        log.error("compressing a response failed", exc_info=outcome)
    then(response)


def _compressed(response: Response, body: bytes) -> Response:
    return Response(response.status, body, response.content_type, (*response.headers, _GZIPPED))
