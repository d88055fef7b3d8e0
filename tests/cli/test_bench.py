"""`topics bench` over both doors. Its figures are not judged here."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Shell

FAST = ("--seconds", "0.05", "--batch", "50", "--size", "20", "--json")


def test_embedded_it_measures_three_things_and_leaves_nothing_behind(shell: Shell, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in shell.lines("bench", "--path", str(tmp_path / "here"), *FAST)]
    assert [row["what"] for row in rows] == ["append, one at a time", "append, 50 at a time", "read, 1000 at a time"]
    for row in rows:
        assert row["records"] > 0
        assert row["records_per_s"] > 0
        assert 0 < row["p50_us"] <= row["p99_us"]
    assert list((tmp_path / "here").iterdir()) == []


def test_against_a_server_it_also_measures_the_producer_and_drops_its_topics(shell: Shell) -> None:
    rows = [json.loads(line) for line in shell.lines("bench", "--url", shell.url, *FAST)]
    assert "append, batching producer" in [row["what"] for row in rows]
    assert not [line for line in shell.lines("topic", "ls") if line.startswith("bench.")]


def test_it_measures_one_door_at_a_time(shell: Shell) -> None:
    shell.run("bench", "--url", shell.url, "--path", "x", status=2)
