"""Ledger: what clients were told, and the oracles O1 to O6 of `docs/spec/storage.md#sec-18` over it.

Written apart from the engine: it knows seqs, payload tokens and answers, and nothing of logs or segments. A record's
payload is a token that names its write, so a record that comes back says where it belongs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Write:
    """One write call: its tokens, the class it was made under, and the seqs it was acked with, if it was."""

    tokens: list[str]
    durability: str = "disk"
    first_seq: int | None = None
    failed: bool = False
    refused: bool = False  # found another version than it expected

    @property
    def acked(self) -> bool:
        return self.first_seq is not None

    def copy(self) -> Write:
        return Write(self.tokens, self.durability, self.first_seq, self.failed, self.refused)


CursorFact = tuple[int, int] | None
"""Seq and fence of a named cursor; None: there is none."""
ASKED, ACKED, SYNCED = range(3)


@dataclass(slots=True)
class Instance:
    """One life of a topic name."""

    durability: str
    created: bool = False  # acked
    dropping: bool = False
    dropped: bool = False  # acked
    cap: int = 0  # the tightest ever asked for: what it took does not come back with a wider one
    mortal: bool = False  # a TTL or a cap in bytes may take any record, and says so
    ephemeral: bool = False  # asked to become ephemeral: the next start may drop everything
    writes: list[Write] = field(default_factory=list)
    deleted: set[int] = field(default_factory=set)  # acked deletes
    deleting: set[int] = field(default_factory=set)  # asked for, perhaps done
    superseded: dict[int, int] = field(default_factory=dict)  # seqs that compaction may take, and what is newer
    nulls: dict[int, list[int]] = field(default_factory=dict)  # seqs that remove their tag, and those they remove
    earliest_seen: int = 1  # the highest `earliest_seq` that an answer showed
    floor_seen: int = 1  # every cursor below one less than this was told of a loss at the front
    gone: set[int] = field(default_factory=set)  # announced as lost by an earlier start
    served: dict[int, str] = field(default_factory=dict)  # what a start has shown to readers since
    fed_by: tuple[str, ...] = ()  # topics whose records turn up here
    once: bool = False  # ... and none of them twice
    copies: dict[int, str] = field(default_factory=dict)  # copies that a reader has seen here
    queue: str = ""  # "kept" or "forgotten": what a restart does to leases
    dead_letter: str = ""
    cursors: dict[str, tuple[tuple[CursorFact, int], ...]] = field(default_factory=dict)
    """What each was asked to become, in order, and what was told of that."""
    guarded: frozenset[str] = frozenset()  # tags whose writes say the version they expect

    def acked(self) -> dict[int, str]:
        return {
            write.first_seq + at: token
            for write in self.writes
            if write.first_seq is not None
            for at, token in enumerate(write.tokens)
        }

    def copy(self) -> Instance:
        twin = Instance(self.durability)
        for name in Instance.__slots__:
            value = getattr(self, name)
            setattr(twin, name, value.copy() if isinstance(value, (set, dict)) else value)
        twin.writes = [write.copy() for write in self.writes]
        return twin

    def facts(self) -> tuple[Any, ...]:
        """What makes two ledgers different to judge by."""
        acked = tuple(write.first_seq for write in self.writes)
        flags = (self.created, self.dropping, self.dropped, self.ephemeral)
        seen = (self.earliest_seen, self.floor_seen, self.cap, self.mortal)
        sizes = (len(self.deleted), len(self.deleting), len(self.superseded), len(self.copies))
        return (acked, *sizes, *flags, *seen, repr(self.cursors))


class Ledger:
    def __init__(self) -> None:
        self.instances: dict[str, list[Instance]] = {}
        self.writes_made = 0  # names the next write's tokens

    def instance(self, name: str) -> Instance:
        return self.instances[name][-1]

    def begin(self, name: str, durability: str, *, cap: int = 0) -> Instance:
        instance = Instance(durability, cap=cap)
        self.instances.setdefault(name, []).append(instance)
        return instance

    def copy(self) -> Ledger:
        twin = Ledger()
        twin.writes_made = self.writes_made
        twin.instances = {name: [life.copy() for life in lives] for name, lives in self.instances.items()}
        return twin

    def facts(self) -> tuple[Any, ...]:
        return tuple((name, len(lives), lives[-1].facts()) for name, lives in self.instances.items())

    def tokens(self, name: str) -> list[str]:
        """Every token ever submitted to the current life of a topic, in order."""
        return [token for write in self.instance(name).writes for token in write.tokens]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a reader that starts at 0 and follows its cursor finds in a topic, and what the topic says of itself."""

    records: dict[int, str]
    gaps: list[tuple[int, int]]
    head: int
    earliest: int
    floor: int = 1
    count: int = 0
    config: object = None
    cursors: dict[str, tuple[int, int]] = field(default_factory=dict)

    def announced(self, seq: int) -> bool:
        return any(lo <= seq <= hi for lo, hi in self.gaps)


def check(ledger: Ledger, seen: dict[str, Seen], *, power_cut: bool) -> None:
    """Every oracle that one restart can be judged by."""
    for name, instances in ledger.instances.items():
        current = instances[-1]
        found = seen.get(name)
        if current.dropped or (current.dropping and found is None):
            assert found is None or not current.dropped, f"{name}: a dropped topic came back"
            continue
        if found is None:
            assert not current.created, f"{name}: an acked topic is gone"
            continue
        _check_watermarks(name, current, found, power_cut=power_cut)
        _check_instance(name, current, found, _borrowed(ledger, current), power_cut=power_cut)
    for name, instances in ledger.instances.items():
        if instances[-1].fed_by and name in seen:
            _check_copies(ledger, name, seen)
    for name in seen:
        assert name in ledger.instances, f"{name}: nobody created this topic"


def _borrowed(ledger: Ledger, told: Instance) -> dict[str, int]:
    """Tokens that may turn up here without having been written here, with their place in the source's order."""
    tokens = [token for source in told.fed_by for token in ledger.tokens(source)]
    return {token: at for at, token in enumerate(tokens)}


def _check_watermarks(name: str, told: Instance, found: Seen, *, power_cut: bool) -> None:
    """The rest of what can be said of them is said by `read_all`."""
    seen = told.earliest_seen
    undone = power_cut and told.deleted and _deletes_are_weak(told)  # and with the deletes the front they moved
    assert found.earliest >= seen or undone, f"{name}: earliest_seq fell to {found.earliest}; a reader has seen {seen}"
    assert found.floor >= told.floor_seen, f"{name}: a loss up to {told.floor_seen - 1} was told and is told no more"


def _check_instance(name: str, told: Instance, found: Seen, borrowed: dict[str, int], *, power_cut: bool) -> None:
    acked = told.acked()
    _check_whole_writes(name, told, found, borrowed)
    for seq, token in found.records.items():
        assert seq not in acked or acked[seq] == token, f"{name}: seq {seq} names another record now"
    if not power_cut or not _deletes_are_weak(told):
        for seq in told.deleted:
            assert seq not in found.records, f"{name}: deleted seq {seq} came back"
    assert found.head >= max(acked, default=0), f"{name}: head {found.head} lies below an acked seq"
    evictable = _evictable(told)
    for seq, token in told.served.items():
        gone = seq in told.deleting or seq in evictable or told.ephemeral
        gone |= bool(told.fed_by and (told.cap or told.mortal)) and found.announced(seq)  # copies are no acked writes
        assert gone or found.records.get(seq) == token, f"{name}: seq {seq} was served after a start and is gone"
    _check_missing(name, told, found, evictable, power_cut=power_cut)
    _check_compacted(name, told, found)
    _check_cursors(name, told, found, power_cut=power_cut)
    for lo, hi in found.gaps:
        inside = [seq for seq in found.records if lo <= seq <= hi]
        assert not inside, f"{name}: gap {lo}..{hi} holds live records {inside[:3]}"


def _deletes_are_weak(told: Instance) -> bool:
    """Deletes of `memory` are kept as its records are, acks of jobs as their class is."""
    return told.durability == "memory" or (bool(told.queue) and told.durability == "disk")


def _check_missing(name: str, told: Instance, found: Seen, evictable: set[int], *, power_cut: bool) -> None:
    classes = {
        write.first_seq + at: write.durability
        for write in told.writes
        if write.first_seq is not None
        for at in range(len(write.tokens))
    }
    requested = told.deleted | told.deleting
    missing = [seq for seq in classes if seq not in found.records and seq not in requested]
    for seq in missing:
        assert found.announced(seq), f"{name}: acked seq {seq} is missing in silence"
        kept = classes[seq] == "fsync" or (classes[seq] == "disk" and not power_cut)
        allowed = seq in evictable or seq in told.gone or told.ephemeral
        assert allowed or not kept, f"{name}: acked {classes[seq]} seq {seq} is lost"
    lost = [seq for seq in missing if seq not in evictable | told.gone and classes[seq] == "disk"]
    kept_seqs = [seq for seq in classes if seq in found.records]
    if lost and kept_seqs and not told.ephemeral:
        assert max(kept_seqs) < min(lost), f"{name}: a middle part is lost: {lost[:3]} before {max(kept_seqs)}"


def _check_compacted(name: str, told: Instance, found: Seen) -> None:
    """What superseded a record that was taken is there, and no tag comes back whose removal was taken."""
    for seq, newer in told.superseded.items():
        taken = seq not in found.records and not found.announced(seq)
        while newer in told.superseded and newer not in found.records:
            newer = told.superseded[newer]
        is_removed = newer in told.nulls and not found.announced(newer)
        kept = newer in found.records or is_removed or newer in told.gone
        assert kept or not taken, f"{name}: seq {seq} was taken, and {newer}, which superseded it, is not there"
    for seq, older in told.nulls.items():
        back = [each for each in older if each in found.records]
        is_taken = seq not in found.records and not found.announced(seq)
        assert not back or not is_taken, f"{name}: {back[0]} has its tag back, the null at {seq} was taken first"


def _check_cursors(name: str, told: Instance, found: Seen, *, power_cut: bool) -> None:
    """A kill takes no cursor back behind what was acked, a power cut none behind what was synced; neither moves one to
    where nobody put it."""
    assert set(found.cursors) <= set(told.cursors), f"{name}: nobody made {set(found.cursors) - set(told.cursors)}"
    for cursor, facts in told.cursors.items():
        kept = max((at for at, (_, level) in enumerate(facts) if level >= (SYNCED if power_cut else ACKED)), default=-1)
        allowed = [fact for fact, _ in facts[max(kept, 0) :]] + [None] * (kept < 0)
        now = found.cursors.get(cursor)
        assert now in allowed, f"{name}: cursor {cursor} is {now}, and may be one of {allowed}"


def _evictable(told: Instance) -> set[int]:
    """Acked seqs that a cap or TTL may have taken; of a cap in records all but the newest ones."""
    if told.mortal:
        return set(told.acked())
    if not told.cap:
        return set()
    alive = sorted(seq for seq in told.acked() if seq not in told.deleted)
    unacked = sum(len(write.tokens) for write in told.writes if not write.acked)
    spared = max(told.cap - unacked, 0)
    return set(told.acked()) - set(alive[len(alive) - spared :])


def _check_whole_writes(name: str, told: Instance, found: Seen, borrowed: dict[str, int]) -> None:
    by_token = {token: seq for seq, token in found.records.items()}
    if not borrowed or told.once:
        assert len(by_token) == len(found.records), f"{name}: a record is there twice"
    submitted = {token for write in told.writes for token in write.tokens}
    for token in by_token:
        assert token in submitted or token in borrowed, f"{name}: record {token!r} was never submitted"
    for write in told.writes:
        if write.acked:
            continue
        assert not write.refused or write.tokens[0] not in by_token, f"{name}: a refused write is there: {write.tokens}"
        present = [token for token in write.tokens if token in by_token]
        if not present or told.cap or told.mortal or told.deleting:
            continue
        assert len(present) == len(write.tokens), f"{name}: half of a write is there: {present}"
        seqs = [by_token[token] for token in write.tokens]
        assert seqs == list(range(seqs[0], seqs[0] + len(seqs))), f"{name}: a write is not contiguous: {seqs}"


def _check_copies(ledger: Ledger, name: str, seen: dict[str, Seen]) -> None:
    """Copies keep their seqs and the order of their source, and none is missing in silence."""
    told, found = ledger.instance(name), seen[name]
    order = _borrowed(ledger, told)
    gone = told.deleted | told.deleting
    for seq, token in told.copies.items():
        now = found.records.get(seq)
        assert now in (None, token), f"{name}: seq {seq} held the copy {token!r} and now holds {now!r}"
        assert now or seq in gone or found.announced(seq), f"{name}: the copy at {seq} is missing in silence"
    if told.once:
        places = [order[token] for _, token in sorted(found.records.items()) if token in order]
        assert places == sorted(places), f"{name}: copies are out of order: {places}"
    have = set(found.records.values()) | {told.copies[seq] for seq in gone if seq in told.copies}
    for source in told.fed_by:
        if ledger.instance(source).queue:
            continue  # a dead-letter topic gets some jobs, not all
        for seq, token in seen[source].records.items() if source in seen else ():
            evicted = (told.cap or told.mortal) and found.gaps
            assert token in have or gone or evicted, f"{name}: live record {seq} of {source} was never copied"
