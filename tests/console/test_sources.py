"""The committed files are what the sources build, and ask nobody but their own server for anything."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "console"
BUILT = ROOT / "src" / "topics" / "console"


def source_hash() -> str:
    """As `console/vite.config.js` makes it."""
    single = ("index.html", "package.json", "vite.config.js", "tsconfig.json")
    files = [*(path for path in (SOURCES / "src").rglob("*") if path.is_file()), *(SOURCES / name for name in single)]
    made = sha256()
    for name, path in sorted((path.relative_to(SOURCES).as_posix(), path) for path in files):
        made.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return made.hexdigest()


def test_the_committed_console_was_built_from_these_sources() -> None:
    built = (BUILT / "sources.sha256").read_text().strip()
    assert built == source_hash(), "run `make console` (it needs node) and commit src/topics/console"


def test_the_console_names_no_other_server() -> None:
    for path in BUILT.glob("app.*"):
        addresses = set(re.findall(r"https?://[^\"'`\s)]+", path.read_text()))
        assert {address for address in addresses if not address.startswith("http://www.w3.org/")} == set()


def test_dependencies_are_pinned_exactly() -> None:
    package = json.loads((SOURCES / "package.json").read_text())
    for version in (package["dependencies"] | package["devDependencies"]).values():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version)
