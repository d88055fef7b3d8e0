"""Settings: one table, read once at start from `TOPICS_*` or from keywords, never changed afterwards.

`settings` holds the table, `kinds` what a value may look like, `resolve` how raw values become settings, `environment`
the rules for the process environment, `bind` the address to listen on. Callers import from here.
"""

from topics.config.bind import BindAddress, bind_address
from topics.config.environment import client_settings_from, environment_names, settings_from
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
]
