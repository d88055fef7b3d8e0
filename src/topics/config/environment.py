"""The process environment: which `TOPICS_*` names exist, and what a wrong one means.

A name nobody knows stops the start, with the nearest known one in the message, because a misspelt setting would
otherwise be silently without effect. Names under `TOPICS_TEST_` that no table lists are left to test harnesses.
"""

from collections.abc import Mapping

from topics.config.resolve import PREFIX, Resolved, Table, kinds_of, refuse_unknown, resolve_texts, variable_of
from topics.config.settings import ClientSettings, Settings

IGNORED_PREFIX = "TOPICS_TEST_"


def environment_names() -> list[str]:
    """Every variable the package knows."""
    return sorted(variable_of(name) for table in (Settings, ClientSettings) for name in kinds_of(table))


def settings_from(environ: Mapping[str, str]) -> Resolved[Settings]:
    """Raises ConfigError, one sentence, before anything else of the process has happened."""
    return _resolve_environment(Settings, environ)


def client_settings_from(environ: Mapping[str, str]) -> Resolved[ClientSettings]:
    return _resolve_environment(ClientSettings, environ)


def _resolve_environment(table: type[Table], environ: Mapping[str, str]) -> Resolved[Table]:
    ours = {name: text for name, text in environ.items() if name.startswith(PREFIX)}
    known = environment_names()
    listed = {name: text for name, text in ours.items() if name in known or not name.startswith(IGNORED_PREFIX)}
    refuse_unknown(listed, known=known, what="known variable")
    fields = {variable_of(name): name for name in kinds_of(table)}
    return resolve_texts(table, {fields[name]: text for name, text in ours.items() if name in fields})
