"""The README's HTTP examples as values, and a server to run them against."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.api.server import LiveServer

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
ORIGIN = "http://127.0.0.1:4000"
FLAGS = {"-X", "-H", "-d"}


class Example(msgspec.Struct, frozen=True):
    """One `curl` of the README."""

    method: str
    path: str
    headers: dict[str, str]
    body: str | None
    words: list[str]
    """As the shell hands them to curl."""

    def words_at(self, url: str) -> list[str]:
        return [word.replace(ORIGIN, url) for word in self.words]


def example_of(words: list[str]) -> Example:
    given: dict[str, list[str]] = {flag: [] for flag in FLAGS}
    left = iter(words[1:])
    paths = []
    for word in left:
        if word in FLAGS:
            given[word].append(next(left))
        elif word.startswith(ORIGIN):
            paths.append(word.removeprefix(ORIGIN))
        else:
            assert word == "-s", f"a flag that the other clients would not get: {word}"
    (path,) = paths
    (method,) = given["-X"]
    headers = dict(header.split(": ", 1) for header in given["-H"])
    return Example(method, path, headers, given["-d"][0] if given["-d"] else None, words)


def examples() -> list[Example]:
    lines = [line for block in BLOCKS for line in block.replace("\\\n", " ").splitlines() if line.startswith("curl")]
    return [example_of(shlex.split(line)) for line in lines]


EXAMPLES = examples()


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A server of its own for each client: the examples say which seqs they get."""
    with LiveServer(tmp_path / "data") as live:
        yield f"http://127.0.0.1:{live.port}"
