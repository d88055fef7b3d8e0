"""Crash at every disk call while caps, TTL and deletes move the floors of a destination that a router feeds.

Oracles: `tests/crash/ledger.py`. How many states there were is told at the end of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.crash.floors import ROUTED_FLOOR_WORKLOADS
from tests.crash.judging import judge_all
from tests.crash.workloads import Workload


@pytest.mark.timeout(600)
@pytest.mark.parametrize("workload", ROUTED_FLOOR_WORKLOADS, ids=lambda workload: workload.name)
def test_a_crash_at_any_call_keeps_the_floors_of_a_destination_and_tells_what_is_gone(
    workload: Workload, crash_states: Callable[[int], None]
) -> None:
    crash_states(judge_all(workload))
