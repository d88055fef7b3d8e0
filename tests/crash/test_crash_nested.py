"""Crash again: in every call of the start after a crash, and right after it has served, as rows 99 and 100 ask.

Oracles: `tests/crash/ledger.py`; what the first start showed to a reader must be there after the second crash.

Rows are those of `docs/fault-matrix.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from tests.crash.every import BY_NAME
from tests.crash.harness import Rig, survey
from tests.crash.judging import LATER_MS, collecting_rarely, distinct_states, fingerprint, noted
from tests.crash.ledger import Ledger, check
from tests.crash.workloads import Workload

from topics.testing.clock import SimClock, SimHost
from topics.testing.crashes import CrashPoints, CrashState
from topics.testing.faultfs import FaultFs

SAMPLES = 3
NAMES = (
    "append",
    "batch",
    "group-commit",
    "rotation",
    "checkpoint",
    "seal",
    "snapshot",
    "prune",
    "delete",
    "rewrite",
    "relocation",
    "drop-and-recreate",
    "switch-classes",
    "one-to-three",
    "count-checkpoint-disk",
    "count-unseen-fsync",
    "bytes-snapshot-disk",
    "ttl-checkpoint-fsync",
    "routed-count-checkpoint-fsync",
    "routed-count-unseen-disk",
)


def crashes_after(workload: Workload, state: CrashState, rng: Random) -> list[CrashState]:
    """Start on the state, read everything, write and checkpoint once; every crash on the way."""
    ledger = state.note
    assert isinstance(ledger, Ledger)
    ledger = ledger.copy()
    points = CrashPoints(state.disk, note=ledger.copy)
    host = SimHost() if state.how == "kill" else SimHost("boot-2")
    rig = Rig(FaultFs(state.disk, hook=points.before, record=False), ledger, clock=SimClock(LATER_MS), host=host,
              **workload.settings)  # fmt: skip
    for name, seen in survey(rig.sim).items():
        instance = ledger.instance(name)
        instance.served = dict(seen.records)
        instance.earliest_seen, instance.floor_seen = seen.earliest, seen.floor
        if state.how != "kill":
            # What this crash took is accounted for: a later one is judged by what was acked after it.
            instance.gone |= {seq for seq in instance.acked() if seq not in seen.records and seen.announced(seq)}
        rig.write(name, 1)
    rig.checkpoint()
    points.end()
    return list(points.states(rng=rng, patterns=("lose_all", "random")))


def judge_second(workload: Workload, first: CrashState, second: CrashState) -> None:
    ledger = second.note
    assert isinstance(ledger, Ledger)
    host = SimHost("boot-3") if second.how != "kill" else SimHost() if first.how == "kill" else SimHost("boot-2")
    rig = Rig(second.disk, ledger.copy(), clock=SimClock(LATER_MS + 1000), host=host, **workload.settings)
    check(ledger, survey(rig.sim), power_cut=first.how != "kill" or second.how != "kill")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_a_crash_in_the_start_after_a_crash_and_right_after_serving_breaks_no_promise(
    name: str, crash_states: Callable[[int], None]
) -> None:
    workload, rng = replace(BY_NAME[name], fineness=3), Random(name)
    met: set[bytes] = set()
    for first in rng.sample(list(distinct_states(workload)), SAMPLES):
        for second in collecting_rarely(crashes_after(workload, first, rng)):
            known = fingerprint(second)
            if known not in met:
                met.add(known)
                with noted(f"workload {name}: {first}; then {second}"):
                    judge_second(workload, first, second)
    crash_states(len(met))
