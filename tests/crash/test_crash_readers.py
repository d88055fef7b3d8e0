"""Crash at every disk call while cursors are committed, reset, taken over and deleted, and while writers say which
version they expect (`docs/spec/readers.md`).

Oracles: `tests/crash/ledger.py`; after a start, versions are those that a reader finds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.crash.judging import judge_all
from tests.crash.readers import READER_WORKLOADS
from tests.crash.workloads import Workload


@pytest.mark.timeout(600)
@pytest.mark.parametrize("workload", READER_WORKLOADS, ids=lambda workload: workload.name)
def test_a_crash_at_any_call_keeps_cursors_and_versions(
    workload: Workload, crash_states: Callable[[int], None]
) -> None:
    crash_states(judge_all(workload))
