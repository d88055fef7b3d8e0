"""A small model of topics, written from the contract alone; it shares no code with the product.

Records are kept for ever in plain lists, each with what became of it; every answer is computed by walking them one by
one. Time moves only through `advance`. Writes and deletes have two halves, as they have for a real log: `begin_*` takes
the place in the topic's write order, `commit_*` makes it visible. `put` and `delete` do both. What a crash took is told
to the model (`restart`), because only the disk knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

LIVE, DELETED = "live", "deleted"
CAP, TTL, RESTART, SOURCE_TRIM = "cap", "ttl", "restart", "source_trim"
Match = tuple[str, str]
"""("Eq", tag) or ("Glob", prefix)."""
EXAMINED_MAX = 10_000


class Refused(Exception):
    """A call that changed nothing; `code` is the contract's."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass
class Config:
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: str = "old"
    durability: str = "disk"
    idempotency_window_ms: int = 120_000
    dedupe_node: bool = True
    compact: str | None = None
    compact_grace_ms: int = 60_000


@dataclass
class Rec:
    data: bytes
    tag: str | None = None
    node: str | None = None
    seq: int = 0
    ts: int = 0
    fate: str = LIVE

    @property
    def size(self) -> int:
        return len(self.data)


@dataclass
class Put:
    first_seq: int
    count: int
    head_seq: int
    deduped: bool = False


@dataclass
class Batch:
    """A write on its way."""

    records: list[Rec]
    key: str | None

    @property
    def size(self) -> int:
        return sum(rec.size for rec in self.records)


@dataclass
class Removal:
    """A delete on its way; it spares everything from `bound` on."""

    bound: int
    match: Match | None


@dataclass
class Gap:
    gap_from: int
    gap_to: int
    reason: str
    earliest_seq: int
    head_seq: int


@dataclass
class Page:
    records: list[Rec]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    lag: int
    gap: Gap | None
    scanned: int


@dataclass
class Lost:
    lo: int
    hi: int
    reason: str


@dataclass
class Topic:
    name: str
    epoch: int
    config: Config
    log: list[Rec] = field(default_factory=list)  # index = seq - 1
    lost_ranges: list[Lost] = field(default_factory=list)  # above the floor
    lost: dict[str, int] = field(default_factory=lambda: {CAP: 0, TTL: 0, SOURCE_TRIM: 0, RESTART: 0})
    keys: dict[str, tuple[int, Put]] = field(default_factory=dict)  # key -> (ts, Put)
    staged: list[Batch] = field(default_factory=list)  # batches in write order
    reserved_ts: int = 0
    delete_below: int = 0

    @property
    def head(self) -> int:
        return len(self.log)

    @property
    def reserved_head(self) -> int:
        return self.head + sum(len(batch.records) for batch in self.staged)

    @property
    def live(self) -> list[Rec]:
        return [rec for rec in self.log if rec.fate == LIVE]

    @property
    def count(self) -> int:
        return len(self.live)

    @property
    def bytes(self) -> int:
        return sum(rec.size for rec in self.live)

    @property
    def earliest(self) -> int:
        return min((rec.seq for rec in self.live), default=self.head + 1)

    @property
    def evict_floor(self) -> int:
        return min(max(max(self.lost.values()) + 1, 1), self.head + 1)


class Model:
    def __init__(self, now: int = 1_000_000) -> None:
        self.now = now
        self.topics: dict[str, Topic] = {}
        self.epochs: dict[str, int] = {}

    # --- time and retention ---------------------------------------------------------------------------------------

    def advance(self, ms: int) -> None:
        self.now += ms
        for topic in self.topics.values():
            self._retain(topic, self.now)

    def _retain(self, topic: Topic, now: int) -> None:
        self._expire(topic, now)
        self._trim_records(topic)
        cap = topic.config.cap_bytes if topic.config.discard == "old" else 0
        while cap and topic.bytes > cap:
            self._lose(topic, topic.live[0], CAP)
        self._absorb(topic)

    def _trim_records(self, topic: Topic) -> None:
        cap = topic.config.cap_records if topic.config.discard == "old" else 0
        while cap and topic.count > cap:
            self._lose(topic, topic.live[0], CAP)

    def _expire(self, topic: Topic, now: int) -> None:
        for rec in topic.live if topic.config.ttl_ms else ():
            if now - rec.ts > topic.config.ttl_ms:
                self._lose(topic, rec, TTL)

    @staticmethod
    def _lose(topic: Topic, rec: Rec, cause: str) -> None:
        rec.fate = cause
        topic.lost[cause] = max(topic.lost[cause], rec.seq)

    @staticmethod
    def _absorb(topic: Topic) -> None:
        while topic.lost_ranges and topic.lost_ranges[0].lo <= max(topic.lost.values()) + 1:
            lost = topic.lost_ranges.pop(0)
            topic.lost[lost.reason] = max(topic.lost[lost.reason], lost.hi)

    # --- topics ---------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        if name not in self.topics:
            raise Refused("topic_not_found")
        return self.topics[name]

    def create(self, name: str, config: Config | None = None) -> None:
        assert name not in self.topics
        self.epochs[name] = self.epochs.get(name, 0) + 1
        self.topics[name] = Topic(name, self.epochs[name], config or Config())

    def set_config(self, name: str, config: Config) -> None:
        topic = self.topic(name)
        self._retain(topic, self.now)
        topic.config = config
        self._retain(topic, self.now)

    def drop(self, name: str, *, if_empty: bool = False) -> None:
        topic = self.topic(name)
        if if_empty and topic.count:
            raise Refused("topic_not_empty")
        del self.topics[name]

    # --- writes ---------------------------------------------------------------------------------------------------

    def put(self, name: str, records: Sequence[Rec], key: str | None = None) -> Put:
        begun = self.begin_put(name, records, key)
        return begun if isinstance(begun, Put) else self.commit_put(name)

    def begin_put(self, name: str, records: Sequence[Rec], key: str | None = None) -> Put | Batch | None:
        """A Put at once if the key was used before; None if a write with the key is on its way; else a Batch."""
        topic = self.topic(name)
        self._retain(topic, self.now)
        window = topic.config.idempotency_window_ms
        if key is not None and window:
            known = topic.keys.get(key)
            if known is not None and self.now - known[0] <= window:
                put = known[1]
                return Put(put.first_seq, put.count, put.head_seq, deduped=True)
            if any(batch.key == key for batch in topic.staged):
                return None
        self._admit(topic, records)
        ts = topic.reserved_ts = max(self.now, topic.reserved_ts)
        first = topic.reserved_head + 1
        fresh = [Rec(rec.data, rec.tag, rec.node, first + at, ts) for at, rec in enumerate(records)]
        batch = Batch(fresh, key if window else None)
        topic.staged.append(batch)
        return batch

    def newest(self, name: str, tag: str) -> int:
        """The seq that a write expects of a tag: of its newest live record, writes on their way included; 0 is none."""
        topic = self.topic(name)
        self._retain(topic, self.now)
        staged = [rec for batch in topic.staged for rec in batch.records]
        return max((rec.seq for rec in [*topic.live, *staged] if rec.tag == tag), default=0)

    def tagged(self, name: str, after: int, match: Match) -> list[int]:
        """The live records behind a seq that a reader of this tag gets, however small its pages are."""
        topic = self.topic(name)
        self._retain(topic, self.now)
        op, wanted = match
        return [
            rec.seq
            for rec in topic.live
            if rec.seq > after
            and rec.tag is not None
            and (rec.tag == wanted if op == "Eq" else rec.tag.startswith(wanted))
        ]

    @staticmethod
    def _admit(topic: Topic, records: Sequence[Rec]) -> None:
        caps = topic.config
        count, size = len(records), sum(rec.size for rec in records)
        if caps.cap_bytes and max(rec.size for rec in records) > caps.cap_bytes:
            raise Refused("record_too_large")
        if caps.discard == "old":
            return
        if (caps.cap_records and count > caps.cap_records) or (caps.cap_bytes and size > caps.cap_bytes):
            raise Refused("record_too_large")
        there = topic.count + sum(len(batch.records) for batch in topic.staged)
        held = topic.bytes + sum(batch.size for batch in topic.staged)
        if (caps.cap_records and there + count > caps.cap_records) or (caps.cap_bytes and held + size > caps.cap_bytes):
            raise Refused("topic_full")

    def commit_put(self, name: str) -> Put:
        """The oldest write on its way is published."""
        topic = self.topic(name)
        batch = topic.staged.pop(0)
        assert batch.records[0].seq == topic.head + 1
        topic.log += batch.records
        put = Put(batch.records[0].seq, len(batch.records), topic.head)
        if batch.key is not None:
            topic.keys[batch.key] = (batch.records[0].ts, put)
        self._expire(topic, batch.records[0].ts)
        self._trim_records(topic)
        self._retain(topic, self.now)
        return put

    def fail_put(self, name: str) -> None:
        """The newest write on its way failed for certain: its seqs go back."""
        self.topic(name).staged.pop()

    # --- deletes --------------------------------------------------------------------------------------------------

    def delete(self, name: str, *, before_seq: int | None = None, match: Match | None = None) -> int:
        return self.commit_delete(name, self.begin_delete(name, before_seq=before_seq, match=match))

    def begin_delete(self, name: str, *, before_seq: int | None = None, match: Match | None = None) -> Removal:
        if before_seq is None and match is None:
            raise Refused("invalid_request")
        topic = self.topic(name)
        self._retain(topic, self.now)
        bound = topic.reserved_head + 1
        return Removal(bound if before_seq is None else min(before_seq, bound), match)

    def commit_delete(self, name: str, removal: Removal) -> int:
        topic = self.topic(name)
        chosen = [rec for rec in topic.live if rec.seq < removal.bound and self._matches(removal.match, rec.tag)]
        for rec in chosen:
            rec.fate = DELETED
        if removal.match is None:
            topic.delete_below = max(topic.delete_below, removal.bound)
        return len(chosen)

    @staticmethod
    def _matches(match: Match | None, tag: str | None) -> bool:
        if match is None:
            return True
        op, value = match
        return tag is not None and (tag == value if op == "Eq" else tag.startswith(value))

    def delete_seqs(self, name: str, seqs: Iterable[int]) -> int:
        wanted = set(seqs)
        chosen = [rec for rec in self.topic(name).live if rec.seq in wanted]
        for rec in chosen:
            rec.fate = DELETED
        return len(chosen)

    def compact(self, name: str, now: int) -> set[int]:
        """Everything that is superseded, or removes its tag, and is old enough; the seqs that went."""
        topic = self.topic(name)
        self._retain(topic, self.now)
        settled = [rec for rec in topic.live if rec.tag is not None and rec.ts <= now - topic.config.compact_grace_ms]
        newest = {rec.tag: rec for rec in settled}
        gone = {rec.seq for rec in settled if newest[rec.tag] is not rec or rec.data == b"null"}
        self.delete_seqs(name, gone)
        return gone

    def latest(self, name: str) -> list[Rec]:
        """The newest of each tag, in the order of tags; none for a tag that was removed."""
        topic = self.topic(name)
        self._retain(topic, self.now)
        newest = {rec.tag.encode(): rec for rec in topic.live if rec.tag is not None}
        return [rec for _, rec in sorted(newest.items()) if rec.data != b"null"]

    # --- reads ----------------------------------------------------------------------------------------------------

    def read(
        self,
        name: str,
        from_seq: int,
        *,
        limit: int = 256,
        budget: int = 1 << 20,
        nodes: Iterable[str] = (),
        epoch: int | None = None,
        head_limit: int | None = None,
    ) -> Page:
        topic = self.topic(name)
        self._retain(topic, self.now)
        head = topic.head if head_limit is None else min(topic.head, head_limit)
        cursor, gap = self._start(topic, from_seq, epoch)
        hidden = set(nodes) if topic.config.dedupe_node else set()
        records: list[Rec] = []
        size = scanned = examined = 0
        last, in_dead = cursor, False
        seq = cursor + 1
        while seq <= head and len(records) < limit and examined < EXAMINED_MAX:
            lost = next((r for r in topic.lost_ranges if r.lo <= seq <= r.hi), None)
            if lost is not None:
                if records or gap is not None:
                    break
                gap = Gap(seq, lost.hi, lost.reason, topic.earliest, topic.head)
                last, examined, in_dead, seq = lost.hi, examined + 1, False, lost.hi + 1
                continue
            rec = topic.log[seq - 1]
            if rec.fate != LIVE:
                examined += not in_dead
                in_dead = True
            else:
                own = rec.node is not None and rec.node in hidden
                if not own and records and size + rec.size > budget:
                    break
                examined, scanned, in_dead = examined + 1, scanned + 1, False
                if not own:
                    records.append(rec)
                    size += rec.size
            last = seq
            seq += 1
        head = max(head, last) if gap is not None else head
        return Page(records, last, head, topic.earliest, last >= head, max(head - last, 0), gap, scanned)

    @staticmethod
    def _start(topic: Topic, from_seq: int, epoch: int | None) -> tuple[int, Gap | None]:
        earliest, head = topic.earliest, topic.head
        if from_seq > head or (epoch is not None and epoch != topic.epoch):
            return earliest - 1, Gap(1, head, "recreated", earliest, head)
        if from_seq + 1 < topic.evict_floor:
            causes = [cause for cause, lost in topic.lost.items() if lost >= from_seq + 1]
            reason = causes[0] if len(causes) == 1 else "mixed"
            return earliest - 1, Gap(from_seq + 1, earliest - 1, reason, earliest, head)
        return from_seq, None

    # --- loss and restarts ----------------------------------------------------------------------------------------

    def lose_range(self, name: str, lo: int, hi: int, reason: str) -> None:
        """Seqs that will never have a record, announced: the head moves over them."""
        topic = self.topic(name)
        assert lo == topic.head + 1
        topic.log += [Rec(b"", seq=seq, ts=0, fate=reason) for seq in range(lo, hi + 1)]
        last = topic.lost_ranges[-1] if topic.lost_ranges else None
        if last is not None and last.hi + 1 == lo and last.reason == reason:
            last.hi = hi
        else:
            topic.lost_ranges.append(Lost(lo, hi, reason))
        self._absorb(topic)

    def restart(self, name: str, *, kept_head: int, head: int, keys_kept: bool = True) -> None:
        """The records above `kept_head` did not come back; the next seq is `head + 1`."""
        topic = self.topic(name)
        topic.staged = []
        del topic.log[kept_head:]
        topic.reserved_ts = max((rec.ts for rec in topic.log), default=0)
        if not keys_kept:
            topic.keys = {}
        if topic.config.durability == "ephemeral":
            self._restart_ephemeral(topic, head)
        elif head > kept_head:
            self.lose_range(name, kept_head + 1, head, RESTART)
        self._retain(topic, self.now)

    def _restart_ephemeral(self, topic: Topic, head: int) -> None:
        for rec in topic.live:
            rec.fate = RESTART
        topic.log += [Rec(b"", seq=seq, ts=0, fate=RESTART) for seq in range(topic.head + 1, head + 1)]
        if topic.evict_floor <= head:
            topic.lost[RESTART] = head
        self._absorb(topic)

    # --- state ----------------------------------------------------------------------------------------------------

    def state(self, name: str) -> dict[str, int]:
        topic = self.topic(name)
        self._retain(topic, self.now)
        return {
            "head_seq": topic.head,
            "next_seq": topic.head + 1,
            "earliest_seq": topic.earliest,
            "evict_floor": topic.evict_floor,
            "count": topic.count,
            "bytes": topic.bytes,
        }
