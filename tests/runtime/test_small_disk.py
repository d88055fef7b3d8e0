"""Real file systems of a few megabytes that fill up under an engine. Needs root: it mounts them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import topics
from topics.embedded.database import Database
from topics.errors import DiskFull

MIB = 1 << 20
SIZE = 24 * MIB


def _mount(kind: str, place: Path) -> None:
    if kind == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)]
    else:
        image = place.with_suffix(".img")
        with image.open("wb") as file:
            file.truncate(SIZE)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True, capture_output=True, timeout=60)
        command = ["mount", "-o", "loop", str(image), str(place)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


@pytest.fixture(params=["tmpfs", "ext4"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "mounted"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    try:
        _mount(str(request.param), place)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"a small {request.param} cannot be mounted here: {error}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True, capture_output=True, timeout=60)


def small(path: Path) -> Database:
    return topics.open(
        path, wal_shards=1, wal_file_bytes=MIB, segment_max_events=100, checkpoint_interval_ms=100, sync_interval_ms=10
    )


def fill(place: Path, *, leave: int = 0) -> Path:
    """A file that takes all space but `leave` bytes."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (MIB, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass
        file.truncate(max(file.tell() - leave, 0))
        os.fsync(file.fileno())
    return filler


def until(step: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not step():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def write_until_full(database: Database, acked: list[str], *, pad: int = 3000) -> None:
    topic = database.topic("t", durability="fsync")
    for number in range(len(acked), len(acked) + 100_000):
        value = f"{number}:{'x' * pad}"
        try:
            topic.append(value, tag=f"n{number}")
        except DiskFull:
            return
        acked.append(value)
    raise AssertionError("the disk never filled up")


def test_a_full_disk_loses_nothing_and_writing_resumes_without_a_restart(small_disk: Path) -> None:
    acked: list[str] = []
    with small(small_disk / "data") as database:
        topic = database.topic("t", durability="fsync")
        acked.append("0:first")
        topic.append(acked[0], tag="n0")
        filler = fill(small_disk, leave=2 * MIB)
        write_until_full(database, acked)
        assert [record.value for record in topic.read()] == acked, "reads go on"
        filler.unlink()

        def resumes() -> bool:
            try:
                topic.append("after")
            except DiskFull:
                return False
            acked.append("after")
            return True

        until(resumes)
        assert [record.value for record in topic.read()] == acked
    with small(small_disk / "data") as database:
        assert [record.value for record in database.topic("t").read()] == acked


def test_deletes_and_acks_are_taken_on_a_full_disk_and_are_still_done_after_a_restart(small_disk: Path) -> None:
    acked: list[str] = []
    with small(small_disk / "data") as database:
        queue = database.queue("q", durability="fsync", leases_durable=True)
        for job in range(20):
            queue.append(job)
        write_until_full(database, acked, pad=30_000)
        topic = database.topic("t", durability="fsync")

        def deleted() -> bool:
            try:
                topic.delete(match="n3")
            except DiskFull:  # for a second, until the reserve is open
                return False
            return True

        until(deleted)
        claimed = queue.claim("w", max=5)
        queue.ack(claimed.claimed, node="w")
    with small(small_disk / "data") as database:
        left = [value for value in acked if not value.startswith("3:")]
        assert [record.value for record in database.topic("t").read()] == left
        assert database.queue("q").claim("w", max=20).ready == 0
        assert len(list(database.topic("q").read())) == 15


def test_deleting_records_of_a_full_disk_makes_room_for_new_ones(small_disk: Path) -> None:
    acked: list[str] = []
    with small(small_disk / "data") as database:
        write_until_full(database, acked, pad=3_000)
        topic = database.topic("t", durability="fsync")
        until(lambda: _taken(lambda: topic.delete(before_seq=len(acked))))
        until(lambda: _taken(lambda: topic.append("again")))
        assert [record.value for record in topic.read(after=len(acked))][-1] == "again"


def _taken(call: Callable[[], object]) -> bool:
    try:
        call()
    except DiskFull:
        return False
    return True
