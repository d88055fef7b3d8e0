"""Crash at every disk call while caps, TTL and deletes move floors: no loss is told no more, and no floor comes undone.

Oracles: `tests/crash/ledger.py`. How many states there were is told at the end of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.crash.floors import FLOOR_WORKLOADS
from tests.crash.judging import judge_all
from tests.crash.workloads import Workload


@pytest.mark.timeout(600)
@pytest.mark.parametrize("workload", FLOOR_WORKLOADS, ids=lambda workload: workload.name)
def test_a_crash_at_any_call_keeps_every_floor_that_was_seen_and_tells_what_is_gone(
    workload: Workload, crash_states: Callable[[int], None]
) -> None:
    crash_states(judge_all(workload))
