"""The table of faults and tests is complete and true: every row is there, has a test, and every test it names exists,
runs, and can fail."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
DOC = TESTS.parent / "docs" / "fault-matrix.md"
ROWS = 145
ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.+?) \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
COMMENT = re.compile(r"\b[Rr]ows? (\d+)((?:,? (?:and )?\d+)*)")


def rows() -> dict[int, tuple[str, str, str]]:
    return {int(number): (fault, outcome, tests) for number, fault, outcome, tests in ROW.findall(DOC.read_text())}


@cache
def functions_of(file: str) -> dict[str, ast.FunctionDef]:
    """All functions of a file, tests and what they use."""
    tree = ast.parse((TESTS / file).read_text())
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def called(function: ast.FunctionDef) -> set[str]:
    """Names of the functions and methods it calls."""
    calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    return {f.id if isinstance(f, ast.Name) else f.attr for f in calls if isinstance(f, ast.Name | ast.Attribute)}


JUDGES = {"raises", "checked", "check", "cut", "twice", "judge_all", "run_state_machine_as_test"}


def can_fail(file: str, name: str) -> bool:
    """Does it, or a function beside it that it calls, assert something? Judges of other modules count by their name."""
    seen, todo = set[str](), [name]
    while todo:
        function = functions_of(file)[todo.pop()]
        if any(isinstance(node, ast.Assert) for node in ast.walk(function)) or called(function) & JUDGES:
            return True
        seen.add(function.name)
        todo += [other for other in called(function) & functions_of(file).keys() if other not in seen]
    return False


def is_left_out(function: ast.FunctionDef) -> bool:
    """By a mark that lets it not run, or not fail."""
    return any(mark in ast.unparse(decorator) for decorator in function.decorator_list for mark in ("skip", "xfail"))


def named_tests() -> list[tuple[int, str, str]]:
    return [(number, file, name) for number, (_, _, tests) in rows().items() for file, name in NAMED.findall(tests)]


def test_every_row_of_the_matrix_is_there_in_order() -> None:
    assert [int(number) for number, *_ in ROW.findall(DOC.read_text())] == list(range(1, ROWS + 1))


def test_every_row_names_a_test_and_every_test_it_names_exists() -> None:
    missing = []
    for number, (_, _, tests) in rows().items():
        named = NAMED.findall(tests)
        assert named, f"row {number} has no test"
        assert len(named) == tests.count("::"), f"row {number} is not written as the others are"
        missing += [f"row {number}: {file}::{name}" for file, name in named if name not in functions_of(file)]
    assert missing == []


def test_every_test_that_the_table_names_runs_and_can_fail() -> None:
    idle = [f"row {number}: {name}" for number, file, name in named_tests() if is_left_out(functions_of(file)[name])]
    empty = [f"row {number}: {name}" for number, file, name in named_tests() if not can_fail(file, name)]
    assert (idle, empty) == ([], [])


def test_a_test_that_says_it_shows_a_row_is_named_in_that_row() -> None:
    """In its docstring, by number."""
    named = {number: {name for _, name in NAMED.findall(tests)} for number, (_, _, tests) in rows().items()}
    astray = []
    for path in sorted((TESTS / "faults").glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            doc = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
            for first, more in COMMENT.findall(doc or ""):
                numbers = [int(first), *map(int, re.findall(r"\d+", more))]
                assert isinstance(node, ast.FunctionDef)
                astray += [f"{node.name}: row {number}" for number in numbers if node.name not in named[number]]
    assert astray == []
