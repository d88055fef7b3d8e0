"""Workloads of readers, and of writers that say what they expect (`docs/spec/readers.md`): commits, resets, take-overs
and deletes of named cursors, and appends with a version, with a crash at every call of them."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.crash.harness import Rig
from tests.crash.ledger import ACKED, ASKED, SYNCED, CursorFact
from tests.crash.workloads import Workload

from topics.engine.ticket import Ticket
from topics.errors import CursorFenced
from topics.model.cursor import CursorPut, PositionCommit
from topics.model.position import Position
from topics.model.record import Expected


def _state(rig: Rig, cursor: str) -> tuple[int, int]:
    facts = rig.ledger.instance("t").cursors.get(cursor, ())
    return (facts[-1][0] if facts else None) or (0, 0)


def _ask(rig: Rig, cursor: str, fact: CursorFact, level: int, ticket: Ticket[Any]) -> None:
    """The cursor was asked to become this; when the answer comes, it is as safe as `level` says."""
    told = rig.ledger.instance("t").cursors
    at = len(told.get(cursor, ()))
    told[cursor] = (*told.get(cursor, ()), (fact, ASKED))

    def answered(done: Ticket[Any]) -> None:
        assert done.error is None, done.error
        told[cursor] = (*told[cursor][:at], (fact, level), *told[cursor][at + 1 :])

    ticket.then(answered)


def commit(rig: Rig, cursor: str, seq: int, *, fence: int | None = None, sync: bool = False) -> None:
    before = _state(rig, cursor)
    request = PositionCommit(Position(seq), fence, sync=sync)
    ticket = rig.sim.submit(lambda engine: engine.cursors.commit("t", cursor, request))
    _ask(rig, cursor, (max(seq, before[0]), before[1]), SYNCED if sync else ACKED, ticket)
    rig.sim.pump()


def put(rig: Rig, cursor: str, *, seq: int | None = None, owner: str | None = None) -> None:
    before = _state(rig, cursor)
    to = None if seq is None else Position(seq)
    ticket = rig.sim.submit(lambda engine: engine.cursors.put("t", cursor, CursorPut(to, owner=owner)))
    fact = (before[0] if seq is None else seq, before[1] + (owner is not None))
    _ask(rig, cursor, fact, SYNCED, ticket)


def drop(rig: Rig, cursor: str) -> None:
    _ask(rig, cursor, None, SYNCED, rig.sim.submit(lambda engine: engine.cursors.drop("t", cursor)))
    rig.sim.pump()


def _read(rig: Rig, durability: str) -> None:
    rig.create("t", durability)
    rig.write("t", 4)
    commit(rig, "a", 1)


def _readers(rig: Rig) -> None:
    commit(rig, "a", 2)
    rig.write("t", 2)
    commit(rig, "b", 3, sync=True)
    commit(rig, "a", 1)  # below: it stays
    put(rig, "b", seq=1)
    rig.sim.pump()
    commit(rig, "b", 2)
    put(rig, "a", owner="x")
    rig.sim.pump()
    commit(rig, "a", 4, fence=1)
    rig.checkpoint()
    commit(rig, "a", 5, fence=1)
    put(rig, "a", owner="y")
    late = rig.sim.submit(lambda engine: engine.cursors.commit("t", "a", PositionCommit(Position(6), 1)))
    rig.sim.pump()
    assert isinstance(late.error, CursorFenced), "the first owner committed behind the second one"
    drop(rig, "b")
    commit(rig, "c", 2)
    rig.snapshot()
    commit(rig, "a", 6, fence=2)


def expecting(rig: Rig, tag: str, expected: int, *, writers: int = 1) -> int:
    """Writes in one turn that expect the same of a tag: one of them is taken. Gives its seq, 0 if none was."""
    rig.ledger.instance("t").guarded |= {tag}
    wanted = Expected(tags=((tag, expected),))
    writes = [rig.submit("t", 1, tag=tag, expected=wanted)[0] for _ in range(writers)]
    rig.sim.pump()
    taken = [write.first_seq for write in writes if write.first_seq is not None]
    assert len(taken) <= 1, f"{taken} expected the same"
    assert all(write.acked or write.refused for write in writes)
    return taken[0] if taken else 0


def _versioned(rig: Rig, durability: str) -> None:
    rig.create("t", durability)
    assert expecting(rig, "a", 0) == 1


def _expect(rig: Rig) -> None:
    a = expecting(rig, "a", 1, writers=2)
    b = expecting(rig, "b", 0, writers=3)
    assert (a > 1, expecting(rig, "a", 1), expecting(rig, "b", 0)) == (True, 0, 0)
    rig.checkpoint()
    a = expecting(rig, "a", a)
    b = expecting(rig, "b", b, writers=2)
    rig.snapshot()
    assert expecting(rig, "a", a) > b > 0
    rig.delete("t", match="b")
    assert expecting(rig, "b", 0) > 0


READER_WORKLOADS = [
    *(
        Workload(f"cursors-{durability}", partial(_read, durability=durability), _readers, fineness=0)
        for durability in ("disk", "fsync", "ephemeral")
    ),
    *(
        Workload(f"versions-{durability}", partial(_versioned, durability=durability), _expect, fineness=0)
        for durability in ("disk", "fsync")
    ),
]
