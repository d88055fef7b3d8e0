"""Guides that need Spark or Arrow can be followed as they are written; `test_install.py` follows the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.api.server import LiveServer
from tests.readme.pages import WITH_ARROW, WITH_SPARK, check_shown, follow


@pytest.mark.spark
@pytest.mark.parametrize("page", WITH_SPARK, ids=lambda page: page.stem)
def test_a_page_can_be_followed_as_written(page: Path, tmp_path: Path) -> None:
    with LiveServer(tmp_path / "served") as server:
        follow(page, server, tmp_path)


@pytest.mark.parametrize("page", WITH_ARROW, ids=lambda page: page.stem)
def test_a_page_with_tables_can_be_followed_as_written(page: Path, tmp_path: Path) -> None:
    with LiveServer(tmp_path / "served") as server:
        follow(page, server, tmp_path)


def test_what_a_page_shows_must_be_printed() -> None:
    check_shown("seq 1 …\n", "first\nseq 1 of 2\n")
    with pytest.raises(AssertionError, match="seq 2"):
        check_shown("seq 1 …\nseq 2\n", "seq 1 of 2\n")
