"""What every test gets: skips for what the machine lacks, Hypothesis profiles, and how long a simulation may run."""

import importlib.util
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from topics.engine.ticket import CALLBACK_FAILED

# `ci` is what `make test` runs; `sim` is for long runs. No deadline: two workers share the machine.
settings.register_profile("ci", max_examples=100, deadline=None, print_blob=True)
settings.register_profile(
    "sim", max_examples=10_000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("sim" if "SIM_SECONDS" in os.environ else "ci")

JAVA_MAJOR_MIN = 17
SIM_SECONDS_DEFAULT = 5.0
CRASH_STATES_MIN = 100_000
LONGEST = (
    "crash/test_crash_segments",
    "spark/test_spark_jobs",
    "crash/test_crash_log",
    "spark/test_spark_writes",
    "sim/test_machine",
    "spark/test_spark_reads",
    "spark/test_cluster",
    "crash/test_crash_floors",
    "crash/test_crash_nested",
    "spark/test_stream_kills",
    "spark/test_live_histories",
    "crash/test_crash_routed_floors",
    "crash/test_crash_layouts",
    "spark/test_pipeline",
    "kill/test_kill",
    "engine/routers/test_router_machine",
    "storage/tiers/test_s3",
    "readme/test_readme",
    "api/test_schemathesis",
)
"""Files that take long, in turns with and without Spark. They begin first: a run is over when its last file is."""


@cache
def java_major() -> int:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30).stderr
    except OSError:
        return 0
    match = re.search(r'version "(\d+)', told)
    return int(match[1]) if match else 0


def missing_for_spark() -> str | None:
    if importlib.util.find_spec("pyspark") is None:
        return "PySpark is not installed: pip install -r requirements-spark.txt"
    if java_major() < JAVA_MAJOR_MIN:
        return "Java 17 or newer is not installed: apt-get install openjdk-17-jre-headless"
    return None


def missing_for_browser() -> str | None:
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed: pip install -r requirements-dev.txt"
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        return "Chromium is not installed: apt-get install chromium"
    return None


NEEDS = {"spark": missing_for_spark, "browser": missing_for_browser}


def _begins_late(item: pytest.Item) -> int:
    name = item.nodeid.partition(".py::")[0].removeprefix("tests/")
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_begins_late)
    for name, missing in NEEDS.items():
        marked = [item for item in items if item.get_closest_marker(name)]
        reason = missing() if marked else None
        for item in marked if reason else []:
            item.add_marker(pytest.mark.skip(reason=reason or ""))


@pytest.fixture(autouse=True)
def no_callback_fails(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a callback raises is logged and answered for, so a test that only looks at answers might not see it."""
    failures: list[logging.LogRecord] = []

    def note(record: logging.LogRecord) -> bool:
        if record.msg == CALLBACK_FAILED:
            failures.append(record)
        return True

    engine_log = logging.getLogger("topics.engine")
    engine_log.addFilter(note)
    yield
    engine_log.removeFilter(note)
    if failures and not request.node.get_closest_marker("callbacks_fail"):
        pytest.fail(f"a callback raised {failures[0].exc_info}")


@pytest.fixture
def crash_states(record_property: Callable[[str, object], None]) -> Callable[[int], None]:
    """Called by a test with the number of distinct crash states it judged; the sum is told at the end of the run."""
    return lambda count: record_property("crash_states", count)


def crash_counts(config: pytest.Config) -> dict[str, int]:
    """By test; under xdist the workers' reports have come with their properties."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    passed = [] if reporter is None else reporter.stats.get("passed", [])
    return {
        report.nodeid: value for report in passed for name, value in report.user_properties if name == "crash_states"
    }


def too_few_crash_states(counts: dict[str, int]) -> bool:
    """Only a run of the whole directory, at its usual fineness, has to reach the number."""
    ours = {nodeid: count for nodeid, count in counts.items() if nodeid.startswith("tests/crash/")}
    if not ours or "CRASH_FINER" in os.environ:
        return False
    from tests.crash.every import ALL
    from tests.crash.test_crash_nested import NAMES

    return len(ours) >= len(ALL) + len(NAMES) and sum(ours.values()) < CRASH_STATES_MIN


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput") and too_few_crash_states(crash_counts(session.config)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts = crash_counts(terminalreporter.config)
    if counts:
        terminalreporter.write_line(f"{sum(counts.values())} distinct crash states judged in {len(counts)} tests")
    if too_few_crash_states(counts):
        terminalreporter.write_line(f"FAILED: fewer than {CRASH_STATES_MIN} crash states", red=True)


@pytest.fixture
def sim_seconds() -> float:
    """How long a simulation goes on: `make sim SECONDS=600`, a few seconds in `make test`."""
    return float(os.environ.get("SIM_SECONDS", SIM_SECONDS_DEFAULT))
