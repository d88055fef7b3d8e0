"""Crash at every disk call while a router copies: no copy is renamed, none is missing in silence.

Oracles: `tests/crash/ledger.py`. How many states there were is told at the end of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.crash.judging import judge_all
from tests.crash.workloads import ROUTER_WORKLOADS, Workload


@pytest.mark.timeout(600)
@pytest.mark.parametrize("workload", ROUTER_WORKLOADS, ids=lambda workload: workload.name)
def test_a_crash_at_any_call_renames_no_copy_and_drops_none_in_silence(
    workload: Workload, crash_states: Callable[[int], None]
) -> None:
    crash_states(judge_all(workload))
