"""The pages for engineers say what is there: decisions have numbers without holes, paths and actors exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
HISTORY = ("bugs.md", "planted-bugs.md")
"""Ledgers: they tell what was, also of files that are gone."""
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if page.name not in HISTORY]
CODE_PATH = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|sh))(?:::\w+)?`")
CODE_FOLDERS = (ROOT, ROOT / "src" / "topics", ROOT / "tests")


def decisions() -> list[Path]:
    return sorted((DOCS / "decisions").glob("[0-9]*.md"))


def test_decisions_are_numbered_without_holes() -> None:
    assert [int(page.name[:4]) for page in decisions()] == list(range(1, len(decisions()) + 1))


@pytest.mark.parametrize("page", decisions(), ids=lambda page: page.stem)
def test_a_decision_has_its_number_in_its_title_and_stands_in_the_list(page: Path) -> None:
    title = page.read_text("utf-8").splitlines()[0].removeprefix("# ")
    assert title.startswith(page.name[:4])
    assert f"- [{title}]({page.name})" in (DOCS / "decisions" / "README.md").read_text("utf-8").splitlines()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_code_that_a_page_names_exists(page: Path) -> None:
    named = CODE_PATH.findall(page.read_text("utf-8"))
    assert [name for name in named if not any((folder / name).is_file() for folder in CODE_FOLDERS)] == []


# --- the glossary's actors --------------------------------------------------------------------------------------------


def actors() -> dict[str, str]:
    """Class and package of each actor, as the glossary lists them: `- **Engine** (`engine`) owns ...`."""
    text = (DOCS / "glossary.md").read_text("utf-8")
    return dict(re.findall(r"^- \*\*(\w+)\*\* \(`([\w/.]+)`\)", text, re.M))


def classes() -> dict[str, set[str]]:
    """Modules of every class of the product, by name."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "src" / "topics").rglob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).add(str(path.relative_to(ROOT / "src" / "topics")))
    return found


def test_every_actor_of_the_glossary_is_a_class_where_the_glossary_says() -> None:
    there = classes()
    wrong = [
        f"{name} in {place}"
        for name, place in actors().items()
        if not any(module.startswith(place) for module in there.get(name, ()))
    ]
    assert wrong == []
    assert len(actors()) >= 30


# --- questions of a newcomer ------------------------------------------------------------------------------------------


def test_the_answers_to_a_newcomers_questions_name_files_that_exist() -> None:
    part = (DOCS / "architecture.md").read_text("utf-8").partition("## Twenty questions")[2]
    questions = re.findall(r"^\d+\. \*\*(.+?)\*\*(.+?)(?=^\d+\. |^## |\Z)", part, re.M | re.S)
    assert len(questions) == 20
    for question, answer in questions:
        named = CODE_PATH.findall(answer)
        assert [name for name in named if not any((folder / name).is_file() for folder in CODE_FOLDERS)] == []
        assert any(name.startswith("tests/") for name in named), f"{question}: which test holds it?"
        assert any(not name.startswith("tests/") for name in named), f"{question}: which file decides it?"
