"""Batches that a group's thread has when the disk is full: all of them fail, and then writing goes on."""

from __future__ import annotations

import msgspec
import pytest

from topics.engine.ticket import Ticket
from topics.errors import CommitFailed, DiskFull
from topics.model.config import TopicConfig
from topics.model.record import RecordIn, WriteBatch, build_batch
from topics.model.results import Appended
from topics.model.submission import Submission
from topics.testing import SimFs
from topics.testing.driver import SimKernel


def records(count: int) -> WriteBatch:
    return build_batch([RecordIn(msgspec.Raw(b"1"))] * count)


class Thread:
    """Takes batches as the thread of group 0 does, and reports them when the test says so."""

    def __init__(self) -> None:
        self.sim = SimKernel.open(SimFs())
        self.sim.call(lambda engine: engine.put_topic("t", TopicConfig()))
        self.sim.call(lambda engine: engine.write("t", records(1)))
        self.wal = self.sim.kernel.store.groups[0]
        self.commit = self.sim.kernel.commit

    def take(self, count: int) -> tuple[Ticket[Appended], list[Submission]]:
        ticket = self.sim.submit(lambda engine: engine.write("t", records(count)))
        return ticket, self.commit.take(0, 1000, 1 << 20)

    def fill_disk(self, batch: list[Submission]) -> None:
        self.commit.write_failed(0, batch, CommitFailed("not_committed", cause=self.wal.latch("no_space")))

    def probe(self) -> str | None:
        self.sim.kernel.janitor.probe_space()
        self.sim.pump()
        return self.wal.read_only


def test_seqs_of_batches_that_failed_one_by_one_are_used_again() -> None:
    thread = Thread()
    first, second, third = thread.take(2), thread.take(3), thread.take(1)
    thread.fill_disk(first[1])
    with pytest.raises(DiskFull):
        thread.take(1)
    thread.commit.refuse(0, second[1])
    thread.commit.refuse(0, third[1])
    assert all(ticket.error is not None for ticket, _ in (first, second, third))
    assert thread.probe() is None
    assert thread.sim.call(lambda engine: engine.write("t", records(1))).first_seq == 2
    topic = thread.sim.engine.state.topics["t"]
    assert (topic.head, topic.staged_count, thread.commit.depth()) == (2, 0, 0)


def test_a_group_takes_no_writes_before_all_that_was_handed_over_has_failed() -> None:
    """A batch that is written after all would come without the one in front of it."""
    thread = Thread()
    first, second = thread.take(2), thread.take(3)
    thread.fill_disk(first[1])
    assert thread.probe() == "no_space"
    thread.commit.refuse(0, second[1])
    assert thread.probe() is None
    assert thread.commit.read_only_causes() == {}
