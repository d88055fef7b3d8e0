"""Crash at every disk call of a long story in which files of every age take part.

Oracles: `tests/crash/ledger.py`. How many states there were is told at the end of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.crash.judging import judge_all
from tests.crash.workloads import MIXED_WORKLOADS, Workload


@pytest.mark.timeout(600)
@pytest.mark.parametrize("workload", MIXED_WORKLOADS, ids=lambda workload: workload.name)
def test_a_crash_at_any_call_of_a_long_story_keeps_what_was_promised(
    workload: Workload, crash_states: Callable[[int], None]
) -> None:
    crash_states(judge_all(workload))
