"""The documentation site: it is built without a warning, its links and anchors lead somewhere, it asks nobody else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return place


def test_every_page_of_the_menu_is_built(site: Path) -> None:
    named = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert len(named) > 20
    for name in named:
        built = site / name.replace("README.md", "index.html").replace(".md", ".html")
        assert "<h1" in built.read_text("utf-8"), name


def test_pages_load_nothing_from_other_servers(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*\bsrc=\"?(https?:[^\s\">]+)", text)
        loaded += re.findall(r"<link[^>]*rel=\"?stylesheet[^>]*href=\"?(https?:[^\s\">]+)", text)
        assert loaded == [], page.name


def test_the_reference_shows_what_the_real_server_answers(site: Path) -> None:
    examples = (site / "reference/http.html").read_text("utf-8")
    assert "version_conflict" in examples
    assert "customer:7" in examples
    assert "TOPICS_WAL_SHARDS" in (site / "reference/settings.html").read_text("utf-8")
    assert "topics queue" in (site / "reference/cli.html").read_text("utf-8")
    assert "topics_wal" in (site / "reference/metrics.html").read_text("utf-8")
    assert "aconnect" in (site / "reference/python.html").read_text("utf-8")
