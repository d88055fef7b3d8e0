"""Rooms: no package, module or function grows beyond what a reader holds at once, and one name is one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "topics"
MODULES = sorted(SOURCE.rglob("*.py"))
PACKAGES = sorted({path.parent for path in MODULES})

MODULES_PER_PACKAGE_MAX = 14
LINES_PER_MODULE_MAX = 500
LINES_PER_FUNCTION_MAX = 60

DOORS = "the same noun in this process and against a server"
SAME_NOUN = {
    "Topic": DOORS,
    "Queue": DOORS,
    "Router": DOORS,
}
"""Public classes that share a name, and why."""

COMMAND = "the command, and what it runs or shows"
FORMATS = "the same part of two file formats"
SIMULATED = "the real one, and the simulated one for tests"
SAME_MODULE = {
    "archive": COMMAND,
    "replay": "the command, the job it runs, and the replay of the log, which is the field's word",
    "stats": COMMAND,
    "verify": COMMAND,
    "config": COMMAND,
    "topic": "a topic as a command, in the client, in the library, and in the core",
    "queue": "a queue as a command, in the library, and in the core",
    "cursor": "a named cursor as a command, and as a value",
    "router": "a router as a command, in the core, and as a value",
    "queues": "queues as endpoints, and as a service of the engine",
    "routers": "routers as endpoints, and as a service of the engine",
    "schedule": "a schedule as a command, and as a value",
    "schedules": "schedules as endpoints, and as a service of the engine",
    "records": "records as endpoints, as a command, and as text",
    "leases": "leases that a worker keeps, and that a queue grants",
    "sse": "server-sent events as they are read, and as they are written",
    "frame": FORMATS,
    "scan": FORMATS,
    "clock": SIMULATED,
    "driver": SIMULATED,
}
"""Module names that stand twice, and why."""

PENDING_CLASSES = frozenset({"Walk"})
PENDING_LONG: frozenset[str] = frozenset()
"""What is not yet as it should be; nothing is added here."""


def shown(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: shown(path))
def test_a_package_has_few_modules_and_a_map(package: Path) -> None:
    modules = [path for path in package.glob("*.py") if path.name != "__init__.py"]
    assert len(modules) <= MODULES_PER_PACKAGE_MAX
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text("utf-8")))
    assert docstring
    assert "TODO" not in docstring


@pytest.mark.parametrize("module", MODULES, ids=lambda path: shown(path))
def test_a_module_and_its_functions_are_not_long(module: Path) -> None:
    text = module.read_text("utf-8")
    assert text.count("\n") <= LINES_PER_MODULE_MAX
    long = [
        f"{node.name} has {(node.end_lineno or 0) - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > LINES_PER_FUNCTION_MAX
    ]
    assert long == [] or shown(module) in PENDING_LONG


def test_a_public_class_has_a_name_of_its_own_unless_it_is_the_same_noun_at_another_door() -> None:
    homes = defaultdict(list)
    for module in MODULES:
        for node in ast.parse(module.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(shown(module))
    assert {
        name: at for name, at in homes.items() if len(at) > 1 and name not in SAME_NOUN.keys() | PENDING_CLASSES
    } == {}


def test_a_module_has_a_name_of_its_own_unless_it_is_the_same_noun_at_another_door() -> None:
    homes = defaultdict(list)
    for module in MODULES:
        if not module.stem.startswith("__"):
            homes[module.stem].append(shown(module))
    assert {name: at for name, at in homes.items() if len(at) > 1 and name not in SAME_MODULE} == {}
