"""`topics inspect` and `doctor`: looking without touching."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.cli.conftest import Shell

import topics
from topics.cli import cli


def digest(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with topics.open(str(tmp_path / "data"), wal_shards=1) as db:
        db.topic("a", durability="fsync").append_many([1, 2, 3])
        db.topic("b").append("x")
    return tmp_path / "data"


def rows(shell: Shell, *args: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in shell.lines("inspect", *args, "--json")]


def test_it_shows_topics_segments_and_log_and_changes_nothing(shell: Shell, data: Path) -> None:
    before = digest(data)
    found = rows(shell, str(data))
    assert [(row["topic"], row["durability"], row["head"], row["count"]) for row in found] == [
        ("a", "fsync", 3, 3),
        ("b", "disk", 1, 1),
    ]
    segments = rows(shell, str(data), "--topic", "a")
    assert [(row["first"], row["last"]) for row in segments] == [(1, 3)]
    assert {row["end"] for row in rows(shell, str(data), "--wal")} == {"clean"}
    assert digest(data) == before


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Path]:
    """A directory in use: three records are behind its only snapshot, in the log alone."""
    db = topics.open(str(tmp_path / "live"), wal_shards=1, checkpoint_interval_ms=3_600_000)
    db.topic("a").append_many(["early"])
    deadline = time.monotonic() + 20
    while not list((tmp_path / "live" / "meta").glob("snapshot.*")):
        assert time.monotonic() < deadline, "the first checkpoint did not come"
        time.sleep(0.01)
    db.topic("a").append_many(["late"] * 3)
    yield tmp_path / "live"
    db.close()


def test_it_reads_the_log_of_a_directory_in_use(shell: Shell, live: Path) -> None:
    frames = rows(shell, str(live), "--frames")
    assert [row["seq"] for row in frames if row["type"] == "append"][-3:] == [2, 3, 4]
    assert sum(row["records"] for row in rows(shell, str(live), "--wal")) >= 3


def test_damage_is_named(shell: Shell, live: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(live, tmp_path / "copy"))
    (log,) = [path for path in (copy / "wal").rglob("*") if path.is_file() and b'"late"' in path.read_bytes()]
    log.write_bytes(log.read_bytes().replace(b'"late"', b'"lame"', 1))
    (row,) = rows(shell, str(copy), "--wal")
    assert row["end"] == "hole xxh3"  # a bad frame with good ones behind it


def test_what_is_no_data_directory_is_told(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no snapshot" in shell.run("inspect", str(tmp_path / "empty"), status=1).stderr
    shell.run("inspect", str(tmp_path / "absent"), status=2)


def test_an_unknown_topic_is_told(shell: Shell, data: Path) -> None:
    assert "nope" in shell.run("inspect", str(data), "--topic", "nope", status=1).stderr


def test_doctor_finds_a_wrong_setting(shell: Shell) -> None:
    assert any(line.startswith("python\ttrue") for line in shell.lines("doctor"))
    wrong = shell.run("doctor", "--json", status=1, TOPICS_PORT="many")
    told = {row["check"]: row for row in map(json.loads, wrong.stdout.splitlines())}
    assert told["settings"]["ok"] is False
    assert "TOPICS_PORT" in told["settings"]["finding"]


def test_a_log_that_can_only_be_read_is_shown(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_a_disk_for_reading(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return opened(path, flags, mode)

    opened = os.open
    monkeypatch.setattr(os, "open", on_a_disk_for_reading)
    for option in ("--wal", "--frames"):
        done = CliRunner().invoke(cli, ["inspect", str(data), option])
        assert (done.exit_code, done.exception) == (0, None)
