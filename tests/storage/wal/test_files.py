"""The table of WAL files that locations point into."""

from __future__ import annotations

import pytest

from topics.errors import StorageIo
from topics.storage.wal.wal_files import LogPosition, WalFiles
from topics.testing import SimFs


def table() -> tuple[WalFiles, SimFs]:
    disk, files = SimFs(), WalFiles()
    for number in (5, 1, 9):
        disk.plant(f"wal/{number}", b"bytes of %d" % number)
        files.add(key="a", number=number, path=f"wal/{number}", file=disk.open(f"wal/{number}"))
    return files, disk


def test_files_of_a_group_come_oldest_first() -> None:
    files, _ = table()
    assert [entry.number for entry in files.of_group("a")] == [1, 5, 9]
    assert files.of_group("b") == []
    assert files.group_keys() == ["a"]


def test_bytes_are_read_by_index() -> None:
    files, _ = table()
    assert files.pread(0, 6, 10) == b"of 5"
    assert files.pread(1, 0, 5) == b"bytes"


def test_a_dropped_file_is_gone_and_its_index_is_not_used_again() -> None:
    files, disk = table()
    assert files.holds(2)
    files.drop(2)
    assert not files.holds(2)
    with pytest.raises(StorageIo):
        files.pread(2, 0, 1)
    entry = files.add(key="a", number=9, path="wal/9", file=disk.open("wal/9"))
    assert entry.index == 3


def test_a_reader_inside_keeps_the_handle_open_until_it_leaves() -> None:
    files, _ = table()
    entry = files.get(0)
    with entry.held() as file:
        files.drop(0)
        assert file.pread(0, 5) == b"bytes"
        with entry.held() as again:
            assert again is file
    with pytest.raises(OSError):
        entry.file.pread(0, 1)
    with pytest.raises(StorageIo), entry.held():
        pass


def test_closing_the_table_closes_every_file() -> None:
    files, _ = table()
    entries = files.of_group("a")
    files.close()
    for entry in entries:
        with pytest.raises(OSError):
            entry.file.pread(0, 1)


def test_positions_are_ordered_as_the_log_is() -> None:
    assert LogPosition(1, 900) < LogPosition(2, 0) < LogPosition(2, 1)
