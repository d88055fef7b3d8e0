"""Key file: keys with names and expiry, as a TOML document (`docs/spec/http-api.md#sec-8-9`).

Fails closed, as the list in the environment does: what is not understood refuses the whole file. No message contains a
secret. Called at start and on SIGHUP; reading the file is the server's."""

from __future__ import annotations

import re
import tomllib
from datetime import UTC, datetime
from typing import Any

import msgspec

from topics.errors import ConfigError
from topics.wire.access.keys import ALL_SCOPES, Key, digest_of, parse_scopes

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEX = re.compile(r"[0-9A-Fa-f]{64}")


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    secret: str | None = None
    sha256: str | None = None
    scopes: str | None = None
    prefixes: list[str] = []
    expires: datetime | None = None


def parse_key_file(text: str, path: str) -> list[Key]:
    """Raises ConfigError, one sentence."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError:  # its message may quote a line
        raise ConfigError(f"{path}: this is not TOML; a key looks like [name] and below it sha256 = ...") from None
    return [_key_of(name, table, f"{path}: key {name!r}") for name, table in tables.items()]


def _key_of(name: str, table: Any, where: str) -> Key:
    if _NAME.fullmatch(name) is None:
        raise ConfigError(f"{where} needs a name of 1 to 64 letters, digits, dots, dashes and underscores")
    try:
        entry = msgspec.convert(table, _Entry)
    except msgspec.ValidationError:  # its message may quote a value
        raise ConfigError(
            f"{where} has a field that is not understood; it takes secret or sha256, scopes, prefixes, expires"
        ) from None
    expires_ms = None if entry.expires is None else _ms_of(entry.expires)
    if not all(entry.prefixes):
        raise ConfigError(f"{where} has an empty prefix; leave prefixes out to permit every name")
    scopes = ALL_SCOPES if entry.scopes is None else parse_scopes(entry.scopes, where)
    return Key(_digest_of(entry, where), scopes, tuple(entry.prefixes), name, expires_ms)


def _digest_of(entry: _Entry, where: str) -> bytes:
    if (entry.secret is None) == (entry.sha256 is None):
        raise ConfigError(f"{where} needs either secret or sha256")
    if entry.secret is not None:
        if not entry.secret:
            raise ConfigError(f"{where} has an empty secret")
        return digest_of(entry.secret)
    assert entry.sha256 is not None
    if _HEX.fullmatch(entry.sha256) is None:
        raise ConfigError(f"{where} has a sha256 that is not 64 hexadecimal digits")
    return bytes.fromhex(entry.sha256)


def _ms_of(moment: datetime) -> int:
    """A time without an offset is UTC."""
    return int((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() * 1000)
