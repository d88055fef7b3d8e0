"""Writes that wait for room, and what becomes of their topic meanwhile."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.crash.harness import read_all

from topics.engine.ticket import Ticket
from topics.model.config import TopicConfig, patch_from, resolve_config
from topics.model.record import RecordIn, WriteBatch, build_batch
from topics.model.results import Appended
from topics.testing import SimClock, SimFs
from topics.testing.driver import SimKernel


def config(**fields: Any) -> TopicConfig:
    return resolve_config(patch_from(fields))


def record(number: int) -> WriteBatch:
    return build_batch([RecordIn(msgspec.Raw(b"%d" % number))])


class Waiting:
    """A topic whose next write has to wait until the expired record before it is gone."""

    def __init__(self) -> None:
        clock = SimClock()
        self.sim = SimKernel.open(SimFs(), clock=clock)
        self.sim.call(lambda engine: engine.put_topic("t", config(ttl_ms=5, cap_records=3, discard="reject")))
        self.sim.call(lambda engine: engine.write("t", record(1)))
        clock.advance(10)

    def write(self) -> Ticket[Appended]:
        return self.sim.submit(lambda engine: engine.write("t", record(2)))

    def records(self) -> list[str]:
        assert self.sim.engine.state.staged_bytes == 0
        assert self.sim.engine.state.topics["t"].staged_count == 0
        return list(read_all(self.sim, "t").records.values())


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_write_that_waited_is_decided_by_the_config_that_came_meanwhile(durability: str) -> None:
    waiting = Waiting()
    write = waiting.write()
    changed = waiting.sim.submit(lambda engine: engine.put_topic("t", config(durability=durability)))
    waiting.sim.pump()
    assert changed.result().config.durability == durability
    assert write.result().first_seq == 2
    assert waiting.sim.call(lambda engine: engine.write("t", record(3))).first_seq == 3
    assert waiting.sim.engine.state.topics["t"].head == 3
    assert len(waiting.records()) == 2


def test_a_write_that_waited_goes_with_the_topic_that_was_dropped_behind_it() -> None:
    waiting = Waiting()
    write = waiting.write()
    waiting.sim.submit(lambda engine: engine.drop_topic("t"))
    waiting.sim.pump()
    assert write.result().first_seq == 2
    assert waiting.sim.engine.state.topics == {}
    assert waiting.sim.engine.state.staged_bytes == 0
