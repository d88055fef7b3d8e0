"""Tombstone: an announced gap, `gap_from..gap_to`, both ends lost. Made by core's read plan, shown by every door."""

from typing import Literal

import msgspec

# An open set for clients; these are the ones we send. `from_seq_too_old` is a label of watch streams only.
TombstoneReason = Literal["cap", "ttl", "mixed", "source_trim", "recreated", "restart"]


class Tombstone(msgspec.Struct, frozen=True):
    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int
    earliest_seq: int
    head_seq: int
