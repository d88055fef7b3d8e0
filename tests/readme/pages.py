"""Tutorial and guides as programs: the blocks of a page are run in order, as a reader would, and print what it shows.

A ```bash or ```python block is run; a ```text block is what the block before it prints, with … for whatever varies.
Other kinds (```sh, ```html, ```sql) are shown only. ```python spark needs Spark.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.api.server import LiveServer
from tests.readme.test_readme import ROOT, run

BLOCK = re.compile(r"^```(bash|python|python spark|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = sorted([ROOT / "docs" / "tutorial.md", *(ROOT / "docs" / "guides").glob("*.md")])
WITH_SPARK = [page for page in PAGES if "```python spark" in page.read_text("utf-8")]
WITH_ARROW = [page for page in PAGES if page.stem == "notebooks"]  # it says which extra it needs
WITH_THE_WHEEL = [page for page in PAGES if page not in WITH_SPARK + WITH_ARROW]


def follow(page: Path, server: LiveServer, place: Path, *, python: Path | None = None) -> None:
    """With this clone, or with the interpreter of an environment in which the package is installed."""
    blocks = BLOCK.findall(page.read_text("utf-8"))
    assert blocks
    printed = ""
    for kind, text in blocks:
        if kind == "text":
            check_shown(text, printed)
        else:
            printed = run(kind.removesuffix(" spark"), text, server, place, python=python)


def check_shown(shown: str, printed: str) -> None:
    """Each line of the page is a line of the output, in this order."""
    left = iter(printed.splitlines())
    for line in shown.splitlines():
        pattern = ".*".join(re.escape(part) for part in line.strip().split("…"))
        assert any(re.fullmatch(pattern, got.strip()) for got in left), f"{line!r} is not in\n{printed}"
