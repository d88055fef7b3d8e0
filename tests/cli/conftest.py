"""A command line with a live server behind it: in a pipe and on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.server import LiveServer


class Shell:
    def __init__(self, server: LiveServer, cwd: Path) -> None:
        self._cwd = cwd
        self.url = f"http://127.0.0.1:{server.port}"
        self._environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")},
            "TOPICS_URL": self.url,
            "PYTHONDONTWRITEBYTECODE": "",  # the second command compiles nothing
            "PYTHONPYCACHEPREFIX": str(cwd.parent / "pyc"),
            "NO_COLOR": "1",
            "COLUMNS": "120",
        }

    def run(self, *args: str, stdin: str = "", status: int = 0, **environ: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "topics.cli", *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            cwd=self._cwd,
            env={**self._environ, **environ},
        )
        assert done.returncode == status, done.stderr
        return done

    def lines(self, *args: str, stdin: str = "") -> list[str]:
        return self.run(*args, stdin=stdin).stdout.splitlines()

    def on_terminal(self, *args: str) -> str:
        """What a person sees: stdout is a pseudo-terminal."""
        main, side = pty.openpty()
        child = subprocess.Popen(
            [sys.executable, "-m", "topics.cli", *args],
            stdout=side,
            stderr=side,
            stdin=side,
            cwd=self._cwd,
            env=self._environ,
        )
        os.close(side)
        shown = b""
        try:
            while chunk := os.read(main, 4096):
                shown += chunk
        except OSError:  # the terminal is gone with the child
            pass
        child.wait(60)
        os.close(main)
        return shown.decode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("data")) as live:
        yield live


@pytest.fixture
def shell(server: LiveServer, tmp_path: Path) -> Shell:
    return Shell(server, tmp_path)
