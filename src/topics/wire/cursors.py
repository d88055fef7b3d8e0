"""List cursors: opaque tokens that carry the last name of a page, `{"after":"<name>"}` in base64url.

Strict, unlike resume ids: a token that we cannot have made is the client's mistake. Used by both list endpoints.
"""

from typing import Any

import msgspec

from topics.errors import InvalidRequest
from topics.wire.base64url import decode_base64url, encode_base64url


def encode_cursor(after: str) -> str:
    return encode_base64url(msgspec.json.encode({"after": after})).decode("ascii")


def decode_cursor(token: str | None) -> str | None:
    """The name to continue after; None for the first page. JSON without a string `after` counts as no cursor."""
    if not token:
        return None
    raw = decode_base64url(token.encode())
    if raw is None:
        raise InvalidRequest("the cursor is not one of ours")
    try:
        content: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest("the cursor is not one of ours") from None
    after = content.get("after") if isinstance(content, dict) else None
    return after if isinstance(after, str) else None
