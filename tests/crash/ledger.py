"""Ledger: what clients were told, and the oracles O1 to O6 of storage.md section 18 over it.

Written apart from the engine: it knows seqs, payload tokens and answers, and nothing of logs or segments. Every record's
payload is a token that names its write, so a record that comes back says where it belongs."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field


@dataclass
class Write:
    """One write call: its tokens, and the seqs it was acked with, if it was."""

    tokens: list[str]
    first_seq: int | None = None
    failed: bool = False

    @property
    def acked(self) -> bool:
        return self.first_seq is not None


@dataclass
class Instance:
    """One life of a topic name."""

    durability: str
    created: bool = False  # acked
    dropping: bool = False
    dropped: bool = False  # acked
    cap: int = 0
    writes: list[Write] = field(default_factory=list)
    deleted: set[int] = field(default_factory=set)  # acked deletes
    deleting: set[int] = field(default_factory=set)  # asked for, perhaps done
    earliest_seen: int = 1
    head_seen: int = 0

    def acked(self) -> dict[int, str]:
        return {
            write.first_seq + at: token
            for write in self.writes
            if write.first_seq is not None
            for at, token in enumerate(write.tokens)
        }


class Ledger:
    def __init__(self) -> None:
        self.instances: dict[str, list[Instance]] = {}

    def instance(self, name: str) -> Instance:
        return self.instances[name][-1]

    def begin(self, name: str, durability: str, *, cap: int = 0) -> Instance:
        instance = Instance(durability, cap=cap)
        self.instances.setdefault(name, []).append(instance)
        return instance

    def copy(self) -> Ledger:
        return copy.deepcopy(self)


@dataclass(frozen=True)
class Seen:
    """What a reader that starts at 0 and follows its cursor finds in a topic."""

    records: dict[int, str]
    gaps: list[tuple[int, int]]
    head: int
    earliest: int

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
        _check_instance(name, current, found, power_cut=power_cut)
    for name in seen:
        assert name in ledger.instances, f"{name}: nobody created this topic"


def _check_instance(name: str, told: Instance, found: Seen, *, power_cut: bool) -> None:
    acked = told.acked()
    _check_whole_writes(name, told, found)
    for seq, token in found.records.items():
        assert seq not in acked or acked[seq] == token, f"{name}: seq {seq} names another record now"
    for seq in told.deleted:
        assert seq not in found.records, f"{name}: deleted seq {seq} came back"
    assert found.head >= max(acked, default=0), f"{name}: head {found.head} lies below an acked seq"
    assert found.earliest >= told.earliest_seen, f"{name}: earliest_seq fell"
    missing = [seq for seq in acked if seq not in found.records and seq not in told.deleted | told.deleting]
    evictable = _evictable(told, found)
    for seq in missing:
        assert found.announced(seq), f"{name}: acked seq {seq} is missing in silence"
        if told.durability == "fsync" or (told.durability == "disk" and not power_cut):
            assert seq in evictable, f"{name}: acked {told.durability} seq {seq} is lost"
    if told.durability == "disk" and power_cut:
        lost = [seq for seq in missing if seq not in evictable]
        kept = [seq for seq in acked if seq in found.records]
        assert not lost or not kept or max(kept) < min(lost), (
            f"{name}: a middle part is lost: {lost[:3]} before {max(kept)}"
        )
    for lo, hi in found.gaps:
        inside = [seq for seq in found.records if lo <= seq <= hi]
        assert not inside, f"{name}: gap {lo}..{hi} holds live records {inside[:3]}"


def _evictable(told: Instance, found: Seen) -> set[int]:
    """Acked seqs that the cap may have taken: all but the newest `cap` records."""
    if not told.cap:
        return set()
    alive = sorted(seq for seq in told.acked() if seq not in told.deleted)
    newest = set(alive[-told.cap :])
    unacked = sum(len(write.tokens) for write in told.writes if not write.acked)
    if unacked:
        newest = set(alive[-max(told.cap - unacked, 0) :]) if told.cap > unacked else set()
    return set(told.acked()) - newest


def _check_whole_writes(name: str, told: Instance, found: Seen) -> None:
    by_token = {token: seq for seq, token in found.records.items()}
    assert len(by_token) == len(found.records), f"{name}: a record is there twice"
    submitted = {token for write in told.writes for token in write.tokens}
    for token in by_token:
        assert token in submitted, f"{name}: record {token!r} was never submitted"
    for write in told.writes:
        if write.acked:
            continue
        present = [token for token in write.tokens if token in by_token]
        if not present or told.cap or told.deleting:
            continue
        assert len(present) == len(write.tokens), f"{name}: half of a write is there: {present}"
        seqs = [by_token[token] for token in write.tokens]
        assert seqs == list(range(seqs[0], seqs[0] + len(seqs))), f"{name}: a write is not contiguous: {seqs}"


def token_of(data: bytes) -> str:
    return str(json.loads(data))
