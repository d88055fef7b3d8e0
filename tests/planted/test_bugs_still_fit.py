"""Every planted bug still fits the tree it is planted in, and gives Python that compiles."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.crash.every import BY_NAME
from tests.planted.bugs import BUGS, Planted

ROOT = Path(__file__).parents[2]


def test_there_are_at_least_ten_and_no_two_share_a_name() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 10


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_fits_its_file_in_one_place(bug: Planted) -> None:
    text = (ROOT / bug.file).read_text()
    assert text.count(bug.old) == 1
    compile(text.replace(bug.old, bug.new), bug.file, "exec")


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_test_of_a_planted_bug_exists(bug: Planted) -> None:
    file, _, choice = bug.test.partition(" ")
    assert (ROOT / file).is_file()
    workload = choice.removeprefix("-k [").removesuffix("]") if "[" in choice else ""
    assert workload in BY_NAME or not workload
