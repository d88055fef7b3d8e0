"""Crash at every disk call, then start with other shard counts: the state is the same.

Oracles: `tests/crash/ledger.py`. How many states there were is told at the end of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.crash.judging import judge_all
from tests.crash.workloads import LAYOUT_WORKLOADS, Workload


@pytest.mark.timeout(600)
@pytest.mark.parametrize("workload", LAYOUT_WORKLOADS, ids=lambda workload: workload.name)
def test_a_crash_at_any_call_and_another_shard_count_change_nothing(
    workload: Workload, crash_states: Callable[[int], None]
) -> None:
    crash_states(judge_all(workload))
