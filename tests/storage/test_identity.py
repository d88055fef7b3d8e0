"""A data directory knows itself again, whatever it is called, and knows a copy from itself."""

from __future__ import annotations

import errno
import logging
import shutil
from pathlib import Path

import pytest

import topics
from topics.errors import TopicsError
from topics.model.config import TopicConfig
from topics.storage.data_dir import DataDir, Identity
from topics.storage.osfs import OsFs
from topics.testing import FaultFs, SimFs
from topics.testing.driver import SimKernel
from topics.testing.faultfs import SimCrash


def write(data: Path, count: int = 1) -> None:
    with topics.open(data, wal_shards=1) as db:
        db.topic("t").append_many(list(range(count)))


def epoch(data: Path) -> int:
    with topics.open(data, wal_shards=1) as db:
        return list(db.topic("t").read())[-1].epoch


def is_copy(data: Path) -> bool:
    return Identity(OsFs(), DataDir(str(data))).is_copy


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write(tmp_path / "data", 3)
    return tmp_path / "data"


def test_a_start_changes_nothing_in_a_directory_that_is_itself(data: Path) -> None:
    files = [data / "identity", data / "identity.place"]
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in files]
    write(data)
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in files] == before
    assert not is_copy(data)


def test_a_renamed_directory_is_itself_and_a_copy_is_not(data: Path, tmp_path: Path) -> None:
    moved = data.rename(tmp_path / "moved")
    assert not is_copy(moved)
    shutil.copytree(moved, data)  # with times and modes, as cp -a and tar do it
    assert is_copy(data)
    assert not is_copy(moved)


def test_a_copy_is_one_once(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "copy")
    write(tmp_path / "copy")
    assert not is_copy(tmp_path / "copy")
    first = epoch(tmp_path / "copy")
    assert first == epoch(tmp_path / "copy") > epoch(data)


@pytest.mark.parametrize("name", ["identity", "identity.place"])
@pytest.mark.parametrize("content", [None, b"", b"id=1\n", b"\xff\xfe", b"id=" + b"0" * 32 + b"\n"])
def test_whatever_is_odd_counts_as_a_copy(data: Path, name: str, content: bytes | None) -> None:
    (data / name).unlink()
    if content is not None:
        (data / name).write_bytes(content)
    assert is_copy(data)
    before = epoch(data)
    assert not is_copy(data)
    write(data)
    assert epoch(data) > before  # what comes now has the new epoch, and what was there keeps its own
    with topics.open(data, wal_shards=1) as db:
        assert [record.value for record in db.topic("t").read(f"2-e{before:x}")] == [2, 0]


def test_a_directory_of_an_older_version_gets_an_identity_and_no_new_epochs(data: Path) -> None:
    before = epoch(data)
    (data / "identity").unlink()
    (data / "identity.place").unlink()
    assert not is_copy(data)
    write(data)
    assert epoch(data) == before
    assert (data / "identity").exists()
    assert not is_copy(data)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_start_does_not_fail_for_the_identity(code: int, caplog: pytest.LogCaptureFixture) -> None:
    """What is there must be readable on a full disk; the next start judges again."""
    disk = SimFs()
    SimKernel.open(disk).close()
    disk.unlink("data/identity")
    faults = FaultFs(disk)
    faults.fail("create", "data/identity*", code=code)
    with caplog.at_level(logging.WARNING):
        SimKernel.open(faults).close()
    assert "identity could not be written" in caplog.text
    assert Identity(disk, DataDir("data")).is_copy


def test_a_crash_at_any_call_of_a_fork_loses_neither_a_position_nor_the_fork() -> None:
    """Positions of before are good after it, however often the start is tried again, and epochs never come twice."""
    for at in range(1, 200):
        disk = SimFs()
        sim = SimKernel.open(disk)
        sim.call(lambda engine: engine.put_topic("t", TopicConfig()))
        before = sim.engine.state.topics["t"].epoch
        sim.close()
        disk.unlink("data/identity")
        disk.sync_dir("data")
        faults = FaultFs(disk)
        faults.crash("*", at=at)
        try:
            SimKernel.open(faults)
        except SimCrash:
            disk = disk.reboot()
        except TopicsError as error:
            raise AssertionError(f"call {at}") from error
        else:
            return
        again = SimKernel.open(disk)
        topic = again.engine.state.topics["t"]
        assert topic.epoch > before, f"call {at}"
        assert topic.ancestors == ((before, 0),), f"call {at}"
        again.close()
        assert not Identity(disk, DataDir("data")).is_copy, f"call {at}"
    raise AssertionError("the start makes more calls than this test looks at")
