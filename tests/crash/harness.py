"""Harness: an engine on a simulated disk whose every answer is written into a ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from tests.crash.ledger import Instance, Ledger, Seen, Write, token_of

from topics.core.read import ReadRequest
from topics.engine.engine import Engine
from topics.engine.ticket import Ticket
from topics.errors import TopicsError
from topics.formats.blob import split_blob
from topics.model.config import patch_from, resolve_config
from topics.model.match import parse_match
from topics.model.record import RecordIn, build_batch
from topics.storage.fs import Fs
from topics.testing.clock import SimClock, SimHost
from topics.testing.driver import SimKernel

SMALL: dict[str, Any] = {"wal_shards": 1, "wal_file_bytes": 4096, "segment_max_events": 4, "seq_reserve": 8}


class Rig:
    """An open engine and the ledger of what it said."""

    def __init__(
        self,
        fs: Fs,
        ledger: Ledger | None = None,
        *,
        clock: SimClock | None = None,
        host: SimHost | None = None,
        **settings: Any,
    ) -> None:
        self.ledger = ledger or Ledger()
        self.clock = clock or SimClock()
        self.sim = SimKernel.open(fs, clock=self.clock, host=host or SimHost(), **{**SMALL, **settings})
        self._writes = 0

    # --- verbs, each noting what it was told ----------------------------------------------------------------------

    def create(self, name: str, durability: str = "disk", **config: Any) -> None:
        instance = self.ledger.begin(name, durability, cap=config.get("cap_records", 0))
        resolved = resolve_config(patch_from({"durability": durability, **config}))
        self.sim.call(lambda engine: engine.put_topic(name, resolved))
        instance.created = True

    def write(self, name: str, count: int = 1, *, tag: str | None = None, size: int = 4) -> None:
        self.finish(self.submit(name, count, tag=tag, size=size))

    def submit(
        self, name: str, count: int = 1, *, tag: str | None = None, size: int = 4
    ) -> tuple[Write, Ticket[Any] | None]:
        """Give a write without waiting for it."""
        self._writes += 1
        tokens = [f"{name}.{self._writes}.{at}.{'x' * size}" for at in range(count)]
        instance = self.ledger.instance(name)
        write = Write(tokens)
        instance.writes.append(write)
        batch = build_batch([RecordIn(data=msgspec.Raw(msgspec.json.encode(token)), tag=tag) for token in tokens])
        try:
            ticket = self.sim.submit(lambda engine: engine.write(name, batch))
        except TopicsError:
            write.failed = True
            return write, None
        ticket.then(lambda done: self._told(instance, write, done))
        return write, ticket

    @staticmethod
    def _told(instance: Instance, write: Write, done: Ticket[Any]) -> None:
        if done.error is None:
            write.first_seq = done.result().first_seq
            instance.created = True
            instance.head_seen = max(instance.head_seen, done.result().last_seq)
        else:
            write.failed = True

    def finish(self, submitted: tuple[Write, Ticket[Any] | None]) -> None:
        self.sim.pump()
        assert submitted[1] is None or submitted[1].done

    def delete(self, name: str, *, before_seq: int | None = None, match: str | None = None) -> None:
        instance = self.ledger.instance(name)
        doomed = self._doomed(name, before_seq, match)
        instance.deleting |= doomed
        selector = None if match is None else parse_match(match)
        self.sim.call(lambda engine: engine.delete_records(name, before_seq=before_seq, match=selector))
        instance.deleted |= doomed

    def _doomed(self, name: str, before_seq: int | None, match: str | None) -> set[int]:
        seen = read_all(self.sim, name, tags=True)
        doomed = set()
        for seq, token in seen.records.items():
            tag = self._tags.get(seq) if match is not None else None
            fits = match is None or (
                tag is not None and (tag == match or (match.endswith("*") and tag.startswith(match[:-1])))
            )
            if fits and (before_seq is None or seq < before_seq):
                doomed.add(seq)
        del token
        return doomed

    @property
    def _tags(self) -> dict[int, str]:
        return LAST_TAGS

    def drop(self, name: str) -> None:
        instance = self.ledger.instance(name)
        instance.dropping = True
        self.sim.call(lambda engine: engine.drop_topic(name))
        instance.dropped = True

    def checkpoint(self) -> None:
        self.sim.checkpoint()

    def snapshot(self) -> None:
        self.sim.snapshot()

    def tick(self, advance_ms: int = 1_100) -> None:
        self.clock.advance(advance_ms)
        self.sim.tick()

    def call(self, command: Callable[[Engine], Ticket[Any]]) -> Any:
        return self.sim.call(command)


LAST_TAGS: dict[int, str] = {}


def read_all(sim: SimKernel, name: str, *, tags: bool = False) -> Seen:
    """Everything a reader gets that starts at 0 and follows its cursor."""
    records: dict[int, str] = {}
    gaps: list[tuple[int, int]] = []
    cursor = 0
    if tags:
        LAST_TAGS.clear()
    for _ in range(10_000):
        outcome = sim.call(lambda engine, at=cursor: engine.read(name, ReadRequest(from_seq=at, limit=7))).outcome  # type: ignore[misc]
        if outcome.tombstone is not None:
            gaps.append((outcome.tombstone.gap_from, outcome.tombstone.gap_to))
        for run in outcome.runs:
            for stored in run.records():
                assert stored.seq > cursor, "seqs must grow"
                cursor = stored.seq
                records[stored.seq] = token_of(split_blob(stored.blob)[0])
                if tags and stored.tag is not None:
                    LAST_TAGS[stored.seq] = stored.tag.decode()
        cursor = outcome.next_from_seq
        if outcome.caught_up:
            return Seen(records, gaps, outcome.head_seq, outcome.earliest_seq)
    raise AssertionError("a reader never catches up")


def survey(sim: SimKernel) -> dict[str, Seen]:
    return {name: read_all(sim, name) for name in list(sim.engine.state.topics)}


def dump(sim: SimKernel) -> dict[str, Any]:
    """The state as far as a restart must keep it."""
    return {
        topic.name: (
            topic.id,
            topic.config,
            topic.head,
            topic.earliest_seq,
            topic.evict_floor,
            topic.count,
            topic.bytes,
            sorted(read_all(sim, topic.name).records.items()),
            read_all(sim, topic.name).gaps,
        )
        for topic in sim.engine.state.by_id.values()
    }
