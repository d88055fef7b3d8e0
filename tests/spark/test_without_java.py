"""Without Java or without PySpark all but Spark works, and the Spark verbs say in one sentence what to install."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from tests.spark.served import ROOT, Served

from topics.cli import cli

pytest.importorskip("pyspark")

NO_JAVA = "Spark needs Java 17 or newer and none was found: install one"
NO_SPARK = "Spark is not installed: pip install 'topicsdb[spark]'"
SPARK_VERBS = {
    "archive": [
        ["--path", "{data}", "--to", "{tmp}/archive"],
        ["--url", "{url}", "--to", "{tmp}/a", "--format", "delta"],
    ],
    "replay": [["--from", "{tmp}", "--to-url", "{url}"]],
    "verify --master local[1]": [["--path", "{data}"], ["--path", "{data}", "--json"]],
    "stats --master local[1]": [["--path", "{data}"], ["--url", "{url}", "--json"]],
    "pipeline run": [["{tmp}/shop"], ["{tmp}/shop", "--full-refresh-all"]],
}
AS = ["--node", "n"]
"""Verbs of a lease must name the same node."""
OTHER_VERBS: list[tuple[str, list[str], str]] = [
    # verb, arguments, stdin; in an order in which each finds what it needs
    ("config show", [], ""),
    ("completion", ["bash"], ""),
    ("doctor", [], ""),
    ("topic create", ["orders"], ""),
    ("produce", ["orders", "--tag", "t"], '{"id":1}\n{"id":2}\n{"id":3}\n'),
    ("read", ["orders", "--data-only"], ""),
    ("tail", ["orders", "-n", "1"], ""),
    ("delete", ["orders", "--before", "2", "--yes"], ""),
    ("topic config", ["orders", "--set", "cap_records=100", "--yes"], ""),
    ("topic info", ["orders"], ""),
    ("topic ls", [], ""),
    ("router put", ["copy", "orders", "copies"], ""),
    ("router info", ["copy"], ""),
    ("router ls", [], ""),
    ("router rm", ["copy", "--yes"], ""),
    ("topic create", ["dead", "--set", "type=queue"], ""),
    ("topic create", ["jobs", "--set", "type=queue", "--set", "max_deliveries=1", "--set", "dead_letter=dead"], ""),
    ("produce", ["jobs"], "1\n2\n3\n4\n"),
    ("queue claim", ["jobs", "--max", "2", *AS], ""),
    ("queue extend", ["jobs", "1", "2", "--lease-ms", "60000", *AS], ""),
    ("queue ack", ["jobs", "1", *AS], ""),
    ("queue nack", ["jobs", "2", *AS], ""),
    ("queue work", ["jobs", "--once", "--", sys.executable, "-c", "0"], ""),
    ("queue stats", ["jobs"], ""),
    ("queue ls", [], ""),
    ("queue pause", ["jobs"], ""),
    ("queue resume", ["jobs"], ""),
    ("produce", ["jobs"], "5\n6\n"),
    ("queue jobs", ["jobs"], ""),
    ("queue workers", ["jobs"], ""),
    ("queue retry", ["jobs", "5"], ""),
    ("queue cancel", ["jobs", "5"], ""),
    ("queue purge", ["jobs", "--yes"], ""),
    ("get", ["orders", "3"], ""),
    ("latest", ["orders"], ""),
    ("cursor reset", ["orders", "billing", "--to", "start", "--yes"], ""),
    ("cursor show", ["orders", "billing"], ""),
    ("cursor ls", [], ""),
    ("cursor rm", ["orders", "billing", "--yes"], ""),
    ("schedule put", ["beat", "ticks", "--every", "3600000"], ""),
    ("schedule run", ["beat"], ""),
    ("schedule info", ["beat"], ""),
    ("schedule ls", [], ""),
    ("schedule pause", ["beat"], ""),
    ("schedule resume", ["beat"], ""),
    ("schedule rm", ["beat", "--yes"], ""),
    ("top", ["--once"], ""),
    ("worker", ["tests.client.job_functions:app", "--until-empty"], ""),
    ("dlq ls", ["dead"], ""),
    ("dlq redrive", ["dead", "--yes"], ""),
    ("dlq purge", ["dead", "--yes"], ""),
    ("tier status", [], ""),
    ("topic rm", ["copies", "--yes"], ""),
    ("export", ["orders", "{tmp}/orders.jsonl"], ""),
    ("import", ["{tmp}/orders.jsonl", "orders.again"], ""),
    ("inspect", ["{data}"], ""),
    ("verify", ["--path", "{data}"], ""),
    ("stats", ["--path", "{data}", "--bucket", "15m"], ""),
    ("bench", ["--path", "{tmp}/bench", "--seconds", "0.05"], ""),
    ("pipeline init", ["{tmp}/shop", "--url", "{url}"], ""),
]
WITHOUT_URL = ("config show", "completion", "doctor", "inspect", "bench", "pipeline init", "verify", "stats")
ELSEWHERE = {"serve"}
"""The server itself runs in the same world: see `World`."""


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from leaves(found, (*path, name))


class World:
    """A machine that has no Java, or no PySpark, with a server on it."""

    def __init__(self, tmp_path: Path, *, hidden: str = "") -> None:
        self.hidden = hidden
        self.served = Served(tmp_path / "served")
        self.names = {"url": self.served.url, "tmp": str(tmp_path), "data": self.served.data_dir}

    def run(self, verbs: list[tuple[str, list[str], str]]) -> list[dict[str, Any]]:
        asked = [(self._arguments(verb, arguments), given) for verb, arguments, given in verbs]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HIDDEN_MODULES": self.hidden}
        command = [sys.executable, str(ROOT / "tests" / "spark" / "verbs_job.py")]
        done = subprocess.run(
            command, input=json.dumps(asked), env=environment, capture_output=True, text=True, timeout=100, check=True
        )
        return [json.loads(line) for line in done.stdout.splitlines()]

    def _arguments(self, verb: str, arguments: list[str]) -> list[str]:
        own = verb in SPARK_VERBS or verb in WITHOUT_URL
        return [
            *verb.split(),
            *([] if own else ["--url", self.served.url]),
            *(a.format(**self.names) for a in arguments),
        ]


@pytest.fixture(params=["no java", "no pyspark"])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    found = World(tmp_path, hidden="" if request.param == "no java" else "pyspark py4j pandas deltalake grpc")
    yield found
    found.served.stop()


def test_no_verb_is_forgotten() -> None:
    covered = {*(verb.partition(" --")[0] for verb in SPARK_VERBS), *(verb for verb, _, _ in OTHER_VERBS), *ELSEWHERE}
    assert set(leaves(cli)) == covered


def test_everything_but_spark_works_and_spark_verbs_say_what_to_install(world: World, tmp_path: Path) -> None:
    asked = [*OTHER_VERBS, *((verb, each, "") for verb, ways in SPARK_VERBS.items() for each in ways)]
    sentence = NO_SPARK if world.hidden else NO_JAVA
    for (verb, arguments, _), done in zip(asked, world.run(asked), strict=True):
        context = f"{verb} {arguments}: {done}"
        if verb in SPARK_VERBS:
            assert (done["status"], done["stdout"]) == (2, ""), context
            assert done["stderr"].startswith(f"topics: {sentence}"), context
            assert done["stderr"].count("\n") == 1, context
        elif verb == "doctor" and not world.hidden:
            assert done["status"] == 1, context
            assert NO_JAVA in done["stdout"], context
        else:
            assert done["status"] == 0, context
            assert "Traceback" not in done["stderr"], context
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"served", "bench", "shop", "orders.jsonl"}  # a Spark verb that cannot run leaves nothing behind


def test_a_source_that_cannot_be_imported_says_why_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error while Spark looks for sources would hide all of them, and leave "Failed to find the data source"."""
    pytest.importorskip("pyspark.sql.datasource")
    monkeypatch.setitem(sys.modules, "topics.spark.source", None)
    source = importlib.import_module("pyspark_topics").DefaultSource
    assert source.name() == "topics"
    with pytest.raises(
        ImportError, match=r"topics cannot be loaded with this Python .*pip install 'topicsdb\[spark\]'"
    ):
        source({"subscribe": "orders"})
