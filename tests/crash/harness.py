"""Harness: an engine on a simulated disk whose every answer is written into a ledger."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any

import msgspec
from tests.crash.ledger import Instance, Ledger, Seen, Write

from topics.config import Settings
from topics.core.manifest import stored_blocks
from topics.core.reading.walk import ReadRequest
from topics.core.topic import TopicLog
from topics.engine.engine import Engine
from topics.engine.ticket import Ticket
from topics.errors import TopicsError, VersionConflict
from topics.model.config import patch_from, resolve_config
from topics.model.names import parse_match
from topics.model.record import Expected, RecordIn, WriteBatch, build_batch
from topics.model.router import Guarantee, RouterDef
from topics.storage.fs import Fs
from topics.testing.clock import SimClock, SimHost
from topics.testing.driver import SimKernel

SMALL: dict[str, Any] = {
    "data_dir": "data",
    "wal_shards": 1,
    "wal_file_bytes": 4096,
    "segment_max_events": 4,
    "seq_reserve": 8,
}


@lru_cache(maxsize=64)
def settings_of(given: tuple[tuple[str, Any], ...]) -> Settings:
    return Settings.from_kwargs(**{**SMALL, **dict(given)})


class Joined:
    """Who waits for writes that were given together."""

    def __init__(self, instance: Instance, writes: list[Write]) -> None:
        self.instance = instance
        self.writes = writes

    def written(self, first_seq: int, count: int, *, epoch: int, written_s: float, sync_ms: float) -> None:
        assert count == len(self.writes)
        self.instance.created = True
        for seq, write in enumerate(self.writes, first_seq):
            write.first_seq = seq

    def fail(self, error: BaseException) -> None:
        for write in self.writes:
            write.failed = True

    abandon = fail


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
        self.sim = SimKernel.open(
            fs, clock=self.clock, host=host or SimHost(), settings=settings_of(tuple(sorted(settings.items())))
        )

    # --- topics ---------------------------------------------------------------------------------------------------

    def create(self, name: str, durability: str = "disk", **config: Any) -> Instance:
        instance = self.ledger.begin(name, durability, cap=config.get("cap_records", 0))
        instance.mortal = bool(config.get("cap_bytes") or config.get("ttl_ms"))
        if config.get("type") == "queue":
            instance.queue = "kept" if config.get("leases_durable") else "forgotten"
            instance.dead_letter = config.get("dead_letter") or ""
        self._put_topic(name, durability, config)
        instance.created = True
        return instance

    def configure(self, name: str, durability: str = "disk", **config: Any) -> None:
        instance = self.ledger.instance(name)
        instance.cap = min(filter(None, (instance.cap, config.get("cap_records", 0))), default=0)
        instance.mortal |= bool(config.get("cap_bytes") or config.get("ttl_ms"))
        instance.ephemeral |= durability == "ephemeral"
        self._put_topic(name, durability, config)
        instance.durability = durability

    def _put_topic(self, name: str, durability: str, config: dict[str, Any]) -> None:
        resolved = resolve_config(patch_from({"durability": durability, **config}))
        self.sim.call(lambda engine: engine.put_topic(name, resolved))

    def drop(self, name: str) -> None:
        instance = self.ledger.instance(name)
        instance.dropping = True
        self.sim.call(lambda engine: engine.drop_topic(name))
        instance.dropped = True

    def router(self, name: str, source: str, dest: str, *, once: bool = False) -> None:
        """The destination is a topic of the ledger already."""
        instance = self.ledger.instance(dest)
        instance.fed_by, instance.once = (source,), once
        guarantee: Guarantee = "exactly_once" if once else "at_least_once"
        self.sim.call(
            lambda engine: engine.routers.put(RouterDef(name=name, source=source, dest=dest, guarantee=guarantee))
        )

    # --- records --------------------------------------------------------------------------------------------------

    def write(self, name: str, count: int = 1, *, tag: str | None = None, size: int = 4) -> None:
        self.finish(self.submit(name, count, tag=tag, size=size))

    def submit(
        self, name: str, count: int = 1, *, tag: str | None = None, size: int = 4, expected: Expected | None = None
    ) -> tuple[Write, Ticket[Any] | None]:
        """Give a write without waiting for it."""
        self.ledger.writes_made += 1
        tokens = [f"{name}.{self.ledger.writes_made}.{at}.{'x' * size}" for at in range(count)]
        instance = self.ledger.instance(name)
        write = Write(tokens, instance.durability)
        instance.writes.append(write)
        batch = build_batch([RecordIn(data=msgspec.Raw(msgspec.json.encode(token)), tag=tag) for token in tokens])
        return write, self._submit(name, instance, write, msgspec.structs.replace(batch, expected=expected))

    def remove_tag(self, name: str, tag: str) -> None:
        """A payload of null; its token is in its meta."""
        self.ledger.writes_made += 1
        instance = self.ledger.instance(name)
        write = Write([f"null.{name}.{self.ledger.writes_made}"], instance.durability)
        instance.writes.append(write)
        meta = msgspec.Raw(msgspec.json.encode({"token": write.tokens[0]}))
        batch = build_batch([RecordIn(data=msgspec.Raw(b"null"), tag=tag, meta=meta)])
        self.finish((write, self._submit(name, instance, write, batch)))

    def _submit(self, name: str, instance: Instance, write: Write, batch: WriteBatch) -> Ticket[Any] | None:
        try:
            ticket = self.sim.submit(lambda engine: engine.write(name, batch))
        except TopicsError as error:
            write.failed, write.refused = True, isinstance(error, VersionConflict)
            return None
        ticket.then(lambda done: self._told(instance, write, done))
        return ticket

    def join(self, name: str, count: int, *, size: int = 4) -> None:
        """Writes of one record each, given together as connections bring them, without waiting for them."""
        instance = self.ledger.instance(name)
        records, writes = [], []
        for _ in range(count):
            self.ledger.writes_made += 1
            token = f"{name}.{self.ledger.writes_made}.0.{'x' * size}"
            records.append(RecordIn(data=msgspec.Raw(msgspec.json.encode(token))))
            writes.append(Write([token], instance.durability))
        instance.writes += writes
        if not self.sim.engine.join(name, build_batch(records), Joined(instance, writes), runs=[1] * count):
            for record, write in zip(records, writes, strict=True):
                self._submit(name, instance, write, build_batch([record]))

    @staticmethod
    def _told(instance: Instance, write: Write, done: Ticket[Any]) -> None:
        if done.error is None:
            write.first_seq = done.result().first_seq
            instance.created = True
        else:
            write.failed, write.refused = True, isinstance(done.error, VersionConflict)

    def finish(self, submitted: tuple[Write, Ticket[Any] | None]) -> None:
        self.sim.pump()
        assert submitted[1] is None or submitted[1].done

    def look(self, name: str) -> None:
        """Read a fed topic, and remember which copies were to be seen at which seqs."""
        instance = self.ledger.instance(name)
        own = set(self.ledger.tokens(name))
        instance.copies |= {seq: token for seq, token in read_all(self.sim, name).records.items() if token not in own}

    def observe(self, name: str) -> None:
        """Ask for the topic's state, and read once from every cursor up to its front; remember what the answers told
        of floors: `earliest_seq`, and for which cursors a loss at the front."""
        state = self.sim.call(lambda engine: engine.topic_state(name))
        self._saw(name, earliest=state.earliest_seq)
        for cursor in range(state.earliest_seq):
            outcome = self.sim.call(lambda engine, at=cursor: engine.read(name, ReadRequest(from_seq=at))).outcome  # type: ignore[misc]
            gap = outcome.tombstone
            is_prefix = gap is not None and gap.gap_from == cursor + 1 and gap.gap_to + 1 == gap.earliest_seq
            is_lost_range = len(self.sim.engine.state.topics[name].lost) > 0
            self._saw(name, earliest=outcome.earliest_seq, floor=cursor + 2 if is_prefix and not is_lost_range else 1)

    def _saw(self, name: str, *, earliest: int, floor: int = 1) -> None:
        instance = self.ledger.instance(name)
        assert earliest >= instance.earliest_seen, f"{name}: earliest_seq fell"
        instance.earliest_seen = earliest
        instance.floor_seen = max(instance.floor_seen, floor)

    def delete(self, name: str, *, before_seq: int | None = None, match: str | None = None) -> None:
        instance = self.ledger.instance(name)
        doomed = self._doomed(name, before_seq, match)
        instance.deleting |= doomed
        selector = None if match is None else parse_match(match)
        self.sim.call(lambda engine: engine.delete_records(name, before_seq=before_seq, match=selector))
        instance.deleted |= doomed

    def _doomed(self, name: str, before_seq: int | None, match: str | None) -> set[int]:
        tags: dict[int, str] = {}
        seen = read_all(self.sim, name, tags=tags)
        return {
            seq
            for seq in seen.records
            if (before_seq is None or seq < before_seq) and (match is None or _fits(match, tags.get(seq)))
        }

    def compact(self, name: str) -> None:
        """Let the background work take everything that is superseded by now."""
        instance, tags = self.ledger.instance(name), dict[int, str]()
        tokens = read_all(self.sim, name, tags=tags).records
        by_tag: dict[str, list[int]] = {}
        for seq, tag in sorted(tags.items()):
            by_tag.setdefault(tag, []).append(seq)
        doomed = set[int]()
        for *older, newest in by_tag.values():
            instance.superseded |= dict.fromkeys(older, newest)
            doomed |= set(older)
            if tokens[newest].startswith("null."):
                instance.nulls[newest] = older
                doomed.add(newest)
        instance.deleting |= doomed
        topic = self.sim.engine.state.topics[name]
        for _ in range(100):
            self.tick()
            if topic.compacted_to == topic.head:
                break
        left = doomed & set(read_all(self.sim, name).records)
        assert not left, f"{name}: compaction left {sorted(left)}"
        instance.deleted |= doomed

    # --- queues ---------------------------------------------------------------------------------------------------

    def claim(self, name: str, count: int = 1, *, node: str = "w", lease_ms: int = 30_000) -> list[int]:
        claimed = self.sim.call(lambda engine: engine.queues.claim(name, node=node, max=count, lease_ms=lease_ms))
        return [job.seq for job in claimed.jobs]

    def ack(self, name: str, seqs: list[int], *, node: str = "w") -> None:
        instance = self.ledger.instance(name)
        instance.deleting |= set(seqs)
        self.sim.call(lambda engine: engine.queues.ack(name, node=node, seqs=seqs))
        instance.deleted |= set(seqs)

    def nack(self, name: str, seqs: list[int], *, node: str = "w", **more: Any) -> None:
        self.sim.call(lambda engine: engine.queues.nack(name, node=node, seqs=seqs, **more))

    # --- background -----------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        self.sim.checkpoint()

    def snapshot(self) -> None:
        self.sim.snapshot()

    def tick(self, advance_ms: int = 1_100) -> None:
        self.clock.advance(advance_ms)
        self.sim.tick()

    def call(self, command: Callable[[Engine], Ticket[Any]]) -> Any:
        return self.sim.call(command)


def _fits(match: str, tag: str | None) -> bool:
    return tag is not None and (tag == match or (match.endswith("*") and tag.startswith(match[:-1])))


_DECODER = msgspec.json.Decoder(dict[str, Any])


def read_all(sim: SimKernel, name: str, *, tags: dict[int, str] | None = None) -> Seen:
    """Everything a reader gets that starts at 0 and follows its cursor."""
    records: dict[int, str] = {}
    gaps: list[tuple[int, int]] = []
    cursor = 0
    for _ in range(10_000):
        request = ReadRequest(from_seq=cursor, limit=50)
        outcome = sim.call(lambda engine, request=request: engine.read(name, request)).outcome  # type: ignore[misc]
        if outcome.tombstone is not None:
            gaps.append((outcome.tombstone.gap_from, outcome.tombstone.gap_to))
        for run in outcome.runs:
            for stored in run.records():
                assert stored.seq > cursor, "seqs must grow"
                cursor = stored.seq
                payload = _DECODER.decode(stored.blob)
                records[cursor] = payload["m"]["token"] if payload["d"] is None else payload["d"]
                if tags is not None and stored.tag is not None:
                    tags[cursor] = stored.tag.decode()
        cursor = outcome.next_from_seq
        if outcome.caught_up:
            topic = sim.engine.state.topics[name]
            check_manifest(topic, set(records))
            return _agreed(topic, records, gaps)
    raise AssertionError("a reader never catches up")


def check_manifest(topic: TopicLog, live: set[int]) -> None:
    """What a bulk reader is told: blocks that are disjoint and ascending, each live record in one, and its count."""
    blocks = stored_blocks(topic)
    spans = [(block.first_seq, block.last_seq) for block in blocks]
    assert all(lo <= hi for lo, hi in spans), f"{topic.name}: a block of {spans} is empty"
    assert all(one[1] < two[0] for one, two in pairwise(spans)), f"{topic.name}: blocks overlap: {spans}"
    held = [sum(lo <= seq <= hi for seq in live) for lo, hi in spans]
    assert sum(held) == len(live), f"{topic.name}: {spans} hold {sum(held)} of {len(live)} live records"
    assert held == [block.live for block in blocks], f"{topic.name}: blocks {blocks} hold {held} live records"
    assert all(held), f"{topic.name}: a block of {spans} holds nothing"


def _agreed(topic: TopicLog, records: dict[int, str], gaps: list[tuple[int, int]]) -> Seen:
    """What a full read gave is what the topic says of itself, whatever happened to it."""
    name, head, earliest = topic.name, topic.head, topic.earliest_seq
    assert topic.count == len(records), f"{name}: count {topic.count}, but {len(records)} can be read"
    assert earliest == min(records, default=head + 1), f"{name}: earliest_seq {earliest} is not the first record"
    assert 1 <= topic.evict_floor <= earliest <= head + 1, f"{name}: floors out of order"
    cursors = {cursor.name: (cursor.seq, cursor.fence) for cursor in topic.cursors.values()}
    return Seen(records, gaps, head, earliest, topic.evict_floor, topic.count, topic.config, cursors)


def survey(sim: SimKernel) -> dict[str, Seen]:
    """Every topic; twice over those that routers feed, whose destinations may fill while others are read."""
    return {name: read_all(sim, name) for name in list(sim.engine.state.topics)}
