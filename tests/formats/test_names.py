"""File names: built canonically, parsed leniently, and nothing of others is taken for ours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.formats import file_names as names

numbers = st.integers(1, 2**64 - 1)


@given(numbers)
def test_every_name_gives_back_its_number(number: int) -> None:
    assert names.parse_snapshot(names.snapshot_name(number)) == number
    assert names.parse_wal(names.wal_name(number)) == number
    assert names.parse_shard(names.shard_name(number)) == number
    assert names.parse_topic_dir(names.topic_dir_name(number)) == number
    assert names.parse_deleted_dir(names.topic_dir_name(number) + names.DELETED_SUFFIX) == number
    for part in ("data", "idx", "tags"):
        assert names.parse_segment(names.segment_name(number, part)) == (number, part)
    assert names.parse_current(names.current_text(number)) == number


@pytest.mark.parametrize(
    ("built", "name"),
    [
        (names.snapshot_name(7), "snapshot.0007.bin"),
        (names.snapshot_name(12345), "snapshot.12345.bin"),
        (names.wal_name(1), "wal-0000000000000001.log"),
        (names.wal_name(10**17), "wal-100000000000000000.log"),
        (names.shard_name(0), "shard-00"),
        (names.shard_name(63), "shard-63"),
        (names.topic_dir_name(10), "0000000A"),
        (names.topic_dir_name(0x1_0000_0000), "100000000"),
        (names.segment_name(10001, "data"), "seg-0000000000010001.data"),
        (names.segment_name(1, "idx"), "seg-0000000000000001.idx"),
        (names.segment_name(1, "tags"), "seg-0000000000000001.tags"),
        (names.group_keys(1), [""]),
        (names.group_keys(2), ["shard-00", "shard-01"]),
        (names.quarantine_group_name(""), "flat"),
        (names.quarantine_group_name("shard-03"), "shard-03"),
        (names.quarantine_file_name("wal-0000000000000001.log", 96), "wal-0000000000000001.log.at-96"),
        (names.current_text(1), b"wal-0000000000000001.log\n"),
        (names.PREALLOC, "prealloc.tmp"),
    ],
)
def test_names_are_padded_to_their_least_width(built: object, name: object) -> None:
    assert built == name


def test_short_padding_is_read_too() -> None:
    assert names.parse_snapshot("snapshot.7.bin") == 7
    assert names.parse_wal("wal-1.log") == 1
    assert names.parse_segment("seg-1.data") == (1, "data")
    assert names.parse_topic_dir("A") == 10


@pytest.mark.parametrize(
    "name",
    [
        "",
        "wal-.log",
        "wal-0.log",
        "wal--1.log",
        "wal-1.log\n",
        "wal-1.log.tmp",
        "wal-1_0.log",
        "wal-١.log",
        "wal-+1.log",
        f"wal-{2**64}.log",
        "wal-" + "9" * 200 + ".log",
        "snapshot.0.bin",
        "snapshot.1.bin.tmp",
        "snapshot..bin",
        "seg-0.data",
        "seg-1.dat",
        "seg-1.data.dup",
        "seg-1.data.tmp",
        "xseg-1.data",
        "0000000a",
        "0000000G",
        "00000000",
        "0000000A.deleted.tmp",
        "shard-",
        "shard-1x",
        "CURRENT",
        "prealloc.tmp",
        ".topics.lock",
    ],
)
def test_names_of_others_are_not_ours(name: str) -> None:
    parsers = (
        names.parse_snapshot,
        names.parse_wal,
        names.parse_shard,
        names.parse_topic_dir,
        names.parse_deleted_dir,
        names.parse_segment,
    )
    assert [parse(name) for parse in parsers] == [None] * len(parsers)


@given(st.text(max_size=30))
def test_any_name_parses_to_a_number_or_nothing(name: str) -> None:
    for parse in (names.parse_snapshot, names.parse_wal, names.parse_shard, names.parse_topic_dir):
        number = parse(name)
        assert number is None or 0 <= number < 2**64


def test_suffixes_are_taken_off() -> None:
    assert names.parse_tmp("seg-1.data.tmp") == "seg-1.data"
    assert names.parse_tmp("seg-1.data") is None
    assert names.parse_tmp(".tmp") is None
    assert names.parse_dup("seg-1.data.dup") == "seg-1.data"
    assert names.parse_dup("seg-1.data") is None


@pytest.mark.parametrize(
    "text",
    [b"", b"\n", b"wal-0000000000000001.log", b"\xff\xfe\n", b"wal-1.log\n\n", b"wal-1.log\r\n", b"x\nwal-1.log\n"],
)
def test_a_current_that_is_not_one_whole_line_names_nothing(text: bytes) -> None:
    assert names.parse_current(text) is None


# Fault matrix 84 and 96.
def test_of_two_names_with_one_number_the_canonical_one_counts() -> None:
    listed = [
        "snapshot.7.bin",
        "snapshot.00007.bin",
        "snapshot.0007.bin",
        "snapshot.8.bin",
        "notes.txt",
        "snapshot.12.bin",
    ]
    chosen, ignored = names.pick_canonical(listed, parse=names.parse_snapshot, build=names.snapshot_name)
    assert chosen == {7: "snapshot.0007.bin", 8: "snapshot.8.bin", 12: "snapshot.12.bin"}
    assert list(chosen) == [7, 8, 12]
    assert ignored == ["snapshot.7.bin", "snapshot.00007.bin"]


@given(st.integers(0, 2**64 - 1), st.integers(1, 64))
def test_a_shard_is_in_range_and_stable(topic_id: int, shards: int) -> None:
    assert 0 <= names.shard_of(topic_id, shards) < shards
    assert names.shard_of(topic_id, 1) == 0
