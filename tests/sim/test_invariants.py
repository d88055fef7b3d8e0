"""A check that cannot fail checks nothing: for each invariant a lie is put in the engine's mouth, and the check of that
invariant alone has to notice it.

Number 30 is counted in calls, in `test_machine.py`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.core.model import Put, Rec
from tests.sim.checks import Answer, Facts, Row, row_of
from tests.sim.invariants import INVARIANTS, Broken, only
from tests.sim.machine import EngineMachine

from topics.core.reading.walk import ReadRequest

Lie = dict[str, Callable[..., Any]]
EXAMPLES, STEPS = 300, 50


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def facts(edit: Callable[[EngineMachine, Facts], Facts]) -> Lie:
    """The topic says something else of itself."""
    return {"facts": lambda self, name: edit(self, EngineMachine.facts(self, name))}


def page(edit: Callable[[EngineMachine, str, Answer], Answer]) -> Lie:
    """A reader is given something else."""
    return {"page": lambda self, name, request: edit(self, name, EngineMachine.page(self, name, request))}


def asked(edit: Callable[[ReadRequest], ReadRequest]) -> Lie:
    """A reader is given what another one asked for."""
    return {"page": lambda self, name, request: EngineMachine.page(self, name, edit(request))}


def said(edit: Callable[[Put], Put]) -> Lie:
    """A writer is told something else."""
    return {"said": lambda self, ticket: edit(EngineMachine.said(self, ticket))}


def kept_one_less(durability: str) -> Lie:
    """The newest record of a topic that nothing was lost from did not come back."""

    def edit(machine: EngineMachine, name: str) -> int:
        found, model = EngineMachine.kept_head(machine, name), machine.model.topic(name)
        return found - (found == model.head > 0 and model.config.durability == durability)

    return {"kept_head": edit}


def split_write(machine: EngineMachine, name: str) -> int:
    """The last record of a write that was under way did not come back, the others did."""
    found = EngineMachine.kept_head(machine, name)
    return found - any(len(batch.records) > 1 for batch in machine.model.topic(name).staged)


def calls(machine: Any) -> int:
    """Another number each time."""
    machine.lies_told = getattr(machine, "lies_told", 0) + 1
    return int(machine.lies_told)


def fewer(_: EngineMachine, __: str, got: Answer) -> Answer:
    return replace(got, rows=got.rows[:-1])


def now_and_then_fewer(machine: EngineMachine, _: str, got: Answer) -> Answer:
    return replace(got, rows=got.rows[: -(calls(machine) % 2) or None])


def no_gaps(_: EngineMachine, __: str, got: Answer) -> Answer:
    return replace(got, gaps=[])


def risen(*fates: str) -> Lie:
    """One that is gone appears again."""

    def edit(machine: EngineMachine, name: str, got: Answer) -> Answer:
        gone: list[Rec] = [rec for rec in machine.model.topic(name).log if rec.fate in fates]
        return replace(got, rows=[*map(row_of, gone[:1]), *got.rows])

    return page(edit)


def earlier(row: Row, ms: int) -> Row:
    return replace(row, ts=row.ts - ms)


def lower_head(_: EngineMachine, told: Facts) -> Facts:
    return replace(told, head=told.head - 2 if told.head % 3 == 0 else told.head)


def page_of_three(machine: EngineMachine, name: str, request: ReadRequest) -> Answer:
    got = EngineMachine.page(machine, name, request)
    return replace(got, rows=got.rows[1:]) if request.limit == 3 else got


def stuck(machine: EngineMachine, name: str, request: ReadRequest) -> Answer:
    got = EngineMachine.page(machine, name, request)
    return replace(got, next_from_seq=request.from_seq, caught_up=False) if got.rows else got


def opened_again(self: Any) -> None:
    EngineMachine.open(self)
    self.opened = getattr(self, "opened", 0) + 1


LIES: dict[int, Lie] = {
    1: said(lambda put: replace(put, first_seq=put.first_seq - 1)),
    2: said(lambda put: replace(put, first_seq=1)),
    3: facts(lower_head),
    4: page(fewer),
    5: {"kept_head": split_write},
    6: facts(lambda machine, told: replace(told, count=told.count + calls(machine))),
    7: page(lambda _, __, got: replace(got, rows=[*got.rows[:-1], *(earlier(row, 1) for row in got.rows[-1:])])),
    8: facts(lambda _, told: replace(told, head=told.head + 1)),
    9: facts(lambda _, told: replace(told, floor=told.earliest + 1)),
    10: facts(lambda _, told: replace(told, earliest=1 if told.head % 2 else told.earliest)),
    11: facts(lambda _, told: replace(told, earliest=1)),
    12: facts(lambda _, told: replace(told, bytes=told.bytes + 1)),
    13: facts(lambda _, told: replace(told, floor=told.earliest)),
    14: facts(lambda _, told: replace(told, floor=told.earliest)),
    15: risen("cap", "ttl"),
    16: page(no_gaps),
    17: page(lambda _, __, got: replace(got, gaps=got.gaps or [(1, 1, "cap")])),
    18: page(no_gaps),
    19: page(lambda _, __, got: replace(got, gaps=[(lo, hi + 1, why) for lo, hi, why in got.gaps])),
    20: page(lambda _, __, got: replace(got, gaps=got.gaps * 2)),
    21: {"page": page_of_three},
    22: page(no_gaps),
    23: facts(lambda _, told: replace(told, count=told.count + 1)),
    24: facts(lambda _, told: replace(told, count=min(told.count, 1))),
    25: facts(lambda machine, told: replace(told, count=told.count + calls(machine))),
    26: page(lambda _, __, got: replace(got, rows=[earlier(row, 501) for row in got.rows])),
    27: risen("deleted"),
    28: page(fewer),
    29: page(now_and_then_fewer),
    31: facts(lambda machine, told: replace(told, bytes=told.bytes + calls(machine))),
    32: page(lambda _, __, got: replace(got, rows=got.rows[::-1])),
    33: {"page": stuck},
    34: asked(lambda request: msgspec.structs.replace(request, limit=request.limit + 1)),
    35: asked(lambda request: msgspec.structs.replace(request, nodes=None)),
    36: said(lambda put: replace(put, first_seq=put.first_seq + 1)),
    37: kept_one_less("fsync"),
    38: kept_one_less("disk"),
    39: page(lambda _, __, got: replace(got, rows=[replace(row, data=b"9" * len(row.data)) for row in got.rows])),
    40: {
        "open": opened_again,
        "facts": lambda self, name: replace(EngineMachine.facts(self, name), count=self.opened),
    },
    56: {"manifest": lambda self, name: [(lo, hi + 1, live) for lo, hi, live in EngineMachine.manifest(self, name)]},
}


def test_every_invariant_has_a_lie() -> None:
    assert sorted([*LIES, 30]) == sorted(INVARIANTS) == [*range(1, 41), 56]


@pytest.mark.parametrize("number", LIES)
def test_the_check_of_an_invariant_notices_when_it_is_broken(number: int) -> None:
    liar = type("Liar", (EngineMachine,), LIES[number])
    given = settings(
        max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, database=None, print_blob=False,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate],
    )  # fmt: skip
    with only(number), pytest.raises(Broken, match=f"invariant {number} is broken"):
        run_state_machine_as_test(seed(number)(liar), settings=given)
