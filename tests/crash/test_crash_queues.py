"""Crash at every disk call of claims, acks, nacks and dead letters: no job is lost, none comes twice.

Oracles: `tests/crash/ledger.py`. How many states there were is told at the end of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.crash.judging import judge_all
from tests.crash.workloads import QUEUE_WORKLOADS, Workload


@pytest.mark.timeout(600)
@pytest.mark.parametrize("workload", QUEUE_WORKLOADS, ids=lambda workload: workload.name)
def test_a_crash_at_any_call_loses_and_doubles_no_job(workload: Workload, crash_states: Callable[[int], None]) -> None:
    crash_states(judge_all(workload))
