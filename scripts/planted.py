"""planted.py [NAME ...]: plant bugs one by one in a copy of the tree and show the test that turns red for each.

Ends with status 1 if a planted bug goes unnoticed, or if the chosen test is red without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.planted.bugs import BUGS, Planted  # noqa: E402

SECONDS_MAX = 300


def run_test(tree: Path, test: str) -> tuple[bool, str]:
    """Is it green, and if not, what it said first."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-rfE", *test.split(" ", 2)]
    environment = {**os.environ, "PYTHONPATH": f"{tree}/src:{tree}", "CRASH_FINER": "0.25"}
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return False, f"it did not end in {SECONDS_MAX} s"
    assert done.returncode in (0, 1), f"pytest could not run {test}:\n{done.stdout}{done.stderr}"
    return done.returncode == 0, _reason(done.stdout)


def _reason(output: str) -> str:
    lines = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0].rpartition(" - ")[2][:140] if lines else "it ended early"


def plant(tree: Path, bug: Planted) -> str:
    path = tree / bug.file
    text = path.read_text()
    assert text.count(bug.old) == 1, f"{bug.name} does not fit {bug.file} any more"
    path.write_text(text.replace(bug.old, bug.new))
    return text


def copy_tree(into: Path) -> Path:
    for part in ("src", "tests"):
        shutil.copytree(ROOT / part, into / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", into)
    return into


def main(names: list[str]) -> int:
    chosen = [bug for bug in BUGS if not names or bug.name in names]
    unnoticed = 0
    sound: dict[str, bool] = {}
    with tempfile.TemporaryDirectory() as scratch:
        tree = copy_tree(Path(scratch))
        for bug in chosen:
            if bug.test not in sound:
                sound[bug.test], said = run_test(tree, bug.test)
                assert sound[bug.test], f"{bug.test} is red without any planted bug: {said}"
            began = time.monotonic()
            text = plant(tree, bug)
            green, reason = run_test(tree, bug.test)
            (tree / bug.file).write_text(text)
            unnoticed += green
            verdict = "UNNOTICED" if green else f"red: {reason}"
            print(
                f"{bug.name}: the engine {bug.what}\n    {bug.test}\n    {verdict} ({time.monotonic() - began:.0f} s)"
            )
    print(f"{len(chosen) - unnoticed} of {len(chosen)} planted bugs were noticed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
