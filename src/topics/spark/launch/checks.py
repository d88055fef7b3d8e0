"""Checks of this machine for Spark: Java, the workers' interpreter, packages that hide sources.

Each finding has a name, whether it is as it should be, and a sentence that says what to do if it is not. Nothing is
started. Called by `topics doctor`, only where PySpark is installed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

from topics.spark.launch.start import broken_source_packages, java_major, missing, source_packages

Finding = tuple[str, bool, str]

PYSPARK_SERIES: Final = "4.3."
PANDAS_MAJOR_END: Final = 3
_IMPORT_TIMEOUT_S: Final = 60


def checks() -> Iterator[Finding]:
    """Findings in the order in which a user would repair them."""
    version = importlib.metadata.version("pyspark")
    wanted = "" if version.startswith(PYSPARK_SERIES) else "; topics is made for 4.3: pip install 'topicsdb[spark]'"
    yield "pyspark", not wanted, f"{version}{wanted}"
    problem = missing()
    yield "java", problem is None, problem or f"Java {java_major()}"
    yield _interpreter()
    if importlib.util.find_spec("pandas") is not None:
        yield _pandas()
    yield from _sources()


def _interpreter() -> Finding:
    """Workers run PYSPARK_PYTHON, or `python3` from PATH; `topics.spark.session()` names its own if nobody did."""
    chosen = os.environ.get("PYSPARK_PYTHON")
    python = shutil.which(chosen or "python3")
    if python is None and chosen:
        return "spark interpreter", False, f"PYSPARK_PYTHON is {chosen}, which is no program; unset it"
    if python is not None and _has_topics(python):
        return "spark interpreter", True, f"{python} has topics"
    if chosen:
        return "spark interpreter", False, f"PYSPARK_PYTHON is {chosen}, which cannot import topics; unset it"
    hint = f"sessions of topics.spark.session() run {sys.executable}; for others set PYSPARK_PYTHON to it"
    return "spark interpreter", True, f"{python or 'python3'} cannot import topics: {hint}"


def _has_topics(python: str) -> bool:
    if python == sys.executable:
        return True
    try:
        told = subprocess.run(
            [python, "-c", "import topics.spark.source"], capture_output=True, timeout=_IMPORT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return told.returncode == 0


def _pandas() -> Finding:
    version = importlib.metadata.version("pandas")
    old_enough = int(version.partition(".")[0]) < PANDAS_MAJOR_END
    return "pandas", old_enough, version if old_enough else f"{version} is too new for PySpark: pip install 'pandas<3'"


def _sources() -> Iterator[Finding]:
    broken = broken_source_packages()
    for name in source_packages():
        if name in broken:
            problem = f"cannot be imported ({broken[name]}): Spark finds no data source at all until it is repaired"
            yield f"data source {name}", False, problem
        else:
            yield f"data source {name}", True, "found by Spark without registration"
    if "pyspark_topics" not in source_packages():
        yield "data source pyspark_topics", False, "not on the path: install topics, or put its folder in PYTHONPATH"
