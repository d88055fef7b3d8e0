"""What meets in a turn is decided as if each command had had a turn of its own: answers, seqs, records, restarts.

The same random commands go to two engines with one time. One carries out each before the next is given; the other is
given all commands of a turn, and then the turn ends: so writes travel together, and configs, deletes and drops come
between them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import msgspec
import pytest
from tests.crash.harness import read_all
from tests.crash.ledger import Seen

from topics.core.reading.walk import ReadRequest
from topics.engine.engine import Engine
from topics.engine.ticket import Ticket, failed
from topics.errors import TopicsError
from topics.model.config import patch_from, resolve_config
from topics.model.names import parse_match
from topics.model.record import RecordIn, build_batch
from topics.model.results import Appended
from topics.testing import SimClock, SimFs
from topics.testing.driver import SimKernel

SEEDS = int(os.environ.get("TURN_SEEDS", "40"))
FIRST = int(os.environ.get("TURN_FIRST", "0"))
TURNS = 12
NAMES = "tttuuv"
TAGS = (None, None, "a", "ab", "b")
Command = Callable[[Engine], Ticket[Any]]


class Joined(Ticket[list[Any]]):
    """Writes of one record that go together, as connections bring them; or one by one, if they may not."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.answers: list[Any] = [None] * count

    def written(self, first_seq: int, count: int, *, epoch: int, written_s: float, sync_ms: float) -> None:
        assert count == len(self.answers)
        self.resolve([(seq, 1, seq, False) for seq in range(first_seq, first_seq + count)])

    def follow(self, at: int, write: Callable[[], Ticket[Appended]]) -> None:
        try:
            write().then(lambda done: self._note(at, said(done)))
        except TopicsError as error:
            self._note(at, error.code)

    def _note(self, at: int, answer: Any) -> None:
        self.answers[at] = answer
        if None not in self.answers:
            self.resolve(self.answers)


class Twin:
    def __init__(self, *, is_patient: bool, settings: dict[str, Any]) -> None:
        self.is_patient = is_patient
        self.clock = SimClock()
        self.disk = SimFs()
        self.settings = settings
        self.sim = SimKernel.open(self.disk, clock=self.clock, **settings)
        self.tickets: list[Ticket[Any]] = []

    def give(self, command: Command) -> None:
        try:
            self.tickets.append(command(self.sim.engine))
        except TopicsError as error:
            self.tickets.append(failed(error))
        if not self.is_patient:
            self.sim.pump()

    def end_turn(self) -> list[Any]:
        self.sim.pump()
        tickets, self.tickets = self.tickets, []
        return [said(ticket) for ticket in tickets]

    def shown(self) -> dict[str, tuple[Seen, list[Any]]]:
        return {name: (read_all(self.sim, name), self.rows(name)) for name in sorted(self.sim.engine.state.topics)}

    def rows(self, name: str) -> list[Any]:
        """What `read_all` leaves out."""
        topic = self.sim.engine.state.topics[name]
        assert (topic.staged_count, topic.staged_bytes) == (0, 0), "nothing is on its way"
        outcome = self.sim.call(lambda engine: engine.read(name, ReadRequest(from_seq=0, limit=10_000))).outcome
        rows = [(stored.ts, stored.node, stored.tag) for run in outcome.runs for stored in run.records()]
        return [topic.bytes, topic.reserved_head, *rows]

    def restart(self) -> None:
        self.disk.kill()
        self.disk = self.disk.reboot()
        self.sim = SimKernel.open(self.disk, clock=self.clock, **self.settings)


def said(ticket: Ticket[Any]) -> Any:
    assert ticket.done, "a command was never answered"
    if ticket.error is not None:
        assert isinstance(ticket.error, TopicsError), ticket.error
        return ticket.error.code
    value = ticket.value
    if isinstance(value, Appended):
        return (value.first_seq, value.count, value.head, value.deduped)
    if isinstance(value, list):
        return value
    return getattr(value, "deleted", None)  # the rest of it tells of the moment


# --- commands ---------------------------------------------------------------------------------------------------------


class Commands:
    """Random, the same for the same seed. While time moves in a turn no name is held: who waits for one gets a later
    time."""

    def __init__(self, rng: Random, *, in_one_moment: bool) -> None:
        self.rng = rng
        self.made = 0
        self.bases = {name: self._base(may_expire=in_one_moment) for name in "tuv"}
        self.makers = [self.write] * 9 + [self.join] * 6 + [self.delete] * 2
        if in_one_moment:
            self.makers += [self.put, self.put, self.drop]

    def _base(self, *, may_expire: bool) -> dict[str, Any]:
        """What stays in every config of a name: what it took lately may still be due when it changes."""
        rng = self.rng
        base: dict[str, Any] = {"idempotency_window_ms": rng.choice([0, 60_000])}
        if rng.random() < 0.3:
            base["cap_bytes"] = rng.choice([30, 200])
        if may_expire and rng.random() < 0.3:
            base["ttl_ms"] = rng.choice([2, 50])
        if rng.random() < 0.2:
            base |= {"cap_bytes": 200, "discard": "reject"}
        return base

    def next(self) -> Command:
        return self.rng.choice(self.makers)(self.rng.choice(NAMES))

    def put(self, name: str) -> Command:
        rng = self.rng
        given = {"durability": rng.choice(["memory", "disk", "fsync"]), "cap_records": rng.choice([0, 0, 2, 9])}
        config = resolve_config(patch_from({**self.bases[name], **given}))
        return lambda engine: engine.put_topic(name, config)

    def drop(self, name: str) -> Command:
        return lambda engine: engine.drop_topic(name)

    def delete(self, name: str) -> Command:
        """Where floors move by time or bytes, those of the turn before it may or may not have moved when it comes."""
        if self.bases[name].keys() & {"ttl_ms", "cap_bytes"}:
            return self.write(name)
        before = self.rng.choice([None, self.rng.randrange(60)])
        match = parse_match(self.rng.choice(["a", "a*", "b"])) if before is None or self.rng.random() < 0.5 else None
        return lambda engine: engine.delete_records(name, before_seq=before, match=match)

    def write(self, name: str) -> Command:
        rng = self.rng
        records = [self._record() for _ in range(rng.choice([1, 1, 2, 3, 5, 257 if rng.random() < 0.1 else 4]))]
        key, node = rng.choice([None] * 8 + ["k1", "k2"]), rng.choice([None, None, "n"])
        batch = build_batch(records, default_node=node, idempotency_key=key)
        return lambda engine: engine.write(name, batch)

    def join(self, name: str) -> Command:
        records = [self._record() for _ in range(self.rng.choice([1, 1, 2, 4]))]

        def give(engine: Engine) -> Ticket[Any]:
            ticket = Joined(len(records))
            if not engine.join(name, build_batch(records), ticket, runs=[1] * len(records)):
                for at, record in enumerate(records):
                    ticket.follow(at, partial(engine.write, name, build_batch([record])))
            return ticket

        return give

    def _record(self) -> RecordIn:
        self.made += 1
        rng, text = self.rng, b'"%d.%b"' % (self.made, b"x" * self.rng.choice([0, 0, 20]))
        meta = rng.choice([msgspec.UNSET] * 5 + [msgspec.Raw(b'{"k":1}')])
        return RecordIn(msgspec.Raw(text), tag=rng.choice(TAGS), node=rng.choice([None, None, "m", ""]), meta=meta)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_a_turn_of_many_commands_is_as_many_turns_of_one(seed: int) -> None:
    rng = Random(seed)
    settings = {
        "wal_shards": rng.choice([1, 2]),
        "wal_file_bytes": rng.choice([4096, 1 << 16]),
        "seq_reserve": rng.choice([1, 4, 64, 256]),
        "segment_max_events": 5,
    }
    in_one_moment = rng.random() < 0.5
    twins = [Twin(is_patient=is_patient, settings=settings) for is_patient in (False, True)]
    commands = Commands(rng, in_one_moment=in_one_moment)
    for name in "tuv":
        created = commands.put(name)
        for twin in twins:
            twin.sim.call(created)
    for _ in range(TURNS):
        for _ in range(rng.randint(1, 9)):
            command, elapsed_ms = commands.next(), 0 if in_one_moment else rng.choice([0, 0, 0, 1])
            for twin in twins:
                twin.give(command)
                twin.clock.advance(elapsed_ms)
        said_at_once, said_in_turn = (twin.end_turn() for twin in twins)
        assert said_in_turn == said_at_once
        assert twins[1].shown() == twins[0].shown()
        elapsed_ms, looks_back = rng.choice([0, 1, 30]), rng.random() < 0.2
        for twin in twins:
            twin.clock.advance(elapsed_ms)
            if looks_back:
                twin.sim.snapshot()
    for twin in twins:
        twin.restart()
    assert twins[1].shown() == twins[0].shown()
