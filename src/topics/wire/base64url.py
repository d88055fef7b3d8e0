"""Base64 with the URL-safe alphabet and without padding, for tokens that clients paste into URLs and headers.

The standard library's decoder drops foreign characters in silence; this one refuses them. Used by `cursors` and `sse`.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode

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
