"""The invariants of `docs/spec/semantics.md#sec-17` up to 40, and 56, by number, and how a check names the one it
checks.

    holds(3, now >= then, "head fell")

Every check counts, so that a run can say whether each was reached; `only` leaves all but one out, which shows whether
that one alone notices a mistake (`test_invariants.py`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

INVARIANTS = {
    1: "a write of N acked records has N consecutive seqs, the first above every seq acked before",
    2: "no seq is acked twice in one instance",
    3: "head never decreases",
    4: "a reader who sees head h finds every live record at or below h",
    5: "once one record of a batch is there, all of it is; no crash separates them",
    6: "a failed write is invisible and changes neither count nor bytes",
    7: "ts does not decrease with seq",
    8: "without crash and failed write, head is the number of records ever acked",
    9: "1 <= evict_floor <= earliest_seq <= head + 1",
    10: "evict_floor and earliest_seq never decrease, restarts included",
    11: "earliest_seq is the smallest seq of a full read, or head + 1",
    12: "count and bytes are those of a full read",
    13: "deletes leave evict_floor unchanged",
    14: "evicting or expiring what was deleted before leaves evict_floor unchanged",
    15: "loosening a cap or TTL, or turning the clock back, resurrects nothing",
    16: "a read from c has a prefix tombstone if and only if c + 1 < evict_floor",
    17: "with no cap, no TTL and class fsync no tombstone but `recreated` occurs",
    18: "every acked seq is delivered, hidden by the reader's filter, deleted, or inside an announced gap",
    19: "an announced gap holds no live record",
    20: "at most one tombstone a response, in front of its records",
    21: "readers with the same cursor and filter get the same records and gaps, however they ask",
    22: "a cursor held across delete and recreate yields one `recreated`, then all of the new instance",
    23: "an `old` topic is within its caps after any operation",
    24: "a `reject` topic loses nothing to its caps, and no write takes it above one",
    25: "a refused write changes nothing",
    26: "a record is delivered at ts + ttl and never later",
    27: "a deleted seq never appears again",
    28: "a record written after a delete is unaffected by it",
    29: "match with before_seq removes nothing at or above it, and nothing that does not match",
    30: "the work of a delete by tag does not depend on the length of the log",
    31: "flags, drops and rewrites leave exactly the same readable records",
    32: "delivered seqs increase and exceed the cursor",
    33: "a reader that repeats with next_from_seq catches up",
    34: "a response keeps to its limit and, beyond its first record, to its bytes",
    35: "a reader naming node X gets no record of X, and still catches up",
    36: "any number of writes with one key append one batch, and all acks carry its seqs",
    37: "fsync: every acked record is read back unchanged after any crash",
    38: "disk: the same after a kill; after a power cut a prefix is, and the rest is announced",
    39: "memory, ephemeral: whatever is read was written; config and order persist",
    40: "recovering twice gives the same state as recovering once",
    56: "a manifest's blocks are ascending and disjoint, and each live record is in one of them and counted there",
}
REACHED: Counter[int] = Counter()
_only: int | None = None


class Broken(AssertionError):
    """An invariant does not hold; says which."""


def holds(number: int, condition: object, found: object = "") -> None:
    if _only not in (None, number):
        return
    REACHED[number] += 1
    if not condition:
        raise Broken(f"invariant {number} is broken: {INVARIANTS[number]}. Found: {found}")


def agrees(found: object, expected: object, what: str = "") -> None:
    """The engine says what the model says."""
    assert _only is not None or found == expected, f"{what}: the engine has {found}, the model {expected}"


@contextmanager
def only(number: int) -> Iterator[None]:
    """Within, every other check is silent, also the comparison with the model."""
    global _only
    _only = number
    try:
        yield
    finally:
        _only = None
