"""How raw values become settings: what a value of each kind may look like, and what happens to one that does not.

A `Kind` is the row of a settings table without its name and default. `parse` turns text (environment) into a value,
`check` takes a Python value (keywords); both raise `BadValue` for what is not a value of the kind at all. `clamp` moves
a value that is one into the range. Resolving gives the settings, where each came from, and a warning for each clamped
one. Pure; knows no particular table. Called by `Settings` and by `topics.config.environment`.
"""

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_type_hints

import msgspec

from topics.errors import ConfigError

Value = int | float | str | bool | None

U63_MAX = 2**63 - 1  # everything counted in bytes fits a signed 64-bit file offset
DURATION_MS_MAX = (
    366 * 86_400_000
)  # a year and a day: longer than any timer is needed, short enough for every event loop
_DIGITS = re.compile(r"[0-9]+")
_DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?")


class BadValue(Exception):
    """Not a value of this kind; the resolver adds which setting and what is allowed."""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One row: what it is for, in what unit. `secret` values are never shown."""

    help: str
    unit: str = ""
    secret: bool = False
    zero_is_default: ClassVar[bool] = False

    @property
    def allowed(self) -> str:
        """What the setting takes, for a sentence that refuses something else."""
        raise NotImplementedError

    def parse(self, text: str) -> Value:
        raise NotImplementedError

    def check(self, value: object) -> Value:
        raise NotImplementedError

    def clamp(self, value: Value) -> Value:
        return value


class Int(Kind, frozen=True, kw_only=True):
    low: int = 0
    high: int = U63_MAX

    @property
    def allowed(self) -> str:
        return f"a whole number from {self.low} to {self.high}"

    def parse(self, text: str) -> Value:
        if not _DIGITS.fullmatch(text):
            raise BadValue
        significant = text.lstrip("0")
        return int(significant or "0") if len(significant) < 20 else U63_MAX + 1

    def check(self, value: object) -> Value:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise BadValue
        return value

    def clamp(self, value: Value) -> Value:
        assert isinstance(value, int)
        return min(max(value, self.low), self.high)


class IntOrAuto(Int, frozen=True, kw_only=True):
    """0 asks for the default, which depends on the machine."""

    zero_is_default: ClassVar[bool] = True

    @property
    def allowed(self) -> str:
        return f"{Int.allowed.__get__(self)}, or 0 for the default"


class Ratio(Kind, frozen=True, kw_only=True):
    @property
    def allowed(self) -> str:
        return "a decimal number from 0 to 1"

    def parse(self, text: str) -> Value:
        if not _DECIMAL.fullmatch(text):
            raise BadValue
        return float(text)

    def check(self, value: object) -> Value:
        if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
            raise BadValue
        return float(value)

    def clamp(self, value: Value) -> Value:
        assert isinstance(value, float)
        return min(value, 1.0)


class Bool(Kind, frozen=True, kw_only=True):
    allowed_texts: ClassVar[dict[str, bool]] = {"1": True, "true": True, "0": False, "false": False}

    @property
    def allowed(self) -> str:
        return "1, true, 0 or false"

    def parse(self, text: str) -> Value:
        try:
            return self.allowed_texts[text]
        except KeyError:
            raise BadValue from None

    def check(self, value: object) -> Value:
        if not isinstance(value, bool):
            raise BadValue
        return value


class Choice(Kind, frozen=True, kw_only=True):
    choices: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"

    def parse(self, text: str) -> Value:
        if text not in self.choices:
            raise BadValue
        return text

    def check(self, value: object) -> Value:
        if not isinstance(value, str):
            raise BadValue
        return self.parse(value)


class Text(Kind, frozen=True, kw_only=True):
    """Taken as it is, without the blanks around it; what it must mean is checked by whoever uses it."""

    @property
    def allowed(self) -> str:
        return "text without control characters"

    def parse(self, text: str) -> Value:
        if any(ord(char) < 32 or ord(char) == 127 for char in text):
            raise BadValue
        return text

    def check(self, value: object) -> Value:
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if not isinstance(value, str):
            raise BadValue
        return self.parse(value)


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
