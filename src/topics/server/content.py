"""Content codings between connection and application: request bodies in, response bodies out.

Small bodies are coded at once, large ones on a thread; either way the callback comes on the loop. The order of
refusals is `http-api.md` section 3: too large beats a wrong content type beats a broken body.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from topics.errors import PayloadTooLarge
from topics.limits import RENDER_INLINE_BYTES_MAX
from topics.net.coding import BrokenCoding, admits_gzip, deflate, inflate, inflate_small
from topics.net.messages import JSON, BodyFault, Request, RequestHead, Response
from topics.server.hub import Hub, log

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
