"""Options of the `topics` data source: one table each for reading and writing, read into frozen values.

Names are case-insensitive, as everywhere in Spark. Everything that can be wrong about an option is found here, at
planning time, and reported as one sentence that says what would be right: each kind of option has a parser, which takes
the option's name and its text and gives a value or raises ConfigError. What needs the data itself (an unknown topic, an
unreadable path) is found by the planner. Called by `topics.spark.source`, the planner and the jobs.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from topics.errors import ConfigError
from topics.model.config import DURABILITIES
from topics.model.names import is_topic_name
from topics.model.position import Position, is_token, parse_token
from topics.spark.scanning.schema import KNOWN_COLUMNS, LOSS_COLUMNS, TABLE_COLUMNS
from topics.spark.secret import Secret

OnLoss: TypeAlias = Literal["fail", "warn", "rows"]
API_KEY_ENV: Final = "TOPICS_API_KEY"
COLD_DIR_ENV: Final = "TOPICS_COLD_DIR"

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
            hint = "; use subscribePattern for a prefix" if topic.endswith("*") else ""
            raise ConfigError(f"option {name}: {topic!r} is not a topic name{hint}")
    return names


def as_prefix(name: str, given: str) -> str:
    text = given.strip()
    if not text.endswith("*") or "*" in text[:-1]:
        raise ConfigError(f"option {name} is a prefix with a trailing *, such as orders*, not {given!r}")
    return text[:-1]


def as_columns(name: str, given: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in given.split(",") if part.strip())
    check_columns(names, KNOWN_COLUMNS, f"option {name}")
    return names


def as_match(_: str, given: str) -> TextMatch:
    return TextMatch(given[:-1], is_prefix=True) if given.endswith("*") else TextMatch(given, is_prefix=False)


def as_bound(name: str, given: str) -> Bound:
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


def as_topic_name(name: str, given: str) -> str:
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


# --- the tables ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Option:
    """One row of a table: how its text is read, and what it means."""

    name: str
    parse: Callable[[str, str], Any]
    help: str
    default: Any = None


def field_of(name: str) -> str:
    """The field that an option sets: `coldPath` is `cold_path`."""
    return re.sub(r"(?=[A-Z])", "_", name).lower()


_CONNECTION: Final = (
    Option("url", as_url, "a running server, such as http://localhost:4000"),
    Option("apiKey", as_text, f"bearer key; default: environment variable {API_KEY_ENV}"),
    Option("apiKeyFile", as_text, "file that holds the bearer key"),
)

READ_OPTIONS: Final = (
    Option("path", as_text, "a data directory, a cold directory or a copy of either: local, or a URI of pyarrow.fs"),
    Option("coldPath", as_text, f"cold root of the directory at path; default: environment variable {COLD_DIR_ENV}"),
    *_CONNECTION,
    Option("subscribe", as_topic_names, "one topic, or several with commas"),
    Option("subscribePattern", as_prefix, "a prefix with a trailing *"),
    Option("startingOffsets", as_bound, "earliest, latest, or JSON: first seq wanted by topic"),
    Option("endingOffsets", as_bound, "earliest, latest, or JSON: first seq not wanted by topic"),
    Option("startingTimestamp", as_count(0), "ms since the Unix epoch: first record at or after it"),
    Option("endingTimestamp", as_count(0), "ms since the Unix epoch: records before it"),
    Option("failOnDataLoss", as_boolean, "false is short for onDataLoss=warn", True),
    Option("onDataLoss", as_one_of("fail", "warn", "rows"), "what a gap does: stop, a warning, or a tombstone row"),
    Option("columns", as_columns, "columns to read, with commas; the others are neither read nor decoded"),
    Option("tag", as_match, "only records with this tag; a trailing * makes it a prefix"),
    Option("node", as_match, "only records of this node; a trailing * makes it a prefix"),
    Option("limit", as_count(0), "at most so many records per topic"),
    Option("pushdown", as_boolean, "without effect, for older jobs: Spark applies its filters itself", False),
    Option("verifyChecksums", as_boolean, "check every frame that is read", True),
    Option("maxRecordsPerPartition", as_count(1), "most records of one task", 500_000),
    Option("minPartitions", as_count(1), "fewest tasks to plan for; default: the session's parallelism, 8 for streams"),
    Option("maxOffsetsPerTrigger", as_count(1), "streaming: most records of one micro-batch"),
    Option("maxBytesPerTrigger", as_count(1), "streaming: most bytes of one micro-batch"),
    Option("trimCommitted", as_boolean, "streaming: delete from the topic what the sink has committed", False),
)

WRITE_OPTIONS: Final = (
    *_CONNECTION,
    Option("topic", as_topic_name, "where rows without a topic column go"),
    Option("batchRecords", as_count(1), "records per request, at most 10000", 1000),
    Option("batchBytes", as_count(1), "bytes of data and meta per request", 1 << 20),
    Option("durability", as_one_of(*DURABILITIES), "class of topics that the sink creates"),
    Option("create", as_boolean, "may the sink create topics", True),
    Option("maxRetries", as_count(0), "tries after the first one on 429, 503 and broken connections", 30),
    Option("deadLetterTopic", as_topic_name, "where rows go that are not valid JSON or too large"),
    Option("jobId", as_text, "batch writes: name of this write; the same name makes a repeated write append nothing"),
)

# Options that Spark itself adds to what a source or sink is given.
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname", "mergeschema", "recursivefilelookup", "outputmode"})


# What Spark gives a source that stands in a catalog, instead of its options.
_OF_CATALOG: Final = "provider"


def _read_table(given: Mapping[str, str], table: tuple[Option, ...], what: str) -> dict[str, Any]:
    if any(name.lower() == _OF_CATALOG for name in given):
        raise ConfigError(
            "Spark keeps no options of a Python source in a catalog: "
            "use CREATE TEMPORARY VIEW ... USING topics OPTIONS (...), or format('topics')"
        )
    by_name = {option.name.lower(): option for option in table}
    values: dict[str, Any] = {field_of(option.name): option.default for option in table}
    for name, text in given.items():
        option = by_name.get(name.lower())
        if option is not None:
            values[field_of(option.name)] = option.parse(option.name, text)
        elif name.lower() not in _OF_SPARK:
            raise ConfigError(_unknown(name, table, what))
    return values


def _unknown(name: str, table: tuple[Option, ...], what: str) -> str:
    by_name = {option.name.lower(): option.name for option in table}
    close = difflib.get_close_matches(name.lower(), by_name, n=1, cutoff=0.5)
    hint = f"did you mean {by_name[close[0]]}?" if close else f"there are {', '.join(by_name.values())}"
    return f"unknown option {name} for {what} topics: {hint}"


def _take_api_key(values: dict[str, Any]) -> None:
    """Makes one key of the two options that may name it; a read without a server needs none."""
    text, path = values.pop("api_key"), values.pop("api_key_file")
    if values["url"] is None:
        values["api_key"] = None
        return
    if text is not None and path is not None:
        raise ConfigError("give apiKey or apiKeyFile, not both")
    if path is not None:
        values["api_key"] = _key_from_file(path)
        return
    where = "apiKey" if text is not None else API_KEY_ENV
    text = text or os.environ.get(API_KEY_ENV, "").strip()
    values["api_key"] = _key(text, where) if text else None


def _key(text: str, where: str) -> Secret:
    """What cannot be in a header is told here, without the text: the header's own error would show it."""
    if not text.isprintable():
        raise ConfigError(f"{where} does not hold a key: a key is one line of printable characters")
    return Secret(text)


def _key_from_file(path: str) -> Secret:
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        return _key("\0", f"apiKeyFile {path}")
    except OSError as error:
        raise ConfigError(f"apiKeyFile {path} cannot be read: {error.strerror}") from None
    if not text:
        raise ConfigError(f"apiKeyFile {path} is empty")
    return _key(text, f"apiKeyFile {path}")


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of a batch or streaming read, checked. `subscribe` is None where a pattern is given."""

    path: str | None
    cold_path: str | None
    url: str | None
    api_key: Secret | None = field(repr=False)
    subscribe: tuple[str, ...] | None
    subscribe_pattern: str | None
    starting_offsets: Bound | None
    ending_offsets: Bound | None
    starting_timestamp: int | None
    ending_timestamp: int | None
    on_data_loss: OnLoss
    columns: tuple[str, ...] | None
    tag: TextMatch | None
    node: TextMatch | None
    limit: int | None
    verify_checksums: bool
    max_records_per_partition: int
    min_partitions: int | None
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    trim_committed: bool

    @property
    def table_columns(self) -> tuple[str, ...]:
        """The columns of the table that this read gives when nobody asks for a selection."""
        if self.columns is not None:
            return self.columns
        return KNOWN_COLUMNS if self.on_data_loss == "rows" else TABLE_COLUMNS


def read_options(given: Mapping[str, str], *, streaming: bool | None = None) -> ReadOptions:
    """Checked options of a read; `streaming` None means that it is not known yet which kind it is."""
    values = _read_table(given, READ_OPTIONS, "reading")
    if (values["path"] is None) == (values["url"] is None):
        raise ConfigError("give exactly one of path (a data directory) and url (a running server)")
    if (values["subscribe"] is None) == (values["subscribe_pattern"] is None):
        raise ConfigError("give exactly one of subscribe (topic names) and subscribePattern (a prefix such as orders*)")
    _check_bounds(values)
    if streaming is not None:
        _check_kind(values, streaming=streaming)
    del values["pushdown"]
    fail_on_loss = values.pop("fail_on_data_loss")
    _take_api_key(values)
    values["cold_path"] = values["cold_path"] or os.environ.get(COLD_DIR_ENV) or None
    values["on_data_loss"] = values["on_data_loss"] or ("fail" if fail_on_loss else "warn")
    options = ReadOptions(**values)
    _check_loss_columns(options)
    return options


def _check_bounds(values: Mapping[str, Any]) -> None:
    for name in ("startingOffsets", "endingOffsets"):
        bound, names, prefix = values[field_of(name)], values["subscribe"], values["subscribe_pattern"]
        if not isinstance(bound, dict):
            continue
        for topic in bound:
            if topic not in names if names is not None else not topic.startswith(prefix):
                raise ConfigError(f"option {name} names {topic!r}, which is not among the topics subscribed to")


def _check_kind(values: Mapping[str, Any], *, streaming: bool) -> None:
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "limit"):
            if values[field_of(name)] is not None:
                raise ConfigError(f"option {name} is for batch reads; a stream has no end")
    if values["trim_committed"] and values["url"] is None:
        raise ConfigError("option trimCommitted deletes through a server: it needs url, not path")
    for name in ("tag", "node"):
        if values["trim_committed"] and values[name] is not None:
            raise ConfigError(
                f"option trimCommitted deletes all that was passed: with {name}, also what no sink has got"
            )


def _check_loss_columns(options: ReadOptions) -> None:
    wanted = [name for name in options.columns or () if name in LOSS_COLUMNS]
    if wanted and options.on_data_loss != "rows":
        raise ConfigError(f"column {wanted[0]} exists only with onDataLoss=rows")


# --- writing ---------------------------------------------------------------------------------------------------------

RECORDS_PER_REQUEST_MAX: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options of a batch or streaming write, checked."""

    url: str
    api_key: Secret | None = field(repr=False)
    topic: str | None
    batch_records: int
    batch_bytes: int
    durability: str | None
    create: bool
    max_retries: int
    dead_letter_topic: str | None
    job_id: str | None


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Checked options of a write."""
    if any(name.lower() == "path" for name in given):
        raise ConfigError("a sink writes through a server: give url instead of path")
    values = _read_table(given, WRITE_OPTIONS, "writing")
    if values["url"] is None:
        raise ConfigError("option url is missing: the server to write to, such as http://localhost:4000")
    if values["batch_records"] > RECORDS_PER_REQUEST_MAX:
        raise ConfigError(f"option batchRecords is at most {RECORDS_PER_REQUEST_MAX}, not {values['batch_records']}")
    _take_api_key(values)
    return WriteOptions(**values)


def describe() -> str:
    """Every option with its default and meaning, for people."""
    lines = []
    for what, table in (("Reading", READ_OPTIONS), ("Writing", WRITE_OPTIONS)):
        lines.append(f"{what}:")
        width = max(len(option.name) for option in table)
        for option in table:
            default = "" if option.default is None else f" (default {str(option.default).lower()})"
            lines.append(f"  {option.name:<{width}}  {option.help}{default}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(describe())
