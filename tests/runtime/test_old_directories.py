"""Directories that earlier versions wrote are opened and read as they were (`docs/upgrades.md`).

`scripts/keep_directory.py` made the archives in `old/`, each with the code of its time: from before epochs were unique,
and from before native codecs and the fields of jobs.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

import topics

UNSYNCED = ("log.disk", "log.memory", "payloads")
KEPT = sorted((Path(__file__).parent / "old").glob("*.tar.xz"))


def test_there_are_directories_of_earlier_versions() -> None:
    assert len(KEPT) >= 2


@pytest.mark.parametrize("archive", KEPT, ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_every_record_is_where_it_was_over_two_starts(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)  # new in 3.11.4
        packed.extractall(tmp_path)
    expected = json.loads((tmp_path / "expected.json").read_text("utf-8"))
    for _ in range(2):
        with topics.open(tmp_path / "data", wal_shards=1) as db:
            for name, items in expected.items():
                found = seen(db.queue(name) if name == "jobs" else db.topic(name))
                assert found[: len(items)] == items, name
                # Behind the records, a class that a power cut may take from announces the seqs that it had reserved.
                announced = [["gap", items[-1][0] + 1]] if name in UNSYNCED else []
                assert [gap[:2] for gap in found[len(items) :]] == announced, name
            assert [item[2] for item in seen(db.topic("copied"))[:5]] == [{"n": number} for number in range(5)]
    with topics.open(tmp_path / "data", wal_shards=1) as db:
        assert db.topic("log.fsync").append({"n": "new"}).seqs[0] == 26


def seen(topic: Any) -> list[list[object]]:
    return [
        ["gap", item.gap_from, item.gap_to] if isinstance(item, topics.Gap) else [item.seq, item.tag, item.value]
        for item in topic.read(gaps="yield")
    ]
