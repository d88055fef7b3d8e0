"""Values of options: each kind of option has a parser, which takes the option's name and its text.

A parser gives a value or raises ConfigError with one sentence that says what would be right. Nothing here knows which
options there are: the tables are in `topics.spark.options`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from topics.errors import ConfigError
from topics.model.names import is_topic_name
from topics.model.position import Position, is_token, parse_token

Bound: TypeAlias = Literal["earliest", "latest"] | Mapping[str, int | Position]
"""Where a range begins or ends: a word, or by topic a seq or a position."""

EARLIEST_SEQ: Final = -2
LATEST_SEQ: Final = -1
"""Numbers that Kafka's source uses in its JSON for the two words."""

PARTITION: Final = 0
"""The one partition that a topic has for users of Kafka."""

Wanted: TypeAlias = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """Which topics a read wants: these names, or else all that begin with `prefix` and match `pattern` as a whole."""

    names: tuple[str, ...] | None = None
    prefix: str = ""
    pattern: str | None = None

    def test(self) -> Wanted:
        """A function that says of a name whether it is wanted."""
        if self.names is not None:
            return frozenset(self.names).__contains__
        prefix = self.prefix
        if self.pattern is None:
            return lambda name: name.startswith(prefix)
        matches = re.compile(self.pattern).fullmatch
        return lambda name: name.startswith(prefix) and matches(name) is not None

    @property
    def shown(self) -> str:
        """What the topics have in common, for a sentence about there being none."""
        if self.pattern is not None:
            return f"matches the regular expression {self.pattern!r}"
        return f"begins with {self.prefix!r}"


@dataclass(frozen=True, slots=True)
class TextMatch:
    """Equality, or a literal prefix."""

    value: str
    is_prefix: bool


def as_text(name: str, given: str) -> str:
    if not given.strip():
        raise ConfigError(f"option {name} is empty")
    return given.strip()


def as_boolean(name: str, given: str) -> bool:
    word = given.strip().lower()
    if word not in ("true", "false"):
        raise ConfigError(f"option {name} is true or false, not {given!r}")
    return word == "true"


def as_count(low: int) -> Callable[[str, str], int]:
    def parse(name: str, given: str) -> int:
        try:
            value = int(given.strip())
        except ValueError:
            raise ConfigError(f"option {name} is a whole number, not {given!r}") from None
        if not low <= value < 2**63:
            raise ConfigError(f"option {name} is a whole number from {low} on, not {value}")
        return value

    return parse


def as_one_of(*words: str) -> Callable[[str, str], str]:
    def parse(name: str, given: str) -> str:
        word = given.strip().lower()
        if word not in words:
            raise ConfigError(f"option {name} is one of {', '.join(words)}, not {given!r}")
        return word

    return parse


def as_topic_names(name: str, given: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in given.split(",") if part.strip()))
    if not names:
        raise ConfigError(f"option {name} names no topic")
    for topic in names:
        if not is_topic_name(topic):
            hint = f"; for a prefix give subscribePrefix={topic[:-1]}" if topic.endswith("*") else ""
            raise ConfigError(f"option {name}: {topic!r} is not a topic name{hint}")
    return names


def as_assigned(name: str, given: str) -> tuple[str, ...]:
    """Kafka's `{"orders": [0]}`: a topic here has one partition."""
    shape = f'option {name} is JSON such as {{"orders": [0]}}, not {given!r}'
    parsed = _object(given, shape)
    for topic, partitions in parsed.items():
        if not isinstance(partitions, list) or not partitions:
            raise ConfigError(shape)
        for partition in partitions:
            _check_partition(name, topic, partition)
    return as_topic_names(name, ",".join(parsed))


def _check_partition(name: str, topic: str, partition: object) -> None:
    if partition not in (PARTITION, str(PARTITION)) or isinstance(partition, bool):
        raise ConfigError(f"option {name}: {topic!r} has one partition, {PARTITION}, and none {partition!r}")


def as_prefix(name: str, given: str) -> str:
    text = as_text(name, given)
    if not is_topic_name(text):
        hint = ", without *" if text.endswith("*") else ""
        raise ConfigError(f"option {name} is how names begin, such as orders{hint}, not {given!r}")
    return text


_LITERAL: Final = re.compile(r"[A-Za-z0-9:_-]*")


def as_pattern(name: str, given: str) -> tuple[str, str]:
    """A regular expression, and the literal text that every match begins with."""
    text = as_text(name, given)
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"option {name} is a regular expression, and {given!r} is none: {error}") from None
    found = _LITERAL.match(text)
    literal = found[0] if found is not None and "|" not in text else ""
    is_repeated = text[len(literal) : len(literal) + 1] in ("*", "?", "{")
    return text, literal[:-1] if is_repeated else literal


def as_columns(name: str, given: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in given.split(",") if part.strip())


_UNITS_MS: Final = {"ms": 1, "": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def as_duration_ms(name: str, given: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", given.strip().lower())
    if found is None or found[2] not in _UNITS_MS or not int(found[1]):
        raise ConfigError(f"option {name} is a time such as 30s, 15m or 1h, not {given!r}")
    return int(found[1]) * _UNITS_MS[found[2]]


def as_match(_: str, given: str) -> TextMatch:
    return TextMatch(given[:-1], is_prefix=True) if given.endswith("*") else TextMatch(given, is_prefix=False)


def as_bound(name: str, given: str) -> Bound:
    text = given.strip()
    if text.lower() == "earliest":
        return "earliest"
    if text.lower() == "latest":
        return "latest"
    shape = f'option {name} is earliest, latest, or JSON such as {{"orders": 23}}, not {given!r}'
    return {topic: _place(name, topic, place) for topic, place in _object(text, shape).items()}


def as_times(name: str, given: str) -> Mapping[str, int]:
    """By topic a time in ms, as it is or as Kafka's `{"0": time}`."""
    shape = f'option {name} is JSON such as {{"orders": 1700000000000}}, not {given!r}'
    times: dict[str, int] = {}
    for topic, value in _object(given, shape).items():
        time_ms = _of_partition(name, topic, value)
        if not isinstance(time_ms, int) or not _is_seq(time_ms):
            raise ConfigError(f"option {name}: {topic!r} is given {time_ms!r}, which is no time in ms")
        times[topic] = time_ms
    return times


def _object(given: str, shape: str) -> dict[str, Any]:
    try:
        parsed = json.loads(given)
    except (ValueError, RecursionError):
        raise ConfigError(shape) from None
    if not isinstance(parsed, dict):
        raise ConfigError(shape)
    return parsed


def _of_partition(name: str, topic: str, given: object) -> object:
    """What is said of the one partition, where partitions are named; else what is given."""
    if not isinstance(given, dict) or not all(part.isdigit() for part in given):
        return given
    for partition in given or {"": None}:
        _check_partition(name, topic, partition)
    return given[str(PARTITION)]


def _place(name: str, topic: str, given: object) -> int | Position:
    """A seq, the next one to read, as it is, as Kafka's `{"0": seq}` or with its epoch as in an offset; or a position,
    which was read."""
    given = _of_partition(name, topic, given)
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


def as_url(name: str, given: str) -> str:
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


def as_cursor_name(name: str, given: str) -> str:
    if not is_topic_name(given.strip()):
        raise ConfigError(f"option {name}: {given!r} is not a name for a cursor; the rule is that of topic names")
    return given.strip()


def as_topic_name(name: str, given: str) -> str:
    if not is_topic_name(given.strip()):
        raise ConfigError(f"option {name}: {given!r} is not a topic name")
    return given.strip()
