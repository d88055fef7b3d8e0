"""Core against the model, step by step, through every kind of op, checkpoint, seal, move, crash and restart.

Each `check_NN` is invariant NN of `docs/spec/semantics.md#sec-17`, as far as core alone can show it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from msgspec.structs import replace as replace_struct
from tests.core.model import DELETED, LIVE, Batch, Config, Model, Put, Rec, Refused
from tests.core.rig import Rig, batch_of, stored

from topics.core import append, delete
from topics.core.reading.request import ReadAhead
from topics.core.reading.walk import ReadRequest
from topics.errors import RecordTooLarge, TopicFull, TopicNotEmpty, VersionConflict
from topics.model.config import TopicConfig
from topics.model.names import TagMatch
from topics.model.ops import Append, HeadMark, Op
from topics.model.position import Position
from topics.model.record import Expected

TAGS = ["a", "ab", "abc", "b", ""]
NODES = ["n1", "n2", ""]
NAMES = ["t", "u"]

names = st.sampled_from(["t", "t", "t", "t", "u"])
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


places = st.integers(0, 100)  # where in the log, in percent of its head


def action(weight: int, method: str, **given: st.SearchStrategy[Any]) -> list[st.SearchStrategy[tuple[str, Any]]]:
    return [st.tuples(st.just(method), st.fixed_dictionaries(given))] * weight


ACTIONS = st.one_of(
    *action(12, "put", name=names, records=rows, key=keys, at_once=st.sampled_from([True, True, False])),
    *action(2, "finish_one", name=names),
    *action(1, "fail_writes", name=names),
    *action(4, "delete", name=names, before=st.none() | places, match=st.none() | matches, at_once=st.booleans()),
    *action(3, "ack", name=names, at=st.sets(places, min_size=1, max_size=6)),
    *action(3, "advance", ms=st.sampled_from([1, 10, 51, 120, 501])),
    *action(1, "lose", name=names, count=st.integers(1, 4), reason=st.sampled_from(["source_trim", "cap"])),
    *action(
        9, "files", name=names, step=st.sampled_from([*["seal"] * 3, "checkpoint", "rewrite", "move", "drop_dead"])
    ),
    *action(2, "files", name=names, step=st.just("snapshot")),
    *action(1, "rotate"),
    *action(2, "restart", name=names, kind=st.sampled_from(["clean", "kill", "kill", "power"])),
    *action(2, "put_topic", name=names, config=configs),
    *action(1, "drop_topic", name=st.just("u"), if_empty=st.booleans()),
    *action(
        6,
        "read",
        name=names,
        at=places | st.just(150),
        limit=st.sampled_from([1, 2, 5, 256]),
        budget=st.sampled_from([1, 40, 100, 1 << 20]),
        nodes=st.sets(st.sampled_from(NODES), max_size=2),
        epoch=st.sampled_from([None, None, "same", "other"]),
        reads_on=st.booleans(),
    ),
    *action(3, "full_read", name=names),
    *action(4, "tag_read", name=names, at=places, match=matches, limit=st.sampled_from([1, 2, 256])),
    *action(
        4,
        "guarded_put",
        name=names,
        records=rows,
        tag=st.none() | st.sampled_from(TAGS),
        off=st.sampled_from([0, 0, -1, 1]),
        at_once=st.booleans(),
    ),
)


def real_config(config: Config) -> TopicConfig:
    return TopicConfig(
        ttl_ms=config.ttl_ms,
        cap_records=config.cap_records,
        cap_bytes=config.cap_bytes,
        discard=config.discard,  # type: ignore[arg-type]
        durability=config.durability,  # type: ignore[arg-type]
        durable=config.durability == "fsync",
        idempotency_window_ms=config.idempotency_window_ms,
        dedupe_node=config.dedupe_node,
    )


def real_match(match: tuple[str, str] | None) -> TagMatch | None:
    return None if match is None else TagMatch(match[0], match[1])  # type: ignore[arg-type]


class CoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(recent_bytes=600)
        self.model = Model(now=self.rig.now)
        self.under_way: dict[str, list[tuple[str, Any]]] = {name: [] for name in NAMES}
        self.high: dict[str, dict[str, int]] = {}
        self.acked: dict[str, int] = {}
        self.aheads = {name: ReadAhead() for name in NAMES}  # of one reader each, kept over everything but a restart

    @rule(actions=st.lists(ACTIONS, min_size=1, max_size=6))
    def step(self, actions: list[tuple[str, dict[str, Any]]]) -> None:
        for method, given in actions:
            if "name" not in given or self.exists(given["name"]) or method == "put_topic":
                getattr(self, method)(**given)
                self.check_state()

    def seq_at(self, name: str, place: int) -> int:
        return round(place / 100 * (self.model.topic(name).head + 2))

    # --- topics ---------------------------------------------------------------------------------------------------

    @initialize(config=configs)
    def begin(self, config: Config) -> None:
        self.create("t", config)

    def exists(self, name: str) -> bool:
        return name in self.model.topics

    def create(self, name: str, config: Config) -> None:
        self.rig.create(name, real_config(config))
        self.model.create(name, config)
        self.high[name] = {}
        self.acked[name] = 0

    def put_topic(self, name: str, config: Config) -> None:
        if not self.exists(name):
            self.create(name, config)
            return
        self.finish_all(name)
        # A class that keeps nothing, or less, is taken at creation only: what the change keeps is tested on its own.
        # And a longer window of keys could show some that a shorter one had let go.
        old = self.model.topic(name).config
        config = replace(config, durability=old.durability, idempotency_window_ms=old.idempotency_window_ms)
        self.rig.set_config(name, real_config(config))
        self.model.set_config(name, config)

    def drop_topic(self, name: str, if_empty: bool) -> None:
        self.finish_all(name)
        if if_empty and self.model.state(name)["count"]:
            with pytest.raises(TopicNotEmpty):
                self.rig.drop(name, if_empty=True)
        else:
            self.model.drop(name)
            self.rig.drop(name, if_empty=if_empty)

    # --- writes ---------------------------------------------------------------------------------------------------

    def put(self, name: str, records: list[Rec], key: str | None, at_once: bool) -> None:
        self.rig.settle(name)
        topic = self.rig.topic(name)
        topic.idem.expire(now=self.rig.now, window_ms=topic.config.idempotency_window_ms)
        before = self.facts(name)
        batch = batch_of([(rec.data, rec.tag, rec.node) for rec in records], key)
        try:
            expected: Any = self.model.begin_put(name, records, key)
        except Refused as refused:
            expected = refused.code
        try:
            decision: Any = append.decide_append(self.rig.topic(name), batch, self.rig.now)
        except (RecordTooLarge, TopicFull) as error:
            assert error.code == expected
            assert self.facts(name) == before  # check_25: a refused write changes nothing
            return
        if isinstance(decision, append.Repeat):  # check_36: a repeat appends nothing and has the first write's seqs
            assert isinstance(expected, Put)
            memo = decision.memo
            assert (memo.first_seq, memo.count, memo.head) == (expected.first_seq, expected.count, expected.head_seq)
            assert self.facts(name) == before
        elif isinstance(decision, append.Busy):
            assert expected is None
        else:
            assert isinstance(expected, Batch), expected
            assert decision.first_seq == expected.records[0].seq  # check_01: consecutive, behind all reserved before
            assert decision.ts == expected.records[0].ts
            self.under_way[name].append(("put", (self.rig.ops_of(name, batch, decision), decision)))
            if at_once:
                self.finish_all(name)

    def guarded_put(self, name: str, records: list[Rec], tag: str | None, off: int, at_once: bool) -> None:
        """A write that expects a head or the newest seq of a tag, rightly or not (`docs/spec/readers.md#sec-6`)."""
        self.rig.settle(name)
        topic = self.rig.topic(name)
        stands = self.model.topic(name).reserved_head if tag is None else self.model.newest(name, tag)
        told = max(stands + off, 0)
        expected = Expected(Position(told)) if tag is None else Expected(tags=((tag, told),))
        batch = replace_struct(batch_of([(rec.data, rec.tag, rec.node) for rec in records]), expected=expected)
        before = self.facts(name)
        try:
            while isinstance(decision := append.decide_append(topic, batch, self.rig.now), append.IndexNeeded):
                self.rig.load_index(name, decision.block.first_seq)
        except VersionConflict:
            assert told != stands
            assert self.facts(name) == before
            return
        except (RecordTooLarge, TopicFull) as error:
            with pytest.raises(Refused, match=error.code):
                self.model.begin_put(name, records)
            return
        assert told == stands
        self.model.begin_put(name, records)
        self.under_way[name].append(("put", (self.rig.ops_of(name, batch, decision), decision)))  # type: ignore[arg-type]
        if at_once:
            self.finish_all(name)

    def finish_one(self, name: str) -> None:
        if self.under_way[name]:
            self.finish(name, *self.under_way[name].pop(0))

    def finish_all(self, name: str) -> None:
        while self.under_way[name]:
            self.finish(name, *self.under_way[name].pop(0))

    def finish(self, name: str, kind: str, what: Any) -> None:
        if kind == "put":
            ops, _ = what
            for op in ops:
                effect = self.rig.commit(op)
            put = self.model.commit_put(name)
            assert (effect.first_seq, effect.last_seq) == (put.first_seq, put.head_seq)  # check_05: all of it at once
            assert put.first_seq > self.acked[name]  # check_02
            self.acked[name] = put.head_seq
        else:
            op, removal = what
            floor = self.rig.topic(name).evict_floor
            effect = self.rig.do(op, synced=True)
            assert effect.removed_count == self.model.commit_delete(name, removal)
            assert self.rig.topic(name).evict_floor == floor  # check_13: a delete leaves the floor where it was

    def fail_writes(self, name: str) -> None:
        """A failed commit: all that waits is given back, newest first."""
        if all(kind == "put" for kind, _ in self.under_way[name]):
            for _, (_ops, reservation) in reversed(self.under_way[name]):
                append.release(self.rig.topic(name), reservation, reuse_seqs=True)
                self.model.fail_put(name)
            self.under_way[name].clear()
            topic = self.rig.topic(name)
            self.rig.logs[topic.id].ceiling = topic.ceiling
            self.model.topic(name).reserved_ts = topic.reserved_ts

    # --- deletes --------------------------------------------------------------------------------------------------

    def delete(self, name: str, before: int | None, match: tuple[str, str] | None, at_once: bool) -> None:
        if before is None and match is None:
            return
        before = None if before is None else self.seq_at(name, before)
        topic = self.rig.topic(name)
        if topic.config.cap_records or any(kind == "delete" for kind, _ in self.under_way[name]):
            self.finish_all(name)
        self.rig.settle(name)
        self.rig.log_floors(name)
        self.rig.load_for_delete(name, before, real_match(match))
        removal = self.model.begin_delete(name, before_seq=before, match=match)
        op = delete.decide_delete(topic, before_seq=before, match=real_match(match))
        self.under_way[name].append(("delete", (op, removal)))
        if at_once:
            self.finish_all(name)

    def ack(self, name: str, at: set[int]) -> None:
        seqs = [self.seq_at(name, place) for place in sorted(at)]
        self.finish_all(name)
        self.rig.settle(name)
        effect = self.rig.delete_seqs(name, seqs)
        assert effect.removed_count == self.model.delete_seqs(name, seqs)

    # --- time -----------------------------------------------------------------------------------------------------

    def advance(self, ms: int) -> None:
        self.rig.now += ms
        self.model.advance(ms)

    # --- loss in the middle ---------------------------------------------------------------------------------------

    def lose(self, name: str, count: int, reason: Any) -> None:
        self.finish_all(name)
        self.rig.settle(name)
        topic = self.rig.topic(name)
        lo, hi = topic.head + 1, topic.head + count
        self.rig.do(
            HeadMark(topic_id=topic.id, ceiling=topic.ceiling, resume_at=hi + 1, lost=((lo, hi, reason),)), synced=True
        )
        self.model.lose_range(name, lo, hi, reason)

    # --- files ----------------------------------------------------------------------------------------------------

    def files(self, name: str, step: str) -> None:
        """None of these changes what anyone can see (check_31)."""
        before = self.facts(name)
        getattr(self.rig, step)(name)
        assert self.facts(name) == before

    def rotate(self) -> None:
        self.rig.disk.rotate()

    # --- restarts -------------------------------------------------------------------------------------------------

    def restart(self, name: str, kind: str) -> None:
        self.aheads[name].let_go()
        if kind == "clean":
            self.finish_all(name)
            self.rig.settle(name)
            self.rig.checkpoint(name)
            self.rig.snapshot(name, clean=True)
        self.under_way[name].clear()
        topic = self.rig.topic(name)
        log = self.rig.logs[topic.id]
        if kind == "power" and (topic.config.durability == "memory" or topic.config.cap_records):
            # A memory topic promises nothing here; and a count cap's floor may fall back with the appends behind it.
            log.synced = len(log.ops)
        kept = self.kept_head(name, log.ops[: log.synced] if kind == "power" else log.ops, topic.head)
        recovered = self.rig.restart(name, same_boot=kind != "power", cut=kind == "power")
        head = self.rig.topic(name).head
        if topic.config.durability != "ephemeral":
            assert recovered == kept
        if kind == "clean" or topic.config.durability == "fsync":
            assert head == self.model.topic(name).head
        assert head >= self.acked[name]  # check_02: nothing acked can be assigned again
        ephemeral = topic.config.durability == "ephemeral"
        self.model.restart(name, kept_head=self.model.topic(name).head if ephemeral else kept, head=head)
        self.model.topic(name).keys = self.surviving_keys(name, kept)
        if ephemeral:  # its floors were in memory only: that all is lost is certain, not why
            floors = self.rig.topic(name).floors
            self.model.topic(name).lost = {
                "cap": floors.cap_lost,
                "ttl": floors.ttl_lost,
                "source_trim": floors.trim_lost,
                "restart": floors.restart_lost,
            }

    def kept_head(self, name: str, ops: list[Op], head: int) -> int:
        kept = 0
        for op in ops:
            if isinstance(op, Append):
                kept = max(kept, op.last_seq)
            elif isinstance(op, HeadMark) and op.resume_at is not None:
                kept = max(kept, op.resume_at - 1)
        return min(kept, head)

    def surviving_keys(self, name: str, kept_head: int) -> dict[str, Any]:
        """Keys may be forgotten by a crash; those that are remembered must be right, and their records there."""
        known = self.model.topic(name).keys
        kept = {}
        topic = self.rig.topic(name)
        topic.idem.expire(now=self.rig.now, window_ms=topic.config.idempotency_window_ms)
        for key, memo in topic.idem.items():
            ts, put = known[key.decode()]
            assert (memo.ts, memo.first_seq, memo.count, memo.head) == (ts, put.first_seq, put.count, put.head_seq)
            assert topic.config.is_ephemeral or memo.first_seq + memo.count - 1 <= kept_head
            kept[key.decode()] = known[key.decode()]
        return kept

    # --- reads ----------------------------------------------------------------------------------------------------

    def read(
        self, name: str, at: int, limit: int, budget: int, nodes: set[str], epoch: str | None, reads_on: bool
    ) -> None:
        from_seq = self.seq_at(name, at)
        topic, wanted = self.rig.topic(name), self.model.topic(name)
        offset = {None: None, "same": 0, "other": -1}[epoch]
        request = ReadRequest(
            from_seq=from_seq,
            limit=limit,
            budget_bytes=budget,
            nodes=frozenset(node.encode() for node in nodes) or None,
            epoch=None if offset is None else topic.epoch + offset,
            ahead=self.aheads[name] if reads_on else None,
        )
        got = self.rig.read(name, request)
        page = self.model.read(
            name,
            from_seq,
            limit=limit,
            budget=budget,
            nodes=nodes,
            epoch=None if offset is None else wanted.epoch + offset,
        )
        self.compare(got, page)
        records = stored(got)
        seqs = [record.seq for record in records]
        assert seqs == sorted(set(seqs))  # check_32
        if got.tombstone is None or got.tombstone.reason != "recreated":
            assert all(seq > from_seq for seq in seqs)  # check_32
            if not got.caught_up:
                assert got.next_from_seq > from_seq  # check_33
            known = from_seq <= topic.head
            prefix = got.tombstone is not None and got.tombstone.gap_to == got.earliest_seq - 1
            assert not known or (from_seq + 1 < topic.evict_floor) == (prefix and self.is_prefix(got, from_seq, topic))
        if got.tombstone is not None and got.tombstone.reason != "recreated":  # check_19, check_20
            gap = range(got.tombstone.gap_from, got.tombstone.gap_to + 1)
            assert not any(topic.live(seq) for seq in gap)
            assert not seqs or seqs[0] > got.tombstone.gap_to
        assert len(seqs) <= limit  # check_34
        assert sum(len(record.blob) - 6 for record in records[1:]) <= budget  # check_34
        if topic.config.dedupe_node:
            assert not any(record.node is not None and record.node.decode() in nodes for record in records)  # check_35

    def tag_read(self, name: str, at: int, match: tuple[str, str], limit: int) -> None:
        """Every matching record and no other, in pages of any size (`docs/spec/readers.md#sec-3`)."""
        seq = begin = min(self.seq_at(name, at), self.model.topic(name).head)
        wanted = self.model.tagged(name, begin, match)
        found: list[int] = []
        while True:
            got = self.rig.read(name, ReadRequest(from_seq=seq, limit=limit, tag=real_match(match)))
            found += [record.seq for record in stored(got)]
            if got.caught_up:
                break
            assert got.next_from_seq > seq
            seq = got.next_from_seq
        assert found == wanted

    @staticmethod
    def is_prefix(got: Any, from_seq: int, topic: Any) -> bool:
        """check_16: a prefix tombstone, as told apart from a lost range, starts right behind the cursor."""
        return bool(got.tombstone.gap_from == from_seq + 1 and topic.lost.find(from_seq + 1) is None)

    @staticmethod
    def compare(got: Any, page: Any) -> None:
        as_rows = [(record.seq, record.ts, record.tag, record.node, record.blob) for record in stored(got)]
        assert as_rows == [
            (
                rec.seq,
                rec.ts,
                None if rec.tag is None else rec.tag.encode(),
                None if rec.node is None else rec.node.encode(),
                b'{"d":%b}' % rec.data,
            )
            for rec in page.records
        ]
        facts = (got.next_from_seq, got.head_seq, got.earliest_seq, got.caught_up, got.lag, got.scanned)
        assert facts == (
            page.next_from_seq,
            page.head_seq,
            page.earliest_seq,
            page.caught_up,
            page.lag,
            page.scanned,
        )
        tombstone, gap = got.tombstone, page.gap
        assert (tombstone is None) == (gap is None)
        if tombstone is not None:
            assert (tombstone.gap_from, tombstone.gap_to, tombstone.reason) == (gap.gap_from, gap.gap_to, gap.reason)
            assert (tombstone.earliest_seq, tombstone.head_seq) == (gap.earliest_seq, gap.head_seq)
            assert tombstone.missed_estimate == max(gap.gap_to - gap.gap_from + 1, 0)

    # --- after every step -----------------------------------------------------------------------------------------

    def facts(self, name: str) -> dict[str, Any]:
        topic = self.rig.topic(name)
        return {
            "head": topic.head,
            "earliest": topic.earliest_seq,
            "evict_floor": topic.evict_floor,
            "count": topic.count,
            "bytes": topic.bytes,
            "keys": len(topic.idem),
            "lost": list(topic.lost),
            "reserved": topic.reserved_head,
        }

    def check_state(self) -> None:
        for name in self.model.topics:
            self.rig.settle(name)
            expected = self.model.state(name)
            facts = self.facts(name)
            assert facts["head"] == expected["head_seq"]
            assert facts["earliest"] == expected["earliest_seq"]
            assert facts["evict_floor"] == expected["evict_floor"]
            assert (facts["count"], facts["bytes"]) == (expected["count"], expected["bytes"])
            self.check_watermarks(name)
            self.check_retention(name)
        assert self.rig.state.total_bytes == sum(self.model.topic(name).bytes for name in self.model.topics)

    def check_watermarks(self, name: str) -> None:
        topic = self.rig.topic(name)
        assert 1 <= topic.evict_floor <= topic.earliest_seq <= topic.head + 1  # check_09
        high = self.high[name]
        for what in ("head", "evict_floor", "earliest_seq"):  # check_03, check_10
            value = getattr(topic, what)
            assert value >= high.get(what, 0), what
            high[what] = value
        lost = topic.floors
        model_lost = self.model.topic(name).lost
        assert lost.trim_lost == model_lost["source_trim"]
        assert lost.restart_lost == model_lost["restart"]

    def check_retention(self, name: str) -> None:
        topic = self.rig.topic(name)
        if topic.config.discard == "old":  # check_23
            assert not topic.config.cap_records or topic.count <= topic.config.cap_records
            assert not topic.config.cap_bytes or topic.bytes <= topic.config.cap_bytes

    def full_read(self, name: str) -> None:
        """check_04, check_11, check_12, check_18, check_27: a follower sees exactly what is there."""
        self.rig.settle(name)
        topic, model = self.rig.topic(name), self.model.topic(name)
        cursor, got, covered = 0, [], set()
        for _ in range(200):
            outcome = self.rig.read(name, ReadRequest(from_seq=cursor, limit=7))
            got += stored(outcome)
            if outcome.tombstone is not None:
                covered |= set(range(outcome.tombstone.gap_from, outcome.tombstone.gap_to + 1))
            cursor = outcome.next_from_seq
            if outcome.caught_up:
                break
        else:
            raise AssertionError("check_33: a reader never caught up")
        assert [record.seq for record in got] == [rec.seq for rec in model.log if rec.fate == LIVE]
        assert topic.count == len(got)
        assert topic.bytes == sum(len(record.blob) - 6 for record in got)
        assert topic.earliest_seq == (got[0].seq if got else topic.head + 1)
        times = [record.ts for record in got]
        assert times == sorted(times)  # check_07
        silent = {rec.seq for rec in model.log if rec.fate not in (LIVE, DELETED)} - covered
        assert not silent, "check_18: lost without a word"


TestCoreMachine = CoreMachine.TestCase
TestCoreMachine.settings = settings(
    max_examples=100, stateful_step_count=50, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
