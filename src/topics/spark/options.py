"""Options of the `topics` data source: one table each for reading and writing, read into frozen values.

Names are case-insensitive, as everywhere in Spark. Everything that can be wrong about an option is found here, at
planning time, and reported as one sentence that says what would be right. What needs a look at the data (an unknown
topic, an unreadable path) is found by the planner. Called by `topics.spark.source`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from topics.errors import ConfigError
from topics.model.config import DURABILITIES
from topics.spark import option_text as parse
from topics.spark.launch.secret import Secret
from topics.spark.option_text import Bound, TextMatch
from topics.spark.scanning.schema import KNOWN_COLUMNS, LOSS_COLUMNS, TABLE_COLUMNS

OnLoss: TypeAlias = Literal["fail", "warn", "rows"]
API_KEY_ENV: Final = "TOPICS_API_KEY"
COLD_DIR_ENV: Final = "TOPICS_COLD_DIR"


@dataclass(frozen=True, slots=True)
class Option:
    """One row of a table: how its text is read, and what it means."""

    name: str
    parse: Callable[[str, str], Any]
    help: str
    default: Any = None


# --- the tables ------------------------------------------------------------------------------------------------------

_CONNECTION: Final = (
    Option("url", parse.url, "a running server, such as http://localhost:4000"),
    Option("apiKey", parse.text, f"bearer key; default: environment variable {API_KEY_ENV}"),
    Option("apiKeyFile", parse.text, "file that holds the bearer key"),
)

READ_OPTIONS: Final = (
    Option("path", parse.text, "a data directory, a cold directory or a copy of either: local, or a URI of pyarrow.fs"),
    Option("coldPath", parse.text, f"cold root of the directory at path; default: environment variable {COLD_DIR_ENV}"),
    *_CONNECTION,
    Option("subscribe", parse.topic_names, "one topic, or several with commas"),
    Option("subscribePattern", parse.prefix, "a prefix with a trailing *"),
    Option("startingOffsets", parse.bound, "earliest, latest, or JSON: first seq wanted by topic"),
    Option("endingOffsets", parse.bound, "earliest, latest, or JSON: first seq not wanted by topic"),
    Option("startingTimestamp", parse.count(0), "ms since the Unix epoch: first record at or after it"),
    Option("endingTimestamp", parse.count(0), "ms since the Unix epoch: records before it"),
    Option("failOnDataLoss", parse.boolean, "false is short for onDataLoss=warn", True),
    Option("onDataLoss", parse.one_of("fail", "warn", "rows"), "what a gap does: stop, a warning, or a tombstone row"),
    Option("columns", parse.columns, "columns to read, with commas; the others are neither read nor decoded"),
    Option("tag", parse.match, "only records with this tag; a trailing * makes it a prefix"),
    Option("node", parse.match, "only records of this node; a trailing * makes it a prefix"),
    Option("limit", parse.count(0), "at most so many records per topic"),
    Option("pushdown", parse.boolean, "without effect, for older jobs: Spark applies its filters itself", False),
    Option("verifyChecksums", parse.boolean, "check every frame that is read", True),
    Option("maxRecordsPerPartition", parse.count(1), "most records of one task", 500_000),
    Option(
        "minPartitions", parse.count(1), "fewest tasks to plan for; default: the session's parallelism, 8 for streams"
    ),
    Option("maxOffsetsPerTrigger", parse.count(1), "streaming: most records of one micro-batch"),
    Option("maxBytesPerTrigger", parse.count(1), "streaming: most bytes of one micro-batch"),
    Option("trimCommitted", parse.boolean, "streaming: delete from the topic what the sink has committed", False),
)

WRITE_OPTIONS: Final = (
    *_CONNECTION,
    Option("topic", parse.topic_name, "where rows without a topic column go"),
    Option("batchRecords", parse.count(1), "records per request, at most 10000", 1000),
    Option("batchBytes", parse.count(1), "bytes of data and meta per request", 1 << 20),
    Option("durability", parse.one_of(*DURABILITIES), "class of topics that the sink creates"),
    Option("create", parse.boolean, "may the sink create topics", True),
    Option("maxRetries", parse.count(0), "tries after the first one on 429, 503 and broken connections", 30),
    Option("deadLetterTopic", parse.topic_name, "where rows go that are not valid JSON or too large"),
    Option(
        "jobId", parse.text, "batch writes: name of this write; the same name makes a repeated write append nothing"
    ),
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
    if values["apiKey"] is not None:
        return _key(values["apiKey"], "apiKey")
    text = os.environ.get(API_KEY_ENV, "").strip()
    return _key(text, API_KEY_ENV) if text else None


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
    if values["trimCommitted"] and values["url"] is None:
        raise ConfigError("option trimCommitted deletes through a server: it needs url, not path")
    for name in ("tag", "node"):
        if values["trimCommitted"] and values[name] is not None:
            raise ConfigError(
                f"option trimCommitted deletes all that was passed: with {name}, also what no sink has got"
            )


def _check_loss_columns(options: ReadOptions) -> None:
    wanted = [name for name in options.columns or () if name in LOSS_COLUMNS]
    if wanted and options.on_loss != "rows":
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
