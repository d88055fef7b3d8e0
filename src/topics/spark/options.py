"""Options of the `topics` data source: one table each for reading and writing, read into frozen values.

Names are case-insensitive, as everywhere in Spark. Everything that can be wrong about an option is found here, at
planning time, and reported as one sentence that says what would be right. What needs a look at the data (an unknown
topic, an unreadable path) is found by the planner. Called by `topics.spark.source`.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from topics.errors import ConfigError
from topics.model.config import DURABILITIES
from topics.model.names import is_topic_name
from topics.spark.schema import KNOWN_COLUMNS, LOSS_COLUMNS, TABLE_COLUMNS
from topics.spark.secret import Secret

OnLoss: TypeAlias = Literal["fail", "warn", "rows"]
Bound: TypeAlias = Literal["earliest", "latest"] | Mapping[str, int]
"""Where a range begins or ends: a word, or a seq by topic."""

API_KEY_ENV: Final = "TOPICS_API_KEY"
COLD_DIR_ENV: Final = "TOPICS_COLD_DIR"
EARLIEST_SEQ: Final = -2
LATEST_SEQ: Final = -1
"""Numbers that Kafka's source uses in its JSON for the two words."""


@dataclass(frozen=True, slots=True)
class Option:
    """One row of a table: how its text is read, and what it means."""

    name: str
    parse: Callable[[str, str], Any]
    help: str
    default: Any = None


@dataclass(frozen=True, slots=True)
class TextMatch:
    """Equality, or a literal prefix."""

    value: str
    is_prefix: bool


# --- how texts are read ----------------------------------------------------------------------------------------------


def _text(name: str, given: str) -> str:
    if not given.strip():
        raise ConfigError(f"option {name} is empty")
    return given.strip()


def _bool(name: str, given: str) -> bool:
    word = given.strip().lower()
    if word not in ("true", "false"):
        raise ConfigError(f"option {name} is true or false, not {given!r}")
    return word == "true"


def _count(low: int) -> Callable[[str, str], int]:
    def parse(name: str, given: str) -> int:
        try:
            value = int(given.strip())
        except ValueError:
            raise ConfigError(f"option {name} is a whole number, not {given!r}") from None
        if not low <= value < 2**63:
            raise ConfigError(f"option {name} is a whole number from {low} on, not {value}")
        return value

    return parse


def _one_of(*words: str) -> Callable[[str, str], str]:
    def parse(name: str, given: str) -> str:
        word = given.strip().lower()
        if word not in words:
            raise ConfigError(f"option {name} is one of {', '.join(words)}, not {given!r}")
        return word

    return parse


def _topics(name: str, given: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in given.split(",") if part.strip()))
    if not names:
        raise ConfigError(f"option {name} names no topic")
    for topic in names:
        if not is_topic_name(topic):
            hint = "; use subscribePattern for a prefix" if topic.endswith("*") else ""
            raise ConfigError(f"option {name}: {topic!r} is not a topic name{hint}")
    return names


def _prefix(name: str, given: str) -> str:
    text = given.strip()
    if not text.endswith("*") or "*" in text[:-1]:
        raise ConfigError(f"option {name} is a prefix with a trailing *, such as orders*, not {given!r}")
    return text[:-1]


def _columns(name: str, given: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in given.split(",") if part.strip())
    check_columns(names, KNOWN_COLUMNS, f"option {name}")
    return names


def _match(_: str, given: str) -> TextMatch:
    return TextMatch(given[:-1], is_prefix=True) if given.endswith("*") else TextMatch(given, is_prefix=False)


def _bound(name: str, given: str) -> Bound:
    text = given.strip()
    if text.lower() == "earliest":
        return "earliest"
    if text.lower() == "latest":
        return "latest"
    shape = f'option {name} is earliest, latest, or JSON such as {{"orders": 23}}, not {given!r}'
    try:
        parsed = json.loads(text)
    except ValueError:
        raise ConfigError(shape) from None
    if not isinstance(parsed, dict):
        raise ConfigError(shape)
    for topic, seq in parsed.items():
        if isinstance(seq, bool) or not isinstance(seq, int) or not EARLIEST_SEQ <= seq < 2**63:
            raise ConfigError(f"option {name}: {topic!r} is given {seq!r}, which is not a seq")
    return dict(parsed)


def _url(name: str, given: str) -> str:
    text = given.strip().rstrip("/")
    if not text.startswith(("http://", "https://")):
        raise ConfigError(f"option {name} is a server such as http://localhost:4000, not {given!r}")
    return text


def _topic(name: str, given: str) -> str:
    if not is_topic_name(given.strip()):
        raise ConfigError(f"option {name}: {given!r} is not a topic name")
    return given.strip()


# --- the tables ------------------------------------------------------------------------------------------------------

_CONNECTION: Final = (
    Option("url", _url, "a running server, such as http://localhost:4000"),
    Option("apiKey", _text, f"bearer key; default: environment variable {API_KEY_ENV}"),
    Option("apiKeyFile", _text, "file that holds the bearer key"),
)

READ_OPTIONS: Final = (
    Option("path", _text, "a data directory, a cold directory or a copy of either: local, or a URI of pyarrow.fs"),
    Option("coldPath", _text, f"cold root of the directory at path; default: environment variable {COLD_DIR_ENV}"),
    *_CONNECTION,
    Option("subscribe", _topics, "one topic, or several with commas"),
    Option("subscribePattern", _prefix, "a prefix with a trailing *"),
    Option("startingOffsets", _bound, "earliest, latest, or JSON: first seq wanted by topic"),
    Option("endingOffsets", _bound, "latest, or JSON: first seq not wanted by topic"),
    Option("startingTimestamp", _count(0), "ms since the Unix epoch: first record at or after it"),
    Option("endingTimestamp", _count(0), "ms since the Unix epoch: records before it"),
    Option("failOnDataLoss", _bool, "false is short for onDataLoss=warn", True),
    Option("onDataLoss", _one_of("fail", "warn", "rows"), "what a gap does: stop, a warning, or a tombstone row"),
    Option("columns", _columns, "columns to read, with commas; the others are neither read nor decoded"),
    Option("tag", _match, "only records with this tag; a trailing * makes it a prefix"),
    Option("node", _match, "only records of this node; a trailing * makes it a prefix"),
    Option("limit", _count(0), "at most so many records per topic"),
    Option("pushdown", _bool, "filter pushdown, for one query per load; needs spark.sql.python.filterPushdown.enabled", False),
    Option("verifyChecksums", _bool, "check every frame that is read", True),
    Option("maxRecordsPerPartition", _count(1), "most records of one task", 500_000),
    Option("minPartitions", _count(1), "fewest tasks to plan for; default: the parallelism of the session"),
    Option("maxOffsetsPerTrigger", _count(1), "streaming: most records of one micro-batch"),
    Option("maxBytesPerTrigger", _count(1), "streaming: most bytes of one micro-batch"),
    Option("trimCommitted", _bool, "streaming: delete from the topic what the sink has committed", False),
)

WRITE_OPTIONS: Final = (
    *_CONNECTION,
    Option("topic", _topic, "where rows without a topic column go"),
    Option("batchRecords", _count(1), "records per request, at most 10000", 1000),
    Option("batchBytes", _count(1), "bytes of data and meta per request", 1 << 20),
    Option("durability", _one_of(*DURABILITIES), "class of topics that the sink creates"),
    Option("create", _bool, "may the sink create topics", True),
    Option("maxRetries", _count(0), "tries after the first one on 429, 503 and broken connections", 30),
    Option("deadLetterTopic", _topic, "where rows go that are not valid JSON or too large"),
    Option("jobId", _text, "batch writes: name of this write; the same name makes a repeated write append nothing"),
)

# Options that Spark itself adds to what a source or sink is given.
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname", "mergeschema", "recursivefilelookup", "outputmode"})


def _read_table(given: Mapping[str, str], table: tuple[Option, ...], what: str) -> dict[str, Any]:
    by_name = {option.name.lower(): option for option in table}
    values: dict[str, Any] = {option.name: option.default for option in table}
    for name, text in given.items():
        option = by_name.get(name.lower())
        if option is not None:
            values[option.name] = option.parse(option.name, text)
        elif name.lower() not in _OF_SPARK:
            raise ConfigError(_unknown(name, table, what))
    return values


def _unknown(name: str, table: tuple[Option, ...], what: str) -> str:
    by_name = {option.name.lower(): option.name for option in table}
    close = difflib.get_close_matches(name.lower(), by_name, n=1, cutoff=0.5)
    hint = f"did you mean {by_name[close[0]]}?" if close else f"there are {', '.join(by_name.values())}"
    return f"unknown option {name} for {what} topics: {hint}"


def _api_key(values: Mapping[str, Any]) -> Secret | None:
    if values["apiKey"] is not None and values["apiKeyFile"] is not None:
        raise ConfigError("give apiKey or apiKeyFile, not both")
    if values["apiKeyFile"] is not None:
        return _key_from_file(values["apiKeyFile"])
    text = values["apiKey"] or os.environ.get(API_KEY_ENV, "").strip()
    return Secret(text) if text else None


def _key_from_file(path: str) -> Secret:
    try:
        text = Path(path).read_text().strip()
    except OSError as error:
        raise ConfigError(f"apiKeyFile {path} cannot be read: {error.strerror}") from None
    if not text:
        raise ConfigError(f"apiKeyFile {path} is empty")
    return Secret(text)


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of a batch or streaming read, checked. `names` is None for a prefix."""

    path: str | None
    cold_path: str | None
    url: str | None
    api_key: Secret | None = field(repr=False)
    names: tuple[str, ...] | None
    prefix: str | None
    starting: Bound | None
    ending: Bound | None
    starting_ts: int | None
    ending_ts: int | None
    on_loss: OnLoss
    columns: tuple[str, ...] | None
    tag: TextMatch | None
    node: TextMatch | None
    limit: int | None
    pushdown: bool
    verify: bool
    records_per_partition_max: int
    partitions_min: int | None
    offsets_per_trigger_max: int | None
    bytes_per_trigger_max: int | None
    trim_committed: bool

    @property
    def table_columns(self) -> tuple[str, ...]:
        """The columns of the table that this read gives when nobody asks for a selection."""
        if self.columns is not None:
            return self.columns
        return KNOWN_COLUMNS if self.on_loss == "rows" else TABLE_COLUMNS


def read_options(given: Mapping[str, str], *, streaming: bool | None = None) -> ReadOptions:
    """Checked options of a read; `streaming` None means that it is not known yet which kind it is."""
    values = _read_table(given, READ_OPTIONS, "reading")
    if (values["path"] is None) == (values["url"] is None):
        raise ConfigError("give exactly one of path (a data directory) and url (a running server)")
    if (values["subscribe"] is None) == (values["subscribePattern"] is None):
        raise ConfigError("give exactly one of subscribe (topic names) and subscribePattern (a prefix such as orders*)")
    _check_bounds(values)
    if streaming is not None:
        _check_kind(values, streaming=streaming)
    options = ReadOptions(
        path=values["path"],
        cold_path=values["coldPath"] or os.environ.get(COLD_DIR_ENV) or None,
        url=values["url"],
        api_key=_api_key(values) if values["url"] is not None else None,
        names=values["subscribe"],
        prefix=values["subscribePattern"],
        starting=values["startingOffsets"],
        ending=values["endingOffsets"],
        starting_ts=values["startingTimestamp"],
        ending_ts=values["endingTimestamp"],
        on_loss=values["onDataLoss"] or ("fail" if values["failOnDataLoss"] else "warn"),
        columns=values["columns"],
        tag=values["tag"],
        node=values["node"],
        limit=values["limit"],
        pushdown=values["pushdown"],
        verify=values["verifyChecksums"],
        records_per_partition_max=values["maxRecordsPerPartition"],
        partitions_min=values["minPartitions"],
        offsets_per_trigger_max=values["maxOffsetsPerTrigger"],
        bytes_per_trigger_max=values["maxBytesPerTrigger"],
        trim_committed=values["trimCommitted"],
    )
    _check_loss_columns(options)
    return options


def _check_bounds(values: Mapping[str, Any]) -> None:
    if values["endingOffsets"] == "earliest":
        raise ConfigError('option endingOffsets is latest or JSON such as {"orders": 100}; earliest would be empty')
    for name in ("startingOffsets", "endingOffsets"):
        bound, names, prefix = values[name], values["subscribe"], values["subscribePattern"]
        if not isinstance(bound, dict):
            continue
        for topic in bound:
            if topic not in names if names is not None else not topic.startswith(prefix):
                raise ConfigError(f"option {name} names {topic!r}, which is not among the topics subscribed to")


def _check_kind(values: Mapping[str, Any], *, streaming: bool) -> None:
    only_batch = ("endingOffsets", "endingTimestamp", "limit")
    if streaming:
        for name in only_batch:
            if values[name] is not None:
                raise ConfigError(f"option {name} is for batch reads; a stream has no end")
        if values["pushdown"]:
            raise ConfigError("option pushdown is for batch reads: Spark pushes no filters into Python streams")
    elif values["startingOffsets"] == "latest" and values["startingTimestamp"] is None:
        raise ConfigError("option startingOffsets is earliest or JSON for batch reads; latest would be empty")
    if values["trimCommitted"] and values["url"] is None:
        raise ConfigError("option trimCommitted deletes through a server: it needs url, not path")


def _check_loss_columns(options: ReadOptions) -> None:
    wanted = [name for name in options.columns or () if name in LOSS_COLUMNS]
    if wanted and options.on_loss != "rows":
        raise ConfigError(f"column {wanted[0]} exists only with onDataLoss=rows")


def check_columns(names: tuple[str, ...], known: tuple[str, ...], where: str) -> None:
    """Every name is a column of the table, and none comes twice."""
    if not names:
        raise ConfigError(f"{where} names no column")
    for name in names:
        if name not in known:
            raise ConfigError(f"{where} names {name!r}; the columns are {', '.join(known)}")
    if len(set(names)) != len(names):
        raise ConfigError(f"{where} names a column twice")


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
    retries_max: int
    dead_letter: str | None
    job_id: str | None


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Checked options of a write."""
    if any(name.lower() == "path" for name in given):
        raise ConfigError("a sink writes through a server: give url instead of path")
    values = _read_table(given, WRITE_OPTIONS, "writing")
    if values["url"] is None:
        raise ConfigError("option url is missing: the server to write to, such as http://localhost:4000")
    if values["batchRecords"] > RECORDS_PER_REQUEST_MAX:
        raise ConfigError(f"option batchRecords is at most {RECORDS_PER_REQUEST_MAX}, not {values['batchRecords']}")
    return WriteOptions(
        url=values["url"],
        api_key=_api_key(values),
        topic=values["topic"],
        batch_records=values["batchRecords"],
        batch_bytes=values["batchBytes"],
        durability=values["durability"],
        create=values["create"],
        retries_max=values["maxRetries"],
        dead_letter=values["deadLetterTopic"],
        job_id=values["jobId"],
    )


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
