"""Settings: one table, read once at start from `TOPICS_*` or from keywords, never changed afterwards.

settings      the table: name, type, default, unit, range and help of each
resolve       what a value may look like; raw values become settings
environment   the rules for the process environment; the address to listen on

Callers import from here. Never reads a file, and never reads the environment by itself: it is an argument.
"""

from topics.config.environment import (
    BindAddress,
    bind_address,
    client_settings_from,
    environment_names,
    settings_from,
    spans_are_on,
)
from topics.config.resolve import Origin, Resolved
from topics.config.settings import ClientSettings, Settings

__all__ = [
    "BindAddress",
    "ClientSettings",
    "Origin",
    "Resolved",
    "Settings",
    "bind_address",
    "client_settings_from",
    "environment_names",
    "settings_from",
    "spans_are_on",
]
