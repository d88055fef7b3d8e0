"""Named cursors of the whole engine beside a model that shares no code with it: any order of commits, resets,
take-overs, deletes, appends, checkpoints, snapshots and ends (`docs/spec/readers.md#sec-1`)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.crash.harness import settings_of

from topics.engine.ticket import Ticket
from topics.errors import CursorFenced, CursorForeign
from topics.model.config import TopicConfig
from topics.model.cursor import CursorPut, PositionCommit
from topics.model.position import Position
from topics.model.record import build_plain_batch
from topics.testing import SimClock, SimFs, SimHost
from topics.testing.driver import SimKernel

SIZES = {"wal_file_bytes": 4096, "segment_max_events": 5, "seq_reserve": 8}
names = st.sampled_from(["a", "b", "c"])
places = st.integers(0, 110)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@dataclass(frozen=True)
class Told:
    """A cursor as its owner knows it."""

    seq: int = 0
    fence: int = 0
    owner: str | None = None


class CursorMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk, self.clock, self.host = SimFs(), SimClock(), SimHost()
        self.cursors: dict[str, Told] = {}
        self.durable: dict[str, set[Told | None]] = {}  # what a power cut may leave of each
        self.head = 0
        self.open()

    def open(self) -> None:
        given = settings_of(tuple(sorted(SIZES.items())))
        self.sim = SimKernel.open(self.disk, clock=self.clock, host=self.host, settings=given)

    @initialize(durability=st.sampled_from(["disk", "fsync"]))
    def begin(self, durability: str) -> None:
        config = TopicConfig(durability=durability, durable=durability == "fsync")  # type: ignore[arg-type]
        self.sim.call(lambda engine: engine.put_topic("t", config))
        self.append(9)

    @rule(count=st.integers(1, 6))
    def append(self, count: int) -> None:
        batch = build_plain_batch([b"1"] * count)
        self.head = self.sim.call(lambda engine: engine.write("t", batch)).head

    # --- cursors --------------------------------------------------------------------------------------------------

    def seq_at(self, place: int) -> int:
        return round(place / 100 * self.head)

    def become(self, name: str, told: Told | None, *, synced: bool) -> None:
        if told is None:
            self.cursors.pop(name, None)
        else:
            self.cursors[name] = told
        kept = set() if synced else self.durable.get(name, {None})
        self.durable[name] = {*kept, told}

    @rule(name=names, place=places, fence=st.sampled_from([None, None, 1, 2]), sync=st.booleans())
    def commit(self, name: str, place: int, fence: int | None, sync: bool) -> None:
        known, seq = self.cursors.get(name), self.seq_at(place)
        refused = self.refusal(name, seq, fence)
        try:
            request = PositionCommit(Position(seq), fence, sync=sync)
            state = self.sim.call(lambda engine: engine.cursors.commit("t", name, request))
        except (CursorForeign, CursorFenced) as error:
            assert type(error) is refused, f"{error!r}, and the model says {refused}"
            return
        assert refused is None, f"a commit was taken that the model refuses: {refused}"
        told = replace(known or Told(), seq=max(seq, known.seq if known else 0))
        assert state.created is (known is None)
        assert state.moved is (known is None or told != known)
        self.become(name, told, synced=sync)

    def refusal(self, name: str, seq: int, fence: int | None) -> type[Exception] | None:
        if seq > self.head:
            return CursorForeign
        known = self.cursors.get(name) or Told()
        return CursorFenced if (fence or 0) != known.fence else None

    @rule(name=names, place=st.none() | st.integers(0, 100), owner=st.sampled_from([None, "x", "y"]))
    def put(self, name: str, place: int | None, owner: str | None) -> None:
        known = self.cursors.get(name) or Told()
        to = None if place is None else Position(self.seq_at(place))
        self.sim.call(lambda engine: engine.cursors.put("t", name, CursorPut(to, owner=owner)))
        seq = known.seq if to is None else to.seq
        self.become(name, Told(seq, known.fence + (owner is not None), owner or known.owner), synced=True)

    @rule(name=names)
    def drop(self, name: str) -> None:
        gone = self.sim.call(lambda engine: engine.cursors.drop("t", name))
        assert gone.deleted is (name in self.cursors)
        self.become(name, None, synced=True)

    @rule(name=names, owner=st.sampled_from(["x", "y"]), place=st.integers(0, 100))
    def overtaken(self, name: str, owner: str, place: int) -> None:
        """A commit of the old owner that is under way together with a take-over, behind it, does not count."""
        known, seq = self.cursors.get(name), self.seq_at(place)
        if known is None:
            return
        self.sim.submit(lambda engine: engine.cursors.put("t", name, CursorPut(owner=owner)))
        late: Ticket[Any] = self.sim.submit(
            lambda engine: engine.cursors.commit("t", name, PositionCommit(Position(seq), known.fence or None))
        )
        self.sim.pump()
        assert isinstance(late.error, CursorFenced), late
        self.become(name, replace(known, fence=known.fence + 1, owner=owner), synced=True)

    # --- files and ends -------------------------------------------------------------------------------------------

    @rule()
    def checkpoint(self) -> None:
        self.sim.checkpoint()

    @rule()
    def snapshot(self) -> None:
        self.sim.snapshot()

    @rule(kind=st.sampled_from(["clean", "kill", "power"]), seed=st.integers(0, 1 << 16))
    def restart(self, kind: str, seed: int) -> None:
        if kind == "clean":
            self.sim.close()
        elif kind == "kill":
            self.disk.kill()
            self.disk = self.disk.reboot()
        else:
            self.disk.power_cut(Random(seed))
            self.disk = self.disk.reboot()
            self.host.reboot()
        self.open()
        self.head = self.sim.engine.state.topics["t"].head
        if kind == "power":
            found = self.found()
            for name, allowed in self.durable.items():
                assert found.get(name) in allowed, f"{name} is {found.get(name)}, and may be one of {allowed}"
            self.cursors = found
        self.durable = {name: {self.cursors.get(name)} for name in self.durable}

    def found(self) -> dict[str, Told]:
        cursors = self.sim.engine.state.topics["t"].cursors.values()
        return {cursor.name: Told(cursor.seq, cursor.fence, cursor.owner) for cursor in cursors}

    # --- after every step -----------------------------------------------------------------------------------------

    @invariant()
    def cursors_are_the_models(self) -> None:
        if "t" not in self.sim.engine.state.topics:
            return
        assert self.found() == self.cursors
        shown = self.sim.engine.cursors.of_topic("t")
        assert [(state.cursor, state.seq, state.lag.records) for state in shown] == [
            (name, told.seq, self.sim.engine.cursors.get("t", name).lag.records)
            for name, told in sorted(self.cursors.items())
        ]
        assert all(0 <= state.lag.records <= self.head - state.seq for state in shown)


TestCursorMachine = CursorMachine.TestCase
TestCursorMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
