"""The pages for users: every Python block runs, what they say of exit statuses and readiness is so, backups restore."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.api.server import LiveServer

import topics
from topics.cli import EXIT_STATUSES

ROOT = Path(__file__).parents[2]
PAGES = ("acks", "loss", "migration", "operations")
BLOCKS = [
    pytest.param(block, id=f"{page}-{number}")
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / f"{page}.md").read_text("utf-8"), re.M | re.S)
    )
]
SAID = {
    "acks-0": "seq 2 None",
    "loss-0": "lost 2 3 cap",
    "migration-0": "resize cat.jpg",
    "migration-3": "to ada@example.org",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("data")) as live:
        yield live


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_runs(block: str, server: LiveServer, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = block.replace("127.0.0.1:4000", f"127.0.0.1:{server.port}")
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert SAID.get(request.node.callspec.id, "") in done.stdout


def test_the_page_and_the_help_list_the_same_exit_statuses() -> None:
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    table = page.partition("The other commands end with")[2].partition("## ")[0]
    assert re.findall(r"^\| (\d+) \|", table, re.M) == re.findall(r"^  (\d+) ", EXIT_STATUSES, re.M)


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_readiness_is_notified(tmp_path: Path) -> None:
    """What `Type=notify` waits for."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(60)
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        server = subprocess.Popen(
            [sys.executable, "-m", "topics.cli", "serve"],
            cwd=tmp_path,
            env={
                **environ,
                "PYTHONPATH": str(ROOT / "src"),
                "NOTIFY_SOCKET": str(tmp_path / "notify"),
                "TOPICS_PORT": "0",
                "TOPICS_LOG": "error",
            },
        )
        try:
            assert b"READY=1" in listener.recv(4096)
        finally:
            server.terminate()
            assert server.wait(30) == 0


def test_a_copy_of_a_stopped_directory_is_a_backup(tmp_path: Path) -> None:
    with topics.open(str(tmp_path / "data"), wal_shards=1) as db:
        db.topic("kept").append_many(range(100))
    shutil.copytree(tmp_path / "data", tmp_path / "backup")
    shutil.rmtree(tmp_path / "data")
    shutil.copytree(tmp_path / "backup", tmp_path / "data")
    with topics.open(str(tmp_path / "data"), wal_shards=1) as db:
        assert [record.value for record in db.topic("kept").read()] == list(range(100))
