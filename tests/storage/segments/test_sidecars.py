"""Sidecars that are written anew while others read them, on a real file system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from topics.storage.fs import Mode
from topics.storage.osfs import OsFile, OsFs
from topics.storage.segments.tags import write_sidecar
from topics.storage.segments.topic_dir import SegmentEnv, TopicDir

OLD, NEW = b"old" * 5000, b"new" * 7000


class Watching(OsFs):
    """Looks at the sidecar whenever a file is opened to be written, and notes its size."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.sizes: list[int] = []

    def open(self, path: str, mode: Mode = "r") -> OsFile:
        opened = super().open(path, mode)
        if mode != "r" and self.path.exists():
            self.sizes.append(self.path.stat().st_size)
        return opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "0000000A" / "seg-0000000000000001.tags"


@pytest.fixture
def place(tmp_path: Path, path: Path) -> TopicDir:
    path.parent.mkdir()
    fs = Watching(path)
    env = SegmentEnv(fs, str(tmp_path))
    env.allow_writes(fs)
    return TopicDir(env, 10, name="t")


def test_whoever_reads_or_maps_a_sidecar_keeps_it_whole_while_another_is_put_in_its_place(
    place: TopicDir, path: Path
) -> None:
    """A file that is cut under a mapping kills the process that looks at it, and an empty one cannot be mapped."""
    write_sidecar(place, 1, OLD)
    with path.open("rb") as reader:
        write_sidecar(place, 1, NEW)
        assert os.fstat(reader.fileno()).st_size == len(OLD)
        assert reader.read() == OLD
    assert isinstance(place.fs, Watching)
    assert place.fs.sizes == [len(OLD)]
    assert path.read_bytes() == NEW
    assert os.listdir(path.parent) == [path.name]
