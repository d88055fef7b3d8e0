"""Page tokens: opaque texts that say where the next page of a list begins, `{"after":"<name>"}` in base64url.

A token that we cannot have made is refused: it is the client's mistake. The base64 here has the URL-safe alphabet and
no padding, and refuses foreign characters, which the standard library's decoder drops in silence. Resume ids of SSE use
it too.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import msgspec

from topics.errors import InvalidRequest

_ALPHABET = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def encode_base64url(raw: bytes) -> bytes:
    return urlsafe_b64encode(raw).rstrip(b"=")


def decode_base64url(text: bytes) -> bytes | None:
    """None if it is not base64url. Correct padding is tolerated."""
    bare = text.rstrip(b"=")
    if not _ALPHABET.issuperset(bare) or len(bare) % 4 == 1:
        return None
    if len(bare) != len(text) and len(text) % 4:
        return None
    return urlsafe_b64decode(bare + b"=" * (-len(bare) % 4))


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
