"""The process environment: which `TOPICS_*` names exist, what a wrong one means, and the address they say to listen on.

A name nobody knows stops the start, with the nearest known one in the message, because a misspelt setting would
otherwise be silently without effect. Names under `TOPICS_TEST_` that no table lists are left to test harnesses. The
bind address (`docs/spec/http-api.md#sec-21`) is pure text here: whether a host is loopback is the server's question,
since it needs the resolver.
"""

import re
from collections.abc import Mapping

import msgspec

from topics.config.resolve import PREFIX, Bool, Resolved, Table, kinds_of, refuse_unknown, resolve_texts, variable_of
from topics.config.settings import ClientSettings, Settings
from topics.errors import ConfigError

IGNORED_PREFIX = "TOPICS_TEST_"
KERNEL_VARIABLE = "TOPICS_KERNEL"
"""Chooses the codecs of any process that uses the package (`topics.formats.kernel_choice`); it is no setting."""


def environment_names() -> list[str]:
    """Every variable the package knows."""
    settings = [variable_of(name) for table in (Settings, ClientSettings) for name in kinds_of(table)]
    return sorted([*settings, KERNEL_VARIABLE])


def settings_from(environ: Mapping[str, str]) -> Resolved[Settings]:
    """Raises ConfigError, one sentence, before anything else of the process has happened."""
    return _resolve_environment(Settings, environ)


def client_settings_from(environ: Mapping[str, str]) -> Resolved[ClientSettings]:
    return _resolve_environment(ClientSettings, environ)


def spans_are_on(environ: Mapping[str, str]) -> bool:
    """TOPICS_OTEL, for a process that may be no server and whose other variables are not ours to judge."""
    return Bool.allowed_texts.get(environ.get(variable_of("otel"), "0"), False)


def _resolve_environment(table: type[Table], environ: Mapping[str, str]) -> Resolved[Table]:
    ours = {name: text for name, text in environ.items() if name.startswith(PREFIX)}
    known = environment_names()
    listed = {name: text for name, text in ours.items() if name in known or not name.startswith(IGNORED_PREFIX)}
    refuse_unknown(listed, known=known, what="known variable")
    fields = {variable_of(name): name for name in kinds_of(table)}
    return resolve_texts(table, {fields[name]: text for name, text in ours.items() if name in fields})


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
