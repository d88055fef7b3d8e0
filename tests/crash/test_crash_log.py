"""Crash at every disk call of appends, batches, rotations and class changes: nothing acked is lost or renamed.

Oracles: `tests/crash/ledger.py`. How many states there were is told at the end of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.crash.judging import judge_all
from tests.crash.workloads import LOG_WORKLOADS, ONE_TOPIC_WORKLOADS, ONE_TURN_WORKLOADS, Workload


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "workload", [*LOG_WORKLOADS, *ONE_TOPIC_WORKLOADS, *ONE_TURN_WORKLOADS], ids=lambda workload: workload.name
)
def test_a_crash_at_any_call_keeps_what_was_promised(workload: Workload, crash_states: Callable[[int], None]) -> None:
    crash_states(judge_all(workload))
