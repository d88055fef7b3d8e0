"""How the texts of options are read: one parser per kind, each with one sentence for what is wrong.

A parser takes the option's name and its text and gives a value or raises ConfigError. Used by the tables in
`topics.spark.options`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

from topics.errors import ConfigError
from topics.model.names import is_topic_name
from topics.model.position import Position, is_token, parse_token
from topics.spark.scanning.schema import KNOWN_COLUMNS

Bound: TypeAlias = Literal["earliest", "latest"] | Mapping[str, int | Position]
"""Where a range begins or ends: a word, or by topic a seq or a position."""

EARLIEST_SEQ: Final = -2
LATEST_SEQ: Final = -1
"""Numbers that Kafka's source uses in its JSON for the two words."""


@dataclass(frozen=True, slots=True)
class TextMatch:
    """Equality, or a literal prefix."""

    value: str
    is_prefix: bool


def text(name: str, given: str) -> str:
    if not given.strip():
        raise ConfigError(f"option {name} is empty")
    return given.strip()


def boolean(name: str, given: str) -> bool:
    word = given.strip().lower()
    if word not in ("true", "false"):
        raise ConfigError(f"option {name} is true or false, not {given!r}")
    return word == "true"


def count(low: int) -> Callable[[str, str], int]:
    def parse(name: str, given: str) -> int:
        try:
            value = int(given.strip())
        except ValueError:
            raise ConfigError(f"option {name} is a whole number, not {given!r}") from None
        if not low <= value < 2**63:
            raise ConfigError(f"option {name} is a whole number from {low} on, not {value}")
        return value

    return parse


def one_of(*words: str) -> Callable[[str, str], str]:
    def parse(name: str, given: str) -> str:
        word = given.strip().lower()
        if word not in words:
            raise ConfigError(f"option {name} is one of {', '.join(words)}, not {given!r}")
        return word

    return parse


def topic_names(name: str, given: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in given.split(",") if part.strip()))
    if not names:
        raise ConfigError(f"option {name} names no topic")
    for topic in names:
        if not is_topic_name(topic):
            hint = "; use subscribePattern for a prefix" if topic.endswith("*") else ""
            raise ConfigError(f"option {name}: {topic!r} is not a topic name{hint}")
    return names


def prefix(name: str, given: str) -> str:
    text = given.strip()
    if not text.endswith("*") or "*" in text[:-1]:
        raise ConfigError(f"option {name} is a prefix with a trailing *, such as orders*, not {given!r}")
    return text[:-1]


def columns(name: str, given: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in given.split(",") if part.strip())
    check_columns(names, KNOWN_COLUMNS, f"option {name}")
    return names


def match(_: str, given: str) -> TextMatch:
    return TextMatch(given[:-1], is_prefix=True) if given.endswith("*") else TextMatch(given, is_prefix=False)


def bound(name: str, given: str) -> Bound:
    text = given.strip()
    if text.lower() == "earliest":
        return "earliest"
    if text.lower() == "latest":
        return "latest"
    shape = f'option {name} is earliest, latest, or JSON such as {{"orders": 23}}, not {given!r}'
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(shape) from None
    if not isinstance(parsed, dict):
        raise ConfigError(shape)
    return {topic: _place(name, topic, given) for topic, given in parsed.items()}


def _place(name: str, topic: str, given: object) -> int | Position:
    """A seq, the next one to read, as it is or with its epoch as in an offset; or a position, which was read."""
    if isinstance(given, dict) and given.keys() == {"epoch", "seq"}:
        epoch, seq = given["epoch"], given["seq"]
        if _is_seq(epoch) and _is_seq(seq):
            return Position(max(seq - 1, 0), epoch)
    elif isinstance(given, str) and is_token(given):
        return parse_token(given)
    elif _is_seq(given, low=EARLIEST_SEQ):
        assert isinstance(given, int)
        return given
    raise ConfigError(f"option {name}: {topic!r} is given {given!r}, which is not a seq or a position")


def _is_seq(given: object, *, low: int = 0) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and low <= given < 2**63


def url(name: str, given: str) -> str:
    text = given.strip().rstrip("/")
    if not _names_server(text):
        shown = text.rpartition("@")[2]  # what stands before may be a password
        raise ConfigError(f"option {name} is a server such as http://localhost:4000, not {shown!r}")
    return text


def _names_server(text: str) -> bool:
    try:
        parts = urlsplit(text)
        has_port = parts.port is None or parts.port > 0
    except ValueError:  # no port, or no address
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and has_port and not re.search(r"\s", text)


def topic_name(name: str, given: str) -> str:
    if not is_topic_name(given.strip()):
        raise ConfigError(f"option {name}: {given!r} is not a topic name")
    return given.strip()


def check_columns(names: tuple[str, ...], known: tuple[str, ...], where: str) -> None:
    """Every name is a column of the table, and none comes twice."""
    if not names:
        raise ConfigError(f"{where} names no column")
    for name in names:
        if name not in known:
            raise ConfigError(f"{where} names {name!r}; the columns are {', '.join(known)}")
    if len(set(names)) != len(names):
        raise ConfigError(f"{where} names a column twice")
