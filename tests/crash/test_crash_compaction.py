"""Crash at every disk call while superseded records are taken (`docs/spec/readers.md#sec-7`).

Oracles: `tests/crash/ledger.py`; what superseded a record that is gone is there, and no removed tag comes back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.crash.compacted import COMPACT_WORKLOADS
from tests.crash.judging import judge_all
from tests.crash.workloads import Workload


@pytest.mark.timeout(600)
@pytest.mark.parametrize("workload", COMPACT_WORKLOADS, ids=lambda workload: workload.name)
def test_a_crash_at_any_call_keeps_the_newest_of_each_tag(
    workload: Workload, crash_states: Callable[[int], None]
) -> None:
    crash_states(judge_all(workload))
