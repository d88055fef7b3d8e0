"""What a read asks for and what it gives. Made by the engine's readers; planned and answered by `core.read`."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from topics.core.ahead import Ahead
from topics.model.run import RecordRun
from topics.model.tombstone import Tombstone


class ReadRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Bounds are clamped already. `epoch` is that of the cursor, None if its owner does not know; `head_limit` is the
    highest seq a strong reader may see; `nodes` are left out; `touch` is off for reads that are no consumption; `ahead`
    belongs to a reader that is going to read on; `shows_floor` is off where nothing but a tombstone tells the reader of
    the topic's `earliest_seq`."""

    from_seq: int
    limit: int = 256
    budget_bytes: int = 1 << 20
    nodes: frozenset[bytes] | None = None
    epoch: int | None = None
    head_limit: int | None = None
    touch: bool = True
    ahead: Ahead | None = None
    shows_floor: bool = True


class ReadOutcome(NamedTuple):
    """`scanned` counts the live records looked at, hidden ones included. `epoch` is that of `next_from_seq`."""

    runs: list[RecordRun]
    records: int
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    lag: int
    tombstone: Tombstone | None
    scanned: int
    epoch: int
