"""Options: what is wrong is said in one sentence, with what would be right."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from topics.errors import ConfigError
from topics.spark.options import TextMatch, describe, read_options, write_options
from topics.spark.secret import Secret

PATH = {"path": "/data", "subscribe": "orders"}


def test_defaults_are_the_documented_ones() -> None:
    options = read_options(PATH, streaming=False)
    assert options.subscribe == ("orders",)
    assert options.on_data_loss == "fail"
    assert (options.verify_checksums, options.max_records_per_partition) == (True, 500_000)
    assert options.table_columns == ("topic", "epoch", "seq", "ts", "node", "tag", "data", "meta")


def test_names_are_case_insensitive() -> None:
    options = read_options({"PATH": "/data", "Subscribe": "a, b,a", "FAILONDATALOSS": "False"})
    assert (options.subscribe, options.on_data_loss) == (("a", "b"), "warn")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"path": "/d", "subscirbe": "a"}, "unknown option subscirbe for reading topics: did you mean subscribe?"),
        ({"path": "/d", "subscribe": "a", "zzz": "1"}, "unknown option zzz for reading topics: there are path"),
        ({"path": "/d", "url": "http://x", "subscribe": "a"}, "exactly one of path"),
        ({"subscribe": "a"}, "exactly one of path"),
        ({"path": "/d"}, "exactly one of subscribe"),
        ({"path": "/d", "subscribe": "a", "subscribePattern": "b*"}, "exactly one of subscribe"),
        ({"path": "/d", "subscribe": "orders*"}, "use subscribePattern for a prefix"),
        ({"path": "/d", "subscribe": " , "}, "names no topic"),
        ({"path": "/d", "subscribePattern": "orders"}, "a prefix with a trailing \\*"),
        ({"path": "/d", "subscribePattern": "o*rders*"}, "a prefix with a trailing \\*"),
        ({**PATH, "startingOffsets": "first"}, "earliest, latest, or JSON"),
        ({**PATH, "provider": "topics", "option.path": "x"}, "use CREATE TEMPORARY VIEW"),
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
        ({"trimCommitted": "true"}, True, "needs url, not path"),
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
