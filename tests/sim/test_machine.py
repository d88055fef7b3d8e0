"""The engine against the model, with every invariant of `docs/spec/semantics.md#sec-17` up to 40 named.

`make sim SECONDS=600` goes on with new seeds for as long as asked; a failure ends with the one command that repeats
it."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis.stateful import run_state_machine_as_test
from tests.crash.harness import Rig
from tests.sim.checks import Answer
from tests.sim.invariants import INVARIANTS, REACHED
from tests.sim.machine import RAN, EngineMachine

from topics.core.reading.walk import ReadRequest
from topics.model.names import parse_match
from topics.testing import SimFs

EXAMPLES, STEPS = 200, 50
STEPS_ASKED = 65
"""Hypothesis ends some examples early; with so many asked for, there are 50 in the mean."""
SEED = int(os.environ.get("SIM_SEED", "0"))
EXAMPLES_ASKED = int(os.environ.get("SIM_EXAMPLES", EXAMPLES))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def command(seed: int, examples: int) -> str:
    return f"SIM_SEED={seed} SIM_EXAMPLES={examples} .venv/bin/python -m pytest tests/sim/test_machine.py -k agrees"


def run(
    seed: int, examples: int, machine: type[EngineMachine] = EngineMachine, phases: Sequence[Phase] = tuple(Phase)
) -> None:
    """The same examples for the same numbers, whatever ran before."""
    fresh = type(machine.__name__, (machine,), {})
    given = settings(
        max_examples=examples, stateful_step_count=STEPS_ASKED, deadline=None, database=None,
        suppress_health_check=list(HealthCheck), print_blob=False, phases=list(phases),
    )  # fmt: skip
    try:
        run_state_machine_as_test(seeded(seed)(fresh), settings=given)
    except BaseException as error:
        error.add_note(f"again: {command(seed, examples)}")
        raise


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_engine_agrees_with_the_model(sim_seconds: float) -> None:
    before = RAN.copy()
    run(SEED, EXAMPLES_ASKED)
    examples, steps = (RAN[what] - before[what] for what in ("examples", "steps"))
    print(f"\n{examples} examples, {steps} steps")
    if "SIM_EXAMPLES" not in os.environ:
        assert examples >= EXAMPLES
        assert steps >= EXAMPLES * STEPS
        assert {*REACHED, 30} == set(INVARIANTS), "some invariant was never looked at"
    if "SIM_SECONDS" not in os.environ:
        return
    end, seed = time.monotonic() + sim_seconds, SEED + 1
    while time.monotonic() < end:
        run(seed, 50)
        seed += 1
    print(f"\nseeds {SEED}..{seed - 1} agree")


class Liar(EngineMachine):
    """Gives a reader one record more than it asked for."""

    def page(self, name: str, request: ReadRequest) -> Answer:
        got = super().page(name, request)
        return replace(got, rows=got.rows * 2) if len(got.rows) > 4 else got


def test_a_failure_says_which_command_repeats_it() -> None:
    told = []
    for _ in range(2):
        with pytest.raises(AssertionError) as caught:
            run(3, 40, Liar, [Phase.generate])
        told.append(str(caught.value))
        assert caught.value.__notes__[-1] == f"again: {command(3, 40)}"
    assert told[0] == told[1], "the same seed found something else"


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
