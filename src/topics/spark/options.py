"""Options of the `topics` data source: one table each for reading and writing, read into frozen values.

Names are case-insensitive, as everywhere in Spark; they are those of Spark's Kafka source where the meaning is the
same. Everything that can be wrong about an option is found here, at planning time, and reported as one sentence that
says what would be right. What needs the data itself (an unknown topic, an unreadable path) is found by the planner.
Called by `topics.spark.source`, the planner and the jobs.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from topics.errors import ConfigError
from topics.model.config import DURABILITIES
from topics.spark.option_values import (
    Bound,
    TextMatch,
    TopicChoice,
    as_assigned,
    as_boolean,
    as_bound,
    as_columns,
    as_count,
    as_cursor_name,
    as_duration_ms,
    as_match,
    as_one_of,
    as_pattern,
    as_prefix,
    as_text,
    as_times,
    as_topic_name,
    as_topic_names,
    as_url,
)
from topics.spark.scanning.schema import HEADERS, KAFKA_COLUMNS, KNOWN_COLUMNS, LOSS_COLUMNS, TABLE_COLUMNS
from topics.spark.secret import Secret

OnLoss: TypeAlias = Literal["fail", "warn", "rows"]
API_KEY_ENV: Final = "TOPICS_API_KEY"
COLD_DIR_ENV: Final = "TOPICS_COLD_DIR"


def check_columns(names: tuple[str, ...], known: tuple[str, ...], where: str) -> None:
    """Every name is a column of the table, and none comes twice."""
    if not names:
        raise ConfigError(f"{where} names no column")
    for name in names:
        if name not in known:
            raise ConfigError(f"{where} names {name!r}; the columns are {', '.join(known)}")
    if len(set(names)) != len(names):
        raise ConfigError(f"{where} names a column twice")


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


BOOTSTRAP: Final = "kafka.bootstrap.servers"

_CONNECTION: Final = (
    Option("url", as_url, "a running server, such as http://localhost:4000"),
    Option("apiKey", as_text, f"bearer key; default: environment variable {API_KEY_ENV}"),
    Option("apiKeyFile", as_text, "file that holds the bearer key"),
)

READ_OPTIONS: Final = (
    Option("path", as_text, "a data directory, a cold directory or a copy of either: local, or a URI of pyarrow.fs"),
    Option("coldPath", as_text, f"cold root of the directory at path; default: environment variable {COLD_DIR_ENV}"),
    *_CONNECTION,
    Option(BOOTSTRAP, as_url, "the same as url, and kafkaSchema=true unless that says otherwise"),
    Option("subscribe", as_topic_names, "one topic, or several with commas"),
    Option("subscribePattern", as_pattern, "a regular expression that matches whole names, such as orders-.*"),
    Option("subscribePrefix", as_prefix, "how names begin, such as orders-"),
    Option("assign", as_assigned, 'the same as subscribe in JSON of Kafka, such as {"orders": [0]}'),
    Option("startingOffsets", as_bound, "earliest, latest, or JSON: first seq wanted by topic"),
    Option("endingOffsets", as_bound, "earliest, latest, or JSON: first seq not wanted by topic"),
    Option("startingTimestamp", as_count(0), "ms since the Unix epoch: first record at or after it"),
    Option("endingTimestamp", as_count(0), "ms since the Unix epoch: records before it"),
    Option("startingOffsetsByTimestamp", as_times, "JSON: ms by topic; the others go by startingOffsets"),
    Option("endingOffsetsByTimestamp", as_times, "JSON: ms by topic; the others go by endingOffsets"),
    Option(
        "startingOffsetsByTimestampStrategy",
        as_one_of("error", "latest"),
        "where no record is at or after the starting time: stop, or start at the end",
        "error",
    ),
    Option("failOnDataLoss", as_boolean, "false is short for onDataLoss=warn", True),
    Option("onDataLoss", as_one_of("fail", "warn", "rows"), "what a gap does: stop, a warning, or a tombstone row"),
    Option("kafkaSchema", as_boolean, "columns of Spark's Kafka source: key, value, topic, partition, offset, ..."),
    Option("includeHeaders", as_boolean, "with kafkaSchema: a column headers, of node and meta", False),
    Option("columns", as_columns, "columns to read, with commas; the others are neither read nor decoded"),
    Option("tag", as_match, "only records with this tag; a trailing * makes it a prefix"),
    Option("node", as_match, "only records of this node; a trailing * makes it a prefix"),
    Option("latestPerTag", as_boolean, "batch: the newest record of each tag, without those whose data is null", False),
    Option("limit", as_count(0), "at most so many records per topic"),
    Option("pushdown", as_boolean, "without effect, for older jobs: Spark applies its filters itself", False),
    Option("verifyChecksums", as_boolean, "check every frame that is read", True),
    Option("maxRecordsPerPartition", as_count(1), "most records of one task", 500_000),
    Option("minPartitions", as_count(1), "fewest tasks to plan for; default: the session's parallelism, 8 for streams"),
    Option("maxOffsetsPerTrigger", as_count(1), "streaming: most records of one micro-batch"),
    Option("minOffsetsPerTrigger", as_count(1), "streaming: fewest records that a micro-batch waits for"),
    Option("maxTriggerDelay", as_duration_ms, "streaming: longest wait for minOffsetsPerTrigger", 15 * 60_000),
    Option("maxBytesPerTrigger", as_count(1), "streaming: most bytes of one micro-batch"),
    Option("trimCommitted", as_boolean, "streaming: delete from the topic what the sink has committed", False),
    Option("cursor", as_cursor_name, "streaming: named cursor that stands where the query has committed"),
    Option("queryName", as_text, "streaming: what the cursor's meta calls the query; default: the cursor's name"),
)

WRITE_OPTIONS: Final = (
    *_CONNECTION,
    Option(BOOTSTRAP, as_url, "the same as url"),
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

# Options of Spark's Kafka source and sink that have no meaning here, by how they begin, and what to do instead.
_OF_KAFKA: Final = (
    ("groupidprefix", "there are no consumer groups; leave it out, a query is known by its checkpoint"),
    ("kafka.group.", "there are no consumer groups; leave it out, a query is known by its checkpoint"),
    ("kafka.security.", "give a url with https:// and a key as apiKeyFile"),
    ("kafka.sasl.", "give a key as apiKeyFile"),
    ("kafka.ssl.", "give a url with https://"),
    ("kafka.", "it is for Kafka's client; leave it out"),
    ("kafkaconsumer.", "it is for Kafka's client; leave it out"),
    ("fetchoffset.", "it is for Kafka's client; leave it out, requests are tried again for half a minute"),
)


def _read_table(given: Mapping[str, str], table: tuple[Option, ...], what: str) -> dict[str, Any]:
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
    of_kafka = next((advice for begin, advice in _OF_KAFKA if name.lower().startswith(begin)), None)
    if of_kafka is not None:
        return f"option {name} of Kafka has no meaning for topics: {of_kafka}"
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
    """Options of a batch or streaming read, checked."""

    path: str | None
    cold_path: str | None
    url: str | None
    api_key: Secret | None = field(repr=False)
    topics: TopicChoice
    starting_offsets: Bound | None
    ending_offsets: Bound | None
    starting_timestamp: int | None
    ending_timestamp: int | None
    starting_offsets_by_timestamp: Mapping[str, int] | None
    ending_offsets_by_timestamp: Mapping[str, int] | None
    starting_offsets_by_timestamp_strategy: Literal["error", "latest"]
    on_data_loss: OnLoss
    kafka_schema: bool
    include_headers: bool
    columns: tuple[str, ...] | None
    tag: TextMatch | None
    node: TextMatch | None
    latest_per_tag: bool
    limit: int | None
    verify_checksums: bool
    max_records_per_partition: int
    min_partitions: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay: int
    max_bytes_per_trigger: int | None
    trim_committed: bool
    cursor: str | None
    query_name: str | None

    @property
    def known_columns(self) -> tuple[str, ...]:
        """The columns that this read could give."""
        if self.kafka_schema:
            return KAFKA_COLUMNS if self.include_headers else tuple(c for c in KAFKA_COLUMNS if c != HEADERS)
        return KNOWN_COLUMNS if self.on_data_loss == "rows" else TABLE_COLUMNS

    @property
    def table_columns(self) -> tuple[str, ...]:
        """The columns that it gives when nobody declares a schema."""
        return self.known_columns if self.columns is None else self.columns

    def starts_at_ms(self, topic: str) -> int | None:
        """The time from which on a topic is read, if one is given: the time of all topics goes before its own."""
        if self.starting_timestamp is not None:
            return self.starting_timestamp
        return (self.starting_offsets_by_timestamp or {}).get(topic)

    def ends_at_ms(self, topic: str) -> int | None:
        if self.ending_timestamp is not None:
            return self.ending_timestamp
        return (self.ending_offsets_by_timestamp or {}).get(topic)


def read_options(given: Mapping[str, str], *, streaming: bool | None = None) -> ReadOptions:
    """Checked options of a read; `streaming` None means that it is not known yet which kind it is."""
    values = _read_table(given, READ_OPTIONS, "reading")
    _take_server(values)
    if (values["path"] is None) == (values["url"] is None):
        raise ConfigError("give exactly one of path (a data directory) and url (a running server)")
    values["topics"] = _take_topics(values)
    _check_bounds(values)
    if streaming is not None:
        _check_kind(values, streaming=streaming)
    del values["pushdown"]
    fail_on_loss = values.pop("fail_on_data_loss")
    _take_api_key(values)
    values["cold_path"] = values["cold_path"] or os.environ.get(COLD_DIR_ENV) or None
    values["on_data_loss"] = values["on_data_loss"] or ("fail" if fail_on_loss else "warn")
    options = ReadOptions(**values)
    _check_columns(options)
    return options


def _take_server(values: dict[str, Any]) -> None:
    """Makes one address of the two options that may name it. A read that names it as Kafka does has Kafka's columns."""
    of_kafka = values.pop(BOOTSTRAP)
    if of_kafka is not None and values["url"] is not None:
        raise ConfigError(f"give url or {BOOTSTRAP}, not both")
    values["url"] = values["url"] or of_kafka
    if "kafka_schema" in values and values["kafka_schema"] is None:
        values["kafka_schema"] = of_kafka is not None


def _take_topics(values: dict[str, Any]) -> TopicChoice:
    names, assigned = values.pop("subscribe"), values.pop("assign")
    pattern, prefix = values.pop("subscribe_pattern"), values.pop("subscribe_prefix")
    if sum(each is not None for each in (names, assigned, pattern, prefix)) != 1:
        raise ConfigError(
            "give exactly one of subscribe (topic names), subscribePattern (a regular expression such as orders-.*), "
            "subscribePrefix (how names begin) and assign"
        )
    if pattern is not None:
        return TopicChoice(pattern=pattern[0], prefix=pattern[1])
    return TopicChoice(prefix=prefix) if prefix is not None else TopicChoice(names or assigned)


def _check_bounds(values: Mapping[str, Any]) -> None:
    wanted = values["topics"].test()
    for name in ("startingOffsets", "endingOffsets", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp"):
        bound = values[field_of(name)]
        for topic in bound if isinstance(bound, dict) else ():
            if not wanted(topic):
                raise ConfigError(f"option {name} names {topic!r}, which is not among the topics subscribed to")
    for start, end in (
        ("startingOffsets", "endingOffsets"),
        ("startingOffsetsByTimestamp", "endingOffsetsByTimestamp"),
    ):
        first, last = values[field_of(start)], values[field_of(end)]
        if isinstance(first, dict) and isinstance(last, dict):
            for topic in first.keys() & last.keys():
                _check_order(f"{start} of {topic!r}", first[topic], end, last[topic])
    _check_order("startingTimestamp", values["starting_timestamp"], "endingTimestamp", values["ending_timestamp"])


def _check_order(start: str, first: Any, end: str, last: Any) -> None:
    """A range that ends before it begins; words and positions are for the planner."""
    if isinstance(first, int) and isinstance(last, int) and 0 <= last < first:
        raise ConfigError(f"option {start} is {first}, after {end}, which is {last}")


def _check_kind(values: Mapping[str, Any], *, streaming: bool) -> None:
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "limit"):
            if values[field_of(name)] is not None:
                raise ConfigError(f"option {name} is for batch reads; a stream has no end")
        if values["latest_per_tag"]:
            raise ConfigError(
                "option latestPerTag is for batch reads; a stream has every record, keep the last of a tag"
            )
    elif values["latest_per_tag"] and (values["limit"] is not None or values["on_data_loss"] == "rows"):
        raise ConfigError("option latestPerTag gives a table: leave out limit and onDataLoss=rows")
    for name, word in (("startingOffsets", "latest"), ("endingOffsets", "earliest")):
        if not streaming and values[field_of(name)] == word:
            raise ConfigError(f"option {name} is {word}, where a batch read finds nothing")
    least, most = values["min_offsets_per_trigger"], values["max_offsets_per_trigger"]
    if least is not None and most is not None and least > most:
        raise ConfigError(f"option minOffsetsPerTrigger is {least}, more than maxOffsetsPerTrigger, which is {most}")
    if values["trim_committed"] and values["url"] is None:
        raise ConfigError("option trimCommitted deletes through a server: it needs url, not path")
    if values["cursor"] is not None and not streaming:
        raise ConfigError("option cursor is for streams; a batch read has no progress to commit")
    if values["cursor"] is not None and values["url"] is None:
        raise ConfigError("option cursor commits through a server: it needs url, not path")
    for name in ("tag", "node"):
        if values["trim_committed"] and values[name] is not None:
            raise ConfigError(
                f"option trimCommitted deletes all that was passed: with {name}, also what no sink has got"
            )


def _check_columns(options: ReadOptions) -> None:
    if options.include_headers and not options.kafka_schema:
        raise ConfigError("option includeHeaders is for kafkaSchema=true; the table has the columns node and meta")
    if options.kafka_schema and options.on_data_loss == "rows":
        raise ConfigError("onDataLoss=rows needs columns that kafkaSchema does not have: use warn, or leave it out")
    if options.columns is None:
        return
    wanted = [name for name in options.columns if name in LOSS_COLUMNS]
    if wanted and options.on_data_loss != "rows":
        raise ConfigError(f"column {wanted[0]} exists only with onDataLoss=rows")
    check_columns(options.columns, options.known_columns, "option columns")


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
    _take_server(values)
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
            default = "" if option.default is None else f" (default {_shown_default(option)})"
            lines.append(f"  {option.name:<{width}}  {option.help}{default}")
    return "\n".join(lines)


def _shown_default(option: Option) -> str:
    return f"{option.default // 60_000}m" if option.parse is as_duration_ms else str(option.default).lower()


if __name__ == "__main__":
    print(describe())
