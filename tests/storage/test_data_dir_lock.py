"""One process per data directory, and what the lock file says about the last one.

The rules: `docs/spec/storage.md#sec-2-4`. Row 134 of `docs/fault-matrix.md`.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from topics.errors import DataDirLocked
from topics.formats.file_names import group_keys
from topics.storage.data_dir import DataDir, DataDirLock, parse_boot
from topics.storage.fs import Fs
from topics.storage.osfs import OsFs
from topics.testing import FaultFs, SimCrash, SimFs

PATH = "data/.topics.lock"


def fresh() -> SimFs:
    disk = SimFs()
    DataDir("data").make_root(disk)
    return disk


def test_a_second_process_is_refused_and_touches_nothing() -> None:
    disk = fresh()
    held = DataDirLock.take(disk, PATH, pid=7)
    held.claim("boot-1")
    before = disk.dump()
    with pytest.raises(DataDirLocked, match="another process"):
        DataDirLock.take(disk, PATH, pid=8)
    assert disk.dump() == before


def test_a_killed_holder_and_a_left_over_file_are_no_obstacle() -> None:
    disk = fresh()
    DataDirLock.take(disk, PATH, pid=7).claim("boot-1")
    disk = disk.reboot()
    lock = DataDirLock.take(disk, PATH, pid=8)
    assert lock.old_boot == "boot-1"
    lock.close()
    DataDirLock.take(disk, PATH, pid=9)


def test_a_file_system_without_flock_refuses() -> None:
    faults = FaultFs(fresh())
    faults.fail("lock", code=errno.ENOTSUP)
    with pytest.raises(OSError):
        DataDirLock.take(faults, PATH, pid=7)


def test_the_old_text_stays_until_recovery_is_done() -> None:
    disk = fresh()
    DataDirLock.take(disk, PATH, pid=7).claim("boot-1")
    disk = disk.reboot()
    lock = DataDirLock.take(disk, PATH, pid=8)
    assert disk.contents(PATH) == b"pid=7\nboot=boot-1\n"
    lock.claim("boot-2")
    assert disk.contents(PATH) == b"pid=8\nboot=boot-2\n"
    assert disk.pending(PATH) == []


def test_a_failed_sync_is_remembered_whatever_is_claimed_later() -> None:
    disk = fresh()
    lock = DataDirLock.take(disk, PATH, pid=7)
    lock.claim("boot-1")
    lock.mark_boot_unknown()
    lock.claim("boot-1")
    assert DataDirLock.take(disk.reboot(), PATH, pid=8).same_boot("boot-1") is False


@pytest.mark.parametrize(
    ("text", "boot"),
    [
        ("pid=7\nboot=abc\n", "abc"),
        ("boot=abc\npid=7\n", "abc"),
        ("pid=7\nboot=-\n", None),
        ("pid=7\nboot=\n", None),
        ("pid=7\nboot=abc", None),  # torn
        ("pid=7\n", None),
        ("", None),
        ("\ufffd\ufffd", None),
    ],
)
def test_only_a_whole_boot_line_proves_anything(text: str, boot: str | None) -> None:
    assert parse_boot(text) == boot


def test_a_claim_that_vouches_for_nothing_leaves_the_boot_line_as_it_was() -> None:
    disk = fresh()
    DataDirLock.take(disk, PATH, pid=7).claim("boot-1")
    disk = disk.reboot()
    lock = DataDirLock.take(disk, PATH, pid=8)
    lock.claim("boot-2", vouches=False)
    assert disk.contents(PATH) == b"pid=8\nboot=boot-1\n"
    lock.claim("boot-2")
    assert disk.contents(PATH) == b"pid=8\nboot=boot-2\n"


def test_a_claim_needs_no_space_that_the_old_text_had() -> None:
    disk = fresh()
    DataDirLock.take(disk, PATH, pid=7).claim("boot-1")
    faults = FaultFs(disk.reboot())
    DataDirLock.take(faults, PATH, pid=8).claim("b")
    calls = [call.kind for call in faults.trace if call.kind in ("truncate", "pwrite", "fsync")]
    assert calls == ["pwrite", "truncate", "fsync"]


def test_an_unknown_boot_id_is_never_the_same_boot() -> None:
    disk = fresh()
    DataDirLock.take(disk, PATH, pid=7).claim("")
    assert disk.contents(PATH) == b"pid=7\nboot=-\n"
    lock = DataDirLock.take(disk.reboot(), PATH, pid=8)
    assert not lock.same_boot("")
    assert not lock.same_boot("-")


def test_a_crash_while_marking_never_leaves_the_old_claim_behind_a_returned_call() -> None:
    disk = fresh()
    lock = DataDirLock.take(disk, PATH, pid=7)
    lock.claim("boot-1")
    lock.mark_boot_unknown()
    for pattern in ("lose_all", "reorder", "keep_prefix_torn"):
        twin = disk.clone()
        twin.power_cut(pattern=pattern)
        assert DataDirLock.take(twin.reboot(), PATH, pid=8).old_boot is None


def test_the_real_file_system_locks_across_processes_and_sets_modes(tmp_path: Path) -> None:
    data = DataDir(str(tmp_path / "data"))
    fs = OsFs()
    old = os.umask(0o022)
    try:
        data.make_root(fs)
        lock = DataDirLock.take(fs, data.lock, pid=os.getpid())
        data.make_missing(fs)
    finally:
        os.umask(old)
    lock.claim("boot-1")
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "data" / "wal").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "data" / ".topics.lock").stat().st_mode & 0o777 == 0o600
    code = (
        "import sys; from topics.storage.osfs import OsFs; from topics.storage.data_dir import DataDirLock\n"
        "from topics.errors import DataDirLocked\n"
        "try: DataDirLock.take(OsFs(), sys.argv[1], pid=1)\n"
        "except DataDirLocked: sys.exit(7)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    other = subprocess.run([sys.executable, "-c", code, data.lock], timeout=60, env=env)
    assert other.returncode == 7
    lock.close()
    assert subprocess.run([sys.executable, "-c", code, data.lock], timeout=60, env=env).returncode == 0


def test_paths_of_a_data_directory() -> None:
    data = DataDir("data/")
    assert (data.lock, data.meta, data.topics) == ("data/.topics.lock", "data/meta", "data/topics")
    assert (data.group(""), data.group("shard-03")) == ("data/wal", "data/wal/shard-03")
    assert data.topic(10) == "data/topics/0000000A"
    assert group_keys(1) == [""]
    assert group_keys(3) == ["shard-00", "shard-01", "shard-02"]


def test_a_directory_is_new_until_something_is_stored() -> None:
    disk = fresh()
    data = DataDir("data")
    assert data.is_new(disk)
    data.make_missing(disk)
    data.make_missing(disk)
    assert data.is_new(disk)
    disk.plant("data/meta/snapshot.0001.bin", b"x")
    assert not data.is_new(disk)


def make_all(data: DataDir, fs: Fs) -> None:
    data.make_root(fs)
    data.make_missing(fs)


def test_directories_made_by_a_process_that_was_killed_are_made_durable_by_the_next() -> None:
    for at in range(1, 7):
        disk = SimFs()
        faults = FaultFs(disk)
        data = DataDir("data")
        faults.crash("sync_dir", at=at)
        with pytest.raises(SimCrash):
            make_all(data, faults)
        disk = disk.reboot()
        make_all(data, disk)
        disk.power_cut()
        assert disk.reboot().listdir("data") == ["meta", "topics", "wal"]


def test_a_root_below_a_directory_we_may_not_open_is_fine_once_it_exists() -> None:
    faults = FaultFs(fresh())
    faults.fail("sync_dir", ".", code=errno.EACCES)
    DataDir("data").make_root(faults)


def test_an_unreadable_directory_is_never_taken_for_new() -> None:
    faults = FaultFs(fresh())
    data = DataDir("data")
    data.make_missing(faults)
    faults.fail("listdir", "*", code=errno.EIO)
    with pytest.raises(OSError):
        data.is_new(faults)
