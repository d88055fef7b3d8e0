"""`Accept`: the two questions the contract asks of it, by substring and never by weight. Called by api.

Bodies before parsing: content types and empty bodies (`docs/spec/http-api.md#sec-4-1`).

Called by api after the size was checked and before a decoder runs, so 413 beats 415 beats 400.
"""

from topics.errors import InvalidRequest, UnsupportedMediaType
from topics.wire.endpoints import BodyKind


def takes_events(accept: bytes | None) -> bool:
    """Whether a stream may be sent; if not, 406."""
    return not accept or b"text/event-stream" in accept or b"*/*" in accept


def wants_json(accept: bytes | None) -> bool:
    """Whether metrics go out as JSON instead of text."""
    return accept is not None and b"application/json" in accept


EMPTY_OBJECT = b"{}"
_JSON = b"application/json"


def body_text(kind: BodyKind, *, content_type: bytes | None, body: bytes) -> bytes:
    """The bytes to parse. A body of blanks is not empty; it is JSON with a mistake."""
    if not body and kind == "empty_ok":
        return EMPTY_OBJECT
    if not body and kind == "never_empty":
        raise InvalidRequest("a body is needed")
    if not is_json(content_type):
        raise UnsupportedMediaType
    return body


def is_json(content_type: bytes | None) -> bool:
    return content_type is not None and content_type.lstrip().startswith(_JSON)
