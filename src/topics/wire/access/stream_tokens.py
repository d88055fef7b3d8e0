"""Stream tokens: what a web page shows instead of a key, to open a stream (`docs/spec/readers.md#sec-9`).

A token stands for its key, with at most the key's rights at the time it is used. Kept in memory only, as a digest;
bounded per key. Always holds: a token that has expired, or whose key is gone, opens nothing."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec

from topics import limits
from topics.errors import Throttled
from topics.wire.access.keys import ALL_SCOPES, Key, KeyRing
from topics.wire.page_tokens import encode_base64url

TOKEN_PROTOCOL: Final = b"topics.token."
"""In front of a token among the subprotocols of a WebSocket."""
_PREFIX: Final = "st_"
_TOKEN_BYTES: Final = 24


class StreamToken(msgspec.Struct, frozen=True):
    """What a web page shows instead of a key, until `expires_ts`."""

    token: str
    expires_ts: int

    def __repr__(self) -> str:
        return f"StreamToken(expires_ts={self.expires_ts})"


class _Issued(NamedTuple):
    owner: bytes
    scopes: int
    topics: tuple[str, ...]
    expires_s: float


class StreamTokens:
    """The tokens of all keys. Without keys nothing is kept: whatever is shown then opens everything anyway."""

    def __init__(self, ring: KeyRing | None, *, monotonic: Callable[[], float]) -> None:
        self._ring = ring
        self._monotonic = monotonic
        self._issued: dict[bytes, _Issued] = {}

    def __len__(self) -> int:
        return len(self._issued)

    def issue(self, key: Key | None, *, topics: tuple[str, ...], scopes: int = ALL_SCOPES, ttl_ms: int) -> str:
        """A token of this key. Raises Throttled where the key has too many that have not expired."""
        token = _PREFIX + encode_base64url(secrets.token_bytes(_TOKEN_BYTES)).decode()
        if key is not None:
            self._make_room(key.digest)
            expires_s = self._monotonic() + ttl_ms / 1000
            self._issued[sha256(token.encode()).digest()] = _Issued(key.digest, scopes, topics, expires_s)
        return token

    def find(self, token: bytes) -> Key | None:
        """The key that a token stands for, cut to what the token was made for."""
        digest = sha256(token).digest()
        found = self._issued.get(digest)
        if found is None or self._ring is None:
            return None
        key = self._ring.of(found.owner)
        if key is None or self._monotonic() >= found.expires_s:
            del self._issued[digest]
            return None
        return msgspec.structs.replace(key, scopes=key.scopes & found.scopes, topics=found.topics)

    def _make_room(self, owner: bytes) -> None:
        if sum(issued.owner == owner for issued in self._issued.values()) < limits.STREAM_TOKENS_PER_KEY_MAX:
            return
        now = self._monotonic()
        self._issued = {digest: issued for digest, issued in self._issued.items() if issued.expires_s > now}
        if sum(issued.owner == owner for issued in self._issued.values()) >= limits.STREAM_TOKENS_PER_KEY_MAX:
            raise Throttled.cap("max_stream_tokens_per_key", max=limits.STREAM_TOKENS_PER_KEY_MAX)
