"""Crash at every disk call of every workload, as a kill and as power cuts of every pattern; restart, judge, restart.

Oracles: `tests/crash/ledger.py`. The number of states is printed at the end of the run (`-s`)."""

from __future__ import annotations

from random import Random

import pytest
from tests.crash.harness import Rig, dump, read_all, survey
from tests.crash.ledger import Ledger, check
from tests.crash.workloads import WORKLOADS, Workload

from topics.testing import SimFs
from topics.testing.clock import SimClock, SimHost
from topics.testing.crashes import CrashPoints, CrashState
from topics.testing.faultfs import FaultFs
from topics.testing.orderfs import OrderFs, OrderMonitor


def states_of(workload: Workload, seed: int) -> list[CrashState]:
    """Run the workload once and give every crash it could have had."""
    disk, ledger, clock = SimFs(), Ledger(), SimClock()
    points = CrashPoints(disk, note=ledger.copy)
    hooked = FaultFs(OrderFs(disk, OrderMonitor()))
    rig = Rig(hooked, ledger, clock=clock, **workload.settings)
    workload.before(rig)
    hooked.hook = points.before
    workload.story(rig)
    points.end()
    return list(points.states(rng=Random(seed)))


def judge(workload: Workload, state: CrashState) -> None:
    ledger = state.note
    assert isinstance(ledger, Ledger)
    power_cut = state.how != "kill"
    host = SimHost("boot-2") if power_cut else SimHost()
    rig = Rig(state.disk, ledger.copy(), clock=SimClock(1_755_000_100_000), host=host, **workload.settings)
    check(ledger, survey(rig.sim), power_cut=power_cut)
    before = dump(rig.sim)
    state.disk.kill()
    again = Rig(state.disk.reboot(), ledger.copy(), clock=SimClock(1_755_000_200_000), host=host, **workload.settings)
    assert dump(again.sim) == before, "the second restart shows another state"
    for name in list(again.sim.engine.state.topics):
        _next_seq_is_new(again, name)


def _next_seq_is_new(rig: Rig, name: str) -> None:
    instance = rig.ledger.instance(name)
    taken = max([*instance.acked(), *read_all(rig.sim, name).records, 0])
    rig.write(name, 1)
    first_seq = instance.writes[-1].first_seq
    assert first_seq is not None
    assert first_seq > taken, f"{name}: seq {first_seq} was used before"


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_crash_at_every_call(workload: Workload) -> None:
    states = states_of(workload, seed=1)
    for state in states:
        try:
            judge(workload, state)
        except BaseException as error:
            error.add_note(f"workload {workload.name}: {state}")
            raise
    print(f"\n{workload.name}: {len(states)} states")
