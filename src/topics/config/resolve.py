"""Resolve: raw values plus a table give settings, where each came from, and what had to be clamped.

Pure; knows no particular table. A raw value is text (environment) or a Python value (keywords). Called by `Settings`
and by `topics.config.environment`.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Literal, TypeVar, get_type_hints

import msgspec

from topics.config.kinds import BadValue, Kind, Value
from topics.errors import ConfigError

Origin = Literal["env", "keyword", "default"]
Table = TypeVar("Table", bound=msgspec.Struct)
PREFIX = "TOPICS_"


class Resolved(msgspec.Struct, Generic[Table], frozen=True, kw_only=True):
    """`warnings` are whole sentences, one per clamped value, for the log."""

    settings: Table
    origins: dict[str, Origin]
    warnings: tuple[str, ...]


def kinds_of(table: type[msgspec.Struct]) -> dict[str, Kind]:
    hints = get_type_hints(table, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}


def resolve_texts(table: type[Table], texts: Mapping[str, str]) -> Resolved[Table]:
    """`texts` by field name. Blank means unset."""
    given = {name: text.strip() for name, text in texts.items() if text.strip()}
    return _resolve(table, given, read=lambda kind, raw: kind.parse(raw), origin="env")


def resolve_values(table: type[Table], values: Mapping[str, object]) -> Resolved[Table]:
    """`values` by field name. None means unset."""
    refuse_unknown(values, known=kinds_of(table), what="known setting")
    given = {name: value for name, value in values.items() if value is not None and value != ""}
    return _resolve(table, given, read=lambda kind, raw: kind.check(raw), origin="keyword")


def _resolve(
    table: type[Table], given: Mapping[str, Any], *, read: Callable[[Kind, Any], Value], origin: Origin
) -> Resolved[Table]:
    kinds = kinds_of(table)
    values: dict[str, Value] = {}
    warnings: list[str] = []
    for name, raw in given.items():
        kind, shown_name = kinds[name], variable_of(name) if origin == "env" else name
        value = _read(kind, raw, name=shown_name, read=read)
        if kind.zero_is_default and value == 0:
            continue
        values[name] = kind.clamp(value)
        if values[name] != value:
            warnings.append(f"{shown_name} is {raw}; using {values[name]}, because {kind.allowed} is allowed")
    origins: dict[str, Origin] = {name: origin if name in values else "default" for name in kinds}
    return Resolved(settings=table(**values), origins=origins, warnings=tuple(warnings))


def _read(kind: Kind, raw: Any, *, name: str, read: Callable[[Kind, Any], Value]) -> Value:
    try:
        return read(kind, raw)
    except BadValue:
        shown_raw = "the given value (not shown)" if kind.secret else repr(raw)
        raise ConfigError(f"{name}: {shown_raw} is not allowed; it takes {kind.allowed}") from None


def refuse_unknown(given: Mapping[str, object], *, known: Iterable[str], what: str) -> None:
    known = sorted(known)
    for name, value in sorted(given.items()):
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            # A misspelt name may carry a secret, so whatever looks like a key keeps its value to itself.
            shown_value = "" if "KEY" in name.upper() + nearest.upper() else f" (set to {value!r})"
            raise ConfigError(f"{name}{shown_value} is not a {what}; the nearest known one is {nearest}")


def variable_of(name: str) -> str:
    return PREFIX + name.upper()


def shown(settings: msgspec.Struct) -> dict[str, Value]:
    """Values for people: a secret shows only that it is set."""
    kinds = kinds_of(type(settings))
    values = {name: getattr(settings, name) for name in kinds}
    return {name: "(set)" if kinds[name].secret and value is not None else value for name, value in values.items()}
