"""Every reference to the contract leads somewhere: a path with an anchor, and step codes to the table they stand in."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = ROOT / "docs" / "spec"
DOCUMENTS = sorted(page.stem for page in SPEC.glob("*.md"))
FILES = sorted(
    path
    for folder in ("src", "tests", "bench", "scripts")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".sh") and path != Path(__file__)
)
REFERENCE = re.compile(r"(?P<page>docs/[\w/-]+\.md)(?:#(?P<anchor>[\w-]*))?")
BARE = re.compile(rf"(?<![\w/-])(?:{'|'.join(DOCUMENTS)})\.md\b")
SECTION = re.compile(r"(?i)\bsections? \d|§ ?\d")
CODE = re.compile(r"\b(?:[CFMORTW]\d{1,2}[ab]?|S(?:[124-9]|1[012])|B[0-4])\b")
"""Steps and promises of the tables in `docs/spec`. S3 is left out: in prose it is Amazon's store."""
NUMBERED_TEST = re.compile(r"def (test_[a-z]\d{1,2}(?:_\w*)?)\(")
FAULT_ROW = re.compile(r"\b[Rr]ows? \d+")
"""A row of `docs/fault-matrix.md`."""


@lru_cache
def anchors(page: Path) -> frozenset[str]:
    text = page.read_text("utf-8")
    slugs = (
        re.sub(r"<[^>]*>|[^\w -]", "", title.lower()).strip().replace(" ", "-")
        for title in re.findall(r"^#+ (.+)", text, re.M)
    )
    return frozenset(re.findall(r'<a id="([^"]+)"', text)) | frozenset(slugs)


@lru_cache
def tables_of(code: str) -> frozenset[str]:
    """Documents that have a row of this code."""
    return frozenset(name for name in DOCUMENTS if code.lower() in anchors(SPEC / f"{name}.md"))


def prose(path: Path) -> str:
    """Comments and docstrings of a Python file; the whole text of any other."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        return text
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    parts = [token.string for token in tokens if token.type == tokenize.COMMENT]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            parts.append(node.value.value)
    return "\n".join(parts)


def problems(path: Path) -> list[str]:
    """What a reader could not follow in one file."""
    text = path.read_text("utf-8")
    told = prose(path)
    found = []
    referred = set()
    for match in REFERENCE.finditer(text):
        page, anchor = ROOT / match["page"], match["anchor"]
        if not page.is_file():
            found.append(f"{match['page']} does not exist")
        elif anchor is not None and anchor not in anchors(page):
            found.append(f"{match[0]}: there is no such anchor")
        elif anchor is not None and page.parent == SPEC:
            referred.add(page.stem)
    found += [f"{match}: say docs/spec/{match}#anchor" for match in BARE.findall(told)]
    if SECTION.search(told) and not re.search(r"RFC \d", told):
        found.append(f"{SECTION.findall(told)}: say docs/spec/...#sec-N, or which RFC")
    for code in sorted(set(CODE.findall(told))):
        if not tables_of(code):
            found.append(f"{code} is in no table of docs/spec")
        elif not tables_of(code) & referred:
            found.append(f"{code}: refer once to {' or '.join(tables_of(code))}.md#{code.lower()}")
    if FAULT_ROW.search(told) and "docs/fault-matrix.md" not in told:
        found.append(f"{FAULT_ROW.findall(told)}: say of which table")
    found += [f"{name} is named by a number" for name in NUMBERED_TEST.findall(text)]
    return found


def test_every_reference_to_the_contract_can_be_followed() -> None:
    wrong = [f"{path.relative_to(ROOT)}: {problem}" for path in FILES for problem in problems(path)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('"""As `docs/spec/storage.md#sec-99-9` says."""', "no such anchor"),
        ('"""As `docs/spec/nothing.md` says."""', "does not exist"),
        ("# see storage.md section 9", "say docs/spec/storage.md#anchor"),
        ("x = 1  # the table of section 7.2", "say docs/spec/...#sec-N"),
        ('"""After C9, before C10."""', "refer once to storage.md#c10"),
        ('"""C99 (`docs/spec/storage.md#c9`)."""', "C99 is in no table"),
        ("def test_p07_of_something(): ...", "is named by a number"),
    ],
)
def test_a_reference_that_leads_nowhere_is_told(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(text)
    assert any(problem in told for told in problems(tmp_path / "module.py"))


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_links_between_pages_name_anchors_that_exist(page: Path) -> None:
    wrong = []
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text("utf-8")):
        aim = (page.parent / target) if target else page
        if "://" not in target and anchor not in anchors(aim):
            wrong.append(f"{target}#{anchor}")
    assert wrong == []
