"""The whole engine on a simulated disk beside a model that shares no code with it, step by step.

`Checks` has what is true after every step, `Restarts` what a crash may take, `Positions` who comes back when."""

from __future__ import annotations

import errno
from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.core.model import Config, Put, Rec, Refused
from tests.sim.checks import is_limited, row_of
from tests.sim.invariants import agrees, holds
from tests.sim.positions import Positions
from tests.sim.restarts import CLEAN

from topics.core.reading.walk import ReadRequest
from topics.engine.reading.latest import LatestRequest
from topics.engine.ticket import Ticket
from topics.errors import DiskFull, RecordTooLarge, TopicFull, TopicNotEmpty
from topics.model.config import TopicConfig
from topics.model.names import TagMatch
from topics.model.record import RecordIn, WriteBatch, build_batch
from topics.testing import FOREVER, POWER_PATTERNS

YEAR_MS = 365 * 24 * 3_600_000
TAGS = ["a", "ab", "abc", "b", ""]
NODES = ["n1", "n2", ""]
RAN: Counter[str] = Counter()
"""Examples and steps, over all machines of this process."""

names = st.sampled_from(["t", "t", "t", "u"])
places = st.integers(0, 100)
rows = st.lists(
    st.builds(
        Rec,
        st.integers(1, 40).map(lambda size: b"1" * size) | st.just(b"null"),
        st.none() | st.sampled_from(TAGS),
        st.none() | st.sampled_from(NODES),
    ),
    min_size=1,
    max_size=7,
)
configs = st.builds(
    Config,
    ttl_ms=st.sampled_from([0, 0, 0, 50, 500]),
    cap_records=st.sampled_from([0, 0, 0, 0, 1, 5, 12]),
    cap_bytes=st.sampled_from([0, 0, 0, 0, 40, 200]),
    discard=st.sampled_from(["old", "old", "reject"]),
    durability=st.sampled_from(["disk", "disk", "memory", "fsync", "ephemeral"]),
    idempotency_window_ms=st.sampled_from([0, 100, 120_000]),
    dedupe_node=st.booleans(),
    compact=st.sampled_from([None, "tag"]),
    compact_grace_ms=st.sampled_from([0, 0, 50, 500]),
)
matches = st.tuples(st.sampled_from(["Eq", "Glob"]), st.sampled_from(TAGS))
keys = st.none() | st.sampled_from(["k1", "k2", "k3"])


def real_config(config: Config) -> TopicConfig:
    given: dict[str, Any] = vars(config)
    return TopicConfig(**given, durable=config.durability == "fsync")


def real_batch(records: list[Rec], key: str | None) -> WriteBatch:
    made = [RecordIn(data=msgspec.Raw(rec.data), tag=rec.tag, node=rec.node) for rec in records]
    return build_batch(made, idempotency_key=key)


class EngineMachine(Positions, RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        RAN["examples"] += 1

    @invariant()
    def count_steps(self) -> None:
        RAN["steps"] += 1

    def seq_at(self, name: str, place: int) -> int:
        return round(place / 100 * (self.model.topic(name).head + 2))

    # --- topics ---------------------------------------------------------------------------------------------------

    @initialize(config=configs, shards=st.sampled_from([1, 1, 2]))
    def begin(self, config: Config, shards: int) -> None:
        self.shards = shards
        self.sim.close()
        self.open()
        self.create("t", config)
        self.create("u", Config())

    def create(self, name: str, config: Config) -> None:
        self.sim.call(lambda engine: engine.put_topic(name, real_config(config)))
        self.model.create(name, config)
        self.model.topic(name).epoch = self.real(name).epoch
        self.begin_life(name)

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
        self.check_full(name, 50)

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
        holds(22, [reason for _, _, reason in told.gaps] == ["recreated"], told)
        holds(22, [row.seq for row in told.rows] == [rec.seq for rec in self.model.topic("u").live], told)
        again = self.page("u", ReadRequest(from_seq=told.next_from_seq, epoch=self.real("u").epoch))
        holds(22, not again.gaps, again)

    # --- writes ---------------------------------------------------------------------------------------------------

    @rule(name=names, records=rows, key=keys)
    def put(self, name: str, records: list[Rec], key: str | None) -> None:
        self.move_floors()
        before = self.facts(name)
        try:
            expected: Any = self.model.put(name, records, key)
        except Refused as refused:
            self.refused(name, records, key, refused.code, before)
            return
        ticket = self.sim.submit(lambda engine: engine.write(name, real_batch(records, key)))
        self.sim.pump()
        self.acked(name, ticket, expected, len(records))
        self.check_reject(name, before, 0 if expected.deduped else len(records))
        self.check_state()

    def said(self, ticket: Ticket[Any]) -> Put:
        done = ticket.result()
        return Put(done.first_seq, done.count, done.head, done.deduped)

    def acked(self, name: str, ticket: Ticket[Any], expected: Put, records: int) -> None:
        """1, 2: consecutive seqs behind every earlier one, which are the model's; 36: a repeat has the first one's."""
        done = self.said(ticket)
        if expected.deduped:
            holds(36, (done.first_seq, done.count) == (expected.first_seq, expected.count), done)
        else:
            self.check_acked(name, done.first_seq, done.count, records)
        agrees(done, expected, name)

    def check_reject(self, name: str, before: Any, added: int) -> None:
        after = self.facts(name)
        if after.config.discard != "reject":
            return
        cap, size = after.config.cap_records, after.config.cap_bytes
        over = (cap and before.count <= cap < after.count) or (size and before.bytes <= size < after.bytes)
        holds(24, not over and (after.config.ttl_ms or after.count == before.count + added), (before, after))

    def refused(self, name: str, records: list[Rec], key: str | None, code: str, before: Any) -> None:
        """24, 25: it changes nothing, and what was acked stays."""
        try:
            self.sim.call(lambda engine: engine.write(name, real_batch(records, key)))
        except (RecordTooLarge, TopicFull) as error:
            assert error.code == code
            holds(25, self.facts(name) == before, (before, self.facts(name)))
            return
        raise AssertionError(f"a write was taken that the model refuses: {code}")

    @rule(name=names)
    def put_too_much(self, name: str) -> None:
        """25: more than the topic could ever take is refused, and changes nothing."""
        config = self.model.topic(name).config
        if config.cap_bytes:
            records = [Rec(b"1" * (config.cap_bytes + 1))]
        elif config.cap_records and config.discard == "reject":
            records = [Rec(b"1")] * (config.cap_records + 1)
        else:
            return
        self.move_floors()
        self.refused(name, records, None, "record_too_large", self.facts(name))

    @rule(name=names, records=rows)
    def twice_at_once(self, name: str, records: list[Rec]) -> None:
        """36: two writes with one key under way together append one batch."""
        if self.model.topic(name).config.discard == "reject" or not self.model.topic(name).config.idempotency_window_ms:
            return
        try:
            expected = self.model.put(name, records, "pair")
        except Refused:
            return
        known = expected.deduped
        tickets = [self.sim.submit(lambda engine: engine.write(name, real_batch(records, "pair"))) for _ in range(2)]
        self.sim.pump()
        answers = [self.said(ticket) for ticket in tickets]
        first = answers[0]
        if not known:
            self.check_acked(name, first.first_seq, first.count, len(records))
        holds(36, {(put.first_seq, put.count) for put in answers} == {(expected.first_seq, expected.count)}, answers)
        self.check_state()

    @rule(name=names, records=rows, code=st.sampled_from([errno.ENOSPC, errno.EDQUOT]))
    def put_on_a_full_disk(self, name: str, records: list[Rec], code: int) -> None:
        """6: it fails, and nothing of it is there; when there is space again, writing goes on."""
        if self.model.topic(name).config.durability == "ephemeral":
            return
        self.move_floors()
        before, read = self.facts(name), self.follow(name, 50)
        self.history(name).failed = True
        full = self.faults.fail("pwrite", "*/wal-*.log", code=code, times=FOREVER)
        try:
            self.sim.call(lambda engine: engine.write(name, real_batch(records, None)))
        except (DiskFull, RecordTooLarge, TopicFull):
            pass
        else:
            raise AssertionError("a write was acked that is nowhere")
        finally:
            full.lift()
        holds(6, (self.facts(name), self.follow(name, 50)) == (before, read), self.facts(name))
        self.advance(1_100)
        self.sim.tick()

    # --- deletes --------------------------------------------------------------------------------------------------

    @rule(name=names, before=st.none() | places, match=st.none() | matches, late=st.booleans())
    def delete(self, name: str, before: int | None, match: tuple[str, str] | None, late: bool) -> None:
        """13: the floor stays; 28, 29: exactly the model's records go, and none that is written right behind it."""
        if before is None and match is None:
            return
        self.move_floors()
        before_seq = None if before is None else self.seq_at(name, before)
        chosen = None if match is None else TagMatch(match[0], match[1])  # type: ignore[arg-type]
        floor, there = self.facts(name).floor, self.follow(name, 50)[0]
        tags = {rec.seq: rec.tag for rec in self.model.topic(name).live}
        gone = self.model.delete(name, before_seq=before_seq, match=match)
        ticket = self.sim.submit(lambda engine: engine.delete_records(name, before_seq=before_seq, match=chosen))
        behind = self.write_behind(name, match) if late else None
        self.sim.pump()
        agrees(ticket.result().deleted, gone, name)
        holds(13, self.facts(name).floor == floor, (floor, self.facts(name)))
        left = {seq for seq, _, _ in self.follow(name, 50)[0]}
        removed = {seq for seq, _, _ in there} - left
        holds(29, all(seq < (before_seq or 1 << 62) and fits(match, tags.get(seq)) for seq in removed), removed)
        self.history(name).deleted |= removed
        if behind is not None:
            done = self.said(behind)
            self.check_acked(name, done.first_seq, done.count, 1)
            holds(28, done.first_seq in left, f"{done.first_seq} of {sorted(left)}")
        self.check_state()

    @rule(name=names, turns=st.integers(0, 40))
    def compact(self, name: str, turns: int) -> None:
        """13: the floor stays, no reader is told of a loss, and exactly the model's records go; a pass that is given up
        in the middle leaves what it did not come to."""
        if self.model.topic(name).config.compact is None:
            return
        self.move_floors()
        floor, gaps = self.facts(name).floor, self.follow(name, 50)[1]
        topic, now = self.real(name), self.sim.engine.context.clock.now_ms()
        there = {rec.seq for rec in self.model.topic(name).live}
        begun = self.sim.engine.compaction.begin(topic)
        for _ in range(1_000 if turns > 5 else turns):
            if begun is None or begun.is_over:
                break
            begun.step()
            self.sim.pump()
        left = {seq for seq, _, _ in self.follow(name, 50)[0]}
        if begun is None or begun.is_over:
            expected = self.model.compact(name, now)
            agrees(there - left, expected, name)
        else:
            self.model.delete_seqs(name, there - left)
        self.history(name).deleted |= there - left
        holds(13, self.facts(name).floor == floor, (floor, self.facts(name)))
        holds(13, self.follow(name, 50)[1] == gaps, gaps)
        self.check_state()
        self.latest(name, 1000)

    @rule(name=names, limit=st.sampled_from([1, 2, 1000]))
    def latest(self, name: str, limit: int) -> None:
        """The table is the model's, page by page."""
        self.move_floors()
        rows, after = [], None
        for _ in range(100):
            request = LatestRequest(after=after, limit=limit)
            page = self.sim.call(lambda engine, request=request: engine.latest.page(name, request))  # type: ignore[misc]
            rows += [(stored.seq, stored.tag) for run in page.runs for stored in run.records()]
            agrees(page.head_seq, self.model.topic(name).head, name)
            if page.next is None:
                break
            after = page.next.encode()
        agrees(rows, [(rec.seq, (rec.tag or "").encode()) for rec in self.model.latest(name)], name)

    def write_behind(self, name: str, match: tuple[str, str] | None) -> Ticket[Any] | None:
        """A record that the delete in front of it would match, under way before that one is over."""
        if is_limited(self.model.topic(name).config):
            return None
        records = [Rec(b"8", tag=match[1] if match else None)]
        self.model.put(name, records)
        return self.begin_write(name, records)

    # --- time and background --------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 10, 50, 51, 120, 501, 5_100]))
    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        self.model.advance(ms)
        self.sim.tick()
        self.check_state()

    @rule(ms=st.sampled_from([1, 60_000]))
    def turn_back(self, ms: int) -> None:
        """15: the wall clock is turned back; the engine's is not."""
        self.clock.set_wall_ms(self.clock.wall_ms() - ms)
        self.check_state()
        self.clock.set_wall_ms(self.clock.wall_ms() + ms)

    @rule(ahead_ms=st.sampled_from([61_000, 3_600_000, YEAR_MS, 20 * YEAR_MS]), ms=st.sampled_from([0, 51, 5_100]))
    def jump_ahead(self, ahead_ms: int, ms: int) -> None:
        """A clock that is wrong for a moment expires nothing and marks nothing: for the model it never happened."""
        self.clock.set_wall_ms(self.clock.wall_ms() + ahead_ms)
        self.check_state()
        self.advance(ms)
        self.clock.set_wall_ms(self.clock.wall_ms() - ahead_ms)
        self.check_state()

    @rule(step=st.sampled_from(["checkpoint", "checkpoint", "snapshot", "sync_all", "tick"]))
    def background(self, step: str) -> None:
        """31: none of it changes what anyone can see."""
        self.move_floors()
        before = [(self.facts(name), self.follow(name, 50)) for name in self.model.topics]
        getattr(self.sim, step)()
        after = [(self.facts(name), self.follow(name, 50)) for name in self.model.topics]
        holds(31, before == after, (step, before, after))
        self.check_state()

    # --- restarts -------------------------------------------------------------------------------------------------

    @rule(
        kind=st.sampled_from([*CLEAN, "kill", "kill", *POWER_PATTERNS]),
        seed=st.integers(0, 99),
        shards=st.sampled_from([1, 1, 1, 2, 3]),
        late=st.lists(rows, max_size=3),
        turns=st.integers(0, 9),
    )
    def restart(self, kind: str, seed: int, shards: int, late: list[list[Rec]], turns: int) -> None:
        """Some writes may be under way. 40: starting once more changes nothing."""
        self.move_floors()
        name, under_way = self.begin_late(late if kind not in CLEAN else [])
        for _ in range(turns if under_way else 0):
            self.sim.driver.turn()
        if kind not in (*CLEAN, "kill"):
            self.harden()
        acked = [ticket for _, ticket in under_way if ticket.done and ticket.error is None]
        self.crash(kind, seed, shards)
        for each in self.model.topics:
            late_here = [batch for batch, _ in under_way] if each == name else []
            self.landed(each, kind, late_here, len(acked) if each == name else 0)
        self.check_state()
        seen = {name: (self.facts(name), self.follow(name, 50)) for name in self.model.topics}
        self.crash("kill", 0, shards)
        again = {name: (self.facts(name), self.follow(name, 50)) for name in self.model.topics}
        holds(40, again == seen, (seen, again))
        for name in self.model.topics:
            self.model.topic(name).keys = self.surviving_keys(name)
            self.check_full(name, 50)

    def begin_late(self, late: list[list[Rec]]) -> tuple[str, list[tuple[list[Rec], Ticket[Any]]]]:
        """Into a topic whose caps do not decide what becomes of them."""
        for name, topic in self.model.topics.items():
            config = topic.config
            if not (config.cap_bytes or config.cap_records or config.durability == "ephemeral"):
                return name, [(records, self.begin_write(name, records)) for records in late]
        return "", []

    def begin_write(self, name: str, records: list[Rec]) -> Ticket[Any]:
        return self.sim.submit(lambda engine: engine.write(name, real_batch(records, None)))

    # --- reads ----------------------------------------------------------------------------------------------------

    @rule(
        name=names,
        at=places | st.just(150),
        limit=st.sampled_from([1, 2, 5, 256]),
        budget=st.sampled_from([1, 40, 100, 1 << 20]),
        nodes=st.frozensets(st.sampled_from(NODES), max_size=2),
    )
    def read(self, name: str, at: int, limit: int, budget: int, nodes: frozenset[str]) -> None:
        from_seq = self.seq_at(name, at)
        hidden = frozenset(node.encode() for node in nodes) or None
        got = self.page(name, ReadRequest(from_seq=from_seq, limit=limit, budget_bytes=budget, nodes=hidden))
        page = self.model.read(name, from_seq, limit=limit, budget=budget, nodes=nodes)
        agrees(got.rows, [row_of(rec) for rec in page.records], name)
        agrees((got.next_from_seq, got.head_seq, got.earliest_seq, got.caught_up, got.lag),
               (page.next_from_seq, page.head_seq, page.earliest_seq, page.caught_up, page.lag), name)  # fmt: skip
        agrees(got.gaps, [] if page.gap is None else [(page.gap.gap_from, page.gap.gap_to, page.gap.reason)], name)
        self.check_page(name, from_seq, got, limit=limit, budget=budget, nodes=nodes)

    @rule(name=names, limit=st.sampled_from([1, 7, 1000]), node=st.none() | st.sampled_from(NODES))
    def full_read(self, name: str, limit: int, node: str | None) -> None:
        self.check_full(name, limit)
        if node is not None and self.real(name).config.dedupe_node:
            others = [rec.seq for rec in self.model.topic(name).live if rec.node != node]
            got, _ = self.follow(name, limit, frozenset([node.encode()]))
            holds(35, [seq for seq, _, _ in got] == others, (got, others))


def fits(match: tuple[str, str] | None, tag: str | None) -> bool:
    if match is None:
        return True
    if tag is None:
        return False
    return tag == match[1] if match[0] == "Eq" else tag.startswith(match[1])
