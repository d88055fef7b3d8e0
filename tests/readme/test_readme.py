"""Every block of the README's tour is run, as a newcomer would run it: against a server, in order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.api.server import LiveServer

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(bash|python|python spark)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("data")) as live:
        yield live


def run(kind: str, text: str, server: LiveServer, cwd: Path, *, python: Path | None = None) -> str:
    """With this clone, or with the interpreter of an environment in which the package is installed."""
    chosen = Path(sys.executable) if python is None else python
    text = text.replace("127.0.0.1:4000", f"127.0.0.1:{server.port}")
    command = ["bash", "-euo", "pipefail", "-c", text] if kind == "bash" else [str(chosen), "-c", text]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    environ |= {
        "PATH": f"{chosen.parent}:{os.environ['PATH']}",
        "TOPICS_URL": f"http://127.0.0.1:{server.port}",
        "PYTHONPATH": str(ROOT / "src") if python is None else "",
    }
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert "WARN" not in done.stderr
    return done.stdout


def test_the_tour_runs_from_top_to_bottom(server: LiveServer, tmp_path: Path) -> None:
    check_tour([run(kind, text, server, tmp_path) for kind, text in BLOCKS if kind != "python spark"])


def check_tour(said: list[str]) -> None:
    assert len(said) >= 5
    assert '"seqs":[1,2]' in said[0]
    assert '"data":{"id":1,"total":12.50}' in said[0]
    assert '"acked":1' in said[1]
    assert "customer:7 {'id': 3, 'total': 99}" in said[2]
    assert any("sending to ada@example.org" in text for text in said)


@pytest.mark.spark
def test_the_spark_block_runs(server: LiveServer, tmp_path: Path) -> None:
    run(
        "bash",
        f"curl -s -X POST http://127.0.0.1:{server.port}/v0/topics/orders -H 'content-type: application/json' "
        """-d '{"records":[{"data":{"id":1,"total":12.50}}]}'""",
        server,
        tmp_path,
    )
    (block,) = [text for kind, text in BLOCKS if kind == "python spark"]
    assert "12.5" in run("python", block, server, tmp_path)
