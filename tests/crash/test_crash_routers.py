"""Crash at every disk call while a router copies: no copy is renamed, none is missing in silence.

Oracles: `tests/crash/ledger.py`. How many states there were is told at the end of the run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice

import pytest
from tests.crash.every import BY_NAME
from tests.crash.harness import Rig
from tests.crash.judging import Judge, distinct_states, judge_all, noted
from tests.crash.workloads import ROUTER_WORKLOADS, Workload
from tests.engine.world import DeferredRouting


def _routed(rig: Rig, durability: str) -> None:
    rig.create("a", durability)
    rig.create("b", durability)
    rig.router("r", "a", "b")
    rig.write("a", 2)
    rig.look("b")


def _die_before_their_turn(rig: Rig) -> None:
    """Records of the source die before the router comes by, around a snapshot whose pieces lie far apart."""
    driver, engine, deferred = rig.sim.driver, rig.sim.engine, DeferredRouting()
    at_once = engine.context.pressure
    driver.hold_background = True
    rig.sim.kernel.snapshotter.run()
    for turn in range(2):
        engine.attach_delivery(deferred)
        rig.write("a", 1, tag="dead")
        rig.write("a", 1)
        rig.delete("a", match="dead")
        if turn:
            rig.delete("a", before_seq=rig.sim.engine.state.topics["a"].head)
        engine.attach_delivery(at_once)
        deferred.run()
        rig.look("b")
    while driver.step_background():
        rig.sim.pump()
        rig.write("a", 1)
        rig.look("b")
    driver.hold_background = False


LAGGING_WORKLOADS = [
    Workload(f"die-before-their-turn-{durability}", partial(_routed, durability=durability), _die_before_their_turn)
    for durability in ("fsync", "disk")
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("workload", [*ROUTER_WORKLOADS, *LAGGING_WORKLOADS], ids=lambda workload: workload.name)
def test_a_crash_at_any_call_renames_no_copy_and_drops_none_in_silence(
    workload: Workload, crash_states: Callable[[int], None]
) -> None:
    crash_states(judge_all(workload))


def test_a_start_behind_one_that_cut_the_log_announces_nothing_more() -> None:
    """The bytes that the first start set aside are still there at the second one, which has nothing to say of them."""
    workload = BY_NAME["meanwhile-fsync"]
    for number, state in enumerate(islice(distinct_states(workload, seed=1, fineness=24), 140)):
        with noted(str(state)):
            Judge(workload)(state, number)  # one that knows no outcome yet starts each state twice
