"""Address: where a server is, and the key to it. The key goes into one header and is shown nowhere."""

from __future__ import annotations

from typing import NoReturn
from urllib.parse import urlsplit

from topics.errors import ConfigError

PORTS = {"http": 80, "https": 443}


class Address:
    """Parsed once, when a client is made; `base` is a path that every call begins with, mostly none."""

    __slots__ = ("_key", "base", "host", "is_tls", "port")

    def __init__(self, *, host: str, port: int, is_tls: bool, base: str = "", api_key: str | None = None) -> None:
        self.host = host
        self.port = port
        self.is_tls = is_tls
        self.base = base
        self._key = api_key

    def __repr__(self) -> str:
        return f"Address({self.url!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an address holds a key and is not pickled")

    @property
    def url(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.netloc}{self.base}"

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def headers(self) -> bytes:
        """The lines that every request carries."""
        lines = f"Host: {self.netloc}\r\nUser-Agent: topics-python\r\n"
        return (lines if self._key is None else f"{lines}Authorization: Bearer {self._key}\r\n").encode("latin-1")


def parse_address(url: str, *, api_key: str | None = None) -> Address:
    """Raises ConfigError, one sentence. A URL that holds a password is not repeated in it."""
    if not isinstance(url, str):
        raise ConfigError(f"a server's URL looks like http://127.0.0.1:4000, not {url!r}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"the server's URL cannot be read: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError("a key does not belong into the URL; give it as api_key")
    if parts.scheme not in PORTS or not host:
        raise ConfigError(f"a server's URL looks like http://127.0.0.1:4000, not {url!r}")
    if parts.query or parts.fragment:
        raise ConfigError(f"a server's URL has no query and no fragment, unlike {url!r}")
    return Address(
        host=host,
        port=PORTS[parts.scheme] if port is None else port,
        is_tls=parts.scheme == "https",
        base=parts.path.rstrip("/"),
        api_key=None if api_key is None else _checked_key(api_key),
    )


def checked_timeout(timeout: float) -> float:
    if not isinstance(timeout, int | float) or not timeout > 0:
        raise ConfigError(f"timeout is a number of seconds above 0, not {timeout!r}")
    return timeout


def _checked_key(key: str) -> str:
    key = key.strip()
    if not key or not key.isprintable() or not key.isascii():
        raise ConfigError("the API key is empty or holds characters that no header can carry")
    return key
