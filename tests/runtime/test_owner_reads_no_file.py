"""The owner's thread opens and maps no file for a read: a pool does so the first time, and then memory is read."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import topics
from topics.embedded.database import Database
from topics.formats import codec
from topics.storage.osfs import OsFile, OsFs
from topics.storage.segments import segment_arrays


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three sealed segments, with deleted records in the first."""
    with topics.open(tmp_path / "data", segment_max_events=100) as db:
        topic = db.topic("t")
        topic.append_many([topics.Event(n, tag="odd" if n % 2 else "even") for n in range(300)])
        topic.delete(before_seq=3)
    with topics.open(tmp_path / "data", segment_max_events=100) as db:
        db.topic("t").delete(match="odd")
    return tmp_path / "data"


def watch(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that open or map a file, from now on."""
    seen: list[str] = []

    def watched(owner: type, name: str) -> None:
        real = getattr(owner, name)

        def call(*given: Any, **named: Any) -> Any:
            seen.append(threading.current_thread().name)
            return real(*given, **named)

        monkeypatch.setattr(owner, name, call)

    watched(OsFs, "open")
    watched(OsFile, "mmap")
    return seen


def read_all(db: Database) -> list[int]:
    found: list[int] = []
    while page := db.topic("t").page(found[-1] if found else 0, limit=20).records:
        found += [record.seq for record in page]
    return found


def test_a_first_read_opens_its_segments_on_a_pool(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with topics.open(folder, segment_max_events=100) as db:
        seen = watch(monkeypatch)
        assert read_all(db) == list(range(3, 300, 2))
        assert len(seen) >= 9, "each segment has three files"
        assert all(name.startswith("topics-read") for name in seen)


def test_what_is_resident_is_read_by_the_owner(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with topics.open(folder, segment_max_events=100) as db:
        read_all(db)
        readers: list[str] = []
        real = codec.segment.live_bodies

        def live_bodies(*given: Any) -> Any:
            readers.append(threading.current_thread().name)
            return real(*given)

        monkeypatch.setattr(codec.segment, "live_bodies", live_bodies)
        seen = watch(monkeypatch)
        db.topic("t").page(0, limit=5)
        assert set(readers) == {threading.current_thread().name}
        monkeypatch.setattr(segment_arrays, "is_resident", lambda start, stop: False)
        readers.clear()
        db.topic("t").page(0, limit=5)
        assert not seen
        assert all(name.startswith("topics-read") for name in readers), "what may wait for the disk goes to the pool"
