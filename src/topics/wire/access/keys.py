"""API keys: the `TOPICS_API_KEYS` grammar, and finding the key that a request presents.

    keys = entry *( "," entry )      entry = secret [ ":" scopes [ ":" prefixes ] ]
    scopes = token *( "+" token )    prefixes = prefix *( "|" prefix )

Fails closed: what does not parse stops the process. Secrets are kept only as SHA-256 digests, compared in constant time
with every entry, and appear in no message. `parse_keys` is called once at start, `KeyRing.find` for every request."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable, Iterator
from functools import partial
from hashlib import sha256

import msgspec

from topics.errors import ConfigError

READ, WRITE, DELETE, ADMIN = 1, 2, 4, 8
ALL_SCOPES = READ | WRITE | DELETE | ADMIN
_BLANKS = " \t\r\n"

_TOKENS = {
    "read": READ,
    "r": READ,
    "write": WRITE,
    "w": WRITE,
    "delete": DELETE,
    "del": DELETE,
    "d": DELETE,
    "admin": ADMIN,
    "a": ADMIN,
    "rw": READ | WRITE,
}
TOKEN_NAMES = tuple(_TOKENS)
SCOPE_NAMES = {"read": READ, "write": WRITE, "delete": DELETE, "admin": ADMIN}


class Key(msgspec.Struct, frozen=True):
    """What one key may do. `digest` also names the key where its requests and streams are counted."""

    digest: bytes
    scopes: int = ALL_SCOPES
    prefixes: tuple[str, ...] = ()
    name: str = ""
    expires_ms: int | None = None
    topics: tuple[str, ...] = ()
    """Of a stream token: the topics that it was cut to, by name, or by a prefix that ends in `*`."""

    def __repr__(self) -> str:
        return f"Key({self.name!r}, scopes={self.scopes}, prefixes={self.prefixes})"

    def allows(self, scopes: int) -> bool:
        return self.scopes & scopes == scopes

    def permits_name(self, name: str) -> bool:
        if self.prefixes and not name.startswith(self.prefixes):
            return False
        return not self.topics or any(map(partial(_is_named, name), self.topics))

    @property
    def is_bound(self) -> bool:
        """There are names that it does not permit."""
        return bool(self.prefixes or self.topics)


def _is_named(name: str, wanted: str) -> bool:
    return name.startswith(wanted[:-1]) if wanted.endswith("*") else name == wanted


class KeyRing:
    """All keys of a server with authentication on. It may hold none: then every request is refused.

    Keys end: they expire, or `replace` brings others. Whoever keeps a key asks `is_current` before using it again."""

    def __init__(self, keys: Iterable[Key], *, is_fixed: bool = True) -> None:
        self.is_fixed = is_fixed  # no further keys can come
        self._by_digest: dict[bytes, Key] = {}
        self._keys: tuple[Key, ...] = ()
        self._expired: dict[bytes, str] = {}
        self._next_expiry_ms: int | None = None
        self.replace(keys)

    def replace(self, keys: Iterable[Key]) -> list[Key]:
        """Have these keys from now on; of equal secrets the later entry wins. Gives those that have ended, changed ones
        among them; one that is as it was stays the same object."""
        before = self._by_digest
        named = {key.digest: key for key in keys}
        self._by_digest = {
            digest: before[digest] if before.get(digest) == key else key for digest, key in named.items()
        }
        self._expired = {}
        self._changed()
        return [key for key in before.values() if not self.is_current(key)]

    def expire(self, now_ms: int) -> list[Key]:
        """Let go of the keys whose time is over, and give them. Called on every tick."""
        if self._next_expiry_ms is None or now_ms < self._next_expiry_ms:
            return []
        over = [key for key in self._keys if key.expires_ms is not None and key.expires_ms <= now_ms]
        for key in over:
            del self._by_digest[key.digest]
            self._expired[key.digest] = key.name
        self._changed()
        return over

    def _changed(self) -> None:
        self._keys = tuple(self._by_digest.values())
        self._next_expiry_ms = min((key.expires_ms for key in self._keys if key.expires_ms is not None), default=None)

    def is_current(self, key: Key) -> bool:
        return self._by_digest.get(key.digest) is key

    def name_of(self, secret: bytes | None) -> str:
        """What the log calls whoever presents this."""
        if secret is None:
            return "none"
        key, digest = self.find(secret), sha256(secret).digest()
        if key is not None:
            return key.name
        return f"{self._expired[digest]} (expired)" if digest in self._expired else "unknown"

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def find(self, secret: bytes) -> Key | None:
        """Compares with every entry, so that time tells nothing about which one fits."""
        digest = sha256(secret).digest()
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found

    def of(self, digest: bytes) -> Key | None:
        """The key with this digest, if it is still one of the server's."""
        return self._by_digest.get(digest)


def parse_keys(text: str | None) -> KeyRing | None:
    """None: authentication is off, because no entry is there at all."""
    listed = listed_keys(text)
    return None if listed is None else KeyRing(listed)


def listed_keys(text: str | None) -> list[Key] | None:
    """The keys of a list; None if it has no entry at all."""
    entries = [entry.strip(_BLANKS) for entry in (text or "").split(",")]
    entries = [entry for entry in entries if entry]
    if not entries:
        return None
    return [key for at, entry in enumerate(entries, 1) if (key := _parse_entry(entry, at)) is not None]


def _parse_entry(entry: str, at: int) -> Key | None:
    """An entry without a secret grants nothing, yet its presence keeps authentication on."""
    parts = [part.strip(_BLANKS) for part in entry.split(":", 2)]
    secret, scopes, prefixes = parts + [""] * (3 - len(parts))
    scope_bits, names = parse_scopes(scopes, f"TOPICS_API_KEYS: entry {at}"), _parse_prefixes(prefixes, at)
    return Key(digest_of(secret), scope_bits, names, f"key {at}") if secret else None


def digest_of(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogateescape")).digest()


def parse_scopes(text: str, where: str) -> int:
    if not text:
        return ALL_SCOPES
    bits = 0
    for token in text.split("+"):
        bit = _TOKENS.get(token.strip(_BLANKS).lower())
        if bit is None:
            raise ConfigError(f"{where} has an unknown scope; allowed are {', '.join(TOKEN_NAMES)}")
        bits |= bit
    return bits


def _parse_prefixes(text: str, at: int) -> tuple[str, ...]:
    names = tuple(name for part in text.split("|") if (name := part.strip(_BLANKS)))
    if text and not names:  # dropping blanks must not turn a restriction into none
        raise ConfigError(f"TOPICS_API_KEYS: entry {at} has a prefix list without a prefix")
    return names


ClientId = bytes | str | None
"""The digest of a key, or a network; None is not counted."""

IPV6_CLIENT_BITS = 64  # what one customer of a network is given at least, and may pick addresses from as it likes


def client_of(key: Key | None, peer: str) -> ClientId:
    """Whose share of sessions, streams and connections a caller takes from (`docs/spec/http-api.md#sec-9`).

    A key where there is one, by its digest; else the network that the caller comes from. Called where something is
    opened.

    `peer` is `address:port`, as connections show it."""
    return network_of(peer.rpartition(":")[0]) if key is None else key.digest


def network_of(address: str) -> str | None:
    """None for loopback, where programs of this machine are, and a proxy for everybody else; and for what is no
    address, such as a socket file."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0].strip("[]"))
    except ValueError:
        return None
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if parsed.is_loopback:
        return None
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((parsed, IPV6_CLIENT_BITS), strict=False))
    return str(parsed)


SHARE_MIN = 16  # a share of a small cap would refuse a client what the cap is there to allow


def share_of(cap: int, share: float) -> int:
    """What one holder may have of a cap; 0 is no cap, as everywhere."""
    return 0 if share >= 1 or not cap else min(max(int(cap * share), SHARE_MIN), cap)
