"""The engine against the model, with every invariant of semantics.md section 17 up to 40 named.

`make sim SECONDS=600` goes on with new examples for as long as asked; a failure prints the command that repeats it."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import seed as seeded
from hypothesis.stateful import run_state_machine_as_test
from tests.crash.harness import Rig
from tests.sim.machine import INVARIANTS, EngineMachine

from topics.model.match import parse_match
from topics.testing import SimFs

EXAMPLES, STEPS = 200, 50
SEED = int(os.environ.get("SIM_SEED", "0"))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def run(seed: int, examples: int) -> None:
    machine = type("EngineMachine", (EngineMachine,), {})
    given = settings(
        max_examples=examples, stateful_step_count=STEPS, deadline=None, database=None,
        suppress_health_check=list(HealthCheck), print_blob=False,
    )  # fmt: skip
    try:
        run_state_machine_as_test(seeded(seed)(machine), settings=given)
    except BaseException as error:
        error.add_note(f"again: SIM_SEED={seed} .venv/bin/python -m pytest tests/sim/test_machine.py -k agrees")
        raise


def test_every_invariant_up_to_40_has_a_check_with_a_name() -> None:
    assert sorted([*INVARIANTS, 30]) == list(range(1, 41))
    assert all(callable(getattr(EngineMachine, name)) for name in INVARIANTS.values())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_engine_agrees_with_the_model(sim_seconds: float) -> None:
    run(SEED, EXAMPLES)
    if "SIM_SECONDS" not in os.environ:
        return
    end, seed = time.monotonic() + sim_seconds, SEED + 1
    while time.monotonic() < end:
        run(seed, 50)
        seed += 1
    print(f"\nseeds {SEED}..{seed - 1} agree")


@pytest.mark.parametrize("sealed", [False, True])
def test_the_work_of_a_delete_by_tag_does_not_grow_with_the_log(sealed: bool) -> None:
    """Invariant 30, in calls of functions, which do not depend on the machine."""
    assert calls_of_a_delete(4000, sealed=sealed) <= calls_of_a_delete(500, sealed=sealed) * 1.2


def calls_of_a_delete(count: int, *, sealed: bool) -> int:
    rig = Rig(SimFs(), wal_file_bytes=1 << 20, segment_max_events=1 << 20)
    rig.create("t")
    rig.write("t", 3, tag="wanted")
    rig.write("t", count, tag="other")
    if sealed:
        rig.checkpoint()
        rig.write("t", 1)
    rig.delete("t", match="nothing")  # the index of the newest records is built when it is first asked
    calls = 0

    def count_calls(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    match = parse_match("wanted")
    sys.setprofile(count_calls)
    try:
        done = rig.sim.call(lambda engine: engine.delete_records("t", before_seq=None, match=match))
    finally:
        sys.setprofile(None)
    assert done.deleted == 3
    return calls
