"""Options: what is wrong is said in one sentence, with what would be right."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from topics.errors import ConfigError
from topics.spark.option_values import TextMatch, TopicChoice
from topics.spark.options import describe, read_options, write_options
from topics.spark.secret import Secret

PATH = {"path": "/data", "subscribe": "orders"}


def test_defaults_are_the_documented_ones() -> None:
    options = read_options(PATH, streaming=False)
    assert options.topics == TopicChoice(("orders",))
    assert options.on_data_loss == "fail"
    assert (options.verify_checksums, options.max_records_per_partition) == (True, 500_000)
    assert options.table_columns == ("topic", "epoch", "seq", "ts", "node", "tag", "data", "meta")


def test_names_are_case_insensitive() -> None:
    options = read_options({"PATH": "/data", "Subscribe": "a, b,a", "FAILONDATALOSS": "False"})
    assert (options.topics.names, options.on_data_loss) == (("a", "b"), "warn")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"path": "/d", "subscirbe": "a"}, "unknown option subscirbe for reading topics: did you mean subscribe?"),
        ({"path": "/d", "subscribe": "a", "zzz": "1"}, "unknown option zzz for reading topics: there are path"),
        ({"path": "/d", "url": "http://x", "subscribe": "a"}, "exactly one of path"),
        ({"subscribe": "a"}, "exactly one of path"),
        ({"path": "/d"}, "exactly one of subscribe"),
        ({"path": "/d", "subscribe": "a", "subscribePattern": "b*"}, "exactly one of subscribe"),
        ({"path": "/d", "subscribe": "orders*"}, "for a prefix give subscribePrefix=orders"),
        ({"path": "/d", "subscribe": " , "}, "names no topic"),
        ({"path": "/d", "subscribePattern": "orders-("}, "is a regular expression, and 'orders-\\(' is none: missing"),
        ({"path": "/d", "subscribePrefix": "orders*"}, "how names begin, such as orders, without \\*"),
        ({"path": "/d", "subscribePrefix": "a", "assign": '{"a": [0]}'}, "exactly one of subscribe"),
        ({"path": "/d", "assign": "a"}, 'JSON such as {"orders": \\[0\\]}'),
        ({"path": "/d", "assign": '{"a": [0, 1]}'}, "'a' has one partition, 0, and none 1"),
        ({**PATH, "startingOffsets": '{"orders": {"0": 1, "1": 5}}'}, "has one partition, 0, and none '1'"),
        ({**PATH, "startingOffsets": "latest"}, "startingOffsets is latest, where a batch read finds nothing"),
        ({**PATH, "endingOffsets": "earliest"}, "endingOffsets is earliest, where a batch read finds nothing"),
        ({**PATH, "startingOffsets": '{"orders": 9}', "endingOffsets": '{"orders": 3}'}, "'orders' is 9, after ending"),
        ({**PATH, "startingTimestamp": "9", "endingTimestamp": "3"}, "startingTimestamp is 9, after endingTimestamp"),
        ({**PATH, "startingOffsetsByTimestamp": "5"}, 'JSON such as {"orders": 1700000000000}'),
        ({**PATH, "startingOffsetsByTimestamp": '{"orders": "noon"}'}, "'noon', which is no time in ms"),
        ({**PATH, "startingOffsetsByTimestamp": '{"clicks": 5}'}, "not among the topics subscribed to"),
        ({**PATH, "startingOffsetsByTimestampStrategy": "earliest"}, "one of error, latest"),
        ({**PATH, "maxTriggerDelay": "soon"}, "a time such as 30s, 15m or 1h, not 'soon'"),
        ({**PATH, "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "is 5, more than maxOffsetsPerTrigger"),
        ({**PATH, "groupIdPrefix": "g"}, "groupIdPrefix of Kafka has no meaning for topics: there are no consumer gr"),
        ({**PATH, "kafka.group.id": "g"}, "there are no consumer groups"),
        ({**PATH, "kafka.security.protocol": "SSL"}, "give a url with https:// and a key as apiKeyFile"),
        ({**PATH, "kafka.max.poll.records": "5"}, "it is for Kafka's client; leave it out"),
        ({**PATH, "fetchOffset.numRetries": "5"}, "requests are tried again for half a minute"),
        ({**PATH, "kafka.bootstrap.servers": "http://x"}, "exactly one of path"),
        ({"kafka.bootstrap.servers": "h:9092", "subscribe": "a"}, "kafka.bootstrap.servers is a server such as http"),
        ({**PATH, "includeHeaders": "true"}, "is for kafkaSchema=true; the table has the columns node and meta"),
        ({**PATH, "kafkaSchema": "true", "onDataLoss": "rows"}, "needs columns that kafkaSchema does not have"),
        ({**PATH, "kafkaSchema": "true", "columns": "seq"}, "names 'seq'; the columns are key, value, topic"),
        ({**PATH, "columns": "value"}, "names 'value'; the columns are topic, epoch"),
        ({**PATH, "startingOffsets": "first"}, "earliest, latest, or JSON"),
        ({**PATH, "startingOffsets": "[1]"}, "earliest, latest, or JSON"),
        ({**PATH, "startingOffsets": "[" * 100_000}, "earliest, latest, or JSON"),
        ({**PATH, "startingOffsets": '{"orders": "x"}'}, "which is not a seq"),
        ({**PATH, "startingOffsets": '{"orders": true}'}, "which is not a seq"),
        ({**PATH, "startingOffsets": '{"clicks": 1}'}, "not among the topics subscribed to"),
        ({**PATH, "startingTimestamp": "yesterday"}, "whole number, not 'yesterday'"),
        ({**PATH, "minPartitions": "0"}, "whole number from 1 on"),
        ({**PATH, "onDataLoss": "ignore"}, "one of fail, warn, rows"),
        ({**PATH, "verifyChecksums": "yes"}, "true or false"),
        ({**PATH, "columns": "seq,length"}, "names 'length'; the columns are topic, epoch, seq"),
        ({**PATH, "columns": "seq,seq"}, "names a column twice"),
        ({**PATH, "columns": "seq,kind"}, "column kind exists only with onDataLoss=rows"),
        ({"url": "localhost:4000", "subscribe": "a"}, "a server such as http://localhost:4000"),
        ({"url": "http://x", "subscribe": "a", "apiKey": "k", "apiKeyFile": "f"}, "not both"),
        ({"url": "http://x", "subscribe": "a", "apiKeyFile": "/no/such/file"}, "cannot be read: No such file"),
    ],
)
def test_bad_reads_are_refused(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read_options(given, streaming=False)


@pytest.mark.parametrize(
    ("given", "streaming", "sentence"),
    [
        ({"endingOffsets": "latest"}, True, "endingOffsets is for batch reads"),
        ({"limit": "5"}, True, "limit is for batch reads"),
        ({"latestPerTag": "true"}, True, "latestPerTag is for batch reads"),
        ({"latestPerTag": "true", "limit": "5"}, False, "leave out limit"),
        ({"trimCommitted": "true"}, True, "needs url, not path"),
        ({"cursor": "job"}, True, "cursor commits through a server: it needs url, not path"),
        ({"cursor": "job"}, False, "cursor is for streams"),
        ({"cursor": "a b"}, True, "'a b' is not a name for a cursor"),
    ],
)
def test_what_fits_only_one_kind_of_read_is_refused_in_the_other(
    given: dict[str, str], streaming: bool, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read_options({**PATH, **given}, streaming=streaming)


def test_what_may_be_null_is_declared_so() -> None:
    """Spark believes a schema: it would answer IS NULL without a look, and stumble over the first null."""
    types = pytest.importorskip("pyspark.sql.types")
    source = pytest.importorskip("topics.spark.source")
    options = read_options(PATH, streaming=False)
    assert source.declared_fields(options, types.StructType().add("seq", "long", False).add("meta", "string"))
    for name in ("node", "tag", "meta"):
        with pytest.raises(ConfigError, match=f"column {name} may be null, declare it nullable"):
            source.declared_fields(options, types.StructType().add(name, "string", False))


def test_a_trim_deletes_nothing_that_the_stream_leaves_out() -> None:
    for name in ("tag", "node"):
        with pytest.raises(ConfigError, match=f"deletes all that was passed: with {name}, also what no sink has got"):
            read_options(
                {"url": "http://x", "subscribe": "a", "trimCommitted": "true", name: "t*"},
                streaming=True,
            )


@pytest.mark.parametrize(
    "url", ["http://x:99999", "http://x:0", "http://x:y", "http://", "http://[::1", "http://a b", "https:x", "x:4000"]
)
def test_a_url_names_a_server(url: str) -> None:
    with pytest.raises(ConfigError, match="option url is a server such as http://localhost:4000, not "):
        read_options({"url": url, "subscribe": "a"})
    with pytest.raises(ConfigError) as refused:
        read_options({"url": "http://user:password@x:y", "subscribe": "a"})
    assert "password" not in str(refused.value)


@pytest.mark.parametrize("key", [b"secret-1\nsecret-2", b"secret-\0", b"secret-\x7f"])
def test_a_key_that_no_header_carries_is_refused_and_not_shown(tmp_path: Path, key: bytes) -> None:
    (tmp_path / "key").write_bytes(key)
    given = {"url": "http://x", "subscribe": "a"}
    sentence = "does not hold a key: a key is one line of printable characters"
    for more in ({"apiKey": key.decode()}, {"apiKeyFile": str(tmp_path / "key")}):
        with pytest.raises(ConfigError, match=sentence) as refused:
            read_options({**given, **more})
        assert "secret" not in str(refused.value)
    (tmp_path / "key").write_bytes(b"secret-\xff")
    with pytest.raises(ConfigError, match=sentence):
        read_options({**given, "apiKeyFile": str(tmp_path / "key")})


@pytest.mark.parametrize(
    ("pattern", "prefix", "wanted", "others"),
    [
        ("orders-.*", "orders-", ["orders-1", "orders-"], ["orders", "my-orders-1"]),
        ("t.*", "t", ["t", "t1", "topic"], ["at"]),
        ("orders*", "order", ["orders", "order", "orderss"], ["orders-1"]),
        ("(a|b)-x", "", ["a-x", "b-x"], ["c-x"]),
        ("ab|cd", "", ["ab", "cd"], ["abcd"]),
        ("a{2}", "", ["aa"], ["a"]),
        ("orders", "orders", ["orders"], ["orders-1"]),
    ],
)
def test_a_pattern_is_a_regular_expression_over_whole_names(
    pattern: str, prefix: str, wanted: list[str], others: list[str]
) -> None:
    choice = read_options({"path": "/d", "subscribePattern": pattern}).topics
    assert choice.prefix == prefix
    test = choice.test()
    assert all(map(test, wanted))
    assert not any(map(test, others))


def test_words_of_kafka_mean_what_they_mean_there() -> None:
    given = {
        "kafka.bootstrap.servers": "http://x:4000",
        "assign": '{"orders": [0], "clicks": [0]}',
        "startingOffsets": '{"orders": {"0": 23}, "clicks": {"0": -2}}',
        "startingOffsetsByTimestamp": '{"orders": {"0": 1700000000000}}',
        "minOffsetsPerTrigger": "10",
        "maxTriggerDelay": "90s",
        "includeHeaders": "true",
    }
    options = read_options(given, streaming=True)
    assert options.url == "http://x:4000"
    assert options.topics.names == ("orders", "clicks")
    assert options.starting_offsets == {"orders": 23, "clicks": -2}
    assert (options.starts_at_ms("orders"), options.starts_at_ms("clicks")) == (1_700_000_000_000, None)
    assert (options.min_offsets_per_trigger, options.max_trigger_delay) == (10, 90_000)
    assert options.table_columns == (
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"),
    )
    assert read_options(PATH).max_trigger_delay == 15 * 60_000


def test_matches_are_equality_or_prefix() -> None:
    options = read_options({**PATH, "tag": "a*", "node": "n"})
    assert options.tag == TextMatch("a", is_prefix=True)
    assert options.node == TextMatch("n", is_prefix=False)


def test_a_key_comes_from_option_file_or_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = {"url": "http://x", "subscribe": "a"}
    monkeypatch.delenv("TOPICS_API_KEY", raising=False)
    assert read_options(server).api_key is None
    monkeypatch.setenv("TOPICS_API_KEY", "from-env")
    assert read_options(server).api_key == Secret("from-env")
    (tmp_path / "key").write_text("from-file\n")
    assert read_options({**server, "apiKeyFile": str(tmp_path / "key")}).api_key == Secret("from-file")
    assert read_options({**server, "apiKey": "given"}).api_key == Secret("given")


def test_a_key_is_never_printed() -> None:
    options = read_options({"url": "http://x", "subscribe": "a", "apiKey": "hush-hush"})
    assert "hush-hush" not in repr(options) + str(options) + f"{options.api_key} {options.api_key!r}"
    revived = pickle.loads(pickle.dumps(options))
    assert revived.api_key is not None
    assert revived.api_key.reveal() == "hush-hush"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"path": "/d"}, "give url instead of path"),
        ({"topic": "a"}, "option url is missing"),
        ({"url": "http://x", "topics": "a"}, "did you mean topic?"),
        ({"url": "http://x", "batchRecords": "10001"}, "at most 10000"),
        ({"url": "http://x", "durability": "tape"}, "one of ephemeral, memory, disk, fsync"),
        ({"url": "http://x", "topic": "a b"}, "'a b' is not a topic name"),
    ],
)
def test_bad_writes_are_refused(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        write_options(given)


def test_spark_s_own_options_are_let_through() -> None:
    options = write_options({"url": "http://x", "checkpointLocation": "/c", "topic": "t"})
    assert (options.batch_records, options.batch_bytes, options.create) == (1000, 1 << 20, True)


def test_every_option_is_described() -> None:
    text = describe()
    assert "startingOffsets" in text
    assert "deadLetterTopic" in text


def test_a_refused_stream_says_why_at_its_first_call() -> None:
    """PySpark 4.3 stumbles over a `streamReader` that raises, and its own error is the last that a user sees."""
    types = pytest.importorskip("pyspark.sql.types")
    source = pytest.importorskip("topics.spark.source").TopicsDataSource({**PATH, "limit": "5"})
    reader = source.streamReader(types.StructType().add("seq", "long", False))
    calls = (
        reader.initialOffset,
        reader.getDefaultReadLimit,
        reader.prepareForTriggerAvailableNow,
        lambda: reader.partitions({}, {}),
    )
    for call in calls:
        with pytest.raises(ConfigError, match="option limit is for batch reads; a stream has no end"):
            call()
    reader.stop()
