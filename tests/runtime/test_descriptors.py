"""A process that may open few files: nothing that can do with fewer fails, and what fails goes on by itself."""

from __future__ import annotations

import errno
import logging

import pytest
from tests.crash.harness import Rig, survey
from tests.crash.ledger import check

from topics.storage.fs import Mode
from topics.testing import SimFs
from topics.testing.simfs import SimFile

TOPICS = [f"t{at}" for at in range(20)]
FEW = 6


class FewFs(SimFs):
    """At most `limit` descriptors at a time."""

    limit = 1000

    def open(self, path: str, mode: Mode = "r") -> SimFile:
        self._need_one(path)
        return super().open(path, mode)

    def sync_dir(self, path: str) -> None:
        self._need_one(path)
        super().sync_dir(path)

    def _need_one(self, path: str) -> None:
        if self.in_use >= self.limit:
            raise OSError(errno.EMFILE, "Too many open files", path)

    @property
    def in_use(self) -> int:
        return sum(self.disk.held.values())


@pytest.fixture
def disk() -> FewFs:
    return FewFs()


@pytest.fixture
def rig(disk: FewFs) -> Rig:
    rig = Rig(disk, recent_cache_bytes=0)
    for name in TOPICS:
        rig.create(name)
        rig.write(name, 2)
    return rig


def test_a_checkpoint_and_a_snapshot_need_no_more_files_than_there_are(rig: Rig, disk: FewFs) -> None:
    for _ in range(3):
        disk.limit = disk.in_use + FEW
        rig.sim.checkpoint()
        for name in TOPICS:
            rig.write(name, 3)
        rig.sim.snapshot()
    check(rig.ledger, survey(rig.sim), power_cut=False)


def test_files_that_nobody_uses_are_closed_for_those_that_are_needed(rig: Rig, disk: FewFs) -> None:
    rig.sim.checkpoint()
    before = disk.in_use
    check(rig.ledger, survey(rig.sim), power_cut=False)
    assert disk.in_use > before + FEW, "reads keep files open"
    disk.limit = disk.in_use
    for name in TOPICS * 3:
        rig.write(name, 4)  # the log rotates
    rig.sim.snapshot()
    check(rig.ledger, survey(rig.sim), power_cut=False)


def test_a_lack_of_descriptors_is_told_once_and_so_is_its_end(
    rig: Rig, disk: FewFs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "topics")
    disk.limit = 0
    for _ in range(15):
        rig.tick(6_000)
    told = [record.message for record in caplog.records if "no file descriptor is left" in record.message]
    assert [line.split()[0] for line in told] == ["checkpoint", "snapshot"]
    assert all("ulimit -n" in line for line in told)
    assert rig.sim.kernel.checkpointer.failures_total > 2
    disk.limit = 1000
    caplog.clear()
    rig.tick(6_000)
    rig.tick(6_000)
    assert {"checkpoint works again", "snapshot works again"} == {record.message for record in caplog.records}
    assert not rig.sim.kernel.checkpointer.has_work
