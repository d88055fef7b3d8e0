"""The address to listen on, from `TOPICS_HOST` and `TOPICS_PORT` (`docs/spec/http-api.md#sec-21`).

Pure text: whether a host is loopback is the server's question, since it needs the resolver.
"""

import re

import msgspec

from topics.config.settings import Settings
from topics.errors import ConfigError

_FULL = re.compile(r"(?P<host>\[[0-9A-Za-z:.%]+\]|[^\[\]:]*):(?P<port>[0-9]{1,5})")
PORT_MAX = 65_535


class BindAddress(msgspec.Struct, frozen=True):
    host: str  # an IPv6 host stands without its brackets
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def bind_address(settings: Settings) -> BindAddress:
    """A host with a `:` is a full address and the port setting is ignored."""
    if ":" not in settings.host:
        return BindAddress(settings.host, settings.port)
    match = _FULL.fullmatch(settings.host)
    if match is None or int(match["port"]) > PORT_MAX:
        raise ConfigError(f"TOPICS_HOST: {settings.host!r} is not allowed; it takes host, host:port or [ipv6]:port")
    return BindAddress(match["host"].strip("[]") or "127.0.0.1", int(match["port"]))
