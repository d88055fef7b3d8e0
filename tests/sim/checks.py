"""What every step of the machine is judged by; each check names its invariant.

`real` is the engine, `model` knows nothing of it. What the engine answers passes through `page` and `facts`, and
through nothing else, so that a test can put a lie in its mouth."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.core.model import Config, Model, Rec
from tests.sim.invariants import agrees, holds

from topics.core.manifest import stored_blocks
from topics.core.reading.walk import ReadOutcome, ReadRequest
from topics.model.results import TopicState
from topics.testing.driver import SimKernel

PAGES_MAX = 500
Told = list[tuple[int, int, bytes]]
Gaps = list[tuple[int, int]]


@dataclass
class Row:
    """A record as a reader got it."""

    seq: int
    ts: int
    tag: str | None
    node: str | None
    data: bytes


@dataclass
class Answer:
    """One page as a reader got it; `gaps` has one entry at most if the engine keeps to its word."""

    rows: list[Row]
    gaps: list[tuple[int, int, str]]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    lag: int


@dataclass
class Facts:
    """A topic from outside."""

    id: int
    head: int
    earliest: int
    floor: int
    count: int
    bytes: int
    lost: list[tuple[int, int, str]]
    config: Any


@dataclass
class History:
    """What one instance of a topic ever said: its highest marks, its acked seqs, and how many seqs that makes."""

    high: tuple[int, int, int] = (0, 0, 0)
    acked: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    failed: bool = False


class Checks:
    sim: SimKernel
    model: Model
    crashed: bool

    def __init__(self) -> None:
        super().__init__()
        self.histories: dict[tuple[str, int], History] = {}

    # --- what the engine says -------------------------------------------------------------------------------------

    def real(self, name: str) -> Any:
        return self.sim.engine.state.topics[name]

    def history(self, name: str) -> History:
        return self.histories.setdefault((name, self.real(name).id), History())

    def page(self, name: str, request: ReadRequest) -> Answer:
        return answer_of(self.sim.call(lambda engine: engine.read(name, request)).outcome)

    def facts(self, name: str) -> Facts:
        topic = self.real(name)
        told: TopicState = self.sim.call(lambda engine: engine.topic_state(name))
        lost = [(entry.lo, entry.hi, entry.reason) for entry in topic.lost]
        return Facts(
            topic.id, told.head_seq, told.earliest_seq, topic.evict_floor, told.count, told.bytes, lost, topic.config
        )

    def manifest(self, name: str) -> list[tuple[int, int, int]]:
        """First and last seq and live records of each block that a bulk reader is told of."""
        return [(block.first_seq, block.last_seq, block.live) for block in stored_blocks(self.real(name))]

    def move_floors(self) -> None:
        """Let floors that are due be moved, as any observer would."""
        for name in self.model.topics:
            self.sim.call(lambda engine, name=name: engine.topic_state(name))  # type: ignore[misc]
            self.model.state(name)

    # --- after every step -----------------------------------------------------------------------------------------

    def check_state(self) -> None:
        self.move_floors()
        for name in self.model.topics:
            facts = self.facts(name)
            state = self.model.state(name)
            holds(14, facts.floor <= state["evict_floor"], facts)
            agrees((facts.head, facts.earliest, facts.floor), (state["head_seq"], state["earliest_seq"],
                   state["evict_floor"]), name)  # fmt: skip
            agrees((facts.count, facts.bytes), (state["count"], state["bytes"]), name)
            self.check_watermarks(name, facts)
            self.check_retention(facts)

    def check_watermarks(self, name: str, facts: Facts) -> None:
        holds(9, 1 <= facts.floor <= facts.earliest <= facts.head + 1, facts)
        history = self.history(name)
        head, floor, earliest = history.high
        holds(3, facts.head >= head, f"{head}, then {facts.head}")
        holds(10, facts.floor >= floor and facts.earliest >= earliest, f"{history.high}, then {facts}")
        history.high = max(head, facts.head), max(floor, facts.floor), max(earliest, facts.earliest)
        if not self.crashed and not history.failed:
            holds(8, facts.head == len(history.acked), f"head {facts.head}, acked {len(history.acked)}")

    def check_retention(self, facts: Facts) -> None:
        if facts.config.discard == "old":
            fits = not facts.config.cap_records or facts.count <= facts.config.cap_records
            fits &= not facts.config.cap_bytes or facts.bytes <= facts.config.cap_bytes
            holds(23, fits, facts)

    # --- a page ---------------------------------------------------------------------------------------------------

    def check_page(
        self, name: str, from_seq: int, got: Answer, *, limit: int, budget: int, nodes: frozenset[str] = frozenset()
    ) -> None:
        topic, live = self.real(name), {rec.seq for rec in self.model.topic(name).live}
        seqs = [row.seq for row in got.rows]
        recreated = any(reason == "recreated" for _, _, reason in got.gaps)
        holds(32, seqs == sorted(set(seqs)) and (recreated or all(seq > from_seq for seq in seqs)), seqs)
        holds(20, len(got.gaps) <= 1 and all(recreated or seq > hi for _, hi, _ in got.gaps for seq in seqs[:1]), got)
        if not recreated:
            told = {lo for lo, _, _ in got.gaps}
            in_range = any(lo <= from_seq + 1 <= hi for lo, hi, _ in self.facts(name).lost)
            holds(16, from_seq + 1 >= topic.evict_floor or from_seq + 1 in told, got.gaps)
            holds(16, from_seq + 1 < topic.evict_floor or in_range or from_seq + 1 not in told, got.gaps)
            holds(19, not any(lo <= seq <= hi for lo, hi, _ in got.gaps for seq in live), got.gaps)
            self.check_no_gap_without_cause(name, got)
        holds(34, len(seqs) <= limit and sum(len(row.data) for row in got.rows) <= max(budget, first_size(got)), got)
        if topic.config.dedupe_node:
            holds(35, not any(row.node in nodes for row in got.rows), got)
        self.check_ttl(name, got)

    def check_no_gap_without_cause(self, name: str, got: Answer) -> None:
        config, lost = self.model.topic(name).config, self.model.topic(name).lost
        if config.durability == "fsync" and not self.crashed and not any(lost.values()):
            limited = config.cap_records or config.cap_bytes or config.ttl_ms
            holds(17, limited or not got.gaps, got.gaps)

    def check_ttl(self, name: str, got: Answer) -> None:
        ttl, now = self.real(name).config.ttl_ms, self.sim.engine.context.clock.now_ms()
        if ttl:
            holds(26, all(now - row.ts <= ttl for row in got.rows), f"now {now}, ttl {ttl}, {got.rows}")

    # --- everything there is --------------------------------------------------------------------------------------

    def check_full(self, name: str, limit: int) -> None:
        """What a reader gets that starts at 0 and follows its cursor."""
        self.move_floors()
        got, gaps = self.follow(name, limit, judged=True)
        live = [(rec.seq, rec.data) for rec in self.model.topic(name).live]
        found = [(seq, data) for seq, _, data in got]
        missing = [seq for seq, data in live if (seq, data) not in found]
        holds(4, not missing, missing)
        holds(26, not missing, missing)  # at ts + ttl it is still there
        holds(7, [ts for _, ts, _ in got] == sorted(ts for _, ts, _ in got), got)
        facts = self.facts(name)
        holds(12, (facts.count, facts.bytes) == (len(got), sum(len(data) for *_, data in got)), facts)
        holds(11, facts.earliest == (got[0][0] if got else facts.head + 1), facts)
        self.check_nothing_came_back(name, found, live)
        self.check_every_seq(name, got, gaps)
        self.check_manifest(name, [seq for seq, _, _ in got])
        holds(21, (got, gaps) == self.follow(name, 3), "another page size")

    def check_nothing_came_back(self, name: str, found: list[tuple[int, bytes]], live: list[tuple[int, bytes]]) -> None:
        log = self.model.topic(name).log
        fates = {rec.seq: rec.fate for rec in log}
        back = [seq for seq, _ in found if fates.get(seq) == "deleted"]
        holds(27, not back, back)
        holds(15, not [seq for seq, _ in found if fates.get(seq) in ("cap", "ttl")], found)
        written = {rec.seq: rec.data for rec in log}
        holds(39, all(written.get(seq) == data for seq, data in found), found)
        agrees(found, live, name)

    def check_every_seq(self, name: str, got: Told, gaps: Gaps) -> None:
        told = {seq for lo, hi in gaps for seq in range(lo, hi + 1)} | {seq for seq, _, _ in got}
        log = self.model.topic(name).log
        holds(18, not [rec for rec in log if rec.seq not in told and rec.fate != "deleted"], gaps)

    def check_manifest(self, name: str, live: list[int]) -> None:
        blocks = self.manifest(name)
        ends = [seq for first, last, _ in blocks for seq in (first, last)]
        holds(56, ends == sorted(ends) and all(one[1] < two[0] for one, two in pairwise(blocks)), blocks)
        held = [sum(first <= seq <= last for seq in live) for first, last, _ in blocks]
        holds(56, held == [count for *_, count in blocks] and sum(held) == len(live), f"{blocks}, live {live}")

    def follow(
        self, name: str, limit: int, nodes: frozenset[bytes] | None = None, *, judged: bool = False
    ) -> tuple[Told, Gaps]:
        got: Told = []
        gaps: Gaps = []
        cursor = 0
        for _ in range(PAGES_MAX):
            page = self.page(name, ReadRequest(from_seq=cursor, limit=limit, nodes=nodes))
            if judged:
                self.check_page(name, cursor, page, limit=limit, budget=1 << 20)
            got += [(row.seq, row.ts, row.data) for row in page.rows]
            gaps += [(lo, hi) for lo, hi, _ in page.gaps]
            cursor = page.next_from_seq
            if page.caught_up:
                holds(33, True)
                return got, gaps
        holds(33, False, f"{name}: a reader at {cursor} never catches up")
        return got, gaps

    # --- writes ---------------------------------------------------------------------------------------------------

    def check_acked(self, name: str, first_seq: int, count: int, records: int) -> None:
        """A write that was not a repeat."""
        history = self.history(name)
        seqs = set(range(first_seq, first_seq + count))
        holds(2, not seqs & history.acked, f"{first_seq}, {count}")
        holds(1, count == records and first_seq > max(history.acked, default=0), f"{first_seq}, {count}")
        history.acked |= seqs


def first_size(got: Answer) -> int:
    return len(got.rows[0].data) if got.rows else 0


def answer_of(outcome: ReadOutcome) -> Answer:
    rows = [
        Row(record.seq, record.ts, text(record.tag), text(record.node), bytes(record.blob)[5:-1])
        for run in outcome.runs
        for record in run.records()
    ]
    gap = outcome.tombstone
    gaps = [] if gap is None else [(gap.gap_from, gap.gap_to, gap.reason)]
    return Answer(rows, gaps, outcome.next_from_seq, outcome.head_seq, outcome.earliest_seq, outcome.caught_up,
                  outcome.lag)  # fmt: skip


def text(raw: bytes | None) -> str | None:
    return None if raw is None else bytes(raw).decode()


def row_of(rec: Rec) -> Row:
    return Row(rec.seq, rec.ts, rec.tag, rec.node, rec.data)


def is_limited(config: Config) -> bool:
    return bool(config.cap_records or config.cap_bytes or config.ttl_ms)
