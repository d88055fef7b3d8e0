"""The name of a mounted file system's life: the same while it is mounted, another one after a remount."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.loopdev import LoopDisk, why_no_loop

from topics.storage.mount_id import mount_id
from topics.storage.osfs import OsFs


def test_a_file_system_that_stays_mounted_keeps_its_name(tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    (name,) = OsFs().mount_ids([str(tmp_path), str(below), str(tmp_path / "nowhere")])
    code = "import sys; from topics.storage.mount_id import mount_id; print(mount_id(sys.argv[1]))"
    other = subprocess.run([sys.executable, "-c", code, str(below)], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == name


def test_a_path_that_is_not_there_has_no_name(tmp_path: Path) -> None:
    assert mount_id(str(tmp_path / "nowhere")) == ""


def test_an_older_kernel_is_asked_for_the_directory_of_the_block_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No ioctl and no unique id of the mount: what is below /sys/fs under the device's name."""
    monkeypatch.setattr("topics.storage.mount_id._sysfs_path", lambda path: "")
    monkeypatch.setattr("topics.storage.mount_id._by_statx", lambda path: "")
    tree, device = tmp_path / "sys", os.stat(tmp_path).st_dev
    (tree / "dev" / "block").mkdir(parents=True)
    (tree / "devices" / "vdz1").mkdir(parents=True)
    (tree / "dev" / "block" / f"{os.major(device)}:{os.minor(device)}").symlink_to(tree / "devices" / "vdz1")
    assert mount_id(str(tmp_path), sys=tree) == ""
    (tree / "fs" / "xfs" / "vdz1").mkdir(parents=True)
    inode = (tree / "fs" / "xfs" / "vdz1").stat().st_ino
    assert mount_id(str(tmp_path), sys=tree) == f"xfs/vdz1:{inode}"


@pytest.mark.skipif(why_no_loop() != "", reason=why_no_loop() or "there is a loop device")
@pytest.mark.parametrize("by", ["sysfs", "statx"])
def test_a_file_system_that_is_mounted_again_has_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    if by == "statx":
        monkeypatch.setattr("topics.storage.mount_id._by_sysfs", lambda path, sys: "")
    with LoopDisk(tmp_path, "ext4", megabytes=16) as disk:
        names = {mount_id(str(disk.path))}
        for _ in range(3):
            disk.remount()
            names.add(mount_id(str(disk.path)))
        assert len(names) == 4
        assert "" not in names
