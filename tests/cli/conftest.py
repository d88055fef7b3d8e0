"""A command line with a live server behind it: in a pipe and on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.api.server import LiveServer

import topics


def hear_signals() -> None:
    """In the child. Who runs the tests in the background may have made us, and it, deaf to Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def own_the_terminal() -> None:
    """In the child: Ctrl-C on its terminal becomes a signal."""
    hear_signals()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Shell:
    def __init__(self, server: LiveServer, cwd: Path) -> None:
        self._cwd = cwd
        self.url = f"http://127.0.0.1:{server.port}"
        self.client = topics.connect(self.url)
        self._environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")},
            "TOPICS_URL": self.url,
            "PYTHONDONTWRITEBYTECODE": "",  # the second command compiles nothing
            "PYTHONPYCACHEPREFIX": str(cwd.parent / "pyc"),
            "NO_COLOR": "1",
            "COLUMNS": "120",
        }

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "topics.cli", *args]

    @contextmanager
    def begun(self, *args: str, stdin: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[str]]:
        """A command that goes on; it does not outlive the block."""
        child = subprocess.Popen(
            self.command(*args),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self._cwd,
            env=self._environ,
            preexec_fn=hear_signals,
        )
        with child:
            try:
                yield child
            except BaseException:
                child.kill()
                raise

    def run(self, *args: str, stdin: str = "", status: int = 0, **environ: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(*args),
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

    def on_terminal(self, *args: str, answer: str = "", after: str = "", status: int = 0, **environ: str) -> str:
        """What a person sees: in, out and err are a pseudo-terminal. `answer` is typed once `after` was shown."""
        main, side = pty.openpty()
        child = subprocess.Popen(
            self.command(*args),
            stdout=side,
            stderr=side,
            stdin=side,
            cwd=self._cwd,
            env={**self._environ, **environ},
            start_new_session=True,
            preexec_fn=own_the_terminal,
        )
        os.close(side)
        shown, typed = b"", not answer
        try:
            while chunk := os.read(main, 4096):
                shown += chunk
                if not typed and after.encode() in shown:
                    os.write(main, answer.encode())
                    typed = True
        except OSError:  # the terminal is gone with the child
            pass
        try:
            assert child.wait(60) == status, shown.decode()
        finally:
            child.kill()
        os.close(main)
        return shown.decode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("data")) as live:
        yield live


@pytest.fixture
def shell(server: LiveServer, tmp_path: Path) -> Iterator[Shell]:
    made = Shell(server, tmp_path)
    yield made
    made.client.close()
