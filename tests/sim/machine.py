"""The whole engine on a simulated disk beside a model that shares no code with it, step by step.

`INVARIANTS` says for each invariant of semantics.md section 17 which method checks it. A crash is the disk's to decide:
how many of the newest records it kept is read off the engine, and the rules say how few that may be."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.core.model import Config, Model, Put, Rec, Refused
from tests.crash.harness import settings_of

from topics.core.read import ReadOutcome, ReadRequest
from topics.engine.ticket import Ticket
from topics.errors import RecordTooLarge, TopicFull, TopicNotEmpty
from topics.model.config import TopicConfig
from topics.model.match import TagMatch
from topics.model.record import RecordIn, WriteBatch, build_batch
from topics.testing import POWER_PATTERNS, SimClock, SimFs, SimHost
from topics.testing.driver import SimKernel

INVARIANTS = {
    1: "acked", 2: "acked", 3: "check_watermarks", 4: "full_read", 5: "landed", 6: "landed", 7: "full_read",
    8: "check_state", 9: "check_watermarks", 10: "check_watermarks", 11: "full_read", 12: "full_read",
    13: "delete", 14: "check_state", 15: "check_watermarks", 16: "check_page", 17: "check_page", 18: "full_read",
    19: "check_page", 20: "check_page", 21: "full_read", 22: "recreate", 23: "check_retention", 24: "refused",
    25: "refused", 26: "check_page", 27: "full_read", 28: "delete", 29: "delete", 31: "background", 32: "check_page",
    33: "full_read", 34: "check_page", 35: "check_page", 36: "twice_at_once", 37: "landed", 38: "landed",
    39: "full_read", 40: "restart",
}  # fmt: skip
"""Number 30, the work of a delete by tag, is counted in `test_machine.py`."""

TAGS = ["a", "ab", "abc", "b", ""]
NODES = ["n1", "n2", ""]
SIZES = {"wal_file_bytes": 4096, "segment_max_events": 5, "seq_reserve": 8, "recent_cache_bytes": 600}
REWRITE = {"rewrite_min_dead_bytes": 1, "rewrite_dead_ratio": 0.3}

names = st.sampled_from(["t", "t", "t", "u"])
places = st.integers(0, 100)
rows = st.lists(
    st.builds(
        Rec,
        st.integers(1, 40).map(lambda size: b"1" * size),
        st.none() | st.sampled_from(TAGS),
        st.none() | st.sampled_from(NODES),
    ),
    min_size=1,
    max_size=7,
)
configs = st.builds(
    Config,
    ttl_ms=st.sampled_from([0, 0, 0, 50, 500]),
    cap_records=st.sampled_from([0, 0, 0, 1, 5, 12]),
    cap_bytes=st.sampled_from([0, 0, 0, 40, 200]),
    discard=st.sampled_from(["old", "old", "reject"]),
    durability=st.sampled_from(["disk", "disk", "memory", "fsync", "ephemeral"]),
    idempotency_window_ms=st.sampled_from([0, 100, 120_000]),
    dedupe_node=st.booleans(),
)
matches = st.tuples(st.sampled_from(["Eq", "Glob"]), st.sampled_from(TAGS))
keys = st.none() | st.sampled_from(["k1", "k2", "k3"])


def real_config(config: Config) -> TopicConfig:
    given: dict[str, Any] = vars(config)
    return TopicConfig(**given, durable=config.durability == "fsync")


def real_batch(records: list[Rec], key: str | None) -> WriteBatch:
    made = [RecordIn(data=msgspec.Raw(rec.data), tag=rec.tag, node=rec.node) for rec in records]
    return build_batch(made, idempotency_key=key)


def stored(outcome: ReadOutcome) -> list[Any]:
    return [record for run in outcome.runs for record in run.records()]


class EngineMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = SimFs()
        self.clock = SimClock()
        self.host = SimHost()
        self.shards = 1
        self.open()
        self.model = Model(now=self.clock.wall_ms())
        self.high: dict[tuple[str, int], tuple[int, int, int]] = {}
        self.crashed = False

    def open(self) -> None:
        given = {**SIZES, **REWRITE, "wal_shards": self.shards}
        settings = settings_of(tuple(sorted(given.items())))
        self.sim = SimKernel.open(self.disk, clock=self.clock, host=self.host, settings=settings)

    def real(self, name: str) -> Any:
        return self.sim.engine.state.topics[name]

    def seq_at(self, name: str, place: int) -> int:
        return round(place / 100 * (self.model.topic(name).head + 2))

    # --- topics ---------------------------------------------------------------------------------------------------

    @initialize(config=configs, shards=st.sampled_from([1, 1, 2]))
    def begin(self, config: Config, shards: int) -> None:
        self.restart_with(shards)
        self.create("t", config)
        self.create("u", Config())

    def create(self, name: str, config: Config) -> None:
        self.sim.call(lambda engine: engine.put_topic(name, real_config(config)))
        self.model.create(name, config)
        self.model.topic(name).epoch = self.real(name).epoch

    @rule(name=names, config=configs)
    def put_topic(self, name: str, config: Config) -> None:
        """`ephemeral` and the window of keys are chosen at creation: what changing them keeps is tested by itself."""
        old = self.model.topic(name).config
        fixed = {"ephemeral"} & {old.durability, config.durability}
        durability = old.durability if fixed else config.durability
        config = replace(config, durability=durability, idempotency_window_ms=old.idempotency_window_ms)
        self.sim.call(lambda engine: engine.put_topic(name, real_config(config)))
        self.model.set_config(name, config)
        self.check_state()

    @rule(config=configs, if_empty=st.booleans())
    def recreate(self, config: Config, if_empty: bool) -> None:
        """22: a reader with a cursor of the old life is told so once, and then gets all of the new one."""
        if if_empty and self.model.state("u")["count"]:
            try:
                self.sim.call(lambda engine: engine.drop_topic("u", if_empty=True))
            except TopicNotEmpty:
                return
            raise AssertionError("a topic with records was dropped as empty")
        epoch = self.real("u").epoch
        self.sim.call(lambda engine: engine.drop_topic("u"))
        self.model.drop("u")
        self.create("u", config)
        self.put("u", [Rec(b"7")], None)
        told = self.page("u", ReadRequest(from_seq=0, epoch=epoch))
        assert told.tombstone is not None
        assert told.tombstone.reason == "recreated"
        assert [record.seq for record in stored(told)] == [rec.seq for rec in self.model.topic("u").live]
        again = self.page("u", ReadRequest(from_seq=told.next_from_seq, epoch=self.real("u").epoch))
        assert again.tombstone is None

    # --- writes ---------------------------------------------------------------------------------------------------

    @rule(name=names, records=rows, key=keys)
    def put(self, name: str, records: list[Rec], key: str | None) -> None:
        before = self.facts(name)
        try:
            expected: Any = self.model.put(name, records, key)
        except Refused as refused:
            self.refused(name, records, key, refused.code, before)
            return
        ticket = self.sim.submit(lambda engine: engine.write(name, real_batch(records, key)))
        self.sim.pump()
        self.acked(name, ticket, expected)
        self.check_state()

    def acked(self, name: str, ticket: Ticket[Any], expected: Put) -> None:
        """1, 2: consecutive seqs behind every earlier one, which are the model's; 36: a repeat has the first one's."""
        done = ticket.result()
        assert (done.first_seq, done.count, done.head) == (expected.first_seq, expected.count, expected.head_seq)
        assert done.deduped == expected.deduped

    def refused(self, name: str, records: list[Rec], key: str | None, code: str, before: Any) -> None:
        """24, 25: it changes nothing, and what was acked stays."""
        try:
            self.sim.call(lambda engine: engine.write(name, real_batch(records, key)))
        except (RecordTooLarge, TopicFull) as error:
            assert error.code == code
            assert self.facts(name) == before
            return
        raise AssertionError(f"a write was taken that the model refuses: {code}")

    @rule(name=names, records=rows)
    def twice_at_once(self, name: str, records: list[Rec]) -> None:
        """36: two writes with one key under way together append one batch."""
        if self.model.topic(name).config.discard == "reject" or not self.model.topic(name).config.idempotency_window_ms:
            return
        try:
            expected = self.model.put(name, records, "pair")
        except Refused:
            return
        tickets = [self.sim.submit(lambda engine: engine.write(name, real_batch(records, "pair"))) for _ in range(2)]
        self.sim.pump()
        seqs = {(ticket.result().first_seq, ticket.result().count) for ticket in tickets}
        assert seqs == {(expected.first_seq, expected.count)}
        self.check_state()

    # --- deletes --------------------------------------------------------------------------------------------------

    @rule(name=names, before=st.none() | places, match=st.none() | matches)
    def delete(self, name: str, before: int | None, match: tuple[str, str] | None) -> None:
        """13: the floor stays; 28, 29: exactly the model's records go."""
        if before is None and match is None:
            return
        before_seq = None if before is None else self.seq_at(name, before)
        chosen = None if match is None else TagMatch(match[0], match[1])  # type: ignore[arg-type]
        gone = self.model.delete(name, before_seq=before_seq, match=match)
        floor = self.model.topic(name).evict_floor
        done = self.sim.call(lambda engine: engine.delete_records(name, before_seq=before_seq, match=chosen))
        assert done.deleted == gone
        assert self.real(name).evict_floor == floor
        self.check_state()

    # --- time and background --------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 10, 51, 120, 501, 5_100]))
    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        self.model.advance(ms)
        self.sim.tick()
        self.check_state()

    @rule(step=st.sampled_from(["checkpoint", "checkpoint", "snapshot", "sync_all", "tick"]))
    def background(self, step: str) -> None:
        """31: none of it changes what anyone can see."""
        self.settle()
        before = [self.facts(name) for name in self.model.topics]
        getattr(self.sim, step)()
        assert [self.facts(name) for name in self.model.topics] == before
        self.check_state()

    # --- restarts -------------------------------------------------------------------------------------------------

    @rule(
        kind=st.sampled_from(["clean", "kill", "kill", *POWER_PATTERNS]),
        seed=st.integers(0, 99),
        shards=st.sampled_from([1, 1, 1, 2, 3]),
        late=st.lists(rows, max_size=3),
        turns=st.integers(0, 9),
    )
    def restart(self, kind: str, seed: int, shards: int, late: list[list[Rec]], turns: int) -> None:
        """Some writes may be under way. 40: starting once more changes nothing."""
        self.settle()
        under_way = self.begin_late(late) if kind != "clean" else []
        for _ in range(turns if under_way else 0):
            self.sim.driver.turn()
        if kind not in ("clean", "kill"):
            self.harden()
        acked = [ticket for _, ticket in under_way if ticket.done and ticket.error is None]
        self.crash(kind, seed, shards)
        for name in self.model.topics:
            late_here = [batch for batch, _ in under_way] if name == "t" else []
            self.landed(name, kind, late_here, len(acked) if name == "t" else 0)
        self.check_state()
        seen = {name: (self.facts(name), self.follow(name, 50)) for name in self.model.topics}
        self.crash("kill", 0, shards)
        assert {name: (self.facts(name), self.follow(name, 50)) for name in self.model.topics} == seen
        for name in self.model.topics:
            self.model.topic(name).keys = self.surviving_keys(name)

    def begin_late(self, late: list[list[Rec]]) -> list[tuple[list[Rec], Ticket[Any]]]:
        config = self.model.topic("t").config
        if config.discard == "reject" or config.cap_bytes or config.cap_records or config.durability == "ephemeral":
            return []
        return [
            (records, self.sim.submit(lambda engine, records=records: engine.write("t", real_batch(records, None))))
            for records in late
        ]

    def harden(self) -> None:
        """`memory` promises nothing in a power cut, and the floor of a count cap follows the appends behind it: where
        either plays a part, the bytes are synced first, so that the model can know the outcome."""
        if any(t.config.durability == "memory" or t.config.cap_records for t in self.model.topics.values()):
            self.sim.sync_all()

    def restart_with(self, shards: int) -> None:
        self.shards = shards
        self.sim.close()
        self.open()

    def crash(self, kind: str, seed: int, shards: int) -> None:
        self.shards = shards
        if kind == "clean":
            self.sim.close()
        elif kind == "kill":
            self.disk.kill()
            self.disk = self.disk.reboot()
        else:
            self.disk.power_cut(Random(seed), kind)
            self.disk = self.disk.reboot()
            self.host.reboot()
        self.crashed |= kind != "clean"
        self.clock.advance(1)
        self.model.now = self.clock.wall_ms()
        self.open()

    def landed(self, name: str, kind: str, late: list[list[Rec]], acked: int) -> None:
        """5, 6: a write under way is there whole or not at all. 37, 38: what was acked is there, or, for `disk` after a
        power cut, the end of it is lost and announced."""
        real, model = self.real(name), self.model.topic(name)
        known = model.head
        self.model.now -= 1  # they were given their time before the crash
        for records in late:
            self.model.begin_put(name, records)
        self.model.now += 1
        ends = [known, *(batch.records[-1].seq for batch in model.staged)]
        kept = self.kept_head(name)
        if model.config.durability == "ephemeral":
            kept = known
        assert kept < known or kept in ends, f"{name}: a write was split at {kept}, writes end at {ends}"
        if kind in ("clean", "kill") or model.config.durability == "fsync":
            assert kept >= ends[acked], f"{name}: acked records above {kept} are gone"
        while model.staged and model.staged[0].records[-1].seq <= kept:
            self.model.commit_put(name)
        if kind == "clean" or (kind == "kill" and model.config.durability in ("disk", "memory")):
            assert model.config.durability == "ephemeral" or real.head == kept
        self.model.restart(name, kept_head=kept, head=real.head)
        model.keys = self.surviving_keys(name)
        if model.config.durability == "ephemeral":
            floors = real.floors
            model.lost = {
                "cap": floors.cap_lost,
                "ttl": floors.ttl_lost,
                "source_trim": floors.trim_lost,
                "restart": floors.restart_lost,
            }

    def kept_head(self, name: str) -> int:
        """The newest record that came back: the lost range at the head, if this start opened one, begins behind it."""
        real, model = self.real(name), self.model.topic(name)
        known = {lost.lo: lost.hi for lost in model.lost_ranges}
        last = list(real.lost)[-1:]
        if last and last[0].hi == real.head and known.get(last[0].lo) != last[0].hi:
            return int(known.get(last[0].lo, last[0].lo - 1))  # an older range may have been prolonged
        if not last and real.head > model.lost["restart"] and real.floors.restart_lost == real.head:
            return min((rec.seq for rec in model.live), default=model.head + 1) - 1  # the floor took the range in
        return int(real.head)

    def surviving_keys(self, name: str) -> dict[str, Any]:
        """Keys may be forgotten by a crash; those that are remembered are right."""
        known, kept = self.model.topic(name).keys, {}
        window = self.model.topic(name).config.idempotency_window_ms
        for key, memo in self.real(name).idem.items():
            if key.decode() in known and self.model.now - memo.ts <= window:
                put = known[key.decode()][1]
                assert (memo.first_seq, memo.count) == (put.first_seq, put.count)
                kept[key.decode()] = known[key.decode()]
        return kept

    # --- reads ----------------------------------------------------------------------------------------------------

    def page(self, name: str, request: ReadRequest) -> ReadOutcome:
        outcome: ReadOutcome = self.sim.call(lambda engine: engine.read(name, request)).outcome
        return outcome

    @rule(name=names, at=places | st.just(150), limit=st.sampled_from([1, 2, 5, 256]),
          budget=st.sampled_from([1, 40, 100, 1 << 20]), nodes=st.sets(st.sampled_from(NODES), max_size=2))  # fmt: skip
    def read(self, name: str, at: int, limit: int, budget: int, nodes: set[str]) -> None:
        from_seq = self.seq_at(name, at)
        hidden = frozenset(node.encode() for node in nodes) or None
        got = self.page(name, ReadRequest(from_seq=from_seq, limit=limit, budget_bytes=budget, nodes=hidden))
        page = self.model.read(name, from_seq, limit=limit, budget=budget, nodes=nodes)
        assert [(r.seq, r.ts, r.tag, r.node, r.blob) for r in stored(got)] == [
            (r.seq, r.ts, None if r.tag is None else r.tag.encode(), None if r.node is None else r.node.encode(),
             b'{"d":%b}' % r.data) for r in page.records
        ]  # fmt: skip
        facts = (got.next_from_seq, got.head_seq, got.earliest_seq, got.caught_up, got.lag)
        assert facts == (page.next_from_seq, page.head_seq, page.earliest_seq, page.caught_up, page.lag)
        told = got.tombstone and (got.tombstone.gap_from, got.tombstone.gap_to, got.tombstone.reason)
        assert told == (page.gap and (page.gap.gap_from, page.gap.gap_to, page.gap.reason))
        self.check_page(name, from_seq, got, limit=limit, budget=budget, nodes=nodes)

    def check_page(
        self, name: str, from_seq: int, got: ReadOutcome, *, limit: int, budget: int, nodes: set[str]
    ) -> None:
        real = self.real(name)
        seqs = [record.seq for record in stored(got)]
        assert seqs == sorted(set(seqs))  # 32
        recreated = got.tombstone is not None and got.tombstone.reason == "recreated"
        if not recreated:
            assert all(seq > from_seq for seq in seqs)  # 32
            announced = got.tombstone is not None and got.tombstone.gap_from == from_seq + 1
            if from_seq + 1 < real.evict_floor:
                assert announced  # 16
            elif announced:
                assert real.lost.find(from_seq + 1) is not None  # 16
        if got.tombstone is not None and not recreated:
            gap = range(got.tombstone.gap_from, got.tombstone.gap_to + 1)
            assert not any(rec.seq in gap for rec in self.model.topic(name).live)  # 19
            assert not seqs or seqs[0] > got.tombstone.gap_to  # 20
            config = real.config
            plain = config.is_fsync and not self.crashed
            assert not plain or config.cap_records or config.cap_bytes or config.ttl_ms or real.evict_floor > 1  # 17
        assert len(seqs) <= limit  # 34
        assert sum(len(record.blob) - 6 for record in stored(got)[1:]) <= budget  # 34
        if real.config.dedupe_node:
            assert not any(record.node is not None and record.node.decode() in nodes for record in stored(got))  # 35
        ttl, now = real.config.ttl_ms, self.sim.engine.context.clock.now_ms()
        assert not ttl or all(now - record.ts <= ttl for record in stored(got))  # 26

    @rule(name=names, limit=st.sampled_from([1, 7, 1000]))
    def full_read(self, name: str, limit: int) -> None:
        """4, 11, 12, 18, 27, 33, 39: a follower sees exactly what is there; 7: by time; 21: however it asks."""
        self.settle()
        got, gaps = self.follow(name, limit)
        live = self.model.topic(name).live
        assert [(seq, blob) for seq, _, blob in got] == [(rec.seq, b'{"d":%b}' % rec.data) for rec in live]
        times = [ts for _, ts, _ in got]
        assert times == sorted(times)  # 7
        real = self.real(name)
        assert real.count == len(got)  # 12
        assert real.bytes == sum(len(blob) - 6 for _, _, blob in got)  # 12
        assert real.earliest_seq == (got[0][0] if got else real.head + 1)  # 11
        told = {seq for lo, hi in gaps for seq in range(lo, hi + 1)}
        seen = {seq for seq, _, _ in got}
        silent = [rec for rec in self.model.topic(name).log if rec.seq not in told | seen and rec.fate != "deleted"]
        assert not silent, f"{name}: missing in silence: {silent}"  # 18
        assert (got, gaps) == self.follow(name, 3)  # 21

    def follow(self, name: str, limit: int) -> tuple[list[tuple[int, int, bytes]], list[tuple[int, int]]]:
        cursor, got, gaps = 0, [], []
        for _ in range(2_000):
            outcome = self.page(name, ReadRequest(from_seq=cursor, limit=limit))
            got += [(record.seq, record.ts, bytes(record.blob)) for record in stored(outcome)]
            if outcome.tombstone is not None:
                gaps.append((outcome.tombstone.gap_from, outcome.tombstone.gap_to))
            cursor = outcome.next_from_seq
            if outcome.caught_up:
                return got, gaps
        raise AssertionError("33: a reader never caught up")

    # --- after every step -----------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let floors that are due be moved, as any observer would."""
        for name in self.model.topics:
            self.sim.call(lambda engine, name=name: engine.topic_state(name))
            self.model.state(name)

    def facts(self, name: str) -> tuple[Any, ...]:
        topic = self.real(name)
        lost = [(entry.lo, entry.hi, entry.reason) for entry in topic.lost]
        floors = (topic.earliest_seq, topic.evict_floor)
        return (topic.id, topic.head, *floors, topic.count, topic.bytes, lost, topic.config)

    def check_state(self) -> None:
        self.settle()
        for name in self.model.topics:
            state = self.model.state(name)
            told = self.sim.call(lambda engine, name=name: engine.topic_state(name))
            shown = (told.head_seq, told.earliest_seq, told.count, told.bytes)
            assert shown == (state["head_seq"], state["earliest_seq"], state["count"], state["bytes"]), name
            assert self.real(name).evict_floor == state["evict_floor"], name
            self.check_watermarks(name)
            self.check_retention(name)

    def check_watermarks(self, name: str) -> None:
        """3, 9, 10, 15."""
        topic = self.real(name)
        assert 1 <= topic.evict_floor <= topic.earliest_seq <= topic.head + 1
        now = (topic.head, topic.evict_floor, topic.earliest_seq)
        high = self.high.get((name, topic.id), (0, 0, 0))
        assert all(value >= then for value, then in zip(now, high, strict=True)), f"{name}: {high} fell to {now}"
        self.high[name, topic.id] = now

    def check_retention(self, name: str) -> None:
        """23."""
        topic = self.real(name)
        if topic.config.discard == "old":
            assert not topic.config.cap_records or topic.count <= topic.config.cap_records
            assert not topic.config.cap_bytes or topic.bytes <= topic.config.cap_bytes
